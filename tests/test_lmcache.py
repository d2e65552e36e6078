"""LMCache: what its two sets of series prove about the host tier and the storage behind it, and what they only seem to say."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from kvwatch.engines import Reading, Scrape, lmcache
from kvwatch.exposition import Exposition, parse
from kvwatch.model import EngineState, Outcome
from kvwatch.pool import Pool
from kvwatch.quantity import UNKNOWN, Interval, at_least, exactly
from kvwatch.store import Store
from kvwatch.target import L2Setting, Target
from kvwatch.view import Watch
from tests.states import host

DATA = Path(__file__).parent / "data" / "lmcache"
GIB = 2.0**30
UNTOLD = L2Setting()
WORKER = 'model_name="/models/chat/",role="worker",served_model_name="chat",worker_id="{}"'
VLLM = 'vllm:num_requests_running{model_name="chat-70b",engine="0"} 3\n'


def exposition(body: str) -> Exposition:
    """A body as an engine's port would be read: LMCache's series and one of vLLM's."""
    return parse(body.encode(), lambda name: name if name == "vllm:num_requests_running" else lmcache.select(name))


def scrape(body: str, l2: L2Setting = UNTOLD) -> Scrape:
    """That body in a turn of a target named "t"."""
    return Scrape(Target("t", "http://127.0.0.1/metrics", l2=l2), 10.0, 1000.0, exposition(body))


def recorded(name: str) -> str:
    """A real body."""
    return (DATA / f"{name}.prom").read_text()


def alone(body: str, l2: L2Setting = UNTOLD) -> EngineState:
    """The state of a server or of a worker's own port."""
    (state,) = lmcache.read(scrape(body, l2)).states
    return state


def engine(rank: str = "0", model: str = "chat-70b", pools: tuple[Pool, ...] = ()) -> EngineState:
    """An engine's state as another file would give it."""
    return EngineState("t", "vllm", model, rank, 10.0, pools=pools)


def attached(body: str, l2: L2Setting = UNTOLD) -> EngineState:
    """One engine's state, completed from the body."""
    (state,) = lmcache.attach((engine(),), scrape(body, l2)).states
    return state


def workers(series: str, *values: float) -> str:
    """One in-process series with a value per worker."""
    return "".join(f"lmcache:{series}{{{WORKER.format(i)}}} {v}\n" for i, v in enumerate(values))


def codes(state: EngineState) -> list[str]:
    """Codes of its notes."""
    return [note.code for note in state.notes]


# What a body is


def test_a_server_and_a_worker_port_are_recognised_and_an_engine_with_lmcache_in_it_is_the_engines() -> None:
    """An LMCache target shows LMCache series only; beside an engine's own series they are part of that engine."""
    assert lmcache.recognise(exposition(recorded("server-0.5.6")))
    assert lmcache.recognise(exposition(recorded("worker-port-0.5.6")))
    assert lmcache.recognise(exposition("lmcache_mp:l1_write_keys_total 3\n"))
    assert not lmcache.recognise(exposition(VLLM + recorded("workers-0.5.6-pinned")))
    assert not lmcache.recognise(exposition(VLLM + recorded("server-0.5.6")))
    assert not lmcache.recognise(exposition("process_start_time_seconds 3\n"))


def test_server_owner_is_the_server() -> None:
    """A server is a pool owner of its own: no model, rank 0, and no pool in HBM."""
    state = alone(recorded("server-0.5.6"))
    assert (state.engine, state.model, state.rank) == ("lmcache", None, "0")
    assert {p.tier for p in state.pools} == {"l2", "l3"}
    assert state.started == 1.79600550726e9
    assert state.facts == {"l2_kind": "lmcache-server", "l2_configured": "true"}


# Against the truth of recordings


