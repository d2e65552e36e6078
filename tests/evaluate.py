"""How well the verdict meets recordings with known phases: a table by phase, and what is wrong in it.

    python tests/evaluate.py FOLDER...      every folder below with a metrics.jsonl.gz

``phases.json`` beside a recording names its phases (``phase``, ``t0``, ``t1``). One with overload must be found: a root about a full L1,
pending or firing, within 15 s of the first sample at which L1 bounds admission. Calm phases must not show a critical finding; an episode
that began in an overload may stand until its clear-hold has passed. A recording without phases is shown and not judged. Exit 1 when
something is missed or falsely claimed, or when nothing was judged.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kvwatch.finding import Finding
from kvwatch.quantity import ZERO
from kvwatch.recording import RECORDING, recording, spacing
from kvwatch.report import verdict
from kvwatch.rules import active
from kvwatch.rules.kinds import CLEAR_HOLD
from kvwatch.store import Store
from kvwatch.target import Target
from kvwatch.view import Watch

ROOTS = frozenset({"l1-saturated", "l1-saturated-l2-idle", "l1-l2-saturated", "admission-reserve-too-large"})
OVERLOAD = ("satur",)
PHASES = "phases.json"
WHOLE = "whole"
"""A recording of which nobody told the phases."""
UNJUDGED = ("churn", "reuse", "abort", "drain", "load2", WHOLE)
"""Phases in which overload may come or go; they must only end in time."""
FOUND_WITHIN = 15.0


@dataclass(slots=True)
class Phase:
    """One phase of a recording and what was said in it."""

    name: str
    begin: float
    end: float
    samples: int = 0
    bound: int = 0
    critical: int = 0
    roots: dict[str, int] = field(default_factory=dict)
    first_bound: float | None = None
    first_found: float | None = None
    false_critical: int = 0

    @property
    def overloaded(self) -> bool:
        """Whether it must be found."""
        return any(word in self.name for word in OVERLOAD)

    @property
    def calm(self) -> bool:
        """Whether it must stay quiet."""
        return not self.overloaded and not any(word in self.name for word in UNJUDGED)

    def fault(self) -> str | None:
        """What is wrong with the verdict in this phase."""
        if self.false_critical:
            return f"{self.false_critical} samples with a false critical finding"
        if self.overloaded and self.first_found is None:
            return "overload not found"
        if self.overloaded and self.first_bound is not None and self.first_found is not None:
            late = self.first_found - self.first_bound
            return f"found {late:.0f} s after L1 was bound" if late > FOUND_WITHIN else None
        return None


def recordings(places: Sequence[Path]) -> Iterator[Path]:
    """All folders with a recording."""
    for place in places:
        yield from (file.parent for file in sorted(place.rglob(RECORDING)))


def phases_of(file: Path) -> list[Phase]:
    """The phases of a recording as they were told, or all of it as one."""
    if not file.is_file():
        return [Phase(WHOLE, -math.inf, math.inf)]
    return [Phase(p["phase"], p["t0"], p["t1"]) for p in json.loads(file.read_text())]


def evaluate(folder: Path, phases: list[Phase]) -> list[Phase]:
    """Run one recording and count by phase."""
    target = Target(folder.name, str(folder))
    rules = active()
    store = Store([target], Watch(interval=max(1.0, spacing(folder))), rules)
    last_bound = float("-inf")
    for outcome in recording(folder, target):
        store.add(outcome)
        said = verdict(store.snapshot(outcome.at), rules)
        bound = any(o.judged.values.get("l1_bound", ZERO).lo == 1 for o in said.snapshot.owners if not o.stale)
        last_bound = outcome.at if bound else last_bound
        phase = next((p for p in phases if p.begin <= outcome.at <= p.end), None)
        if phase is not None:
            _count(phase, outcome.at, [f for f in said.findings if f.status != "unknown"], bound=bound, last_bound=last_bound)
    return phases


def _count(phase: Phase, now: float, live: list[Finding], *, bound: bool, last_bound: float) -> None:
    phase.samples += 1
    phase.bound += bound
    if bound and phase.first_bound is None:
        phase.first_bound = now
    critical = [f for f in live if f.severity == "critical" and f.rule != "target-down"]
    phase.critical += bool(critical)
    for f in live:
        if f.caused_by is None:
            name = f.rule + (f"({f.reason})" if f.reason else "")
            phase.roots[name] = phase.roots.get(name, 0) + 1
    if phase.first_found is None and any(f.rule in ROOTS for f in live):
        phase.first_found = now
    if critical and not phase.overloaded and now - last_bound > CLEAR_HOLD and (phase.calm or not bound):
        phase.false_critical += 1


def _truth(phase: Phase) -> str:
    return "overloaded" if phase.overloaded else "calm" if phase.calm else "between"


def _said(phase: Phase) -> str:
    """What was said in a phase, at worst."""
    if phase.overloaded:
        return "L1" if phase.first_found is not None else "other" if phase.roots else "nothing"
    return "L1" if phase.false_critical else "other" if phase.roots else "nothing"


def main(places: Sequence[str]) -> int:
    """Print the tables and return 1 when a phase has a fault."""
    phases: list[Phase] = []
    print(f"{'recording':22} {'phase':18} {'samples':>7} {'bound':>5} {'crit.':>5} {'found after':>11}  roots")
    for folder in recordings([Path(p) for p in places]):
        for phase in evaluate(folder, phases_of(folder / PHASES)):
            phases.append(phase)
            fault = phase.fault()
            late = "" if phase.first_found is None or phase.first_bound is None else f"{phase.first_found - phase.first_bound:.0f} s"
            top = ", ".join(f"{name} {n}" for name, n in sorted(phase.roots.items(), key=lambda item: -item[1])[:3])
            print(
                f"{folder.name:22} {phase.name:18} {phase.samples:7} {phase.bound:5} {phase.critical:5} {late:>11}  "
                f"{top}{'  WRONG: ' + fault if fault else ''}"
            )
    print(f"\n{'phases that are':16} {'found (calm: falsely)':>21} {'other findings':>14} {'nothing said':>12}")
    for truth in ("overloaded", "between", "calm"):
        counts = [sum(_truth(p) == truth and _said(p) == word for p in phases) for word in ("L1", "other", "nothing")]
        print(f"{truth:16} {counts[0]:21} {counts[1]:14} {counts[2]:12}")
    if not phases:
        print("no recording below these folders: name some with CAPTURES or RECORDINGS", file=sys.stderr)
    faults = sum(phase.fault() is not None for phase in phases)
    print(f"faults: {faults}")
    return 1 if faults or not any(_truth(phase) != "between" for phase in phases) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
