"""The host tier as rules see it: whether there is one, how full it is proven to be, what goes in and what comes out."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from kvwatch.history import Track
from kvwatch.pool import Pool
from kvwatch.quantity import MAYBE, TRUE, UNKNOWN, ZERO, Interval, at_least, exactly
from kvwatch.signals import l2, l2_traffic
from kvwatch.signals.kinds import holds
from kvwatch.view import View
from tests.samples import CAPACITY, Amount, hbm, histogram, host, moment, sample, track

NOTHING = histogram(0, 0, 0, 0, 0)
HICACHE = {"l2_kind": "hicache", "l2_configured": "true"}


def tier(*pools: Pool, facts: Mapping[str, str] | None = None, **gauges: Amount) -> View:
    """One sample of an engine with these pools."""
    return moment(sample(pools=pools, facts=facts or {}, gauges=gauges))


def window(*pools: Pool, seconds: float = 10.0, **grown: float) -> View:
    """Two samples, between which counters grew by so much from nothing."""
    states = [sample(at, pools=[hbm(800), *pools], counters={n: v if at else 0.0 for n, v in grown.items()}) for at in (0.0, seconds)]
    return moment(*states)


def test_a_tier_is_there_when_it_is_seen_or_said() -> None:
    """By its pool, or by what the engine says of its configuration; else there is none."""
    assert l2.present.of(tier(host(0))) == TRUE
    assert l2.present.of(tier(facts={"l2_configured": "true"})) == TRUE
    assert l2.present.of(tier(hbm(1))) == ZERO


def test_how_full_it_is_proven_to_be() -> None:
    """Exact, bounded, unknown; and empty where provably nothing is in it, whatever its size."""
    assert l2.resident_ratio.of(tier(host(300))) == exactly(0.3)
    assert l2.resident_ratio.of(tier(host(Interval(100, 600)))) == Interval(0.1, 0.6)
    assert l2.resident_ratio.of(tier(host(0, capacity=None))) == ZERO
    assert l2.resident_ratio.of(tier(host(70, capacity=None))) == UNKNOWN
    assert l2.resident_ratio.of(tier()) == UNKNOWN


def test_what_is_not_known_of_its_occupancy() -> None:
    """The width of what is possible; nothing is missing where there is no tier."""
    assert l2.uncertainty.of(tier(host(Interval(100, 600)))) == exactly(0.5)
    assert l2.uncertainty.of(tier(host(300))) == ZERO
    assert l2.uncertainty.of(tier(facts=HICACHE)) == exactly(1.0)
    assert l2.uncertainty.told(tier(hbm(1))) is None
    assert holds(l2.unobservable, tier(host(Interval(100, 700))), {}) is True
    assert holds(l2.unobservable, tier(host(Interval(100, 600))), {}) is False


@pytest.mark.parametrize(
    ("resident", "idle", "full"),
    [(500, True, False), (501, False, False), (899, False, False), (900, False, True), (Interval(400, 600), None, False),
     (Interval(0, 1000), None, None), (Interval(0, 500), True, False)],
)  # fmt: skip
def test_idle_and_full_need_proof(resident: Amount, idle: object, full: object) -> None:
    """At most half, at least nine tenths, with the whole interval."""
    view = tier(host(resident))
    assert holds(l2.idle, view, {}) is idle
    assert holds(l2.full, view, {}) is full


def test_no_tier_is_neither_idle_nor_full() -> None:
    """A missing tier is no empty one."""
    assert holds(l2.idle, tier(hbm(1)), {}) is False
    assert holds(l2.full, tier(hbm(1)), {}) is False


def test_its_size_against_the_pool_in_hbm() -> None:
    """In the same unit: bytes by the bytes of a token, unknown without them."""
    assert l2.capacity_ratio.of(tier(hbm(1), host(1, capacity=2000))) == exactly(2)
    in_bytes = Pool.of("l2", "kv", "bytes", capacity=exactly(5000), resident=exactly(1))
    assert l2.capacity_ratio.of(tier(hbm(1), in_bytes, kv_bytes_per_token=10)) == exactly(0.5)
    assert l2.capacity_ratio.of(tier(hbm(1), in_bytes)) == UNKNOWN
    assert l2.capacity_ratio.of(tier(hbm(1), host(1, capacity=None))) == UNKNOWN
    assert l2.capacity_ratio.of(tier(host(1))) == UNKNOWN
    assert holds(l2.smaller, tier(hbm(1), host(1, capacity=CAPACITY)), {}) is True
    assert holds(l2.smaller, tier(hbm(1), host(1, capacity=CAPACITY + 1)), {}) is False


@pytest.mark.parametrize("unit", ["tokens", "bytes", "objects"])
def test_traffic_is_counted_in_whatever_unit_there_is(unit: str) -> None:
    """Written and read by the first counter that is known; unknown without any."""
    view = window(host(1), **{f"l2_written_{unit}": 7.0, f"l2_read_{unit}": 3.0})
    assert (l2_traffic.written.of(view), l2_traffic.read.of(view)) == (exactly(7), exactly(3))
    assert (l2_traffic.written.of(window(host(1))), l2_traffic.read.of(window(host(1)))) == (UNKNOWN, UNKNOWN)


def test_what_reaches_the_tier_of_what_hbm_evicts() -> None:
    """Written in the window at least; at most with the copies that the tier already held then."""
    grown = window(host(30), l1_evicted_tokens=200, l2_written_tokens=20)
    assert l2_traffic.write_share.of(grown).lo == pytest.approx(0.1)
    assert l2_traffic.write_share.of(grown).hi == pytest.approx(0.1), "nothing had been written before"
    states = [
        sample(at, pools=[hbm(800), host(30)], l1_evicted_tokens=e, l2_written_tokens=w) for at, e, w in ((0, 0, 500), (10, 200, 520))
    ]
    assert l2_traffic.write_share.of(moment(*states)) == Interval(0.1, 0.25), "30 tokens of it may be copies"
    in_bytes = Pool.of("l2", "kv", "bytes", capacity=exactly(1), resident=exactly(1))
    others = [
        sample(at, pools=[in_bytes], l1_evicted_tokens=e, l2_written_tokens=w, l3_read_tokens=60)
        for at, e, w in ((0, 0, 40), (10, 200, 60))
    ]
    assert l2_traffic.write_share.of(moment(*others)) == Interval(0.1, 0.6), "what was ever written or fetched may be copies, too"
    assert l2_traffic.write_share.of(window(host(1), l1_evicted_tokens=1, l2_written_tokens=9)).lo == 9
    assert l2_traffic.write_share.of(window(host(1), l1_evicted_tokens=0, l2_written_tokens=9)) == UNKNOWN
    assert l2_traffic.write_share.of(window(host(1), l2_written_tokens=9)) == UNKNOWN


@pytest.mark.parametrize(
    ("evicted", "written", "expected"),
    [(100, 49, True), (100, 50, False), (99, 0, False), (100, 0, True)],
)
def test_starved_is_a_tenth_evicted_and_less_than_half_written(evicted: float, written: float, expected: object) -> None:
    """By the eviction counter, where there is one."""
    view = window(host(0), l1_evicted_tokens=evicted, l2_written_tokens=written)
    assert holds(l2_traffic.write_starved, view, {}) is expected


@pytest.mark.parametrize(
    ("written", "loaded", "expected"),
    [(520, 0, 0.104), (520, 4000, 0.904), (520, 9000, 1.0), (5_000, 0, 1.0), (4_000, 0, 0.8)],
)
def test_a_tier_that_ever_got_little_got_little_of_this(written: float, loaded: float, expected: float) -> None:
    """HiCache's copies in HBM come from writes and loads, so those since the start bound the share that had one."""
    life = {"l1_evicted_tokens": 5000.0, "l2_written_tokens": written, "l2_read_tokens": loaded}
    before = {"l1_evicted_tokens": 4800.0, "l2_written_tokens": written - 20, "l2_read_tokens": loaded}
    kind = {"l2_kind": "hicache"}
    states = [sample(at, pools=[hbm(800), host(180)], facts=kind, counters=counts) for at, counts in ((0, before), (10, life))]
    share = l2_traffic.write_share.of(moment(*states))
    assert (share.lo, share.hi) == pytest.approx((0.1, expected))


