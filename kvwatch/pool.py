"""A KV pool as a partition: what is known of its parts, each narrowed by the others."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from kvwatch.quantity import UNKNOWN, ZERO, Interval

Tier = Literal["l1", "l2", "l3"]
PoolName = Literal["full", "swa", "mamba", "kv"]
Unit = Literal["tokens", "bytes", "slots"]
NOISE = 1e-9
"""What sums and differences of floats may be off, as a share of the largest of them."""


class Contradiction(ValueError):
    """The parts of a pool cannot all be true at once."""


@dataclass(frozen=True, slots=True)
class Guess:
    """The most likely split of what is free, in the pool's unit; inside the proven intervals, and ``source`` says what it stands on."""

    evictable: float
    available: float
    source: str


@dataclass(frozen=True, slots=True)
class Pool:
    """One KV pool of one owner as a partition used + evictable + available + held = capacity.

    All quantities are in ``unit``; a ratio can be known where the capacity is not. Build it with
    ``Pool.of``, which narrows every interval from the others. ``measured`` is false when the scrape
    said nothing about the content: the capacity alone bounds nothing.
    """

    tier: Tier
    pool: PoolName
    unit: Unit
    capacity: Interval
    used: Interval
    evictable: Interval
    available: Interval
    held: Interval
    reclaimable: Interval
    resident: Interval
    used_ratio: Interval
    resident_ratio: Interval
    source: str
    measured: bool
    guess: Guess | None = None

    @classmethod
    def of(  # noqa: PLR0913  one keyword per quantity of the partition
        cls,
        tier: Tier,
        pool: PoolName,
        unit: Unit,
        *,
        capacity: Interval = UNKNOWN,
        used: Interval = UNKNOWN,
        evictable: Interval = UNKNOWN,
        available: Interval = UNKNOWN,
        held: Interval = ZERO,
        reclaimable: Interval = UNKNOWN,
        resident: Interval = UNKNOWN,
        used_ratio: Interval = UNKNOWN,
        resident_ratio: Interval = UNKNOWN,
        source: str = "",
    ) -> Pool:
        """Narrow all quantities by each other and return the pool.

        Raises Contradiction when no content of the pool satisfies everything given.
        """
        given = (used, evictable, available, reclaimable, resident, used_ratio, resident_ratio)
        measured = any(q.known for q in given)
        if not measured:
            return cls(tier, pool, unit, capacity, UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, source, measured)
        noise = NOISE * max(1.0, *(b for q in (capacity, held, *given) for b in (q.lo, q.hi) if b < math.inf))
        try:
            used_ratio, resident_ratio = (r.capped(1.0) if r.known else r for r in (used_ratio, resident_ratio))
            room = Interval(0.0, capacity.hi)
            used = _narrow(noise, used, _scaled(used_ratio, capacity), room)
            resident = _narrow(noise, resident, _scaled(resident_ratio, capacity), room)
            evictable, available = _narrow(noise, evictable, room), _narrow(noise, available, room)
            for _ in range(3):  # the constraints form a tree of depth three
                reclaimable = _narrow(noise, reclaimable, evictable + available, capacity - (used + held))
                resident = _narrow(noise, resident, used + evictable, capacity - (available + held))
                used = _narrow(noise, used, resident - evictable, capacity - (reclaimable + held))
                evictable = _narrow(noise, evictable, reclaimable - available, resident - used)
                available = _narrow(noise, available, reclaimable - evictable, capacity - (resident + held))
            used_ratio, resident_ratio = _ratio(used_ratio, used, capacity), _ratio(resident_ratio, resident, capacity)
        except ValueError as error:
            msg = f"{tier} {pool}: the reported states cannot all be true ({error})"
            raise Contradiction(msg) from error
        return cls(
            tier,
            pool,
            unit,
            capacity,
            used,
            evictable,
            available,
            held,
            reclaimable,
            resident,
            used_ratio,
            resident_ratio,
            source,
            measured,
        )

    def restated(self, told_by: str, **parts: Interval) -> Pool:
        """A pool of the same capacity with these parts, told by something more than its source; itself where they cannot all be true."""
        try:
            return Pool.of(self.tier, self.pool, self.unit, capacity=self.capacity, source=f"{self.source}; {told_by}", **parts)
        except Contradiction:
            return self


def _scaled(ratio: Interval, capacity: Interval) -> Interval:
    """What a ratio says about the amount; a bound only as good as the capacity."""
    return ratio * capacity if ratio.known else UNKNOWN


def _narrow(noise: float, own: Interval, *others: Interval) -> Interval:
    """Intersect, letting float noise pass: a bound that only rounding contradicts is the own bound."""
    lo, hi = own.lo, own.hi
    for other in others:
        if lo == hi and other.lo - noise <= lo <= other.hi + noise:
            continue
        lo, hi = max(lo, other.lo), min(hi, other.hi)
        if 0 < lo - hi <= noise:
            lo = hi
    return Interval(lo, hi)


def _ratio(own: Interval, part: Interval, capacity: Interval) -> Interval:
    """The share of the capacity, narrowed by what was reported; unknown without either."""
    if own.exact is not None or capacity.lo == 0:
        return own
    return _narrow(NOISE, own, (part / capacity).capped(1.0))
