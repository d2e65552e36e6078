"""From a moment to what holds in it: every signal, the open episodes of the rules, and what was said of them. Pure.

``judge`` looks at one owner's (or target's) newest sample and carries its episodes on. The same samples give the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from kvwatch.finding import Advice, Evidence
from kvwatch.quantity import Interval, Truth, all_of, truth
from kvwatch.rules.kinds import CLEAR_HOLD, ActiveRule, Do, Say
from kvwatch.signals import CONDITIONS, SIGNALS, TARGET_CONDITIONS, TARGET_SIGNALS, UNITS, l1, latency
from kvwatch.signals.kinds import branches, evidence, holds, undecided
from kvwatch.view import TargetView, View
from kvwatch.wording import fill, prose, without_places

AFTER_PAIN_SECONDS = 15.0
"""First tokens of requests that queued still arrive this long after the queue is gone; they are not calm."""


@dataclass(frozen=True, slots=True)
class Telling:
    """What is said of a rule, in the numbers of one sample."""

    reason: str | None
    title: str
    explanation: str
    remedy: tuple[Advice, ...]
    evidence: tuple[Evidence, ...]


@dataclass(frozen=True, slots=True)
class Episode:
    """One stretch in which a rule's terms are true, wobbles included. ``told`` is from the last sample that had them true."""

    since: float
    last_true: float
    told: Telling


@dataclass(frozen=True, slots=True)
class Judged:
    """One owner or target at its newest sample: every signal, the open episodes, and what could not be decided.

    ``mapped`` says whether its GPUs were known.
    """

    at: float
    engine: str | None
    values: Mapping[str, Interval] = field(default_factory=dict)
    branches: Mapping[str, Mapping[str, Interval]] = field(default_factory=dict)
    episodes: Mapping[str, Episode] = field(default_factory=dict)
    undecided: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    calm: bool = False
    pained_at: float | None = None
    window: float | None = None
    mapped: bool = False


def judge(view: View, rules: Sequence[ActiveRule], before: Judged | None) -> Judged:
    """Judge an owner's newest sample, carrying on what was open before."""
    values = {s.name: s.of(view) for s in SIGNALS} | {c.name: truth(holds(c, view, {})) for c in CONDITIONS}
    pain, high = holds(latency.pain, view, {}), holds(latency.high, view, {})
    pained_at = view.now if pain is True or view.track.restarted else before.pained_at if before else None
    fresh = pained_at is None or view.now - pained_at > AFTER_PAIN_SECONDS
    unbroken = before is None or view.now - before.at <= view.watch.stale_seconds  # what passed in a gap may not have been calm
    calm = (
        fresh
        and unbroken
        and not view.state.asleep
        and holds(l1.waiting > 0, view, {}) is False
        and holds(l1.preempting.is_(1), view, {}) is False
        and high is not True
    )
    seen = before is not None and view.now - before.at <= max(CLEAR_HOLD, view.watch.stale_seconds)  # else what was open has gone unseen
    kept = before if seen and not view.track.restarted and not view.state.asleep else None
    mine = [r for r in rules if r.rule.scope == "owner" and (r.rule.asleep or not view.state.asleep)]
    episodes, open_questions = _carry_on(view, mine, kept, view.now, view.state.engine, _words(view, values))
    return Judged(
        at=view.now,
        engine=view.state.engine,
        values=values,
        branches={c.name: branches(c, view, {}) for c in CONDITIONS if c.labels},
        episodes=episodes,
        undecided=open_questions,
        calm=calm,
        pained_at=pained_at,
        window=view.window().seconds or None,
        mapped=view.gpus is not None,
    )


