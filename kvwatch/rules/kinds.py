"""What a rule is: a conjunction of terms over signals, what it means, what to do, and what it causes.

A rule file is read aloud: when these terms hold for that long, this is wrong, here is why and what to do. Sentences carry places such
as ``{l1_used_ratio}`` for signals; a sentence whose number is not known is not said. ``engine`` and ``reason`` narrow a sentence.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from kvwatch.finding import Severity
from kvwatch.schema import EngineName
from kvwatch.signals.kinds import Node, Term, leaves

CLEAR_HOLD = 30.0
"""An episode ends when its terms were not true for this long, or for the rule's hold if that is shorter."""


TierKind = Literal["hicache", "lmcache", "lmcache-server", "native-offload", "simple-offload"]
"""What engines tell as ``l2_kind``; "lmcache" is the one in the engine."""


@dataclass(frozen=True, slots=True)
class Say:
    """One sentence of an explanation, said where ``when`` is proven."""

    text: str
    engine: EngineName | None = None
    reason: str | None = None
    when: tuple[Node, ...] = ()


@dataclass(frozen=True, slots=True)
class Do:
    """One thing to do, in the order of the list; ``because`` may carry places, too.

    ``exact`` is said instead of ``do`` where all of its numbers are known; ``do`` loses those of its own that are not. ``tiers`` are the kinds
    of host tier whose setting it is; where an engine does not tell the kind, each is said.
    """

    do: str
    because: str
    engine: EngineName | None = None
    reason: str | None = None
    when: tuple[Node, ...] = ()
    exact: str = ""
    tiers: tuple[TierKind, ...] = ()

    @property
    def only(self) -> tuple[str, ...]:
        """Where it applies; empty for everywhere."""
        return tuple(name for name in (self.engine, self.reason, *self.tiers) if name)


@dataclass(frozen=True, slots=True)
class Reason:
    """A proven sub-cause; the first one that holds is named and chooses its remedy. ``supersedes`` are findings it says already."""

    name: str
    when: tuple[Node, ...]
    supersedes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Rule:
    """One finding of the catalogue. ``hold`` is in seconds, ``holds`` replaces it for an engine.

    ``headline`` is the title where no numbers are at hand, needed when it has places. ``engines`` limits the rule to some engines (None:
    all); ``causes`` are findings it brings about; ``supersedes`` are findings it makes redundant for the same subject; ``spreads`` says that
    its effects show on the other ranks of the model, too; ``stalled`` that the engine's state is called so while its terms are true;
    ``asleep`` that a sleeping engine is judged, too; ``page`` is the module's docstring, its page in the runbook.
    """

    id: str
    severity: Severity
    hold: float
    when: tuple[Node, ...]
    title: str
    explanation: tuple[Say, ...]
    remedy: tuple[Do, ...]
    page: str
    headline: str = ""
    reasons: tuple[Reason, ...] = ()
    causes: tuple[str, ...] = ()
    supersedes: tuple[str, ...] = ()
    scope: Literal["owner", "target"] = "owner"
    spreads: bool = False
    stalled: bool = False
    asleep: bool = False
    engines: tuple[EngineName, ...] | None = None
    holds: Mapping[str, float] = field(default_factory=dict)

    @property
    def short(self) -> str:
        """What is wrong, without numbers."""
        return self.headline or self.title

    def terms(self) -> Iterator[Term]:
        """All comparisons the rule rests on."""
        for node in self.when:
            yield from leaves(node)

    def signals(self) -> frozenset[str]:
        """Names of the signals whose limits the configuration may change."""
        return frozenset(term.signal.name for term in self.terms())


@dataclass(frozen=True, slots=True)
class ActiveRule:
    """A rule with the configuration's limits and hold."""

    rule: Rule
    limits: Mapping[str, float]
    hold: float | None = None

    def hold_for(self, engine: str | None) -> float:
        """Seconds the terms must last."""
        return self.hold if self.hold is not None else self.rule.holds.get(engine or "", self.rule.hold)

    def clear_hold_for(self, engine: str | None) -> float:
        """Seconds after which an episode is over."""
        return min(CLEAR_HOLD, self.hold_for(engine))
