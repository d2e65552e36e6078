"""What is behind vLLM's HBM: pinned is not full, written is not resident, and a connector is no occupancy."""

from __future__ import annotations

import pytest

from kvwatch.quantity import UNKNOWN, ZERO, Interval, at_most, exactly
from kvwatch.target import L2Setting
from tests.states import codes, host
from tests.vllm_bodies import OWNER, config, engine, one, read, series

GIB = 2.0**30
BASE = engine(0.5) + config()
REGISTERED = "".join(f"# TYPE vllm:kv_offload_{direction}_bytes_total counter\n" for direction in ("store", "load"))


def pinned(ratio: float) -> str:
    """The usage gauge of the native tier."""
    return series("kv_offload_cpu_cache_usage_perc", ratio)


def stored(amount: float) -> str:
    """Bytes stored to it since the start."""
    return series("kv_offload_store_bytes_total", amount)


def test_pinned_is_not_full() -> None:
    """A usage of 0.0 on a tier that was written leaves its occupancy open from nothing to all that was ever stored."""
    state = one(BASE + pinned(0.0) + stored(1e10))
    pool = host(state)
    assert (pool.unit, pool.capacity, pool.used) == ("bytes", UNKNOWN, ZERO)
    assert (pool.resident, pool.resident_ratio) == (at_most(1e10), UNKNOWN)
    assert state.facts["l2_kind"] == "native-offload"
    assert state.gauges["l2_pinned_ratio"] == ZERO


@pytest.mark.parametrize(
    ("labels", "setting", "capacity"),
    [
        ({"kv_offloading_size": "50.0", "kv_offloading_backend": "native"}, L2Setting(), 50 * GIB),
        ({}, L2Setting(8 * GIB), 8 * GIB),
        ({}, L2Setting(8 * GIB, workers=2), 16 * GIB),
        ({}, L2Setting(8 * GIB, per="instance", workers=2), 8 * GIB),
        ({"kv_offloading_size": "50.0", "kv_offloading_backend": "native"}, L2Setting(8 * GIB), 8 * GIB),
    ],
)
def test_capacity_comes_from_the_flag_or_the_operator(labels: dict[str, object], setting: L2Setting, capacity: float) -> None:
    """VLLM does not export it but for ``--kv-offloading-size``, in GiB over all workers; the operator's word goes first."""
    pool = host(one(engine(0.5) + config(**labels) + pinned(0.125) + stored(1e15), setting))
    assert pool.capacity == exactly(capacity)
    assert pool.used == exactly(capacity / 8)
    assert pool.resident == Interval(capacity / 8, capacity)


def test_little_was_stored_little_is_there() -> None:
    """Below its capacity the tier holds at most what was stored, so nearly empty can be proven."""
    pool = host(one(BASE + pinned(0.0) + stored(GIB), L2Setting(10 * GIB)))
    assert pool.resident == at_most(GIB)
    assert pool.resident_ratio == at_most(0.1)


def test_a_store_under_way_is_pinned_before_it_is_counted() -> None:
    """Bytes are counted when a transfer ends: what it pins is there all the same, and no contradiction."""
    assert host(one(BASE + pinned(0.2) + stored(GIB), L2Setting(10 * GIB))).resident == exactly(2 * GIB)


def test_registered_and_unborn_is_empty() -> None:
    """A family with a type and no sample was never used: nothing was written, nothing is there. Without a type there is no tier."""
    state = one(REGISTERED + BASE)
    assert state.counters == {"l2_written_bytes": 0, "l2_read_bytes": 0}
    assert (host(state).resident, host(state).used) == (ZERO, ZERO)
    assert "configured-not-used" in codes(state)
    assert one(BASE).pool("l2", "kv") is None
    assert "l2_configured" not in one(BASE).facts


def test_both_names_of_a_transfer_are_one_transfer() -> None:
    """The new name wins over the deprecated one with its ``transfer_type``; either alone will do."""
    old = series("kv_offload_total_bytes_total", 70, OWNER + ',transfer_type="GPU_to_CPU"')
    old += series("kv_offload_total_bytes_total", 30, OWNER + ',transfer_type="CPU_to_GPU"')
    new = stored(70) + series("kv_offload_load_bytes_total", 30)
    told = [one(BASE + body).counters for body in (old, new, old + new)]
    assert told == [{"l2_written_bytes": 70, "l2_read_bytes": 30}] * 3


