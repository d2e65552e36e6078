"""A full LMCache server of which nothing can be evicted: it exports no lock, but its eviction loop shows them.

Once a second the loop asks for room while usage is at the watermark or above. Where it asked several times and nothing went, every object
is locked or still being written, or the policy never evicts: what is resident is used. Counters come from the server's own events, so
where it dropped some nothing is proven.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from kvwatch.model import EngineState
from kvwatch.quantity import TRUE, ZERO

WATERMARK = 0.8
"""Usage at which the loop asks for room (--eviction-trigger-watermark); a lower setting is not exported."""
LEAST_ROUNDS = 3
"""Rounds without a victim that prove there is none: a single one may be of the moment between two locks."""


@dataclass(frozen=True, slots=True)
class Rounds:
    """Rounds that asked for room and objects that went, when something last went or usage rose to the watermark."""

    asked: float
    evicted: float
    started: float | None


def rounds_of(state: EngineState) -> Rounds | None:
    """The loop's counts at this sample; None where they are not told, not to be trusted, or nobody asks for room."""
    pool = state.pool("l2", "kv")
    asked, evicted = state.counters.get("l2_evict_rounds"), state.counters.get("l2_evicted_objects")
    if pool is None or asked is None or evicted is None or pool.resident_ratio.lo < WATERMARK:
        return None
    return None if any(n.code == "undercounted" for n in state.notes) else Rounds(asked, evicted, state.started)


def carried_on(now: Rounds | None, before: Rounds | None) -> Rounds | None:
    """The sample to count from: the earlier one while nothing went since, and the server is the same."""
    if now is None or before is None:
        return now
    same = now.started == before.started and now.evicted == before.evicted and now.asked >= before.asked
    return before if same else now


def with_locks(state: EngineState, since: Rounds | None) -> EngineState:
    """The state with everything resident as used, where the loop has asked often enough in vain."""
    now, pool = rounds_of(state), state.pool("l2", "kv")
    if now is None or since is None or pool is None or now.asked - since.asked < LEAST_ROUNDS:
        return state
    locked = pool.restated("used by evictions asked for in vain", used=pool.resident, resident=pool.resident, evictable=ZERO)
    if locked is pool:
        return state
    pools = tuple(locked if p is pool else p for p in state.pools)
    return replace(state, pools=pools, gauges={**state.gauges, "l2_pinned_ratio": TRUE})
