"""What a signal, a term and a condition are.

A signal is a named, exported number. A term compares one with a limit. A condition joins terms by all or any and is exported as 0 or
1 under its own name, so that whatever a rule reads can be graphed and alerted on. Limits belong to the terms and can be replaced by
the configuration of the rule that reads them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from kvwatch.finding import Evidence
from kvwatch.quantity import UNKNOWN, ZERO, Interval, Op, Truth, all_of, any_of, negate, truth
from kvwatch.view import TargetView, View

Scope = Literal["owner", "target"]
SignalUnit = Literal["ratio", "times", "fraction", "tokens", "bytes", "seconds", "per second", "tokens/s", "requests", "count", "condition"]
Limits = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Signal:
    """A named number about a pool owner.

    ``read`` gives None where there is no such thing (no host tier, no SLO, no peer): nothing is exported then, and no comparison holds.
    ``kept`` ones stay in the history, for the page. ``bounded`` ones are often known only as an interval; they are exported with ``_min`` and ``_max`` beside the exact value, and those are what their alerts compare.
    """

    name: str
    unit: SignalUnit
    help: str
    read: Callable[[View], Interval | None]
    kept: bool = False
    bounded: bool = False
    scope: Scope = "owner"

    def told(self, view: View) -> Interval | None:
        """Read it, once per moment; None where there is no such thing."""
        return view.value(self.name, self.read)

    def of(self, view: View) -> Interval:
        """The same as a quantity: of what is not there nothing is known."""
        told = self.told(view)
        return UNKNOWN if told is None else told

    def __ge__(self, limit: float) -> Term:
        """``signal >= limit`` is a term."""
        return Term(self, ">=", limit)

    def __gt__(self, limit: float) -> Term:
        """``signal > limit`` is a term."""
        return Term(self, ">", limit)

    def __le__(self, limit: float) -> Term:
        """``signal <= limit`` is a term."""
        return Term(self, "<=", limit)

    def __lt__(self, limit: float) -> Term:
        """``signal < limit`` is a term."""
        return Term(self, "<", limit)

    def is_(self, value: float) -> Term:
        """``signal == value`` is a term."""
        return Term(self, "==", value)


@dataclass(frozen=True, slots=True)
class TargetSignal:
    """A named number about a scraped target."""

    name: str
    unit: SignalUnit
    help: str
    read: Callable[[TargetView], Interval]
    scope: Scope = "target"
    bounded: bool = False

    def of(self, view: TargetView) -> Interval:
        """Read it."""
        return self.read(view)

    def __ge__(self, limit: float) -> Term:
        """``signal >= limit`` is a term."""
        return Term(self, ">=", limit)

    def __gt__(self, limit: float) -> Term:
        """``signal > limit`` is a term."""
        return Term(self, ">", limit)


@dataclass(frozen=True, slots=True)
class Term:
    """One comparison.

    ``rest`` names the signal that is the other share of the same whole, where a condition looks at both: who sets one limit moves the line
    for both, or the other term would keep it where it was.
    """

    signal: Signal | TargetSignal
    op: Op
    limit: float
    rest: str = ""

    def limit_in(self, limits: Limits) -> float:
        """The limit, or what the configuration puts in its place."""
        if self.signal.name in limits or self.rest not in limits:
            return limits.get(self.signal.name, self.limit)
        return round(1 - limits[self.rest], 12)


@dataclass(frozen=True, slots=True)
class Condition:
    """Several terms or conditions joined by all, any or none of them; ``labels`` name its branches where it is exported with a ``reason`` label.

    With labels, the condition holds when ``also`` holds and any of ``parts`` does.
    """

    name: str
    help: str
    how: Literal["all", "any", "none"]
    parts: tuple[Node, ...]
    labels: tuple[str, ...] = ()
    also: tuple[Node, ...] = ()
    scope: Scope = "owner"


Node = Term | Condition


def holds(node: Node, view: View | TargetView, limits: Limits) -> Truth:
    """Whether a node is true of the moment, with the rule's own limits."""
    if isinstance(node, Term):
        value = _value(node, view)
        if value is not None and not value.known:
            return None  # not even that it is 0 or more, which a limit of 0 asks for
        return value is not None and value.compare(node.op, node.limit_in(limits))
    truths = [holds(part, view, limits) for part in node.parts]
    joined = all_of(truths) if node.how == "all" else any_of(truths) if node.how == "any" else negate(any_of(truths))
    return all_of([joined, *(holds(part, view, limits) for part in node.also)]) if node.also else joined


def _value(term: Term, view: View | TargetView) -> Interval | None:
    if isinstance(term.signal, TargetSignal):
        if isinstance(view, TargetView):
            return term.signal.of(view)
    elif isinstance(view, View):
        return term.signal.told(view)
    msg = f"{term.signal.name} is a signal of a {term.signal.scope}"
    raise TypeError(msg)


def leaves(node: Node) -> Iterator[Term]:
    """All comparisons below a node, in order."""
    if isinstance(node, Term):
        yield node
    else:
        for part in (*node.parts, *node.also):
            yield from leaves(part)


def evidence(node: Node, view: View | TargetView, limits: Limits) -> Iterator[Evidence]:
    """The comparisons that make a true node true."""
    if holds(node, view, limits) is not True:
        return
    if isinstance(node, Term):
        value = _value(node, view)
        if value is not None:
            yield Evidence(node.signal.name, value, node.op, node.limit_in(limits), node.signal.unit)
        return
    for part in node.parts:
        if node.how == "none":
            yield Evidence(name_of(part), ZERO, "==", 0.0, "condition")
        else:
            yield from evidence(part, view, limits)
    for part in node.also:
        yield from evidence(part, view, limits)


def name_of(node: Node) -> str:
    """The exported name of a node."""
    return node.signal.name if isinstance(node, Term) else node.name


def undecided(node: Node, view: View | TargetView, limits: Limits) -> Iterator[str]:
    """Names of the signals for want of which a node is neither true nor false."""
    if holds(node, view, limits) is not None:
        return
    if isinstance(node, Term):
        yield node.signal.name
        return
    for part in (*node.parts, *node.also):
        yield from undecided(part, view, limits)


def branches(condition: Condition, view: View, limits: Limits) -> dict[str, Interval]:
    """Each labelled branch of a condition as 0, 1 or between."""
    also = all_of([holds(part, view, limits) for part in condition.also])
    return {label: truth(all_of([also, holds(part, view, limits)])) for label, part in zip(condition.labels, condition.parts, strict=True)}