@pytest.mark.parametrize("name", ["server", "workers"])
def test_recordings_agree_with_the_truth_inside_lmcache(name: str) -> None:
    """Resident bytes equal what LMCache held (workers: in the last flush), capacity is right, locked bytes lie in the used interval."""
    l2 = L2Setting(67108864.0) if name == "workers" else L2Setting()
    lines = gzip.decompress((DATA / f"{name}.jsonl.gz").read_bytes()).splitlines()
    assert len(lines) > 20
    for line in map(json.loads, lines):
        pool = host(alone(line["body"], l2))
        resident = pool.resident.exact
        assert resident is not None
        assert line["resident"][0] <= resident <= line["resident"][1]
        assert pool.capacity.exact in {line["capacity"], None if resident == 0 else line["capacity"]}
        assert pool.used.lo <= line["locked"][1]
        assert pool.used.hi >= line["locked"][0]


# The traps


def test_the_vocabularies_are_told_apart() -> None:
    """In-process and server series share no name; each gives its own kind of L2."""
    assert attached(recorded("workers-0.5.6-pinned")).facts["l2_kind"] == "lmcache"
    assert attached(recorded("server-0.5.6")).facts["l2_kind"] == "lmcache-server"


def test_server_tiers_are_shifted() -> None:
    """The server's "L1" is the host tier and its "L2" the storage behind it."""
    state = alone(
        'lmcache_mp_l1_memory_usage_bytes 5368709120\nlmcache_mp_l1_usage_ratio 0.05\nlmcache_mp_l2_usage_bytes{l2_name="fs0"} 9e11\n'
    )
    assert host(state).resident == exactly(5368709120)
    assert host(state).capacity == exactly(100 * GIB)
    assert host(state).resident_ratio.exact == pytest.approx(0.05)
    storage = state.pool("l3", "kv")
    assert storage is not None
    assert storage.resident == at_least(9e11)


def test_source_says_over_how_many_workers_the_bytes_are_summed() -> None:
    """Bytes add up over the workers of one engine, whose pools hold a shard each."""
    pool = host(attached(recorded("workers-0.5.6-pinned"), L2Setting(67108864.0)))
    assert pool.resident == exactly(2 * 67108864)
    assert pool.capacity == exactly(2 * 67108864)
    assert pool.source == "lmcache:local_cache_usage of 2 workers"


def test_asked_tokens_are_not_written_tokens() -> None:
    """``num_stored_tokens_total`` rises although nothing fits: no counter of written tokens comes from it."""
    counters = attached(recorded("workers-0.5.6-pinned")).counters
    assert not {"l2_written_tokens", "l2_written_bytes", "l2_written_objects"} & counters.keys()
    assert (counters["l2_store_requests"], counters["l2_stores_done"]) == (77, 77)


def test_eviction_calls_are_not_evictions() -> None:
    """Evicted objects come from the key counter of every worker; calls that found no victim are failures."""
    body = workers("local_cpu_evict_count_total", 220, 180) + workers("local_cpu_evict_keys_count_total", 140, 150)
    counters = attached(body + workers("local_cpu_evict_failed_count_total", 40, 38)).counters
    assert counters["l2_evicted_objects"] == 290
    assert counters["l2_evict_failures"] == 78


def test_hit_rate_gauges_are_ignored() -> None:
    """Hits come from the token counters, which any rank has in full; a gauge at 1.0 says nothing."""
    body = workers("retrieve_hit_rate", 1.0, 1.0) + workers("lookup_hit_rate", 0.0, 0.0)
    assert not attached(workers("local_cache_usage", 1.0, 1.0) + body).counters
    counted = workers("num_lookup_tokens_total", 4096, 4096) + workers("num_lookup_hits_total", 1024, 1024)
    counters = attached(body + counted + workers("num_hit_tokens_total", 768, 512)).counters
    assert counters == {"l2_queried_tokens": 4096, "l2_hit_tokens": 1024, "l2_read_tokens": 768}


def test_asynchronous_lookups_are_not_counted_and_stay_unknown() -> None:
    """Loads without a single looked-up token mean that lookups are not counted, not that there were none."""
    body = workers("num_lookup_tokens_total", 0) + workers("num_lookup_hits_total", 0) + workers("num_retrieve_requests_total", 7)
    assert attached(body).counters == {}


