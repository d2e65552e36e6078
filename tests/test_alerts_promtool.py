"""What the alerts say and when, on series that promtool is given: alternatives, several daemons, numbers, and kvwatch itself."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvwatch.render import Site, render
from kvwatch.render.alerts import PATH
from kvwatch.rules import active

ROOT = Path(__file__).parents[1]
STEP = "5s"
LABELS = {"target": "t", "engine": "vllm", "model": "m", "rank": "0"}
pytestmark = pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed (Debian: prometheus)")


def rendered(rule: str, thresholds: Mapping[str, Mapping[str, float]] | None = None) -> dict[str, Any]:
    """The first alert about a rule."""
    alerts: list[dict[str, Any]] = yaml.safe_load(render(["alerts"], Site(active(thresholds), ROOT))[PATH])["groups"][0]["rules"]
    return next(alert for alert in alerts if alert["labels"]["rule"] == rule)


def all_bare() -> list[dict[str, Any]]:
    """All alerts without their annotations, which promtool compares literally."""
    return [a for a in yaml.safe_load(render(["alerts"], Site(active(), ROOT))[PATH])["groups"][0]["rules"] if a.pop("annotations")]


def promtool_says(
    folder: Path, alerts: list[dict[str, Any]], series: Mapping[str, str], *checks: Mapping[str, object], kind: str = "alert_rule_test"
) -> str:
    """What promtool has against a test of these alerts, on series with a value each ``STEP``; nothing when it passes."""
    (folder / "rules.yaml").write_text(yaml.safe_dump({"groups": [{"name": "g", "interval": STEP, "rules": alerts}]}))
    inputs = [{"series": name, "values": values} for name, values in series.items()]
    tests = [{"interval": STEP, "input_series": inputs, kind: list(checks)}]
    file = folder / "test.yaml"
    file.write_text(yaml.safe_dump({"rule_files": ["rules.yaml"], "evaluation_interval": STEP, "tests": tests}))
    done = subprocess.run(["promtool", "test", "rules", str(file)], check=False, capture_output=True, text=True)
    return "" if done.returncode == 0 else done.stdout + done.stderr


def firing(moments: Mapping[int, list[str]]) -> list[dict[str, object]]:
    """Checks, as expressions, that just these rules' alerts fire at these seconds, each once."""
    return [
        {
            "expr": 'count by (rule) (ALERTS{alertstate="firing"})',
            "eval_time": f"{at}s",
            "exp_samples": [{"labels": f'{{rule="{rule}"}}', "value": 1} for rule in rules],
        }
        for at, rules in moments.items()
    ]


def saturated_for(steps: int) -> dict[str, str]:
    """Series of a pool that is full for so many steps, and of first tokens that stay late."""
    o = owner()
    return {
        f"kvwatch_l1_bound{{{o},reason='saturated'}}": f"1x{steps} 0x99",
        f"kvwatch_pain{{{o}}}": f"1x{steps} 0x99",
        f"kvwatch_ttft_high{{{o}}}": "1x123",
        f"kvwatch_ttft_fresh{{{o}}}": "1x123",
    }


def owner(**labels: str) -> str:
    """Labels of a series about a pool owner."""
    return ",".join(f'{k}="{v}"' for k, v in (LABELS | labels).items())


def test_what_is_true_in_turns_is_one_alert(tmp_path: Path) -> None:
    """A pool that is full by its ratio at one moment and by what the next prompt needs at another is saturated all the time."""
    changed = rendered("l1-saturated", {"l1-saturated": {"l1_used_ratio": 0.97}})
    o = owner()
    series = {
        f"kvwatch_l1_used_ratio{{{o}}}": "0.98 0.96 " * 12,
        f"kvwatch_l1_shortfall_tokens{{{o}}}": "0 100 " * 12,
        f"kvwatch_requests_waiting{{{o}}}": "4x24",
        f"kvwatch_ttft_slowdown_min{{{o}}}": "3x24",
        f"kvwatch_pain{{{o}}}": "1x24",
    }
    fires = {"eval_time": "60s", "alertname": "KvwatchL1Saturated"}
    said = promtool_says(tmp_path, [changed], series, fires)
    assert "same labelset" not in said
    assert 'rule="l1-saturated"' in said, "it fires, and only the empty list that was expected is wrong"


@pytest.mark.parametrize(("budget", "fires"), [("0x24", True), ("1x24", False), ("_x24", False)], ids=["refuted", "proven", "unknown"])
def test_with_a_sites_limit_what_is_not_known_refutes_nothing(tmp_path: Path, budget: str, fires: bool) -> None:  # noqa: FBT001  pytest gives it
    """A pool that binds by the usual limit and not by the site's is proven not to bind only where nothing else may bind it."""
    alert = rendered("queue-with-free-kv", {"queue-with-free-kv": {"l1_used_ratio": 0.97}})
    o = owner()
    series = {
        f"kvwatch_requests_queued{{{o}}}": "3x24",
        f"kvwatch_requests_waiting{{{o}}}": "3x24",
        f"kvwatch_l1_full_used_ratio{{{o}}}": "0.5x24",
        f"kvwatch_l1_used_ratio{{{o}}}": "0.96x24",
        f"kvwatch_l1_reclaimable_ratio{{{o}}}": "0.04x24",
        f"kvwatch_preempting{{{o}}}": "0x24",
        f"kvwatch_l1_unbound{{{o}}}": "0x24",
        f"kvwatch_budget_bound{{{o}}}": budget,
    }
    quiet = {"eval_time": "100s", "alertname": "KvwatchQueueWithFreeKv"}
    assert ('rule="queue-with-free-kv"' in promtool_says(tmp_path, [alert], series, quiet)) is fires


