"""What one scrape cannot tell: which free blocks of vLLM hold cache, how full its host tier is, what locks an LMCache server has. Pure.

Scrapes of one engine are taken in order, with what its KV events told up to then where somebody listens to them; each state comes
back with the narrowest split that is proven, and a best guess beside it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from kvwatch.events.estimate import estimate
from kvwatch.events.ledger import LedgerView
from kvwatch.events.memory import PoolMemory, PoolReading
from kvwatch.events.silence import Quiet, silenced
from kvwatch.model import EngineState, Outcome, OwnerKey
from kvwatch.refine.lmcache import Rounds, carried_on, rounds_of, with_locks
from kvwatch.refine.vllm import host_pool, pool_reading, split_pool

ViewOf = Callable[[str, float], LedgerView | None]
"""What the events of a rank told up to a time of the caller's clock; None where nobody listens."""


def no_events(_rank: str, _at: float) -> LedgerView | None:
    """Nobody listens."""
    return None


@dataclass(slots=True)
class Refiner:
    """The memory of one target's pools; one turn at a time."""

    memories: dict[OwnerKey, PoolMemory] = field(default_factory=dict)
    rounds: dict[OwnerKey, Rounds | None] = field(default_factory=dict)
    quiet: dict[OwnerKey, Quiet] = field(default_factory=dict)

    def refine(self, outcome: Outcome, view_of: ViewOf = no_events) -> Outcome:
        """Narrow the pools of one outcome; ``view_of`` is asked for the moment the scrape was answered."""
        if not outcome.ok:
            return outcome
        answered = outcome.at + outcome.duration
        return replace(outcome, states=tuple(self._refined(s, view_of, answered) for s in outcome.states))

    def _refined(self, state: EngineState, view_of: ViewOf, answered: float) -> EngineState:
        if state.engine == "vllm":
            return self._vllm(state, view_of(state.rank, answered))
        if state.engine == "lmcache":
            self.rounds[state.owner] = since = carried_on(rounds_of(state), self.rounds.get(state.owner))
            return with_locks(state, since)
        return state

    def _vllm(self, state: EngineState, view: LedgerView | None) -> EngineState:
        pool, reading = state.pool("l1", "full"), pool_reading(state)
        if pool is None or reading is None:
            self.memories.pop(state.owner, None)
            return state
        view = self._heard(state.owner, reading, view)
        before = self.memories.get(state.owner)
        memory = PoolMemory.begin(reading, view) if before is None else before.step(reading, view)
        self.memories[state.owner] = memory
        if state.asleep:
            return state
        split = split_pool(pool, reading, estimate(memory, view))
        return replace(state, pools=tuple(split if p is pool else host_pool(p, state, view) if p.tier == "l2" else p for p in state.pools))

    def _heard(self, owner: OwnerKey, reading: PoolReading, view: LedgerView | None) -> LedgerView | None:
        """The view, unless the engine's counters prove that its publisher is no longer heard."""
        if view is None:
            self.quiet.pop(owner, None)
            return None
        self.quiet[owner] = quiet = Quiet.after(self.quiet.get(owner), reading, view)
        return silenced(view) if quiet.contradicts(reading) else view