def test_family_without_samples_says_nothing_at_the_engines_port() -> None:
    """A callback gauge cannot cross processes: its lone TYPE line proves neither illness nor a storage tier."""
    state = attached("# TYPE lmcache:lmcache_is_healthy gauge\n# TYPE lmcache:put_failed_count gauge\n" + workers("local_cache_usage", 8.0))
    assert "l2-bypassed" not in codes(state)
    assert state.pool("l3", "kv") is None
    assert "l3_load_failures" not in state.counters


def test_lmcache_that_calls_itself_unhealthy_is_noted() -> None:
    """At a worker's own port the health gauge is right: 0 means that the tier is bypassed."""
    assert "l2-bypassed" in codes(alone(workers("lmcache_is_healthy", 0)))
    assert "l2-bypassed" not in codes(alone(recorded("worker-port-0.5.6")))


def test_engine_without_lmcache_series_gains_nothing() -> None:
    """No series, no claim: the states stay as they are, not an empty pool."""
    state = engine()
    assert lmcache.attach((state,), scrape(VLLM, L2Setting(50 * GIB))) == Reading((state,))


def test_more_bytes_than_fit_are_the_dead_processes_share() -> None:
    """After a restart in a used directory the sum includes the dead: 106 % becomes unknown, with the reason and the dropped value."""
    state = attached(recorded("workers-0.5.6-stale"), L2Setting(67108864.0))
    pool = host(state)
    assert pool.capacity == exactly(67108864)
    assert (pool.measured, pool.resident, pool.resident_ratio) == (False, UNKNOWN, UNKNOWN)
    assert {"implausible-value", "stale-multiproc"} <= set(codes(state))
    assert state.implausible == (("lmcache:local_cache_usage", 71303168.0),)
    assert "l2_pinned_ratio" not in state.gauges


def test_one_workers_stale_share_is_found_below_the_whole_capacity() -> None:
    """Two workers of 10 GiB: 12 in one cannot be, although 20 would hold the sum."""
    state = attached(workers("local_cache_usage", 12 * GIB, 1 * GIB), L2Setting(10 * GIB))
    assert host(state).resident == UNKNOWN
    assert "stale-multiproc" in codes(state)
    told = attached(workers("local_cache_usage", 12 * GIB, 1 * GIB), L2Setting(20 * GIB, per="instance"))
    assert host(told).resident == exactly(13 * GIB)


def test_in_process_capacity_is_unknown_until_told() -> None:
    """LMCache does not export it: resident bytes are known, ratio and room are not."""
    pool = host(attached(workers("local_cache_usage", GIB)))
    assert pool.resident == exactly(GIB)
    assert (pool.capacity, pool.resident_ratio) == (UNKNOWN, UNKNOWN)
    assert not pool.available.lo
    assert pool.available.hi == UNKNOWN.hi


def test_empty_server_is_proven_empty_without_a_capacity() -> None:
    """At usage 0 the capacity cannot be derived, but the ratio is exact."""
    pool = host(alone(recorded("server-0.5.6-cold")))
    assert pool.capacity == UNKNOWN
    assert (pool.resident, pool.resident_ratio) == (exactly(0), exactly(0))
    told = host(alone(recorded("server-0.5.6-cold"), L2Setting(50 * GIB)))
    assert (told.capacity, told.available) == (exactly(50 * GIB), exactly(50 * GIB))


def test_server_locks_are_not_exported() -> None:
    """Nothing counts locked objects: used is anything from the staging bytes to all that is resident."""
    body = "lmcache_mp_l1_memory_usage_bytes 1000\nlmcache_mp_l1_usage_ratio 0.5\nlmcache_mp_l1_staging_bytes 100\n"
    assert host(alone(body)).used == Interval(100, 1000)
    assert "l2_pinned_ratio" not in alone(body).gauges


def test_stuck_server_shows_in_its_eviction_rounds() -> None:
    """What proves a stuck pool is given: rounds, evicted objects, refused objects."""
    counters = alone(recorded("server-0.5.6")).counters
    assert {k: counters[k] for k in ("l2_ticks", "l2_evicted_objects", "l2_store_failures")} == {
        "l2_ticks": 126, "l2_evicted_objects": 673, "l2_store_failures": 1764,
    }  # fmt: skip


