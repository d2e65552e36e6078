"""SGLang's pools as partitions: the KV pool in HBM, the pools of sliding-window and state layers beside it, and HiCache's host pools.

Used is what running requests hold; ``token_usage`` is the greatest ratio of all pools in HBM and stands for the KV pool only where
nothing better is exported (sglang/srt/managers/scheduler_components/pool_stats_observer.py).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from kvwatch.engines.sglang_series import Series
from kvwatch.engines.sglang_side import Load
from kvwatch.model import Note
from kvwatch.pool import Contradiction, Pool, PoolName, Tier, Unit
from kvwatch.quantity import UNKNOWN, ZERO, Interval, at_most, exactly, maybe

ROUNDING = 0.005
"""``token_usage`` comes with two decimals (unrounded only in a few releases)."""


@dataclass(frozen=True, slots=True)
class Kind:
    """One sort of pool: where it is, what it counts, and how its families are called."""

    tier: Tier
    pool: PoolName
    unit: Unit
    family: str


FULL = Kind("l1", "full", "tokens", "kv")
WINDOW = Kind("l1", "swa", "tokens", "swa")
STATES = Kind("l1", "mamba", "slots", "mamba")
HOST = Kind("l2", "kv", "tokens", "hicache_host_{}_tokens")
HOST_STATES = Kind("l2", "mamba", "slots", "hicache_host_mamba_{}_states")


@dataclass(slots=True)
class _Found:
    pools: list[Pool] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)

    def add(self, kind: Kind, source: str, **quantities: Interval) -> None:
        """Keep the pool; of one that contradicts itself only the capacity."""
        try:
            self.pools.append(Pool.of(kind.tier, kind.pool, kind.unit, source=source, **quantities))
        except Contradiction as error:
            self.notes.append(Note("ambiguous-gauge", str(error)))
            capacity = quantities.get("capacity", UNKNOWN)
            self.pools.append(Pool.of(kind.tier, kind.pool, kind.unit, source=source, capacity=capacity))


def read_pools(series: Series, capacity: float | None, load: Load | None) -> tuple[tuple[Pool, ...], tuple[Note, ...]]:
    """All pools of one owner, and what had to be decided about them. ``capacity`` is the KV pool's, where anything says it."""
    found = _Found()
    windowed, states = _exists(series, WINDOW), _exists(series, STATES)
    if not _partition(found, series, FULL, capacity):
        _parts(found, series, capacity, load if not windowed else None, mixed=(windowed, states))
    if windowed:
        _side(found, series, WINDOW, "swa_token_usage", series.gauge("max_total_num_tokens_swa"))
    if states:
        _side(found, series, STATES, "mamba_usage", None)
    _host(found, series, HOST)
    _host(found, series, HOST_STATES)
    return tuple(found.pools), tuple(found.notes)


def limits(series: Series, capacity: float | None) -> dict[str, float | None]:
    """Gauges that count a part of a pool, and the size of the pool, where it is known."""
    window = series.gauge("max_total_num_tokens_swa")
    parts = [(FULL, capacity), (WINDOW, window or None)]
    found = {f"{kind.family}_{state}_tokens": size for kind, size in parts for state in ("used", "evictable", "available")}
    hosts = {kind.family.format("used"): series.gauge(kind.family.format("total")) for kind in (HOST, HOST_STATES)}
    return {**found, **hosts, "num_used_tokens": None if _exists(series, WINDOW) else capacity}


def _exists(series: Series, kind: Kind) -> bool:
    """Whether the model has that pool: its gauges are there for every model and stay 0 where there is none."""
    names = ("{}_used_tokens", "{}_evictable_tokens", "{}_available_tokens", "{}_token_usage", "{}_usage", "max_total_num_tokens_{}")
    return any((value := series.gauge(name.format(kind.family))) is not None and value > 0 for name in names)


