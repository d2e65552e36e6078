"""Recorded incidents: found in time, nothing false in calm phases; and an evaluation that can tell otherwise.

The recordings of the demo are always read, all others where ``KVWATCH_CAPTURES`` names their folder.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from importlib.resources import as_file, files
from pathlib import Path

import pytest

from kvwatch.recording import RECORDING
from tests.evaluate import PHASES, Phase, evaluate, main, phases_of, recordings

DATA = Path(__file__).parent / "data" / "recordings"
CAPTURES = Path(os.environ.get("KVWATCH_CAPTURES", Path(__file__).parents[2] / "shared" / "captures"))
FOUND = {"vllm": ("l1-saturated",), "sglang-hicache": ("l1-saturated-l2-idle(write-starved)",)}


@pytest.fixture(params=["vllm"])
def recorded(request: pytest.FixtureRequest) -> Iterator[tuple[Path, list[Phase]]]:
    """A recording and its phases."""
    with as_file(files("kvwatch.demo") / "recordings" / request.param) as folder:
        yield folder, phases_of(DATA / f"{request.param}.phases.json")


@pytest.mark.parametrize("recorded", FOUND, indirect=True)
def test_the_incident_is_found_and_the_calm_is_quiet(recorded: tuple[Path, list[Phase]]) -> None:
    """In every phase; the overload by its own root."""
    folder, phases = recorded
    told = evaluate(folder, phases)
    assert [(p.name, p.fault()) for p in told if p.fault()] == []
    (overload,) = (p for p in told if p.overloaded)
    assert overload.critical > 0.8 * overload.samples
    assert all(any(name.startswith(root) for root in FOUND[folder.name]) for name in critical_roots(overload))


def critical_roots(phase: Phase) -> list[str]:
    """What was named as the root about L1."""
    return [name for name in phase.roots if name.startswith(("l1-", "admission-"))]


def test_an_overload_that_is_none_is_a_fault(recorded: tuple[Path, list[Phase]]) -> None:
    """If somebody calls the calm phase overloaded, the evaluation says that nothing was found there."""
    folder, phases = recorded
    calm = next(p for p in phases if p.name == "moderate")
    (told,) = evaluate(folder, [Phase("saturated", calm.begin, calm.end)])
    assert told.fault() == "overload not found"


def test_a_finding_where_it_was_calm_is_a_fault(recorded: tuple[Path, list[Phase]], monkeypatch: pytest.MonkeyPatch) -> None:
    """A critical finding in a calm phase may stand until its clear-hold has passed; if it had none, each sample would count."""
    folder, phases = recorded
    overload = next(p for p in phases if p.overloaded)
    monkeypatch.setattr("tests.evaluate.CLEAR_HOLD", -1.0)
    (told,) = evaluate(folder, [Phase("moderate", overload.begin, overload.end)])
    assert told.false_critical == told.critical > 0
    assert told.fault() == f"{told.critical} samples with a false critical finding"


def test_too_late_is_a_fault() -> None:
    """More than fifteen seconds after L1 was bound."""
    assert Phase("saturated", 0, 60, first_bound=0, first_found=15).fault() is None
    assert Phase("saturated", 0, 60, first_bound=0, first_found=16).fault() == "found 16 s after L1 was bound"
    assert Phase("saturated", 0, 60).fault() == "overload not found"


def test_the_table_and_its_exit_code(recorded: tuple[Path, list[Phase]], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A row a phase, a table of what was said, 0 without a fault; a recording without phases is shown and not judged."""
    folder, _ = recorded
    shutil.copyfile(folder / RECORDING, tmp_path / RECORDING)
    assert main([str(tmp_path)]) == 1
    assert "whole" in capsys.readouterr().out
    shutil.copyfile(DATA / f"{folder.name}.phases.json", tmp_path / PHASES)
    if (loads := folder / "loads.jsonl.gz").is_file():
        shutil.copyfile(loads, tmp_path / loads.name)
    assert main([str(tmp_path)]) == 0
    assert capsys.readouterr().out.splitlines()[-4:][0].split() == ["overloaded", "1", "0", "0"]


def test_nothing_to_evaluate_is_no_success(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A typing error in a path must not look like a perfect verdict."""
    assert main([str(tmp_path)]) == 1
    assert "no recording" in capsys.readouterr().err


@pytest.mark.skipif(not CAPTURES.is_dir(), reason=f"no recordings in {CAPTURES}; KVWATCH_CAPTURES names their folder")
@pytest.mark.parametrize("folder", [*recordings([CAPTURES])], ids=lambda folder: f"{folder.parent.name}/{folder.name}")
def test_recordings(folder: Path) -> None:
    """Every overload of every recording is found in time, and no calm phase is blamed."""
    told = evaluate(folder, phases_of(folder / PHASES))
    assert [(p.name, p.fault()) for p in told if p.fault()] == []
