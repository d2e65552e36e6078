"""``kvwatch render``: what a site gets below its folder, with its own thresholds, and what tells it that a file drifted."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvwatch.command_line import main
from kvwatch.render import Site, render
from kvwatch.rules import RULES, active

FILES = ("alerts/kvwatch.rules.yaml", "alerts/alertmanager.yaml", "alerts/runbook.md")
SPAN = re.compile(r"\[(\d+)(ms|s):(\d+)(ms|s)\]")
MILLISECONDS = {"ms": 1, "s": 1000}
WORST = ("info", "warning", "critical")


def alerts(folder: Path) -> dict[str, dict[str, Any]]:
    """The rendered alerts by the rule they are about; of those with a variant for an engine, one."""
    groups = yaml.safe_load((folder / FILES[0]).read_text())["groups"]
    return {alert["labels"]["rule"]: alert for group in groups for alert in group["rules"]}


def test_writes_and_then_finds_nothing_to_say(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Everything is below the wanted folder, which need not exist, and is what --check wants; a README that is not there is not made."""
    site = str(tmp_path / "new" / "site")
    assert main(["render", "--output", site]) == 0
    assert [file for file in FILES if not (Path(site) / file).is_file()] == []
    assert not (Path(site) / "README.md").exists()
    assert main(["render", "--check", "--output", site]) == 0
    assert capsys.readouterr() == ("", "")


def test_check_names_each_file_that_drifted_and_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A changed file and a missing one are named, a line each, and stay as they are; the exit code is 1."""
    assert main(["render", "--output", str(tmp_path)]) == 0
    (tmp_path / FILES[0]).write_text("changed\n")
    (tmp_path / FILES[2]).unlink()
    assert main(["render", "--check", "--output", str(tmp_path)]) == 1
    out, errors = capsys.readouterr()
    assert (out, [file for file in FILES if file in errors], len(errors.splitlines())) == ("", [FILES[0], FILES[2]], 2)
    assert (tmp_path / FILES[0]).read_text() == "changed\n"
    assert not (tmp_path / FILES[2]).exists()


def test_only_what_is_asked_for(tmp_path: Path) -> None:
    """One name renders one thing."""
    assert main(["render", "runbook", "--output", str(tmp_path)]) == 0
    assert [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()] == [FILES[2]]


def test_an_unknown_name_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    """It is one line that says what there is."""
    assert main(["render", "alert"]) == 64
    errors = capsys.readouterr().err
    assert errors.startswith("kvwatch render: 'alert' cannot be rendered; there are all, alerts, alertmanager")
    assert errors.count("\n") == 1


@pytest.mark.parametrize(
    "url", ["runbook/", "https://wiki.example/runbook", "https://wiki.example/{{ .Rule }}/", "https://wiki.example/a b#", ""]
)
def test_a_runbook_whose_links_would_break_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str], url: str) -> None:
    """An id is put behind the address, in a template: what would give no link is wrong usage, and nothing is written."""
    with pytest.raises(SystemExit) as ended:
        main(["render", "alerts", "--output", str(tmp_path), "--runbook-url", url])
    assert ended.value.code == 64
    assert capsys.readouterr().err.count("\n") == 1
    assert [*tmp_path.iterdir()] == []


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file in the way of the folder, or a folder in the way of a file, is named."""
    (tmp_path / "file").write_text("")
    (tmp_path / "taken" / FILES[2]).mkdir(parents=True)
    for folder, named in (("file", "file/alerts"), ("taken", f"taken/{FILES[2]}")):
        assert main(["render", "runbook", "--output", str(tmp_path / folder)]) == 64
        said = capsys.readouterr().err
        assert said.startswith(f"kvwatch render: {tmp_path / named}: ")
        assert said.count("\n") == 1


