"""The host tier: whether there is one, how large, and how full it is proven to be."""

from __future__ import annotations

from kvwatch.model import EngineState
from kvwatch.pool import Pool
from kvwatch.quantity import UNKNOWN, ZERO, Interval, exactly, truth
from kvwatch.signals import l1
from kvwatch.signals.kinds import Condition, Signal
from kvwatch.view import View


def _present(view: View) -> Interval:
    return truth(view.l2_pool() is not None or view.state.facts.get("l2_configured") == "true")


def _resident_ratio(view: View) -> Interval:
    pool = view.l2_pool()
    if pool is None:
        return UNKNOWN
    return ZERO if pool.resident.hi == 0 and pool.measured else pool.resident_ratio


def _uncertainty(view: View) -> Interval | None:
    """How much of the tier's occupancy is unknown."""
    if present.of(view) == ZERO:
        return None
    ratio = resident_ratio.of(view)
    return exactly(min(1.0, ratio.hi) - ratio.lo)


def _capacity_ratio(view: View) -> Interval:
    """L2 capacity against L1 capacity, in the same unit."""
    hbm, host = view.state.pool("l1", "full"), view.l2_pool()
    return UNKNOWN if hbm is None or host is None else _in_tokens(host, view.state) / hbm.capacity


def _in_tokens(pool: Pool, state: EngineState) -> Interval:
    if pool.unit == "tokens":
        return pool.capacity
    return pool.capacity / state.gauges.get("kv_bytes_per_token", UNKNOWN) if pool.unit == "bytes" else UNKNOWN


def _side_resident(view: View) -> Interval | None:
    """Resident share of the fullest host pool beside the KV one."""
    side = [p.resident_ratio for p in view.l2_track().frames[-1].state.pools if p.tier == "l2" and p.pool != "kv"]
    return Interval(max(r.lo for r in side), max(r.hi for r in side)) if side else None


def _pinned(view: View) -> Interval | None:
    """Share of L2 that is pinned."""
    pool = view.l2_pool()
    if pool is None or not pool.measured:
        return None if present.of(view) == ZERO else UNKNOWN
    reported = view.l2_track().frames[-1].state.gauges.get("l2_pinned_ratio", UNKNOWN)
    return reported if reported.known else pool.used_ratio


def _held(view: View) -> Interval | None:
    """Share of an LMCache tier that is pinned for loads; transfers of other tiers pin for moments and are none."""
    if not view.state.facts.get("l2_kind", "").startswith("lmcache") and view.server is None:
        return None
    return pinned_ratio.told(view)


present = Signal("l2_present", "condition", "a host tier is configured", _present)
resident_ratio = Signal("l2_resident_ratio", "ratio", "share of the host tier that holds data", _resident_ratio, kept=True, bounded=True)
uncertainty = Signal(
    "l2_uncertainty_ratio", "ratio", "how much of the host tier's occupancy cannot be known, if there is one", _uncertainty
)
capacity_ratio = Signal("l2_capacity_share", "times", "capacity of the host tier against the pool in HBM", _capacity_ratio)
side_resident = Signal("l2_side_resident_ratio", "ratio", "resident share of the host pool for states, if there is one", _side_resident)
pinned_ratio = Signal("l2_pinned_share", "ratio", "share of the host tier pinned by locks or transfers", _pinned, bounded=True)
held_ratio = Signal("l2_held_share", "ratio", "share of the host tier held by pins, if it is LMCache's", _held, bounded=True)

held = Condition("kv_held", "sessions or pins hold a large part of a pool", "any", (l1.session_ratio >= 0.2, held_ratio >= 0.2))
idle = Condition("l2_idle", "the host tier is proven to have much room", "all", (present.is_(1), resident_ratio <= 0.5))
full = Condition("l2_full", "the host tier is proven full", "all", (present.is_(1), resident_ratio >= 0.9))
smaller = Condition("l2_smaller", "the host tier cannot hold more than HBM", "all", (present.is_(1), capacity_ratio <= 1.0))
unobservable = Condition("l2_unobservable", "there is a host tier and its occupancy is unknown", "all", (present.is_(1), uncertainty > 0.5))

SIGNALS = (present, resident_ratio, uncertainty, capacity_ratio, side_resident, pinned_ratio, held_ratio)
CONDITIONS = (held, idle, full, smaller, unobservable)
