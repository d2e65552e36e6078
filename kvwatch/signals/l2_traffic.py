"""What goes into the host tier, what comes out, what it refuses, and what that costs."""

from __future__ import annotations

import itertools

from kvwatch.history import Track
from kvwatch.quantity import UNKNOWN, ZERO, Interval, at_least, exactly, maybe, truth
from kvwatch.signals import l1, l2
from kvwatch.signals.kinds import Condition, Signal
from kvwatch.span import Frame, Span
from kvwatch.view import View

WRITTEN = ("l2_written_tokens", "l2_written_bytes", "l2_written_objects")
READ = ("l2_read_tokens", "l2_read_bytes", "l2_read_objects")
TICKS_SECONDS = 5.0
"""A server's eviction loop ticks every second and its counters are fresh."""
STUCK_SECONDS = 20.0
"""LMCache in the engine flushes its counters every 10 s, so less proves nothing."""
LONG_SECONDS = 300.0
"""A cache that was written this long and not read once serves nobody."""


def _written(view: View) -> Interval:
    return maybe(view.l2_increase(*WRITTEN, "l2_stores_done"))


def _read(view: View) -> Interval:
    return maybe(view.l2_increase(*READ, "l2_hit_tokens"))


def _write_share(view: View) -> Interval:
    """How much of what L1 evicted had been written to L2: in the window, or before it, as far as L2 then held copies of L1.

    Every copy that HiCache finds in L1 came from a write or a load, so of all that was ever evicted no greater share had one than these
    two make up; a window has no other share in the long run.
    """
    evicted, written = view.window().increase("l1_evicted_tokens"), view.l2_increase("l2_written_tokens")
    if evicted is None or written is None or evicted <= 0:
        return UNKNOWN
    first = view.window().frames[0]
    copies = [p.resident.hi for p in (first.state.pool("l1", "full"), first.state.pool("l2", "kv")) if p is not None and p.unit == "tokens"]
    copies.append(first.counters.get("l2_written_tokens", 0.0) + first.counters.get("l3_read_tokens", 0.0))
    least, most = written / evicted, (written + min(copies)) / evicted
    ever = [view.state.counters.get(n) for n in ("l2_written_tokens", "l2_read_tokens", "l1_evicted_tokens")]
    if view.state.facts.get("l2_kind") == "hicache" and None not in ever:
        stored, loaded, gone = (n for n in ever if n is not None)
        most = min(most, max(least, (stored + loaded) / gone))
    return Interval(least, most)


def _unwritten_prompts(view: View) -> Interval | None:
    """Prompt tokens computed while nothing was written; only where evictions are not counted."""
    if "l1_evicted_tokens" in view.state.counters:
        return None
    fresh = _fresh_seconds(view.l2_track())
    span, stores = (track.span(max(view.watch.window, fresh)) for track in (view.track, view.l2_track()))
    computed = span.increase("computed_prompt_tokens", "prompt_tokens")
    asked = stores.increase("l2_store_requests", "l2_written_tokens", "l2_written_bytes")
    if computed is None or asked is None:
        return UNKNOWN
    if asked > 0:
        return ZERO
    return exactly(computed) if stores.seconds >= fresh else UNKNOWN


def _drops(view: View) -> Interval:
    """What the engine counts of them; of several kinds the first that grew, since stores, tokens and attempts do not add up."""
    grown = [view.l2_increase(n) for n in ("l2_store_failures", "l2_dropped_tokens", "l2_evict_failures")]
    known = [g for g in grown if g is not None]
    return exactly(next((g for g in known if g > 0), 0.0)) if known else UNKNOWN


def _lately(view: View, *counters: str) -> Interval:
    """Increase over five minutes: a lower bound while less has been seen."""
    span = view.l2_track().span(LONG_SECONDS)
    grown = span.increase(*counters)
    if grown is None:
        return UNKNOWN
    return exactly(grown) if span.seconds >= LONG_SECONDS else at_least(grown)