def test_a_file_of_another_encoding_has_drifted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Bytes that are no text are only another content; a README that is none cannot be filled, and that is said."""
    (tmp_path / "alerts").mkdir()
    (tmp_path / FILES[2]).write_bytes(b"\xff\xfe")
    assert main(["render", "runbook", "--check", "--output", str(tmp_path)]) == 1
    assert main(["render", "runbook", "--output", str(tmp_path)]) == 0
    assert main(["render", "runbook", "--check", "--output", str(tmp_path)]) == 0
    capsys.readouterr()
    (tmp_path / "README.md").write_bytes(b"\xff\xfe")
    assert main(["render", "readme", "--output", str(tmp_path)]) == 64
    assert capsys.readouterr().err == f"kvwatch render: {tmp_path / 'README.md'}: is no UTF-8 text; name another folder with --output\n"


def test_a_sites_thresholds_holds_and_runbook(tmp_path: Path) -> None:
    """A limit, a hold and the runbook's address are the site's in its own alerts, and in no other rule's."""
    config = tmp_path / "kvwatch.yaml"
    holds = "l2-store-failing: {hold: 2m}\n  ttft-degraded: {ttft_slowdown: 3.5, hold: 500ms}"
    config.write_text(f"thresholds:\n  {holds}\n")
    command = ["render", "alerts", "--config", str(config), "--output", str(tmp_path)]
    assert main([*command, "--runbook-url", "https://docs.example/kv#"]) == 0
    found = alerts(tmp_path)
    assert found["l2-store-failing"]["for"] == "120s"
    assert found["ttft-degraded"]["for"] == "500ms"
    assert "ttft_slowdown_min >= 3.5" in found["ttft-degraded"]["expr"]
    assert "ttft_slowdown" not in found["l1-saturated"]["expr"]
    assert found["l1-saturated"]["annotations"]["runbook_url"] == "https://docs.example/kv#l1-saturated"


@pytest.mark.parametrize("hold", [0.0004, 0.001, 0.01, 0.5, 1.0, 7.0, 300.0, 30_000_000.0])
def test_any_hold_is_one_that_prometheus_reads(tmp_path: Path, hold: float) -> None:
    """However short or long: the terms are asked for several times within the clear-hold and at each sample, or each millisecond."""
    interval = min(hold, 1.0)
    site = Site(active({rule: {"hold": hold} for rule in RULES}), tmp_path, interval=interval)
    text = render(["alerts"], site)[FILES[0]]
    spans = SPAN.findall(text)
    assert len(spans) >= len(RULES)
    assert [s for s in spans if int(s[0]) * MILLISECONDS[s[1]] < 5 * int(s[2]) * MILLISECONDS[s[3]] and s[2:] != ("1", "ms")] == []
    assert [s for s in spans if int(s[2]) * MILLISECONDS[s[3]] > max(1, interval * 1000)] == []
    if shutil.which("promtool") is not None:
        (tmp_path / "rules.yaml").write_text(text)
        subprocess.run(["promtool", "check", "rules", str(tmp_path / "rules.yaml")], check=True, capture_output=True)


def test_the_runbook_has_a_section_for_every_rule(tmp_path: Path) -> None:
    """The anchor of a finding is its id."""
    text = render(["runbook"], Site(active(), tmp_path))[FILES[2]]
    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == list(RULES)


def inhibitions(tmp_path: Path) -> dict[str, tuple[set[str], list[str]]]:
    """What each root silences, and which labels must be equal."""
    rules = yaml.safe_load(render(["alertmanager"], Site(active(), tmp_path))[FILES[1]])["inhibit_rules"]
    matcher = re.compile(r'rule=~?"([^"]+)"')
    return {
        source[1]: (set(target[1].split("|")), rule["equal"])
        for rule in rules
        if (source := matcher.fullmatch(rule["source_matchers"][0])) and (target := matcher.fullmatch(rule["target_matchers"][0]))
    }


def test_a_root_silences_its_effects_but_no_warning_a_page(tmp_path: Path) -> None:
    """Every edge to an effect that is no worse is one of inhibition, for the same subject, or the same model where the root spreads."""
    silenced = inhibitions(tmp_path)
    for rule in RULES.values():
        effects, equal = silenced.get(rule.id, (set(), []))
        assert effects == {e for e in rule.causes if WORST.index(RULES[e].severity) <= WORST.index(rule.severity)}, rule.id
        if effects:
            assert equal == (["engine", "model"] if rule.spreads else ["instance", "target", "engine", "model", "rank"])
    assert silenced["l1-saturated-l2-idle"][0] >= {"preemption-storm", "ttft-degraded"}


@pytest.mark.skipif(shutil.which("amtool") is None, reason="amtool is not installed (Debian: prometheus-alertmanager)")
@pytest.mark.parametrize(("severity", "receiver"), [("critical", "page"), ("warning", "default"), ("info", "quiet")])
def test_severity_decides_who_is_told(tmp_path: Path, severity: str, receiver: str) -> None:
    """Amtool routes an alert of each severity to its receiver."""
    (tmp_path / "alertmanager.yaml").write_text(render(["alertmanager"], Site(active(), tmp_path))[FILES[1]])
    command = ["amtool", "config", "routes", "test", f"--config.file={tmp_path / 'alertmanager.yaml'}", f"severity={severity}", "target=t"]
    assert subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip() == receiver