def test_skipped_stores_are_no_failures() -> None:
    """No room is a failure, a reuse threshold is a choice."""
    body = stored(9) + series("kv_offload_allocation_failure_total", 4) + series("kv_offload_stores_skipped_total", 5)
    assert one(BASE + body).counters["l2_store_failures"] == 4


def test_every_rank_of_a_front_end_has_its_tier() -> None:
    """One rank stored, the other has not yet: it is configured there too."""
    other = 'model_name="m",engine="1"'
    states = read(REGISTERED + BASE + engine(0.5, labels=other) + stored(5)).states
    assert [state.counters["l2_written_bytes"] for state in states] == [5, 0]


def test_a_type_is_nobodys_where_front_ends_share_a_body() -> None:
    """Of two deployments behind one Ray endpoint only the one with samples is known to offload."""
    body = "".join(engine(0.5, labels=f'model_name="{m}",engine="0",ReplicaId="{m}"') for m in "ab")
    first, second = read(REGISTERED + body + series("kv_offload_store_bytes_total", 5, 'model_name="b",engine="0",ReplicaId="b"')).states
    assert first.pool("l2", "kv") is None
    assert host(second).resident == at_most(5)


def simple(used: float, backend: str = "cpu", lazy: str = "false") -> str:
    """A SimpleCPUOffloadConnector with 512 blocks, one of them its null block."""
    info = f'{OWNER},backend="{backend}",page_cache="false",lazy_offload="{lazy}",capacity_blocks="512"'
    loads = series("simple_kv_offload_load_blocks_total", 7, OWNER + ',phase="issued"')
    loads += series("simple_kv_offload_load_blocks_total", 6, OWNER + ',phase="completed"')
    outcomes = "".join(
        series("simple_kv_offload_save_outcomes_total", n, f'{OWNER},outcome="{o}"') for o, n in (("stored", 20), ("dropped_cpu_full", 3))
    )
    return series("simple_kv_offload_info", 1, info) + series("simple_kv_offload_used_blocks", used) + loads + outcomes


def test_simple_offload_counts_in_blocks() -> None:
    """Its capacity is told in blocks of the HBM pool's size; used is what is pinned, without the null block, and says no more."""
    state = one(BASE + simple(1))
    pool = host(state)
    assert (pool.unit, pool.capacity, pool.used, pool.resident) == ("tokens", exactly(511 * 16), ZERO, at_most(511 * 16))
    assert state.counters == {"l2_read_tokens": 6 * 16, "l2_written_tokens": 20 * 16, "l2_store_failures": 3}
    assert state.facts["l2_kind"] == "simple-offload"
    assert host(one(BASE + simple(74))).used.exact == pytest.approx(73 * 16)


def test_lazy_stores_are_not_counted() -> None:
    """Only eager stores are classified, so a lazy tier's writes are unknown and not 20."""
    assert "l2_written_tokens" not in one(BASE + simple(1, lazy="true")).counters


def test_blocks_on_disk_are_no_host_tier() -> None:
    """The same connector with a disk behind it is storage."""
    state = one(BASE + simple(1, backend="disk"))
    assert state.pool("l2", "kv") is None
    assert state.pool("l3", "kv") is not None
    assert state.counters["l3_read_tokens"] == 6 * 16


def test_blocks_without_a_size_are_no_tokens() -> None:
    """Where the HBM pool's blocks are not told neither are these; the pinned share is."""
    pool = host(one(engine(0.5) + simple(74)))
    assert (pool.capacity, pool.used, pool.used_ratio) == (UNKNOWN, UNKNOWN, exactly(73 / 511))


def test_swap_space_is_no_cache() -> None:
    """V0 moves the KV of preempted requests there and nothing else: it is no host tier."""
    body = series("gpu_cache_usage_perc", 0.5) + series("cpu_cache_usage_perc", 0.0) + config(num_gpu_blocks=1000, num_cpu_blocks=2048)
    assert one(body).pool("l2", "kv") is None


EXTERNAL = series("external_prefix_cache_queries_total", 90000) + series("external_prefix_cache_hits_total", 1200)