def test_what_hicache_did_not_find_repeats_nothing() -> None:
    """Both tiers are looked up at once, so new prompts count as lookups; another tier's lookups are its own."""
    alone = {"l1_hit_tokens": 7, "l2_queried_tokens": 500}
    assert l2_traffic.repeats_lately.of(window(host(1), **alone)) == at_least(500)
    states = [sample(at, facts={"l2_kind": "hicache"}, counters={n: v * at for n, v in alone.items()}) for at in (0.0, 1.0)]
    assert l2_traffic.repeats_lately.of(moment(*states)) == at_least(7)


def test_a_pause_of_the_counter_hides_no_copies() -> None:
    """What had been written before the window counts, although its first sample does not tell it."""
    states = [sample(0, pools=[host(500)], l1_evicted_tokens=0, l2_written_tokens=400), sample(10, pools=[host(500)], l1_evicted_tokens=0),
              sample(70, pools=[host(500)], l1_evicted_tokens=200, l2_written_tokens=400)]  # fmt: skip
    assert l2_traffic.write_share.of(moment(*states)) == Interval(0, 2.0)


def test_starved_without_an_eviction_counter_is_nothing_written_at_all() -> None:
    """Prompts are computed and no store is even asked for."""
    starved = window(host(0), computed_prompt_tokens=500, l2_written_bytes=0)
    assert l2_traffic.unwritten_prompts.of(starved) == exactly(500)
    assert holds(l2_traffic.write_starved, starved, {}) is True
    assert holds(l2_traffic.write_starved, window(host(0), computed_prompt_tokens=500, l2_written_bytes=1), {}) is not True
    assert l2_traffic.unwritten_prompts.of(window(host(0), prompt_tokens=500)) == UNKNOWN
    assert l2_traffic.unwritten_prompts.told(window(host(0), prompt_tokens=500, l1_evicted_tokens=0)) is None


