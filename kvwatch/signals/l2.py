"""The host tier: whether there is one, how full it is proven to be, and whether anything goes in and comes out."""

from __future__ import annotations

from kvwatch.model import EngineState, Pool
from kvwatch.quantity import TRUE, UNKNOWN, ZERO, Interval, at_least, exactly, truth
from kvwatch.signals import l1
from kvwatch.signals.kinds import Condition, Signal
from kvwatch.view import View

LONG_SECONDS = 300.0
"""A cache that was written this long and not read once serves nobody."""


def _present(view: View) -> Interval:
    return truth(view.l2_pool() is not None or view.state.facts.get("l2_configured") == "true")


def _resident_ratio(view: View) -> Interval:
    pool = view.l2_pool()
    if pool is None:
        return UNKNOWN
    return ZERO if pool.resident.hi == 0 and pool.measured else pool.resident_ratio


def _uncertainty(view: View) -> Interval:
    """How much of the tier's occupancy is unknown; 0 where there is no such tier."""
    if _present(view) == ZERO:
        return ZERO
    ratio = _resident_ratio(view)
    return exactly(min(1.0, ratio.hi) - ratio.lo)


def _capacity_ratio(view: View) -> Interval:
    """L2 capacity against L1 capacity, in the same unit."""
    hbm, host = view.state.pool("l1", "full"), view.l2_pool()
    if hbm is None or host is None or hbm.capacity.lo == 0 or not host.capacity.known:
        return UNKNOWN
    size = _in_tokens(host, view.state)
    return size / hbm.capacity if size.known else UNKNOWN


def _in_tokens(pool: Pool, state: EngineState) -> Interval:
    if pool.unit == "tokens":
        return pool.capacity
    per_token = state.gauges.get("kv_bytes_per_token", UNKNOWN)
    return pool.capacity / per_token if pool.unit == "bytes" and per_token.known else UNKNOWN


def _written(view: View) -> Interval:
    grown = view.l2_increase("l2_written_tokens", "l2_written_bytes", "l2_stores_done")
    return UNKNOWN if grown is None else exactly(grown)


def _read(view: View) -> Interval:
    grown = view.l2_increase("l2_read_tokens", "l2_read_bytes", "l2_hit_tokens")
    return UNKNOWN if grown is None else exactly(grown)


def _write_share(view: View) -> Interval:
    """Tokens written to L2 per token evicted from L1."""
    evicted, written = view.window().increase("l1_evicted_tokens"), view.l2_increase("l2_written_tokens")
    return UNKNOWN if evicted is None or written is None or evicted <= 0 else exactly(written / evicted)


def _unwritten_prompts(view: View) -> Interval:
    """Prompt tokens computed while nothing was written; only where evictions are not counted."""
    if "l1_evicted_tokens" in view.state.counters:
        return ZERO
    computed = next((g for n in ("computed_prompt_tokens", "prompt_tokens") if (g := view.window().increase(n)) is not None), None)
    asked = view.l2_increase("l2_store_requests", "l2_written_tokens", "l2_written_bytes")
    if computed is None or asked is None:
        return UNKNOWN
    return exactly(computed) if asked == 0 else ZERO


def _drops(view: View) -> Interval:
    grown = [view.l2_increase(n) for n in ("l2_store_failures", "l2_dropped_tokens", "l2_evict_failures")]
    known = [g for g in grown if g is not None]
    return exactly(sum(known)) if known else UNKNOWN


def _lately(view: View, *counters: str) -> Interval:
    """Increase over five minutes: a lower bound while less has been seen."""
    track = view.l2_track()
    span = track.span(LONG_SECONDS)
    grown = next((g for n in counters if (g := span.increase(n)) is not None), None)
    if grown is None:
        return UNKNOWN
    return exactly(grown) if span.seconds >= LONG_SECONDS else at_least(grown)


def _written_lately(view: View) -> Interval:
    return _lately(view, "l2_written_tokens", "l2_written_bytes", "l2_stores_done")


def _read_lately(view: View) -> Interval:
    return _lately(view, "l2_read_tokens", "l2_read_bytes")