def test_a_connector_proves_a_tier_and_nothing_about_it() -> None:
    """Its lookups move only with a connector: the tier is there, its content is not to be seen, and it is said how it could be."""
    reading = read(BASE + EXTERNAL)
    (state,) = reading.states
    assert state.pool("l2", "kv") is None
    assert state.facts["l2_configured"] == "true"
    assert (state.counters["l2_queried_tokens"], state.counters["l2_hit_tokens"]) == (90000, 1200)
    (missing,) = reading.missing
    assert missing.series == "lmcache:local_cache_usage"
    assert "PROMETHEUS_MULTIPROC_DIR" in missing.enable


def test_counters_that_never_moved_prove_nothing() -> None:
    """Every vLLM exports the external lookups, as 0 without a connector."""
    idle = series("external_prefix_cache_queries_total", 0) + series("external_prefix_cache_hits_total", 0)
    reading = read(BASE + idle)
    assert reading.missing == ()
    assert "l2_configured" not in reading.states[0].facts
    assert reading.states[0].counters == {}


def test_a_consumer_of_kv_has_a_tier() -> None:
    """The stages of a KV fetch exist only with a connector that reads."""
    state = one(BASE + series("num_requests_kv_fetch_by_stage", 0, OWNER + ',stage="in_progress"'))
    assert state.facts["l2_configured"] == "true"


@pytest.mark.parametrize("found", ["lmcache:local_cache_usage 5\n", 'vllm:nixl_num_failed_transfers_total{engine="0"} 0\n'])
def test_what_explains_the_traffic_is_not_asked_for(found: str) -> None:
    """LMCache's own series tell what the tier holds; a connector between prefill and decode engines has none."""
    assert read(BASE + EXTERNAL + found).missing == ()


def test_a_named_server_is_not_asked_for() -> None:
    """Once the operator has said which LMCache server is the tier there is nothing left to do."""
    assert read(BASE + EXTERNAL, L2Setting(source="cache-0")).missing == ()


def test_a_server_elsewhere_is_asked_for() -> None:
    """The connector to an LMCache server leaves one histogram here, under the model's path; the pool is the server's."""
    reading = read(BASE + series("lmcache_mp_lookup_duration_seconds_count", 4, 'model_name="/models/m/"'))
    (state,) = reading.states
    assert (state.model, state.facts["l2_kind"]) == ("m", "lmcache-server")
    assert [m.series for m in reading.missing] == ["lmcache_mp_l1_memory_usage_bytes"]


def test_the_flag_names_lmcache() -> None:
    """``--kv-offloading-size`` with that backend is a tier although nothing of it is exported; the backend alone is a default."""
    labels = {"kv_offloading_size": "8.0", "kv_offloading_backend": "lmcache"}
    assert one(engine(0.5) + config(**labels)).facts["l2_kind"] == "lmcache"
    assert "l2_kind" not in one(engine(0.5) + config(kv_offloading_size="None", kv_offloading_backend="native")).facts


def test_failed_handovers_are_counted_together() -> None:
    """Transfers, notifications and leases that ran out are KV that did not reach the decode engine."""
    names = ("failed_transfers", "failed_notifications", "kv_expired_reqs")
    assert one(BASE + "".join(series(f"nixl_num_{name}_total", 2) for name in names)).counters == {"transfer_failures": 6}


@pytest.mark.parametrize(
    ("asked", "found", "beside", "role"), [(90, 80, "", "decode"), (90, 0, "", "prefill"), (0, 0, "", None), (90, 80, stored(5), None)]
)
def test_the_half_of_a_pair_is_told_by_its_traffic(asked: int, found: int, beside: str, role: str | None) -> None:
    """Whose KV comes from elsewhere decodes, who gets none prefills; without traffic or beside a tier of its own nobody knows."""
    traffic = series("external_prefix_cache_queries_total", asked) + series("external_prefix_cache_hits_total", found)
    assert one(BASE + traffic + series("nixl_num_failed_transfers_total", 0) + beside).facts.get("role") == role
    assert "role" not in one(BASE + traffic).facts


def test_a_sleeping_engines_tiers_are_listed_with_nothing() -> None:
    """The host tier too offers nothing while the engine sleeps."""
    state = one(BASE + pinned(0.1) + stored(5) + series("engine_sleep_state", 1, OWNER + ',sleep_state="discard_all"'))
    assert [(p.tier, p.measured) for p in state.pools] == [("l1", False), ("l2", False)]