def test_an_engine_without_a_tier_starves_none() -> None:
    """Evictions that go nowhere are no finding where there is nowhere to go."""
    assert holds(l2_traffic.write_starved, window(l1_evicted_tokens=500), {}) is False


def test_drops_are_what_it_could_not_take() -> None:
    """Stores, tokens or evictions that failed, never added up; unknown where none of them is counted."""
    assert l2_traffic.drops.of(window(host(1), l2_store_failures=2, l2_dropped_tokens=30)) == exactly(2)
    assert l2_traffic.drops.of(window(host(1), l2_store_failures=0, l2_dropped_tokens=30)) == exactly(30)
    assert l2_traffic.drops.of(window(host(1), l2_evict_failures=0)) == ZERO
    assert l2_traffic.drops.of(window(host(1))) == UNKNOWN


def long(seconds: float, *, written: float = 1, read: float = 0, hits: float = 5, **counts: float) -> View:
    """Samples over so many seconds, each with more written than the last; ``counts`` are lifetime counts at the end."""
    steps = 10
    states = [
        sample(
            i * seconds / steps,
            pools=[hbm(800), host(100)],
            counters={"l2_written_tokens": i * written, "l2_read_tokens": i * read, "l1_hit_tokens": i * hits}
            | {n: v * i / steps for n, v in counts.items()},
        )
        for i in range(steps + 1)
    ]
    return moment(*states)