@pytest.mark.parametrize(
    ("interval", "samples", "fires"),
    [(60, "10", False), (60, "11", True), (20, "1001", False), (20, "1010", True), (20, "111", True), (15, "100", True)],
)
def test_an_alert_counts_as_many_samples_as_the_verdict(tmp_path: Path, interval: int, samples: str, fires: bool) -> None:  # noqa: FBT001  pytest gives it
    """Between two scrapes a value stands still, which proves nothing: a site's hold and clear-hold are whole intervals."""
    rules = active()
    l1_saturated = next(r for r in rules if r.rule.id == "l1-saturated")
    alerts = yaml.safe_load(render(["alerts"], Site((l1_saturated,), ROOT, interval=interval))[PATH])["groups"][0]["rules"]
    assert alerts[0].pop("annotations")
    values, o = " ".join(f"{sample} " * (interval // 5) for sample in f"{samples}000"), owner()
    series = {f"kvwatch_l1_bound{{{o},reason='saturated'}}": values, f"kvwatch_pain{{{o}}}": values}
    last = (len(samples) + 3) * interval
    checks = [{"expr": 'ALERTS{alertstate="firing"}', "eval_time": f"{at}s", "exp_samples": []} for at in range(0, last, 5)]
    assert ("FAILED" in promtool_says(tmp_path, alerts, series, *checks, kind="promql_expr_test")) is fires


def test_daemons_beside_engines_of_one_name_are_told_apart(tmp_path: Path) -> None:
    """Each kvwatch in a pod may call its engine the same: what is true of one engine and what is true of another make no alert."""
    alert = rendered("l1-saturated")
    here, there = owner(instance="10.0.0.1:9477"), owner(instance="10.0.0.2:9477")
    bound, pain = "kvwatch_l1_bound{%s,reason='saturated'}", "kvwatch_pain{%s}"
    series = {bound % here: "1x24", pain % here: "0x24", bound % there: "0x24", pain % there: "1x24"}
    quiet = {"eval_time": "100s", "alertname": "KvwatchL1Saturated"}
    assert promtool_says(tmp_path, [alert], series, quiet) == ""
    assert "10.0.0.2:9477" in promtool_says(tmp_path, [alert], series | {bound % there: "1x24"}, quiet)


@pytest.mark.parametrize(
    ("rule", "series", "said"),
    [
        ("implausible-metric", {"implausible_values": "2"}, "implausible_values 2."),
        ("block-fragmentation", {"block_fill_ratio_max": "0.125"}, "block_fill_ratio_max 12.5%."),
        ("hbm-foreign-process", {"hbm_foreign_bytes_min": "8589934592"}, "hbm_foreign_bytes_min 8GiB."),
        ("queue-stalled", {"requests_queued": "12", "tokenless_seconds_min": "90"}, "requests_queued 12, tokenless_seconds_min 1m 30s."),
        (
            "long-context-squeeze",
            {"requests_waiting": "7", "ceiling_per_demand": "0.5", "sequence_change": "2.512"},
            "requests_waiting 7, ceiling_per_demand 0.5x, sequence_change 2.51x.",
        ),
        (
            "l1-saturated-l2-idle",
            {"l1_bound": "1", "pain": "1", "l2_idle": "1", "l1_used_ratio": "0.99", "l2_resident_ratio_max": "0.04"},
            "l1_used_ratio 99%, requests_waiting unknown, l2_resident_ratio_max 4%, l1_reclaimable_ratio unknown.",
        ),
    ],
)
def test_a_description_writes_each_number_by_its_unit(tmp_path: Path, rule: str, series: Mapping[str, str], said: str) -> None:
    """Shares, sizes and times as people say them, each of the rule's conditions with a number first, and unknown where nothing is known."""
    alert = rendered(rule)
    alert["annotations"] = {"description": alert["annotations"]["description"]}
    given = {f"kvwatch_{name}{{{owner()}}}": f"{value}x40" for name, value in series.items()}
    given[f"kvwatch_engine_info{{{owner()}}}"] = "1x40"
    found = promtool_says(tmp_path, [alert], given, {"eval_time": "180s", "alertname": alert["alert"]})
    assert f"Now: {said}" in re.sub(r"\s+", " ", found)


def test_alerts_about_kvwatch_itself(tmp_path: Path) -> None:
    """Each says one thing: a daemon that is down is not absent too, and a target found down is neither unreachable nor stale."""
    ours = yaml.safe_load((ROOT / "alerts" / "kvwatch-self.rules.yaml").read_text())["groups"][0]["rules"]
    for alert in ours:
        alert["annotations"] = {}
    up, here = 'up{job="kvwatch",instance="i"}', 'instance="i"'
    build, slow = f"kvwatch_build_info{{{here}}}", f'scrape_duration_seconds{{job="kvwatch",{here}}}'
    target_up, last = f'kvwatch_target_up{{{here},target="a"}}', f'kvwatch_last_scrape_timestamp_seconds{{{here},target="a"}}'
    down = f'kvwatch_finding{{{here},rule="target-down",severity="critical",target="a"}}'
    taken = f"kvwatch_config_last_reload_successful{{{here}}}"
    well = {taken: "1x200", up: "1x200", build: "1x200", slow: "0.1x200", target_up: "1x200", last: "0+5x200"}
    for series, wanted in (
        (well, {}),
        ({up: "0x200"}, {"KvwatchDown": {"job": "kvwatch", "instance": "i"}}),
        ({}, {"KvwatchDown": {}}),
        (well | {slow: "6x200"}, {"KvwatchAnswersSlowly": {"job": "kvwatch", "instance": "i"}}),
        (well | {target_up: "0x200", last: "0x200"}, {"KvwatchTargetUnreachable": {"instance": "i", "target": "a"}}),
        (well | {target_up: "0x200", last: "0x200", down: "1x200"}, {}),
        (well | {taken: "1x50 0x150"}, {"KvwatchConfigRefused": {"instance": "i"}}),
        (well | {last: "0x200"}, {"KvwatchTargetStale": {"instance": "i", "target": "a"}}),
    ):
        severities = {alert["alert"]: alert["labels"]["severity"] for alert in ours}
        checks = [
            {
                "eval_time": "900s",
                "alertname": name,
                "exp_alerts": [{"exp_labels": {"severity": severities[name]} | wanted[name]}] if name in wanted else [],
            }
            for name in severities
        ]
        assert promtool_says(tmp_path, ours, series, *checks) == ""


def test_what_a_root_leaves_behind_tells_nobody(tmp_path: Path) -> None:
    """Late first tokens stay in the window for a while after the pool has room: no news then, but news when they stay for good."""
    both = ["l1-saturated", "ttft-degraded"]
    checks = firing({115: both, 145: both, 160: [], 200: [], 270: [], 400: ["ttft-degraded"]})
    assert promtool_says(tmp_path, all_bare(), saturated_for(24), *checks, kind="promql_expr_test") == ""


@pytest.mark.parametrize(
    ("general", "own"),
    [
        ("l2-write-starved", "kvwatch_l2_write_starved{%s}"),
        ("queue-with-free-kv", "kvwatch_l1_unbound{%s}"),
    ],
)
def test_what_a_specific_finding_said_is_no_news_after_it(tmp_path: Path, general: str, own: str) -> None:
    """What was part of a finding, by its reason or in general, and outlasts it by a window tells nobody; what stays for good does."""
    o, steps = owner(), 24
    found = f"kvwatch_finding{{{o},rule='l1-saturated-l2-idle',severity='critical',reason='write-starved'}}"
    series = {
        f"kvwatch_l1_bound{{{o},reason='saturated'}}": f"1x{steps} 0x99",
        f"kvwatch_pain{{{o}}}": f"1x{steps} 0x99",
        f"kvwatch_l2_idle{{{o}}}": "1x123",
        f"kvwatch_engine_info{{{o}}}": "1x123",
        found: f"_x5 1x{steps} stale",
        f"kvwatch_requests_queued{{{o}}}": "4x123",
        f"kvwatch_l1_full_used_ratio{{{o}}}": "0.5x123",
        own % o: "1x123",
    }
    checks = firing({115: ["l1-saturated-l2-idle"], 145: ["l1-saturated-l2-idle"], 160: [], 230: [], 270: [], 400: [general]})
    assert promtool_says(tmp_path, all_bare(), series, *checks, kind="promql_expr_test") == ""


@pytest.mark.parametrize(
    ("quiet", "both_until"),
    [("5 10 15 20 25 30", 125), ("14.998x2", 120)],
    ids=["every 5 s", "every 15 s, where scrapes come milliseconds early and there may be no second one"],
)
def test_an_effect_ends_before_its_root(tmp_path: Path, quiet: str, both_until: int) -> None:
    """Its effects have ended when a root is about to end: whatever Alertmanager hears first, none of them tells anybody."""
    series = saturated_for(24)
    series[f"kvwatch_finding_quiet_seconds{{{owner()},rule='l1-saturated',severity='critical',reason=''}}"] = f"0x24 {quiet} stale"
    checks = firing({both_until: ["l1-saturated", "ttft-degraded"], 130: ["l1-saturated"], 145: ["l1-saturated"], 160: [], 200: []})
    assert promtool_says(tmp_path, all_bare(), series, *checks, kind="promql_expr_test") == ""
