"""Scenarios of the rules: signal values by name, put into the moment a rule looks at.

``tests/rules/<id>.yaml`` says for each rule with which values it ``fires``, which changes (``below``) just keep it from firing, and which
signals it cannot do without (``unknown``). Values are numbers, or [least, most].
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from kvwatch.diagnose import Case, findings
from kvwatch.finding import Finding, Subject
from kvwatch.history import Track
from kvwatch.judge import Judged, judge, judge_target
from kvwatch.model import EngineState, Outcome, OwnerKey
from kvwatch.quantity import UNKNOWN, Interval, exactly
from kvwatch.rules import RULES, active
from kvwatch.rules.kinds import ActiveRule, Rule
from kvwatch.target import Target
from kvwatch.view import TargetView, View, Watch

FOLDER = Path(__file__).with_name("rules")
STEP = 5.0
Values = Mapping[str, Interval]
NOTHING: Mapping[str, str] = {}


@dataclass(frozen=True, slots=True)
class Scenario:
    """One rule's scenario."""

    rule: Rule
    engine: str
    fires: Values
    below: tuple[Values, ...]
    unknown: tuple[str, ...]
    reasons: Mapping[str, Values] = field(default_factory=dict)


def scenarios() -> list[Scenario]:
    """All of them, by file name."""
    return [_scenario(path) for path in sorted(FOLDER.glob("*.yaml"))]


def _scenario(path: Path) -> Scenario:
    told = yaml.safe_load(path.read_text())
    fires = _values(told["fires"])
    return Scenario(
        rule=RULES[path.stem],
        engine=told["engine"],
        fires=fires,
        below=tuple({**fires, **_values(b)} for b in told["below"]),
        unknown=tuple(told["unknown"]),
        reasons={name: {**fires, **_values(v or {})} for name, v in told.get("reasons", {}).items()},
    )


def _values(told: Mapping[str, float | list[float]]) -> dict[str, Interval]:
    return {name: Interval(float(v[0]), float(v[1])) if isinstance(v, list) else exactly(float(v)) for name, v in told.items()}


def run(
    engine: str, moments: Sequence[Values], rules: Sequence[ActiveRule] | None = None, facts: Mapping[str, str] = NOTHING
) -> list[list[Finding]]:
    """What is found at each moment, ``STEP`` seconds apart, when the signals have these values; others are unknown."""
    return [list(moment.findings) for moment in judged_moments(engine, moments, rules, facts)]


@dataclass(frozen=True, slots=True)
class Moment:
    """One sample judged: who it is about, every value, and what is found."""

    subject: Subject
    judged: Judged
    findings: tuple[Finding, ...]


def judged_moments(
    engine: str, moments: Sequence[Values], rules: Sequence[ActiveRule] | None = None, facts: Mapping[str, str] = NOTHING
) -> list[Moment]:
    """The same with everything that was judged, for what is exported of it."""
    wanted = rules or active()
    judged: Judged | None = None
    found: list[Moment] = []
    track = Track(OwnerKey("t", engine, "m", "0"))
    for number, values in enumerate(moments):
        now = number * STEP
        if engine == "target":
            subject = Subject("t")
            judged = judge_target(_TargetMoment(now, values).view(), wanted, judged)
        else:
            track.append(EngineState("t", engine, "m", "0", now, facts=facts))  # type: ignore[arg-type]  # the YAML names an engine
            subject = Subject("t", engine, "m", "0")
            view = View(track, Target("t", "t"), Watch(interval=STEP), read={**dict.fromkeys(_signals(), UNKNOWN), **values})
            judged = judge(view, wanted, judged)
        found.append(Moment(subject, judged, findings([Case(subject, judged)], wanted)))
    return found


def _signals() -> frozenset[str]:
    return frozenset(term.signal.name for rule in RULES.values() for term in rule.terms())


@dataclass(frozen=True, slots=True)
class _TargetMoment:
    """A target's turns that give the wanted values of its signals."""

    now: float
    values: Values

    def view(self) -> TargetView:
        from kvwatch.model import Missing, ScrapeError  # noqa: PLC0415

        failures = int(self.values.get("scrape_failures_in_row", UNKNOWN).lo)
        error = ScrapeError("refused", "refused") if failures else None
        missing = (Missing("s", "w", "e"),) * int(self.values.get("missing_series", UNKNOWN).lo)
        duration = self.values.get("scrape_share", exactly(0.0)).lo * STEP
        last = Outcome("t", self.now, None, duration, error=error, missing=missing)
        answered = self.values.get("target_answered", exactly(1.0)).lo > 0
        return TargetView(Target("t", "t"), last, failures, answered, self.now, Watch(interval=STEP))