def _written_lately(view: View) -> Interval:
    return _lately(view, *WRITTEN, "l2_stores_done")


def _read_lately(view: View) -> Interval:
    return _lately(view, *READ)


def _repeats_lately(view: View) -> Interval:
    own = view.recent(LONG_SECONDS)
    # HiCache looks both tiers up at once: what it did not find in L1 is all that is known of its lookups, and no sign of a repeated prefix.
    asked = None if view.state.facts.get("l2_kind") == "hicache" else view.l2_track().span(LONG_SECONDS).increase("l2_queried_tokens")
    known = [g for g in (own.increase("l1_hit_tokens"), asked) if g is not None]
    return at_least(max(known)) if known else UNKNOWN


def _turnover(view: View) -> Interval | None:
    """How often L1 was evicted whole since the engine started; only where evictions are counted."""
    pool, evicted = view.state.pool("l1", "full"), view.state.counters.get("l1_evicted_tokens")
    if evicted is None:
        return None
    return UNKNOWN if pool is None else exactly(evicted) / pool.capacity


def _written_steadily(view: View) -> Interval | None:
    """Whether L2 was written in every interval of five minutes; only where evictions are not counted, as a sign that L1 passes on."""
    if "l1_evicted_tokens" in view.state.counters:
        return None
    span = view.l2_track().span(LONG_SECONDS)
    for name in (*WRITTEN, "l2_stores_done"):
        if span.judged and name in span.frames[-1].state.counters:
            counts = [f.counters.get(name, 0.0) for f in _steps_apart(span, _fresh_seconds(view.l2_track()))]
            return truth(all(b > a for a, b in itertools.pairwise(counts))) if len(counts) > 1 else UNKNOWN
    return UNKNOWN


def _fresh_seconds(track: Track) -> float:
    """The shortest time in which L2's counters would show what happened."""
    state = track.frames[-1].state
    return STUCK_SECONDS if state.facts.get("l2_kind") == "lmcache" else 0.0


def _steps_apart(span: Span, seconds: float) -> list[Frame]:
    """The frames of a span that are at least so far from the one taken before."""
    taken: list[Frame] = []
    for frame in span.frames:
        if not taken or frame.at - taken[-1].at >= seconds:
            taken.append(frame)
    return taken


def _failed_stores(view: View) -> Interval:
    """Stores the tier could not take lately, where it took nothing instead, or less than it refused: a burst that evicts and goes on is none."""
    track = view.l2_track()
    span = track.span(TICKS_SECONDS if "l2_ticks" in track.frames[-1].state.counters else STUCK_SECONDS)
    failed = [g for n in ("l2_store_failures", "l2_evict_failures") if (g := span.increase(n)) is not None]
    dropped = span.increase("l2_dropped_tokens")
    if not failed and dropped is None:
        return UNKNOWN
    if dropped:
        return exactly(dropped)
    went_on = any((g := span.increase(n)) is not None and g > 0 for n in ("l2_stores_done", "l2_evicted_objects"))
    failures = max(failed, default=0.0)
    took = span.increase("l2_written_objects", "l2_stores_done")
    return ZERO if went_on and failures <= (0.0 if took is None else took) else exactly(failures)


def _load_cost(view: View) -> Interval:
    """Seconds to load one token from L2 against seconds to compute it, where both are timed."""
    span = view.window()
    loading, passes, whole = (span.total(name) for name in ("l2_load", "prefill_passes", "prefill"))
    computing = passes if passes.known else whole
    loaded, computed = view.l2_increase("l2_read_tokens"), span.increase("computed_prompt_tokens")
    if not loaded or not computed or not loading.known or not computing.known:
        return UNKNOWN
    return (loading / exactly(loaded)) / (computing / exactly(computed))


def _fetching_share(view: View) -> Interval | None:
    """Share of the waiting requests that wait for KV from a lower tier; None where nobody waits."""
    fetched, queued = fetching.of(view), view.state.waiting
    if queued.compare(">", 0) is False:
        return None
    return (fetched / queued).capped(1.0) if fetched.known and queued.lo > 0 else UNKNOWN


