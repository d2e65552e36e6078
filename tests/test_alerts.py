"""The rendered alerts: valid, on series that exist, and of one mind with the verdict in process."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.core import Metric

from kvwatch.baseline import Baseline
from kvwatch.metrics import families
from kvwatch.model import EngineState
from kvwatch.render import Site, drifted, render
from kvwatch.render.alerts import PATH, alert_name
from kvwatch.report import Verdict
from kvwatch.rules import RULES, active
from kvwatch.store import OwnerSnapshot, Snapshot, TargetSnapshot
from kvwatch.target import Target
from kvwatch.view import Watch
from kvwatch.wording import places, without_places
from tests.scenarios import STEP, Moment, Scenario, Values, judged_moments, scenarios

ROOT = Path(__file__).parents[1]
ALL = scenarios()
SERIES = re.compile(r"\bkvwatch_[a-z0-9_]+")
LONGEST_HOLD = 90.0
"""Seconds after which everything fires that a reason could make redundant."""
promtool = pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed (Debian: prometheus)")


def rendered(site: Site) -> list[dict[str, Any]]:
    """The alerts of the file."""
    alerts: list[dict[str, Any]] = yaml.safe_load(render(["alerts"], site)[PATH])["groups"][0]["rules"]
    return alerts


def site(**thresholds: dict[str, float]) -> Site:
    """The repository with some thresholds."""
    return Site(active({name.replace("_", "-"): limits for name, limits in thresholds.items()}), ROOT)


def test_committed_files_are_what_is_rendered() -> None:
    """Alerts, Alertmanager's configuration, the runbook and the README's tables have not drifted from the catalogue."""
    assert drifted(render(["alerts", "alertmanager", "runbook", "readme"], site()), ROOT) == []


def exported(moment: Moment) -> list[Metric]:
    """What /metrics says of a moment."""
    s = moment.subject
    owners: tuple[OwnerSnapshot, ...] = ()
    targets: tuple[TargetSnapshot, ...] = ()
    if s.engine is None:
        targets = (TargetSnapshot(Target("t", "t"), None, None, moment.judged, {}),)
    else:
        state = EngineState("t", s.engine, s.model, s.rank or "0", moment.judged.at)  # type: ignore[arg-type]  # a scenario's engine
        owners = (OwnerSnapshot(state, moment.judged, Baseline(), None, stale=False),)
    snapshot = Snapshot(moment.judged.at, Watch(), targets, owners, None)
    return list(families(Verdict(snapshot, moment.findings, "ok", "", None)))


def all_series() -> set[str]:
    """Every name kvwatch can export: what it exports when every signal is known, bounds included."""
    names = set()
    for scenario in ALL:
        for metric in exported(judged_moments(scenario.engine, [scenario.fires])[0]):
            names |= {metric.name, f"{metric.name}_total"}
    return names


def test_no_expression_names_a_series_that_is_not_exported() -> None:
    """An alert on a series nobody exports would never fire, and nobody would notice."""
    known = all_series() | {"kvwatch_finding", "kvwatch_finding_quiet_seconds"}
    ours = yaml.safe_load((ROOT / "alerts" / "kvwatch-self.rules.yaml").read_text())["groups"][0]["rules"]
    for alert in (*rendered(site()), *ours):
        assert set(SERIES.findall(alert["expr"])) <= known, alert["alert"]


def test_no_sentence_has_a_hole() -> None:
    """Where no numbers are at hand a rule says its short title and general advice: no place is left, and no gap where one was."""
    said = [
        sentence
        for rule in RULES.values()
        for sentence in (rule.short, *(without_places(text) for do in rule.remedy for text in (do.do, do.because)))
    ]
    assert [
        sentence for sentence in said if places(sentence) or sentence.split()[-1] in {"of", "at", "to", "from", "above", "about", "than"}
    ] == []
    assert [rule.id for rule in RULES.values() if rule.headline and not places(rule.title)] == [], "a headline that nobody needs"


def test_every_rule_has_an_alert() -> None:
    """No finding goes without one."""
    names = {alert["alert"] for alert in rendered(site())}
    assert names == {alert_name(rule) for rule in RULES}


@promtool
def test_promtool_has_nothing_to_say(tmp_path: Path) -> None:
    """The rule files are valid, also with thresholds inside conditions replaced."""
    changed = site(l1_saturated={"l1_used_ratio": 0.97, "hold": 45.0}, queue_with_free_kv={"l1_used_ratio": 0.9})
    (tmp_path / "changed.yaml").write_text(render(["alerts"], changed)[PATH])
    for file in (*ROOT.glob("alerts/*.rules.yaml"), tmp_path / "changed.yaml"):
        subprocess.run(["promtool", "check", "rules", str(file)], check=True, capture_output=True)


@pytest.mark.skipif(shutil.which("amtool") is None, reason="amtool is not installed (Debian: prometheus-alertmanager)")
def test_amtool_accepts_the_configuration() -> None:
    """The rendered Alertmanager configuration is valid."""
    subprocess.run(["amtool", "check-config", str(ROOT / "alerts" / "alertmanager.yaml")], check=True, capture_output=True)


def test_a_sites_threshold_is_in_the_expression() -> None:
    """A limit inside a condition that a site replaces is written out in the rules of that site, and only there."""
    alerts = {a["alert"]: a for a in rendered(site(l1_saturated={"l1_used_ratio": 0.97, "hold": 45.0}))}
    assert "kvwatch_l1_used_ratio >= 0.97" in alerts["KvwatchL1Saturated"]["expr"]
    assert alerts["KvwatchL1Saturated"]["for"] == "45s"
    assert "kvwatch_l1_used_ratio" not in alerts["KvwatchL1L2Saturated"]["expr"]


def sequences(scenario: Scenario) -> Iterator[list[Values]]:
    """Runs of a scenario: it lasts, wobbles and clears; each change that keeps it from firing; each reason; each signal missing."""
    rule = next(r for r in active() if r.rule.id == scenario.rule.id)
    steps, clear = int(rule.hold_for(scenario.engine) / STEP), int(rule.clear_hold_for(scenario.engine) / STEP)
    off = scenario.below[0]
    yield [*[scenario.fires] * (steps + 3), *[off] * clear, *[scenario.fires] * 3, *[off] * (clear + 3)]
    for values in scenario.below:
        yield [values] * (steps + 2)
    for values in scenario.reasons.values():
        yield [values] * int(LONGEST_HOLD / STEP + 3)
    for name in scenario.unknown:
        yield [{signal: value for signal, value in scenario.fires.items() if signal != name}] * (steps + 2)


def series_lines(run: Sequence[Moment]) -> list[dict[str, str]]:
    """A run as promtool's input series: one value each ``STEP`` seconds, ``_`` where the series is absent."""
    values: dict[str, list[str]] = {}
    for number, moment in enumerate(run):
        for metric in exported(moment):
            for sample in metric.samples:
                labels = ",".join(f'{k}="{v}"' for k, v in sorted(sample.labels.items()))
                row = values.setdefault(f"{sample.name}{{{labels}}}", ["_"] * len(run))
                row[number] = f"{sample.value:.12g}"
    # an absent sample is stale, as Prometheus marks it after a scrape without it
    return [{"series": name, "values": " ".join("stale" if v == "_" else v for v in row)} for name, row in values.items()]