def test_finished_stores_of_a_server_prove_nothing() -> None:
    """The server counts a store as finished when nothing fitted: only written objects prove one."""
    counters = alone(recorded("server-0.5.6")).counters
    assert "l2_stores_done" not in counters
    assert (counters["l2_store_requests"], counters["l2_written_objects"]) == (618, 757)


def test_prefetches_that_found_no_room_are_not_failed_stores() -> None:
    """Only objects refused while storing are store failures; a refused prefetch is counted as a failed load from storage."""
    failure = 'lmcache_mp_l1_allocation_failure_chunks_total{{during="{}"}} {}\n'
    body = failure.format("l1_store", 5) + failure.format("l2_prefetch", 7)
    counters = alone(body + 'lmcache_mp_l2_prefetch_failure_chunks_total{reason="l1_oom"} 7\n').counters
    assert (counters["l2_store_failures"], counters["l3_load_failures"]) == (5, 7)


def test_server_storage_usage_is_a_lower_bound() -> None:
    """It counts what this process stored: 0 over old files is unknown, never empty."""
    cold = alone(recorded("server-0.5.6-cold")).pool("l3", "kv")
    assert cold is not None
    assert (cold.resident, cold.measured) == (UNKNOWN, False)
    warm = alone(recorded("server-0.5.6")).pool("l3", "kv")
    assert warm is not None
    assert warm.resident == at_least(99614720)
    assert warm.resident_ratio == UNKNOWN


def test_remote_usage_has_no_writer() -> None:
    """``remote_cache_usage`` is always 0: no pool comes from it, traffic counters do."""
    state = alone(recorded("worker-port-0.5.6"))
    storage = state.pool("l3", "kv")
    assert storage is not None
    assert (storage.source, storage.resident) == ("lmcache:local_storage_usage", exactly(134217728))
    assert (state.counters["l3_written_bytes"], state.counters["l3_read_bytes"]) == (243269632, 0)


def test_no_sign_of_storage_means_no_storage_counters() -> None:
    """Remote counters are born at 0 in every worker: without any traffic or ping they prove no storage tier."""
    state = attached(recorded("workers-0.5.6-pinned"))
    assert not [name for name in state.counters if name.startswith("l3_")]
    assert state.pool("l3", "kv") is None


def test_engine_and_lmcache_are_joined_by_their_port() -> None:
    """LMCache's model name is a path: the pool goes to the engine of the same body, with a note where no name agrees."""
    state = attached(VLLM + workers("local_cache_usage", GIB))
    assert (state.engine, state.model) == ("vllm", "chat-70b")
    assert host(state).resident == exactly(GIB)
    assert codes(state) == ["joined-by-target"]
    (agreeing,) = lmcache.attach((engine(model="chat"),), scrape(workers("local_cache_usage", GIB))).states
    assert codes(agreeing) == []


# Whose pool it is


def test_several_data_parallel_engines_leave_the_tier_to_the_target() -> None:
    """Nothing tells their workers apart: one owner beside them has the sum of their pools, and each knows that there is a tier."""
    body = workers("local_cache_usage", 30 * GIB, 30 * GIB)
    first, second, tier = lmcache.attach((engine("0"), engine("1")), scrape(body, L2Setting(20 * GIB))).states
    assert (tier.engine, tier.model, tier.rank) == ("lmcache", None, "0")
    assert host(tier).capacity == exactly(80 * GIB)
    assert host(tier).resident == exactly(60 * GIB)
    for state in (first, second):
        assert state.pools == ()
        assert state.facts == {"l2_kind": "lmcache", "l2_configured": "true"}


def test_engine_with_a_measured_tier_of_its_own_keeps_it() -> None:
    """An engine that measured another host tier is not overwritten: LMCache stands beside it."""
    native = Pool.of("l2", "kv", "tokens", capacity=exactly(100), resident=exactly(10))
    first, second = lmcache.attach((engine(pools=(native,)),), scrape(workers("local_cache_usage", GIB))).states
    assert first.pools == (native,)
    assert host(second).resident == exactly(GIB)