def test_never_read_needs_five_minutes() -> None:
    """Written, nothing read, prefixes repeat, and HBM turned over: what was seen for less time proves only what happened."""
    assert holds(l2_traffic.never_read, long(300), {}) is True
    assert holds(l2_traffic.never_read, long(290), {}) is None
    assert holds(l2_traffic.never_read, long(290, read=1), {}) is False
    assert holds(l2_traffic.never_read, long(300, read=1), {}) is False
    assert holds(l2_traffic.never_read, long(300, written=0), {}) is False
    assert holds(l2_traffic.never_read, long(300, hits=0), {}) is not True
    assert l2_traffic.written_lately.of(long(290)) == at_least(10)
    assert l2_traffic.written_lately.of(long(300)) == exactly(10)


def test_before_hbm_was_evicted_whole_it_serves_the_hits_alone() -> None:
    """By the eviction counter where there is one; else by writes in every interval."""
    assert l2_traffic.turnover.of(long(300, l1_evicted_tokens=CAPACITY)) == exactly(1)
    assert holds(l2_traffic.never_read, long(300, l1_evicted_tokens=CAPACITY / 2), {}) is False
    assert l2_traffic.written_steadily.told(long(300, l1_evicted_tokens=CAPACITY)) is None
    assert l2_traffic.turnover.told(long(300)) is None
    assert l2_traffic.written_steadily.of(long(300)) == TRUE
    assert l2_traffic.written_steadily.of(long(300, written=0)) == ZERO
    assert l2_traffic.turnover.of(moment(sample(pools=[hbm(1)], l1_evicted_tokens=5))) == exactly(5 / CAPACITY)
    assert l2_traffic.turnover.of(moment(sample(l1_evicted_tokens=5))) == UNKNOWN
    assert l2_traffic.written_steadily.of(moment(sample(), sample(5))) == UNKNOWN


def in_the_engine(*counts: float, step: float) -> View:
    """LMCache in the engine: stores done at each sample, as its counters tell them."""
    facts = {"l2_kind": "lmcache", "l2_configured": "true"}
    pools = [hbm(800), host(100)]
    return moment(*(
        sample(i * step, pools=pools, facts=facts, l2_stores_done=n, l2_read_tokens=0, l1_hit_tokens=9.0 * i) for i, n in enumerate(counts)
    ))  # fmt: skip