def _repeats_lately(view: View) -> Interval:
    own = view.recent(LONG_SECONDS)
    grown = [own.increase("l1_hit_tokens"), view.l2_track().span(LONG_SECONDS).increase("l2_queried_tokens")]
    known = [g for g in grown if g is not None]
    return at_least(max(known)) if known else UNKNOWN


def _turnover(view: View) -> Interval:
    """How often L1 was evicted whole since the engine started; where evictions are not counted, 1 when L2 was written in every interval."""
    pool, evicted = view.state.pool("l1", "full"), view.state.counters.get("l1_evicted_tokens")
    if evicted is not None:
        return exactly(evicted) / pool.capacity if pool is not None and pool.capacity.lo > 0 else UNKNOWN
    span = view.l2_track().span(LONG_SECONDS)
    for name in ("l2_written_tokens", "l2_written_bytes"):
        if span.judged and name in span.frames[-1].state.counters:
            counts = [f.state.counters.get(name, 0.0) for f in span.frames]
            return TRUE if all(b > a for a, b in zip(counts, counts[1:], strict=False)) else ZERO
    return UNKNOWN


present = Signal("l2_present", "condition", "a host tier is configured", _present)
resident_ratio = Signal("l2_resident_ratio", "ratio", "share of the host tier that holds data", _resident_ratio, kept=True, bounded=True)
uncertainty = Signal("l2_uncertainty_ratio", "ratio", "how much of the host tier's occupancy cannot be known; 0 without a tier", _uncertainty)
capacity_ratio = Signal("l2_capacity_ratio", "ratio", "capacity of the host tier against the pool in HBM", _capacity_ratio)
written = Signal("l2_written", "count", "written to the host tier in the window (tokens, bytes or stores)", _written)
read = Signal("l2_read", "count", "read from the host tier in the window (tokens or bytes)", _read)
write_share = Signal("l2_write_share", "ratio", "tokens written to the host tier per token evicted from HBM in the window", _write_share)
unwritten_prompts = Signal(
    "l2_unwritten_prompt_tokens", "tokens", "prompt tokens computed while nothing was written; 0 where evictions are counted", _unwritten_prompts
)
drops = Signal("l2_drops", "count", "stores, objects or tokens the host tier could not take in the window", _drops)
written_lately = Signal("l2_written_5m", "count", "written to the host tier in five minutes", _written_lately, bounded=True)
read_lately = Signal("l2_read_5m", "count", "read from the host tier in five minutes", _read_lately, bounded=True)
repeats_lately = Signal("prefix_repeats_5m", "tokens", "prompt tokens that hit HBM or were looked up in the host tier in five minutes", _repeats_lately, bounded=True)
turnover = Signal("l1_turnover", "ratio", "how often the pool in HBM was evicted whole since the start", _turnover)

idle = Condition("l2_idle", "the host tier is proven more than half empty", "all", (present.is_(1), resident_ratio <= 0.5))
full = Condition("l2_full", "the host tier is proven full", "all", (present.is_(1), resident_ratio >= 0.9))
write_starved = Condition(
    "l2_write_starved", "what HBM evicts does not reach the host tier", "any",
    (
        Condition("l2_evictions_lost", "evictions are not written", "all", (l1.evicted_ratio >= 0.1, write_share < 0.5)),
        unwritten_prompts > 0,
    ),
    also=(present.is_(1),),
)  # fmt: skip
never_read = Condition(
    "l2_never_read", "the host tier was written for five minutes and served nothing", "all",
    (present.is_(1), written_lately > 0, read_lately <= 0, repeats_lately > 0, turnover >= 1.0),
)  # fmt: skip
smaller = Condition("l2_smaller", "the host tier cannot hold more than HBM", "all", (present.is_(1), capacity_ratio <= 1.0))
served = Condition("l2_served", "the host tier is written and read", "all", (written > 0, read > 0))
unobservable = Condition("l2_unobservable", "there is a host tier and its occupancy is unknown", "all", (present.is_(1), uncertainty > 0.5))

SIGNALS = (present, resident_ratio, uncertainty, capacity_ratio, written, read, write_share, unwritten_prompts, drops, written_lately,
           read_lately, repeats_lately, turnover)  # fmt: skip
CONDITIONS = (idle, full, write_starved, never_read, smaller, served, unobservable)