def test_placeholder_of_the_engine_gives_way() -> None:
    """A tier of which the engine measured nothing is the one that LMCache measures."""
    placeholder = Pool.of("l2", "kv", "bytes", capacity=exactly(1))
    (state,) = lmcache.attach((engine(pools=(placeholder,)),), scrape(workers("local_cache_usage", GIB))).states
    assert [p.resident for p in state.pools] == [exactly(GIB)]


def test_counts_of_the_engine_itself_stay() -> None:
    """Where engine and LMCache count the same thing the engine's fresh count wins."""
    own = EngineState("t", "vllm", "chat", "0", 10.0, counters={"l2_queried_tokens": 50, "l2_hit_tokens": 5})
    body = workers("num_lookup_tokens_total", 40) + workers("num_lookup_hits_total", 4) + workers("num_store_requests_total", 9)
    (state,) = lmcache.attach((own,), scrape(body)).states
    assert state.counters == {"l2_queried_tokens": 50, "l2_hit_tokens": 5, "l2_store_requests": 9, "l2_stores_done": 0}


def test_server_in_the_engines_body_is_the_engines_tier() -> None:
    """One body with both: the server's host pool is that engine's L2."""
    state = attached(VLLM + "lmcache_mp_l1_memory_usage_bytes 5368709120\nlmcache_mp_l1_usage_ratio 0.05\n")
    assert host(state).capacity == exactly(100 * GIB)
    assert state.engine == "vllm"


def test_server_named_in_the_configuration_is_known_to_exist() -> None:
    """An engine tied to a server has an L2, whatever its own body says."""
    (state,) = lmcache.attach((engine(),), scrape(VLLM, L2Setting(source="cache"))).states
    assert state.facts == {"l2_kind": "lmcache-server", "l2_configured": "true"}
    assert state.pools == ()


def test_scheduler_label_is_no_worker() -> None:
    """``role="scheduler"`` has no pool; its lookups count where it looks up for the workers."""
    body = workers("local_cache_usage", GIB, GIB) + 'lmcache:local_cache_usage{role="scheduler",worker_id="0"} 5\n'
    lookups = 'lmcache:num_lookup_tokens_total{role="scheduler"} 512\nlmcache:num_lookup_hits_total{role="scheduler"} 256\n'
    state = attached(body + lookups, L2Setting(4 * GIB))
    assert host(state).resident == exactly(2 * GIB)
    assert host(state).capacity == exactly(8 * GIB)
    assert (state.counters["l2_queried_tokens"], state.counters["l2_hit_tokens"]) == (512, 256)


# Capacity


def test_capacity_may_be_per_worker_or_of_the_instance() -> None:
    """40 GiB in each of two workers are 80 % of 100 GiB for the instance, and of twice 50 GiB."""
    body = workers("local_cache_usage", 40 * GIB, 40 * GIB)
    for l2 in (L2Setting(100 * GIB, per="instance"), L2Setting(50 * GIB), L2Setting(50 * GIB, workers=2)):
        assert host(attached(body, l2)).resident_ratio == exactly(0.8)


def test_workers_that_never_held_anything_may_have_no_pool() -> None:
    """With one latent for all ranks only the first builds a pool: capacity stays between one and all until told."""
    body = workers("local_cache_usage", 5 * GIB, 0, 0, 0)
    assert host(attached(body, L2Setting(10 * GIB))).capacity == Interval(10 * GIB, 40 * GIB)
    assert host(attached(body, L2Setting(10 * GIB, workers=1))).resident_ratio == exactly(0.5)
    held = body + workers("local_cpu_evict_keys_count_total", 9, 9, 9, 9)
    assert host(attached(held, L2Setting(10 * GIB))).capacity == exactly(40 * GIB)
    idle = workers("local_cache_usage", 0, 0)
    assert host(attached(idle, L2Setting(10 * GIB))).capacity == exactly(20 * GIB)


def test_workers_behind_no_port_are_not_empty() -> None:
    """Four workers are configured and two are seen: what the others hold is unknown, so resident is a range."""
    pool = host(attached(workers("local_cache_usage", GIB, GIB), L2Setting(10 * GIB, workers=4)))
    assert pool.resident == Interval(2 * GIB, 22 * GIB)
    assert pool.capacity == exactly(40 * GIB)