def test_lmcache_in_the_engine_tells_its_writes_in_stairs() -> None:
    """It flushes every 10 s: a counter that stands still between two flushes proves no pause, one that stands for longer does."""
    stairs = [float(i // 2) for i in range(61)]
    assert holds(l2_traffic.never_read, in_the_engine(*stairs, step=5), {}) is True
    assert holds(l2_traffic.never_read, in_the_engine(*[min(n, 20) for n in stairs], step=5), {}) is False
    assert holds(l2_traffic.never_read, in_the_engine(*[float(i) for i in range(21)], step=15), {}) is True
    assert l2_traffic.written_steadily.of(in_the_engine(0, 1, step=5)) == UNKNOWN


def test_lmcache_in_the_engine_is_starved_only_when_a_flush_has_passed() -> None:
    """Before that its store counter stands still in any case."""

    def asked(seconds: float, stores: float = 0) -> View:
        facts = {"l2_kind": "lmcache", "l2_configured": "true"}
        ends = (0.0, seconds)
        return moment(
            *(sample(t, pools=[host(9)], facts=facts, computed_prompt_tokens=30 * t, l2_store_requests=7 + stores * t) for t in ends)
        )

    assert l2_traffic.unwritten_prompts.of(asked(15)) == UNKNOWN
    assert l2_traffic.unwritten_prompts.of(asked(20)) == exactly(600)
    assert l2_traffic.unwritten_prompts.of(asked(15, stores=1)) == ZERO


def test_the_fullest_pool_beside_the_kv() -> None:
    """Host states; nothing where there are none."""
    states = Pool.of("l2", "mamba", "slots", capacity=exactly(10), resident=exactly(9))
    assert l2.side_resident.of(tier(host(100), states)) == exactly(0.9)
    assert l2.side_resident.told(tier(host(100))) is None


def test_pinned_is_what_is_reported_or_what_is_used() -> None:
    """Unknown of a tier of which nothing is known, nothing where there is no tier."""
    assert l2.pinned_ratio.of(tier(host(500, used=200))) == exactly(0.2)
    assert l2.pinned_ratio.of(tier(host(500), l2_pinned_ratio=0.4)) == exactly(0.4)
    assert l2.pinned_ratio.of(tier(facts=HICACHE)) == UNKNOWN
    assert l2.pinned_ratio.told(tier(hbm(1))) is None


def test_only_lmcache_holds_by_pins() -> None:
    """Transfers of other tiers pin for moments; that is no held pool."""
    pinned = host(500, used=200)
    assert l2.held_ratio.of(tier(pinned, facts={"l2_kind": "lmcache"})) == exactly(0.2)
    assert l2.held_ratio.told(tier(pinned, facts=HICACHE)) is None
    assert holds(l2.held, tier(hbm(500), pinned, facts={"l2_kind": "lmcache"}), {}) is True


def stores(seconds: float = 20.0, **grown: float) -> Interval:
    """Failed stores by what grew."""
    return l2_traffic.failed_stores.of(window(host(500), seconds=seconds, **grown))


def test_failed_stores_are_those_that_led_nowhere() -> None:
    """Nothing stored or evicted beside them, or less taken than refused; tokens that were lost always count."""
    assert stores(l2_store_failures=3) == exactly(3)
    assert stores(l2_store_failures=3, l2_evicted_objects=1, l2_written_objects=9) == ZERO
    assert stores(l2_store_failures=3, l2_stores_done=4) == ZERO
    assert stores(l2_store_failures=3, l2_stores_done=2) == exactly(3)
    assert stores(l2_dropped_tokens=30, l2_stores_done=40) == exactly(30)
    assert stores(l2_dropped_tokens=30, l2_store_failures=40) == exactly(30), "tokens and stores have no greater one"
    assert stores(l2_stores_done=4) == UNKNOWN


def test_a_servers_heartbeat_makes_its_counters_fresh() -> None:
    """With ticks a burst is over after five seconds; without them counters may be ten seconds old."""
    counts = {"l2_store_failures": (0, 3, 3, 3)}
    for ticks, expected in ((True, ZERO), (False, exactly(3))):
        states = [
            sample(i * 5.0, pools=[host(500)], l2_store_failures=n, counters={"l2_ticks": i * 5.0} if ticks else {})
            for i, n in enumerate(counts["l2_store_failures"])
        ]
        assert l2_traffic.failed_stores.of(moment(*states)) == expected


def test_without_a_heartbeat_twenty_seconds_are_looked_at() -> None:
    """LMCache in the engine flushes its counters every ten seconds; what failed before that is over."""
    states = [sample(at, pools=[host(500)], l2_store_failures=n) for at, n in ((0, 0), (20, 3), (40, 3), (41, 3))]
    assert l2_traffic.failed_stores.of(moment(*states[:3])) == ZERO
    assert l2_traffic.failed_stores.of(moment(*states[:2])) == exactly(3)


def loads(*, load: float, prefill: float) -> View:
    """Ten loads of 100 tokens and five prefills of 200 tokens with these mean seconds."""
    timed = {"l2_load": histogram(0, 0, 0, 0, 10, total=10 * load), "prefill": histogram(0, 0, 0, 0, 5, total=5 * prefill)}
    before = sample(0, pools=[host(500)], histograms=dict.fromkeys(timed, NOTHING), l2_read_tokens=0, computed_prompt_tokens=0)
    return moment(before, sample(10, pools=[host(500)], histograms=timed, l2_read_tokens=1000, computed_prompt_tokens=1000))


def test_loading_costs_what_it_takes_against_computing() -> None:
    """Seconds to load a token against seconds to compute it; unknown unless both happened and are timed."""
    assert l2_traffic.load_cost.of(loads(load=0.5, prefill=0.5)) == exactly(2.0)
    assert holds(l2_traffic.slow_loads, loads(load=0.5, prefill=0.5), {}) is True
    assert l2_traffic.load_cost.of(loads(load=0.1, prefill=0.5)).exact == pytest.approx(0.4)
    assert l2_traffic.load_cost.of(window(host(1), l2_read_tokens=5)) == UNKNOWN


def test_a_prefill_is_best_timed_by_its_passes() -> None:
    """They are the computing alone; the way from scheduling to the first token stands in where they are not told."""
    timed = {"l2_load": 6.0, "prefill_passes": 2.0, "prefill": 50.0}
    histograms = {name: histogram(0, 0, 0, 0, 5, total=seconds) for name, seconds in timed.items()}
    before = sample(0, pools=[host(500)], histograms=dict.fromkeys(timed, NOTHING), l2_read_tokens=0, computed_prompt_tokens=0)
    after = sample(10, pools=[host(500)], histograms=histograms, l2_read_tokens=1000, computed_prompt_tokens=1000)
    assert l2_traffic.load_cost.of(moment(before, after)) == exactly(3.0)


def test_requests_that_pile_up_behind_loads() -> None:
    """Four or more, and half of the queue; nobody fetches where nobody waits, and where it is not told nothing is known."""

    def queue(fetching: Amount, waiting: Amount) -> View:
        return moment(sample(pools=[host(1)], waiting=waiting, gauges={} if fetching is None else {"waiting_prefetch": fetching}))

    assert holds(l2_traffic.slow_loads, queue(4, 8), {}) is True
    assert holds(l2_traffic.slow_loads, queue(4, 9), {}) is not True
    assert holds(l2_traffic.slow_loads, queue(3, 3), {}) is not True
    assert l2_traffic.fetching_share.told(queue(0, 0)) is None
    assert l2_traffic.fetching_share.of(queue(None, 5)) == UNKNOWN
    assert l2_traffic.fetching_share.of(queue(3, None)) == UNKNOWN


def test_a_tier_works_when_it_keeps_and_serves() -> None:
    """Written, read, and at least half of what HBM evicts reaches it."""
    assert holds(l2_traffic.served, window(host(1), l1_evicted_tokens=100, l2_written_tokens=50, l2_read_tokens=1), {}) is True
    assert holds(l2_traffic.served, window(host(1), l1_evicted_tokens=100, l2_written_tokens=50, l2_read_tokens=0), {}) is False
    assert holds(l2_traffic.served, window(host(1), l2_written_tokens=50, l2_read_tokens=1), {}) is None


def test_storage_loads_that_failed() -> None:
    """In the window; unknown without the counter."""
    assert l2_traffic.l3_failures.of(window(l3_load_failures=2)) == exactly(2)
    assert l2_traffic.l3_failures.of(window()) == UNKNOWN


def tied() -> Track:
    """The history of an LMCache server."""
    return track(
        *(
            sample(
                at,
                target="srv",
                engine="lmcache",
                model=None,
                pools=[host(900, used=300)],
                counters={"l2_written_objects": at, "l2_store_failures": at},
            )
            for at in (0.0, 10.0)
        )
    )


def test_a_server_tells_for_the_engine_that_is_tied_to_it() -> None:
    """Its pool and its counters are the engine's L2."""
    view = moment(sample(0, pools=[hbm(990)]), sample(10, pools=[hbm(990)]), server=tied())
    assert l2.present.of(view) == TRUE
    assert l2.resident_ratio.of(view) == exactly(0.9)
    assert l2_traffic.written.of(view) == exactly(10)
    assert l2_traffic.drops.of(view) == exactly(10)
    assert l2.held_ratio.of(view) == exactly(0.3)
    assert l2_traffic.read_lately.of(view) == UNKNOWN


def test_a_condition_of_the_unknown_is_unknown() -> None:
    """A tier that is only said to be there leaves every claim about it open."""
    view = moment(*(sample(at, pools=[hbm(500)], facts=HICACHE, gauges={}) for at in (0, 10)))
    for condition in (l2.idle, l2.full, l2.smaller, l2_traffic.served, l2_traffic.never_read, l2_traffic.write_starved):
        assert holds(condition, view, {}) is None, condition.name
    assert l2.present.of(view) != MAYBE
