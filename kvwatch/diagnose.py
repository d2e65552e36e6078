"""From what holds to findings: what fires, what stands for what, and which of them is the root. Pure.

The same episodes give the same findings.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from kvwatch.finding import Finding, Severity, Subject
from kvwatch.judge import Episode, Judged
from kvwatch.model import rank_number
from kvwatch.quantity import Interval
from kvwatch.rules import RULES
from kvwatch.rules.kinds import ActiveRule, Rule

RUNBOOK = "alerts/runbook.md"
WORST: Mapping[Severity, int] = {"critical": 2, "warning": 1, "info": 0}


@dataclass(frozen=True, slots=True)
class Case:
    """A subject and what was judged of it."""

    subject: Subject
    judged: Judged


def findings(cases: Sequence[Case], rules: Sequence[ActiveRule]) -> tuple[Finding, ...]:
    """All open findings, roots before their effects, unknown ones last."""
    active = {r.rule.id: r for r in rules}
    found = [f for case in cases for f in _of_subject(case, active)]
    live = _across_ranks([f for f in found if f.status != "unknown"])
    unknown = [f for f in found if f.status == "unknown"]
    return (*_roots_first(live), *unknown)


def _of_subject(case: Case, active: Mapping[str, ActiveRule]) -> list[Finding]:
    judged = case.judged
    live: dict[str, Finding] = {}
    for rule_id, episode in judged.episodes.items():
        if rule_id in active:
            live[rule_id] = _finding(active[rule_id], case, episode)
    for rule_id in list(live):
        for general in _superseded(active[rule_id].rule, live[rule_id].reason) if rule_id in live else ():
            if general in live and (live[rule_id].status == "firing" or live[general].status == "pending"):
                del live[general]
    troubled = any(f.severity != "info" for f in live.values()) or judged.values.get("pain", Interval(0, 1)).lo == 1
    redundant = {general for rule_id, f in live.items() for general in _superseded(active[rule_id].rule, f.reason)}
    unknown = [
        _unknown(active[rule_id], case, missing)
        for rule_id, missing in judged.undecided.items()
        if troubled and rule_id in active and rule_id not in live and rule_id not in redundant
    ]
    return [*_linked(live), *unknown]


def _superseded(rule: Rule, reason: str | None) -> tuple[str, ...]:
    """What a finding makes redundant, for the reason it names."""
    return (*rule.supersedes, *(general for r in rule.reasons if r.name == reason for general in r.supersedes))


def _finding(active: ActiveRule, case: Case, episode: Episode) -> Finding:
    rule, told = active.rule, episode.told
    age = case.judged.at - episode.since
    return Finding(
        rule=rule.id,
        severity=rule.severity,
        status="firing" if age >= active.hold_for(case.judged.engine) else "pending",
        subject=case.subject,
        since_seconds=age,
        reason=told.reason,
        title=told.title,
        evidence=told.evidence,
        missing=(),
        explanation=told.explanation,
        remedy=told.remedy,
        causes=(),
        caused_by=None,
        runbook=f"{RUNBOOK}#{rule.id}",
        quiet_seconds=case.judged.at - episode.last_true,
    )


def _unknown(active: ActiveRule, case: Case, missing: tuple[str, ...]) -> Finding:
    rule = active.rule
    return Finding(
        rule=rule.id,
        severity=rule.severity,
        status="unknown",
        subject=case.subject,
        since_seconds=None,
        reason=None,
        title=rule.short,
        evidence=(),
        missing=missing,
        explanation=f"Cannot be decided: unknown are {', '.join(missing)}.",
        remedy=(),
        causes=(),
        caused_by=None,
        runbook=f"{RUNBOOK}#{rule.id}",
    )


def _linked(live: Mapping[str, Finding]) -> list[Finding]:
    """Name causes and effects among the findings of one subject."""
    effects = {root: tuple(e for e in RULES[root].causes if e in live and _explains(live[root], live[e])) for root in live}
    caused_by = {effect: root for root in sorted(live, key=_rank) for effect in effects[root]}
    return [replace(f, causes=effects[name], caused_by=caused_by.get(name)) for name, f in live.items()]


def _explains(root: Finding, effect: Finding) -> bool:
    """Whether a finding may stand above its effect: what fires already is not put below what may still pass."""
    return root.status == "firing" or effect.status == "pending"


def _across_ranks(live: Sequence[Finding]) -> list[Finding]:
    """Let a root that spreads own its effects on the other ranks of the same model."""
    spreading = [f for f in live if f.caused_by is None and RULES[f.rule].spreads]

    def root_of(f: Finding) -> str | None:
        s = f.subject
        return next(
            (
                r.rule
                for r in spreading
                if f.rule in RULES[r.rule].causes and (r.subject.engine, r.subject.model) == (s.engine, s.model) and _explains(r, f)
            ),
            None,
        )

    return [replace(f, caused_by=root_of(f)) if f.caused_by is None else f for f in live]


def _rank(rule_id: str) -> tuple[int, str]:
    """Weak roots first, so that the strongest one is the one that is named."""
    return (WORST[RULES[rule_id].severity], rule_id)


def _roots_first(live: Sequence[Finding]) -> list[Finding]:
    """The root of the worst that fires first, then of the worst that may fire; each followed by its effects."""

    def order(f: Finding) -> tuple[int, int, str, int, str, str, str]:
        s = f.subject
        return (-WORST[f.severity], f.status != "firing", s.target, rank_number(s.rank or ""), s.rank or "", s.model or "", f.rule)

    effects = _Effects.among(live)

    def below(f: Finding) -> Iterator[Finding]:
        yield f
        for effect in effects.of(f):
            yield from below(effect)

    def weight(root: Finding) -> tuple[int, int]:
        whole = [*below(root)]
        return (-max((WORST[f.severity] for f in whole if f.status == "firing"), default=0), -max(WORST[f.severity] for f in whole))

    placed: dict[tuple[str, Subject], Finding] = {}

    def place(f: Finding) -> None:
        if (f.rule, f.subject) not in placed:
            placed[f.rule, f.subject] = f
            for effect in sorted(effects.of(f), key=order):
                place(effect)

    for root in sorted((f for f in live if f.caused_by is None), key=lambda f: (weight(f), order(f))):
        place(root)
    return list(placed.values())


@dataclass(frozen=True, slots=True)
class _Effects:
    """Findings by what caused them: the rule with its subject, or with the model that all its ranks serve."""

    near: Mapping[tuple[str | None, Subject], list[Finding]]
    spread: Mapping[tuple[str | None, str | None, str | None], list[Finding]]

    @classmethod
    def among(cls, live: Iterable[Finding]) -> _Effects:
        """Those of some findings."""
        near: dict[tuple[str | None, Subject], list[Finding]] = {}
        spread: dict[tuple[str | None, str | None, str | None], list[Finding]] = {}
        for f in live:
            near.setdefault((f.caused_by, f.subject), []).append(f)
            spread.setdefault((f.caused_by, f.subject.engine, f.subject.model), []).append(f)
        return cls(near, spread)

    def of(self, root: Finding) -> Sequence[Finding]:
        """What a finding brought about: on its own subject, or on all ranks of the model where it spreads."""
        s = root.subject
        return self.spread.get((root.rule, s.engine, s.model), ()) if RULES[root.rule].spreads else self.near.get((root.rule, s), ())


@dataclass(frozen=True, slots=True)
class Incident:
    """One root, however many ranks or replicas it shows on: the worst of them first, and all effects."""

    roots: tuple[Finding, ...]
    effects: tuple[Finding, ...]


def incidents(found: Sequence[Finding]) -> tuple[Incident, ...]:
    """Live findings as incidents: equal roots of one model are one, in the order of the findings."""
    live = [f for f in found if f.status != "unknown"]
    effects, place = _Effects.among(live), {(f.rule, f.subject): i for i, f in enumerate(live)}
    grouped: dict[tuple[str, str | None, str | None, str | None], list[Finding]] = {}
    for f in live:
        if f.caused_by is None:
            alone = f.subject.target if f.subject.model is None else None
            grouped.setdefault((f.rule, f.subject.engine, f.subject.model, alone), []).append(f)
    return tuple(
        Incident(tuple(roots), tuple(live[i] for i in sorted({place[e.rule, e.subject] for r in roots for e in effects.of(r)})))
        for roots in grouped.values()
    )


def status_of(found: Sequence[Finding], *, judged_any: bool) -> str:
    """The worst severity that fires; unknown when nothing could be judged."""
    worst = max((WORST[f.severity] for f in found if f.status == "firing"), default=0)
    return {2: "critical", 1: "warning"}.get(worst, "ok" if judged_any else "unknown")