def test_several_managers_are_judged_together() -> None:
    """A full and an empty manager are one pool: the empty one's size is unknown, so the whole is a range until told."""
    body = (
        'lmcache_mp_l1_memory_usage_bytes{l1_tag="a",backend="dram"} 1000\nlmcache_mp_l1_usage_ratio{l1_tag="a",backend="dram"} 1.0\n'
        'lmcache_mp_l1_memory_usage_bytes{l1_tag="b",backend="gds"} 0\nlmcache_mp_l1_usage_ratio{l1_tag="b",backend="gds"} 0\n'
    )
    pool = host(alone(body))
    assert (pool.resident, pool.capacity) == (exactly(1000), at_least(1000))
    assert pool.resident_ratio == Interval(0, 1)
    assert "gds" in pool.source
    assert host(alone(body, L2Setting(4000))).resident_ratio == exactly(0.25)


# Used


def test_pinned_share_is_a_lower_bound_of_used() -> None:
    """Objects are equal in size: a quarter pinned is a quarter used at least, all pinned is all used."""
    body = workers("local_cache_usage", 1000, 1000) + workers("active_memory_objs_count", 4, 4)
    state = attached(body + workers("pinned_memory_objs_count", 1, 4), L2Setting(1000))
    assert host(state).used == Interval(1250, 2000)
    assert state.gauges["l2_pinned_ratio"] == exactly(0.625)
    full = host(attached(recorded("workers-0.5.6-pinned"), L2Setting(67108864.0)))
    assert (full.used, full.evictable, full.available) == (exactly(2 * 67108864), exactly(0), exactly(0))
    none = host(attached(body + workers("pinned_memory_objs_count", 0, 0)))
    assert none.used == Interval(0, 2000)


# Versions


def test_oldest_in_process_release() -> None:
    """0.3.3 exports sizes and traffic with two labels: the pool is there, what it does not count is unknown."""
    body = 'lmcache:local_cache_usage{model_name="/m",worker_id="0"} 8\nlmcache:num_store_requests_total{model_name="/m",worker_id="0"} 2\n'
    state = attached(
        body + 'lmcache:time_to_store_count{model_name="/m",worker_id="0"} 2\nlmcache:time_to_store_sum{model_name="/m",worker_id="0"} 1\n'
    )
    assert host(state).used == Interval(0, 8)
    assert state.counters == {"l2_store_requests": 2, "l2_stores_done": 2}


def test_server_releases_with_a_colon_export_no_occupancy() -> None:
    """0.3.15 to 0.4.2: events are counted under other names, the pool is unknown, and what would help is said."""
    body = "lmcache_mp:l1_write_keys_total 9\nlmcache_mp:l1_evicted_keys_total 4\nlmcache_mp:sm_write_requests_total 3\n"
    reading = lmcache.read(scrape(body, L2Setting(50 * GIB)))
    (state,) = reading.states
    assert state.counters == {"l2_written_objects": 9, "l2_evicted_objects": 4, "l2_store_requests": 3}
    assert (host(state).measured, host(state).capacity) == (False, exactly(50 * GIB))
    assert codes(state) == ["renamed-series"]
    assert [m.series for m in reading.missing] == ["lmcache_mp_l1_memory_usage_bytes"]
    assert lmcache.read(scrape(recorded("server-0.5.6"))).missing == ()


def test_unlabelled_zero_before_the_first_manager_is_unknown() -> None:
    """0.4.7 and 0.5.0 say 0 while nothing manages the pool yet: unknown until the eviction loop ticks."""
    body = "lmcache_mp_l1_memory_usage_bytes 0\nlmcache_mp_l1_usage_ratio 0\n"
    assert not host(alone(body)).measured
    assert host(alone(body + "lmcache_mp_l1_eviction_loop_ticks_total 4\n")).resident == exactly(0)