def _fetching(view: View) -> Interval:
    return view.gauge("waiting_prefetch")


def _l3_failures(view: View) -> Interval:
    return maybe(view.l2_increase("l3_load_failures"))


written = Signal("l2_written", "count", "written to the host tier in the window (tokens, bytes or stores)", _written)
read = Signal("l2_read", "count", "read from the host tier in the window (tokens or bytes)", _read)
write_share = Signal(
    "l2_write_share", "ratio", "share of what HBM evicted in the window that had been written to the host tier", _write_share, bounded=True
)
unwritten_prompts = Signal(
    "l2_unwritten_prompt_tokens",
    "tokens",
    "prompt tokens computed while nothing was written, if evictions are not counted",
    _unwritten_prompts,
)
drops = Signal("l2_drops", "count", "stores, objects or tokens the host tier could not take in the window", _drops)
written_lately = Signal("l2_written_5m", "count", "written to the host tier in five minutes", _written_lately, bounded=True)
read_lately = Signal("l2_read_5m", "count", "read from the host tier in five minutes", _read_lately, bounded=True)
repeats_lately = Signal(
    "prefix_repeats_5m",
    "tokens",
    "prompt tokens that hit HBM or were looked up in the host tier in five minutes",
    _repeats_lately,
    bounded=True,
)
turnover = Signal(
    "l1_turnover", "times", "how often the pool in HBM was evicted whole since the start, if evictions are counted", _turnover
)
written_steadily = Signal(
    "l2_written_steadily",
    "condition",
    "the host tier was written in every interval of five minutes, if evictions are not counted",
    _written_steadily,
)
failed_stores = Signal(
    "l2_failed_stores",
    "count",
    "stores or tokens the host tier refused lately; 0 while stores go on and outnumber the refused ones",
    _failed_stores,
)
load_cost = Signal("l2_load_cost", "times", "seconds to load a token from the host tier against seconds to compute it", _load_cost)
fetching = Signal("requests_fetching", "requests", "requests that wait for KV from a lower tier", _fetching)
fetching_share = Signal(
    "fetching_share", "ratio", "share of the waiting requests, if any, that wait for KV from a lower tier", _fetching_share
)
l3_failures = Signal("l3_load_failures_in_window", "count", "loads from storage that failed in the window", _l3_failures)

slow_loads = Condition(
    "l2_slow", "loading from the host tier costs more than computing, or requests pile up behind it", "any",
    (load_cost > 1.0, Condition("fetches_pile_up", "most of the queue waits for KV from below", "all", (fetching >= 4, fetching_share >= 0.5))),
)  # fmt: skip
write_starved = Condition(
    "l2_write_starved", "what HBM evicts does not reach the host tier", "any",
    (
        Condition("l2_evictions_lost", "evictions are not written", "all", (l1.evicted_ratio >= 0.1, write_share < 0.5)),
        unwritten_prompts > 0,
    ),
    also=(l2.present.is_(1),),
)  # fmt: skip
passed_on = Condition("l1_passed_on", "what the host tier holds is in HBM no more", "any", (turnover >= 1.0, written_steadily.is_(1)))
never_read = Condition(
    "l2_never_read", "the host tier was written for five minutes and served nothing", "all",
    (l2.present.is_(1), written_lately > 0, read_lately <= 0, repeats_lately > 0, passed_on),
)  # fmt: skip
served = Condition("l2_served", "the host tier keeps what HBM evicts, and is read", "all", (written > 0, read > 0, write_share >= 0.5))

SIGNALS = (
    written,
    read,
    write_share,
    unwritten_prompts,
    drops,
    written_lately,
    read_lately,
    repeats_lately,
    turnover,
    written_steadily,
    failed_stores,
    load_cost,
    fetching,
    fetching_share,
    l3_failures,
)
CONDITIONS = (slow_loads, write_starved, never_read, served)