def judge_target(view: TargetView, rules: Sequence[ActiveRule], before: Judged | None) -> Judged:
    """Judge a target's newest turn."""
    values = {s.name: s.of(view) for s in TARGET_SIGNALS} | {c.name: truth(holds(c, view, {})) for c in TARGET_CONDITIONS}
    words = _numbers(values) | {"url": view.target.url}
    error = view.last.error
    if error is not None:
        words |= {"failure_reason": error.reason.replace("_", " "), "failure_detail": error.detail}
    missing = view.last.missing
    if missing:
        words |= {
            "missing_names": ", ".join(m.series for m in missing),
            "missing_why": "; ".join(f"{m.series}: {m.why}" for m in missing),
            "missing_enable": "; ".join(dict.fromkeys(m.enable for m in missing)),
        }
    episodes, open_questions = _carry_on(view, [r for r in rules if r.rule.scope == "target"], before, view.last.at, None, words)
    return Judged(at=view.last.at, engine=None, values=values, episodes=episodes, undecided=open_questions)


def _words(view: View, values: Mapping[str, Interval]) -> dict[str, str]:
    """The words sentences may use: every known signal, and what the engine says of itself."""
    words = _numbers(values) | {name: text for name, text in view.state.facts.items() if text}
    if view.state.implausible:
        words["implausible_names"] = ", ".join(f"{name} = {value:g}" for name, value in view.state.implausible)
    return words


def _numbers(values: Mapping[str, Interval]) -> dict[str, str]:
    """What is known of each signal, as it is written in a sentence."""
    return {name: prose(value, UNITS.get(name, "condition")) for name, value in values.items() if value.known}


def _carry_on(  # noqa: PLR0913, PLR0917  the moment and what was open before it
    view: View | TargetView, rules: Sequence[ActiveRule], before: Judged | None, now: float, engine: str | None, words: Mapping[str, str]
) -> tuple[dict[str, Episode], dict[str, tuple[str, ...]]]:
    episodes: dict[str, Episode] = {}
    open_questions: dict[str, tuple[str, ...]] = {}
    for active in rules:
        rule = active.rule
        if rule.engines is not None and engine not in rule.engines:
            continue
        was = before.episodes.get(rule.id) if before else None
        terms = [holds(node, view, active.limits) for node in rule.when]
        state: Truth = all_of(terms)
        if state is True:
            told = _tell(active, view, engine, words)
            episodes[rule.id] = Episode(was.since if was else now, now, told)
        elif was is not None and now - was.last_true <= active.clear_hold_for(engine) and active.hold_for(engine) > 0:
            episodes[rule.id] = was
        if state is None and any(holds(term, view, active.limits) is True for term in rule.terms()):
            open_questions[rule.id] = tuple(dict.fromkeys(name for node in rule.when for name in undecided(node, view, active.limits)))
    return episodes, open_questions


def _tell(active: ActiveRule, view: View | TargetView, engine: str | None, words: Mapping[str, str]) -> Telling:
    rule, limits = active.rule, active.limits
    reason = next((r.name for r in rule.reasons if all(holds(n, view, limits) is True for n in r.when)), None)

    def applies(line: Say | Do) -> bool:
        return (
            line.engine in {None, engine} and line.reason in {None, reason} and all(holds(node, view, limits) is True for node in line.when)
        )

    said = [fill(s.text, words) for s in rule.explanation if applies(s)]
    advice = [
        (
            (d.exact and fill(d.exact, words)) or fill(d.do, words) or without_places(d.do),
            fill(d.because, words),
        )
        for d in rule.remedy
        if applies(d) and (not d.tiers or words.get("l2_kind") in {None, *d.tiers})
    ]
    return Telling(
        reason=reason,
        title=fill(rule.title, words) or rule.short,
        explanation=" ".join(s for s in said if s),
        remedy=tuple(Advice(do, because) for do, because in advice if do and because),
        evidence=_shown(node_evidence for node in rule.when for node_evidence in evidence(node, view, limits)),
    )


def _shown(found: Iterable[Evidence]) -> tuple[Evidence, ...]:
    """Each comparison once, in order."""
    return tuple(dict.fromkeys(found))