def _partition(found: _Found, series: Series, kind: Kind, capacity: float | None) -> bool:
    """Take the three states where all are exported; false where they are not."""
    used, evictable, available = (series.gauge(f"{kind.family}_{state}_tokens") for state in ("used", "evictable", "available"))
    if used is None or evictable is None or available is None:
        return False
    total = used + evictable + available
    size = total if capacity is None else capacity
    source = f"sglang:{kind.family}_{{used,evictable,available}}_tokens"
    excess = max(0.0, total - size)
    if excess > 0:
        # The three were not published together. What is too much may be in any of them, but nobody can have more than used leaves.
        found.notes.append(Note("ambiguous-gauge", f"{source} add up to {total:g} of {size:g}; used bounds the others"))
    found.add(
        kind,
        source,
        capacity=exactly(size),
        used=exactly(used),
        evictable=Interval(max(0.0, evictable - excess), evictable),
        available=Interval(max(0.0, available - excess), available),
        held=exactly(max(0.0, size - total)),
    )
    return True


def _parts(found: _Found, series: Series, capacity: float | None, load: Load | None, *, mixed: tuple[bool, bool]) -> None:
    """The KV pool from what there is where its three states are not all exported."""
    used, ratio, source = _used(series, *mixed)
    evictable, available = maybe(series.gauge("kv_evictable_tokens")), maybe(series.gauge("kv_available_tokens"))
    if not any(q.known for q in (used, ratio, evictable, available)) and load is not None and load.fresh:
        used, source = maybe(load.used_tokens), "/v1/loads"  # a server that never ran a batch has no gauges yet
    room = maybe(capacity)
    if capacity is None and used.exact and ratio.lo > 0:
        room = Interval(used.exact / ratio.hi, used.exact / ratio.lo)
        found.notes.append(Note("approximate-capacity", "the pool's size is not exported; used tokens and their ratio bound it"))
    if any(q.known for q in (room, used, ratio, evictable, available)):
        found.add(
            FULL,
            source,
            capacity=room,
            used=used,
            evictable=evictable,
            available=available,
            held=UNKNOWN if evictable.known or available.known else ZERO,  # of three states with one unreadable the sum proves nothing
            used_ratio=UNKNOWN if used.exact is not None and capacity is not None else ratio,
        )


def _used(series: Series, windowed: bool, states: bool) -> tuple[Interval, Interval, str]:  # noqa: FBT001  two facts about the model
    """Used tokens and used ratio of the KV pool, and what says so."""
    own, greater = series.gauge("kv_used_tokens"), series.gauge("num_used_tokens")
    share, greatest = series.gauge("full_token_usage"), series.gauge("token_usage")
    # num_used_tokens is the greater of the full and the sliding-window pool, token_usage the greatest ratio of all pools.
    used = exactly(own) if own is not None else UNKNOWN if greater is None else at_most(greater) if windowed else exactly(greater)
    name = "sglang:kv_used_tokens" if own is not None else "sglang:num_used_tokens"
    if share is not None:
        return used, exactly(share), f"{name}, sglang:full_token_usage"
    if greatest is None:
        return used, UNKNOWN, name
    rounded = abs(greatest * 100 - round(greatest * 100)) < 1e-6  # noqa: PLR2004  float noise
    slack = ROUNDING if rounded else 0.0
    low = 0.0 if windowed or states else max(0.0, greatest - slack)
    return used, Interval(low, min(1.0, greatest + slack)), f"{name}, sglang:token_usage"


def _side(found: _Found, series: Series, kind: Kind, ratio: str, capacity: float | None) -> None:
    size = capacity if capacity is not None and capacity > 0 else None
    if not _partition(found, series, kind, size):
        found.add(kind, f"sglang:{ratio}", capacity=maybe(size), used_ratio=maybe(series.gauge(ratio)))


def _host(found: _Found, series: Series, kind: Kind) -> None:
    """A host pool: its used slots hold data, which may be locked by a transfer or free to go; the engine does not say."""
    resident, capacity = (series.gauge(kind.family.format(part)) for part in ("used", "total"))
    if capacity is not None and capacity > 0:
        found.add(kind, f"sglang:{kind.family.format('{used,total}')}", capacity=exactly(capacity), resident=maybe(resident))