def test_families_not_born_on_a_live_server_are_zero_where_the_release_has_them() -> None:
    """A ticking server without a failure line has had no failure; whether it counts stores shows its release."""
    counters = alone(recorded("server-0.5.6-cold")).counters
    assert counters["l2_ticks"] == 13
    assert counters["l2_store_requests"] == counters["l2_store_failures"] == counters["l2_written_objects"] == 0
    older = alone("lmcache_mp_l1_memory_usage_bytes 8\nlmcache_mp_l1_usage_ratio 0.5\nlmcache_mp_l1_eviction_loop_ticks_total 4\n").counters
    assert older["l2_store_failures"] == 0
    assert "l2_store_requests" not in older
    assert alone("lmcache_mp_l1_memory_usage_bytes 8\nlmcache_mp_l1_usage_ratio 0.5\n").counters == {}


def test_hits_without_their_tier_stay_unknown() -> None:
    """A release that counts hits but not where they were found proves no hit in the host tier, and no miss."""
    body = (
        "lmcache_mp_l1_eviction_loop_ticks_total 4\nlmcache_mp_lookup_requested_tokens_total 512\nlmcache_mp_lookup_hit_tokens_total 256\n"
    )
    counters = alone(body).counters
    assert counters["l2_queried_tokens"] == 512
    assert not {"l2_hit_tokens", "l3_hit_tokens"} & counters.keys()
    assert alone(recorded("server-0.5.6")).counters["l2_hit_tokens"] == 45824


def test_dropped_events_are_noted() -> None:
    """A server whose event queue overflowed has counted too little."""
    assert codes(alone("lmcache_mp_event_bus_dropped_events_total 12\n")) == ["undercounted"]
    assert codes(alone(recorded("server-0.5.6"))) == []


def test_exporter_labels_do_not_matter() -> None:
    """A newer exporter adds scope labels, tenants add theirs: the sums are the same."""
    body = 'lmcache_mp_l1_memory_usage_bytes{otel_scope_name="x"} 8\nlmcache_mp_l1_usage_ratio{otel_scope_name="x"} 0.5\n'
    salted = 'lmcache_mp_lookup_requested_tokens_total{cache_salt="a"} 3\nlmcache_mp_lookup_requested_tokens_total{model_name="m"} 4\n'
    state = alone(body + salted)
    assert host(state).capacity == exactly(16)
    assert state.counters["l2_queried_tokens"] == 7


def test_values_that_cannot_be_are_dropped_and_quoted() -> None:
    """A ratio above 1 or a negative size costs its own quantity only."""
    state = alone("lmcache_mp_l1_memory_usage_bytes 8\nlmcache_mp_l1_usage_ratio 1.5\n")
    assert host(state).resident == exactly(8)
    assert host(state).capacity == at_least(8)
    assert state.implausible == (("lmcache_mp_l1_usage_ratio", 1.5),)
    negative = attached(workers("local_cache_usage", 8, -1))
    assert host(negative).resident == exactly(8)
    assert negative.implausible == (("lmcache:local_cache_usage", -1.0),)


def test_shared_tier_is_the_l2_of_every_engine_of_the_port() -> None:
    """Data-parallel engines without an L2 of their own are judged by the one beside them; an engine with its own is not."""
    target = Target("t", "http://127.0.0.1/metrics", l2=L2Setting(20 * GIB))
    body = workers("local_cache_usage", 8 * GIB, 8 * GIB)
    reading = lmcache.attach((engine("0"), engine("1")), Scrape(target, 10.0, None, exposition(body)))
    store = Store([target], Watch(), ())
    store.add(Outcome("t", 10.0, None, 0.0, states=reading.states))
    native = Pool.of("l2", "kv", "tokens", capacity=exactly(100), resident=exactly(90))
    ratios = {o.state.owner: o.judged.values["l2_resident_ratio"] for o in store.snapshot(10.0).owners}
    assert {key.engine: ratio.exact for key, ratio in ratios.items() if key.rank == "1"} == {"vllm": 0.2}
    assert len(ratios) == 3
    reading = lmcache.attach((engine(pools=(native,)),), Scrape(target, 11.0, None, exposition(body)))
    store.add(Outcome("t", 11.0, None, 0.0, states=reading.states))
    first = next(o for o in store.snapshot(11.0).owners if o.state.engine == "vllm" and o.state.rank == "0")
    assert first.judged.values["l2_resident_ratio"] == exactly(0.9)