WRITTEN_OUT = {r.id: {term.signal.name: term.limit for term in r.terms() if term.signal.unit != "condition"} for r in RULES.values()}
"""A site that says every limit itself, as it is anyway: no condition is asked for by its name."""


@promtool
@pytest.mark.parametrize("thresholds", [{}, WRITTEN_OUT], ids=["default", "every limit configured"])
def test_alerts_and_verdict_agree(tmp_path: Path, thresholds: dict[str, dict[str, float]]) -> None:
    """On every scenario, at every sample, the alerts that fire are the findings that fire: none is missing, none is too many."""
    rules = active(thresholds)
    alerts = rendered(Site(rules, ROOT))
    usual = {alert["expr"] for alert in rendered(site())} if thresholds else set()
    changed = {alert["labels"]["rule"] for alert in alerts if alert["expr"] not in usual}
    for alert in alerts:
        alert.pop("annotations")  # promtool compares them literally
    chosen = [scenario for scenario in ALL if scenario.rule.id in changed]
    group = {"name": "kvwatch", "interval": f"{STEP:g}s", "rules": alerts}
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump({"groups": [group]}))
    for scenario in chosen:
        runs = [judged_moments(scenario.engine, moments, rules) for moments in sequences(scenario)]
        tests = [{"interval": f"{STEP:g}s", "input_series": series_lines(run), "promql_expr_test": _checks(run)} for run in runs]
        file = tmp_path / f"{scenario.rule.id}.yaml"
        file.write_text(json.dumps({"rule_files": ["rules.yaml"], "evaluation_interval": f"{STEP:g}s", "tests": tests}))  # YAML, too
    files = [str(tmp_path / f"{scenario.rule.id}.yaml") for scenario in chosen]
    done = subprocess.run(["promtool", "test", "rules", *files], check=False, capture_output=True, text=True)
    assert done.returncode == 0, (done.stdout + done.stderr)[:5000]


def _checks(run: Sequence[Moment]) -> list[dict[str, object]]:
    """At each sample: the rules whose alerts fire, each once."""
    return [
        {
            "expr": 'count by (rule) (ALERTS{alertstate="firing"})',
            "eval_time": f"{i * STEP:g}s",
            "exp_samples": [{"labels": f'{{rule="{f.rule}"}}', "value": 1} for f in moment.findings if f.status == "firing"],
        }
        for i, moment in enumerate(run)
    ]
