"""vLLM: whose a number is, what it means in tokens, and what nobody may conclude from it.

``python -m tests.test_vllm`` writes the goldens anew; read the difference before you commit it.
"""

from __future__ import annotations

import json
import math
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvwatch.engines import Engine, Reading, vllm
from kvwatch.engines.vllm_pools import CacheConfig
from kvwatch.exposition import parse
from kvwatch.model import EngineState, Outcome
from kvwatch.quantity import UNKNOWN, ZERO, Interval, at_least, at_most, exactly
from kvwatch.refine import Refiner
from kvwatch.schema import COUNTERS, FACTS, GAUGES, HISTOGRAMS
from tests import golden
from tests.states import codes, hbm
from tests.vllm_bodies import OWNER, config, engine, one, read, series

DATA = Path(__file__).parent / "data" / "vllm"
VERSIONS = ("0.6", "0.9", "0.32-offload", "0.32-dp2")


def goldens(version: str) -> list[dict[str, object]]:
    """What the body of a version says today."""
    states = read((DATA / f"{version}.prom").read_text()).states
    return [golden.state(s) | {"started": s.started, "asleep": s.asleep} for s in states]


@pytest.mark.parametrize("version", VERSIONS)
def test_every_generation_reads_as_its_golden(version: str) -> None:
    """The V0 engine, early V1, and recordings of 0.32: every number of the schema, and nothing that should be there is missed."""
    assert goldens(version) == json.loads((DATA / f"{version}.json").read_text())
    assert read((DATA / f"{version}.prom").read_text()).missing == ()


@pytest.mark.parametrize("version", VERSIONS)
def test_only_known_names_leave_the_file(version: str) -> None:
    """Counters, gauges, histograms and facts have the names the rules read them by."""
    for state in read((DATA / f"{version}.prom").read_text()).states:
        assert state.counters.keys() <= COUNTERS.keys()
        assert state.gauges.keys() <= GAUGES.keys()
        assert state.histograms.keys() <= HISTOGRAMS.keys()
        assert state.facts.keys() <= FACTS.keys()


def test_the_module_is_an_engine() -> None:
    """It offers what the registry of engines calls, and asks for the version and the event sources beside the metrics."""
    offered: Engine = vllm
    assert offered.NAME == "vllm"
    assert {page.path for page in offered.SIDE} == {"/version", "/kv_event_sources"}


@pytest.mark.parametrize("spelled", ["vllm:num_requests_running", "vllm_num_requests_running", "ray_vllm_num_requests_running"])
def test_rays_names_are_the_same_names(spelled: str) -> None:
    """Ray cannot spell a colon and adds its own prefix."""
    assert vllm.select(spelled) == "vllm:num_requests_running"


@pytest.mark.parametrize(
    "name",
    ["vllm:lora_requests_info", "vllm:num_preemptions_created", "vllm:gpu_prefix_cache_hit_rate", "num_requests_running"],
)
def test_what_is_no_value_is_not_read(name: str) -> None:
    """Times of creation, wall-clock info series and lifetime ratios are never taken for an engine or a count."""
    assert vllm.select(name) is None


def test_recognised_by_any_of_its_families() -> None:
    """A body is vLLM's with one sample, or with a type alone; another server's is not."""
    assert vllm.recognise(parse(series("num_requests_running", 1).encode(), vllm.select))
    assert vllm.recognise(parse(b"# TYPE ray_vllm_num_requests_running gauge\n", vllm.select))
    assert not vllm.recognise(parse(b"process_start_time_seconds 1\nsglang:num_running_reqs 1\n", vllm.select))


@pytest.mark.parametrize(
    ("labels", "usage", "capacity", "used"),
    [
        ({}, 0.97, 16000, 15520),
        ({"num_gpu_blocks": 11}, 0.5, 160, 80),
        (
            {"num_gpu_blocks": 256, "block_size": 32, "kv_cache_size_tokens": 8192},
            51 / 255,
            8160,
            1632,
        ),
        ({"num_gpu_blocks": 999, "num_gpu_blocks_override": 101}, 0.5, 1600, 800),
        ({"num_gpu_blocks": "None", "kv_cache_size_tokens": 16016}, 0.25, 16000, 4000),
        ({"kv_cache_size_tokens": 15953, "kv_cache_max_concurrency": repr(1000 / 257), "num_gpu_blocks": 1000}, 333 / 999, 15984, 5328),
    ],
)
def test_tokens_are_usable_blocks_times_their_size(labels: dict[str, object], usage: float, capacity: float, used: float) -> None:
    """The null block holds nothing, an override counts, and usage is a whole number of the usable blocks."""
    pool = hbm(one(engine(usage) + config(**labels)))
    assert (pool.capacity, pool.used) == (exactly(capacity), exactly(used))
    assert pool.reclaimable == exactly(capacity - used)
    assert pool.evictable == pool.available == at_most(capacity - used)


@given(blocks=st.integers(2, 10**6), share=st.floats(0, 1), page=st.sampled_from([1, 16, 32, 128]))
def test_used_blocks_survive_the_float(blocks: int, share: float, page: int) -> None:
    """Whatever the pool's size, the blocks in use come back exactly from the ratio vLLM computes as 1 - free/usable."""
    held = round(share * (blocks - 1))
    pool = hbm(one(engine(1.0 - (blocks - 1 - held) / (blocks - 1)) + config(num_gpu_blocks=blocks, block_size=page)))
    assert pool.used == exactly(held * page)
    assert pool.used + pool.reclaimable == pool.capacity == exactly((blocks - 1) * page)


@pytest.mark.parametrize(
    ("usages", "labels", "capacities", "counted"),
    [
        ((0.0, 0.44), {"num_gpu_blocks": 2002}, (16000, 16000), (True, True)),  # a sum, repeated on each
        ((0.1, 0.2), {"num_gpu_blocks": 2004, "num_gpu_blocks_override": 1001}, (16000, 16000), (True, True)),
        ((0.0, 123 / 1001), {"num_gpu_blocks": 2003}, (16000, 16000), (False, False)),  # ranks differ
        (
            (123 / 1001, 0.0),
            {"num_gpu_blocks": 2003, "kv_cache_size_tokens": 16032},
            (16016, 16016),
            (True, False),
        ),  # its tokens tell
    ],
)
def test_data_parallel_ranks_own_a_share(
    usages: tuple[float, float], labels: dict[str, object], capacities: tuple[float, float], counted: tuple[bool, bool]
) -> None:
    """The number of blocks is summed over the front end's engines; a share that is no count of blocks is called approximate."""
    told = [engine(usage, labels=f'model_name="m",engine="{i}"') + config(str(i), **labels) for i, usage in enumerate(usages)]
    states = read("".join(told)).states
    assert tuple(hbm(state).capacity.exact for state in states) == capacities
    assert tuple("approximate-capacity" not in codes(state) for state in states) == counted
    assert tuple("usable_blocks" in state.gauges for state in states) == counted


@pytest.mark.parametrize("missing", [{"num_gpu_blocks": "None"}, {"block_size": "None"}])
def test_an_unset_label_leaves_the_ratio(missing: dict[str, object]) -> None:
    """The string "None" is no number: tokens are unknown, the share in use is not."""
    pool = hbm(one(engine(0.99) + config(**missing)))
    assert (pool.capacity, pool.used, pool.used_ratio) == (UNKNOWN, UNKNOWN, exactly(0.99))


def test_several_groups_share_blocks() -> None:
    """With several KV groups blocks times block size is off by a factor: the token count of the engine is taken, and marked."""
    hybrid = config(block_size=4, num_gpu_blocks=41001, kv_cache_size_tokens=1483776, effective_attention_block_size=256)
    state = one(engine(0.5) + hybrid)
    assert hbm(state).capacity.exact == pytest.approx(1483776, rel=1e-4)
    assert hbm(state).used.exact == pytest.approx(741888, rel=1e-4)
    assert "approximate-capacity" in codes(state)
    assert state.facts["hybrid"] == "true"
    assert state.gauges["kv_groups"] == at_least(2)


def test_mamba_blocks_without_a_token_count_say_nothing() -> None:
    """A block of states has no tokens: without the engine's own count the capacity is unknown, not a product."""
    pool = hbm(one(engine(0.5) + config(mamba_block_size=528, mamba_cache_mode="align")))
    assert (pool.capacity, pool.used, pool.used_ratio) == (UNKNOWN, UNKNOWN, exactly(0.5))


def test_an_enlarged_block_without_a_token_count_is_marked() -> None:
    """The attention block is the one that counts; nothing proves that it is the only kind."""
    state = one(engine(0.5) + config(effective_attention_block_size=64))
    assert hbm(state).capacity == exactly(64000)
    assert "approximate-capacity" in codes(state)


def test_a_usage_that_is_no_whole_number_of_blocks_is_marked() -> None:
    """Then the count of blocks is not proven: the ratio is kept as it is, and the tokens are called approximate."""
    state = one(engine(0.12345678) + config())
    assert hbm(state).used.exact == pytest.approx(0.12345678 * 16000)
    assert hbm(state).used_ratio == exactly(0.12345678)
    assert "approximate-capacity" in codes(state)


@pytest.mark.parametrize(("usage", "usable"), [(0.5, 1000), (0.125, 1000), (0.0, 1000), (333 / 999, 999)])
def test_v0_sets_no_block_aside(usage: float, usable: int) -> None:
    """All blocks of the V0 engine hold KV, unless its own usage says otherwise."""
    body = series("gpu_cache_usage_perc", usage) + series("num_requests_swapped", 0) + config(num_gpu_blocks=1000)
    assert hbm(one(body)).capacity == exactly(usable * 16)


def test_blocks_are_what_is_allocated() -> None:
    """A block with one token in it is in use; the row says so once anything is, and only where tokens are known."""
    assert "block-granular" in codes(one(engine(0.5) + config()))
    assert "block-granular" not in codes(one(engine(0.0) + config()))
    assert "block-granular" not in codes(one(engine(0.5)))


def test_without_prefix_caching_nothing_is_evictable() -> None:
    """What is free then holds nothing; with it, or when nothing is said, the split stays open."""
    pool = hbm(one(engine(0.25) + config(enable_prefix_caching="False")))
    assert (pool.evictable, pool.available, pool.resident) == (ZERO, exactly(12000), exactly(4000))
    assert hbm(one(engine(0.25) + config(enable_prefix_caching="True"))).evictable == at_most(12000)


def test_a_switch_says_nothing_about_content() -> None:
    """With prefix caching off and the usage missing the pool is unmeasured, not partly known."""
    assert not hbm(one(series("num_requests_running", 1) + config(enable_prefix_caching="False"))).measured


def test_new_names_win() -> None:
    """Where a server exports a metric under its old and its new name it is one value, and the new one."""
    both = series("gpu_cache_usage_perc", 0.3) + series("kv_cache_usage_perc", 0.42)
    state = one(both + series("gpu_prefix_cache_queries_total", 5) + series("prefix_cache_queries_total", 70))
    assert hbm(state).used_ratio == exactly(0.42)
    assert state.counters["l1_queried_tokens"] == 70
    assert not codes(state) & {"renamed-series", "unit-unclear"}


def test_old_names_are_marked() -> None:
    """The old gauge is the same value; the old lookups were once blocks and once tokens, under one name."""
    state = one(series("gpu_cache_usage_perc", 0.3) + series("gpu_prefix_cache_queries_total", 5))
    assert hbm(state).used_ratio == exactly(0.3)
    assert codes(state) == {"renamed-series", "unit-unclear"}


def by_pid(*values: float) -> EngineState:
    """One engine whose usage several processes export."""
    return one("".join(series("kv_cache_usage_perc", v, f'{OWNER},pid="{271 + i}"') for i, v in enumerate(values)))


def test_one_value_among_zeros_is_the_engines() -> None:
    """Only one of several API servers gets the scheduler's figures; the zeros of the others are silence."""
    state = by_pid(0.0, 0.0, 0.65, 0.0)
    assert (hbm(state).used_ratio, codes(state)) == (exactly(0.65), {"pid-split-gauge"})
    assert codes(by_pid(0.0, 0.0)) == codes(by_pid(0.3, 0.3)) == set()


def test_differing_processes_leave_an_interval() -> None:
    """Nothing says which of them is right, so the truth is anywhere between; never the sum, the mean or the last."""
    state = by_pid(0.2, 0.9, 0.5)
    assert (hbm(state).used_ratio, codes(state)) == (Interval(0.2, 0.9), {"ambiguous-gauge"})


def test_a_repeated_series_does_not_depend_on_the_order_of_lines() -> None:
    """The same gauge twice is the interval of both; the same counter twice is the greater; both are noted."""
    lines = [series("kv_cache_usage_perc", 0.96), series("kv_cache_usage_perc", 0.0), series("num_preemptions_total", 9), config()]
    lines.append(series("num_preemptions_total", 4))
    forward, backward = one("".join(lines)), one("".join(reversed(lines)))
    assert hbm(forward).used_ratio == hbm(backward).used_ratio == Interval(0.0, 0.96)
    assert hbm(forward).used == Interval(0.0, 15360.0)
    assert forward.counters == backward.counters == {"preemptions": 9}
    assert codes(forward) == codes(backward) == {"duplicate-series"}


@pytest.mark.parametrize("version", VERSIONS)
def test_the_order_of_lines_means_nothing(version: str) -> None:
    """A shuffled body gives the same states."""
    body = (DATA / f"{version}.prom").read_text()
    lines = [line for line in body.splitlines(keepends=True) if not line.startswith("#")]
    types = "".join(line for line in body.splitlines(keepends=True) if line.startswith("#"))
    random.Random(7).shuffle(lines)
    assert read(types + "".join(lines)).states == read(body).states


@pytest.mark.parametrize("value", [-0.3871, 1.5, math.nan, math.inf, -math.inf])
def test_a_usage_no_engine_can_mean_is_dropped(value: float) -> None:
    """It is named and counts as unknown, never clamped to idle or full; everything else stays, on this rank and the next."""
    body = engine(value, labels='model_name="m",engine="3"') + engine(0.44, labels='model_name="m",engine="4"')
    odd, even = read(body + config("3", num_gpu_blocks=2002) + config("4", num_gpu_blocks=2002)).states
    assert (hbm(odd).used_ratio, hbm(odd).measured, hbm(odd).capacity) == (UNKNOWN, False, exactly(16000))
    assert odd.running == exactly(3)
    assert [name for name, _ in odd.implausible] == ["vllm:kv_cache_usage_perc"]
    assert "implausible-value" in codes(odd)
    assert (hbm(even).used, even.implausible) == (exactly(7040), ())


def test_float_noise_is_no_nonsense() -> None:
    """1 - free/usable may end a rounding error outside of 0 to 1."""
    assert hbm(one(engine(1.0000000000000002))).used_ratio == exactly(1)
    assert hbm(one(engine(-1e-17))).used_ratio == ZERO


@pytest.mark.parametrize("name", ["num_requests_running", "num_requests_waiting", "num_preemptions_total", "generation_tokens_total"])
def test_a_negative_count_is_unknown(name: str) -> None:
    """Nothing is counted below zero."""
    state = one(series("kv_cache_usage_perc", 0.1) + series(name, -2))
    assert state.running == state.waiting == UNKNOWN
    assert state.counters == {}
    assert state.implausible == ((f"vllm:{name}", -2.0),)


def test_a_counter_in_both_spellings_is_one_counter() -> None:
    """With and without ``_total`` are one series to Prometheus' own clients; either alone will do."""
    both = series("num_preemptions_total", 30) + series("num_preemptions", 30)
    assert one(both).counters == one(series("num_preemptions", 30)).counters == {"preemptions": 30}


def test_label_sets_of_a_counter_add_up() -> None:
    """Every reason to finish is a finished request; of the prompt only the computed part is work."""
    reasons = series("request_success_total", 3, OWNER + ',finished_reason="stop"')
    reasons += series("request_success_total", 4, OWNER + ',finished_reason="length"')
    sources = series("prompt_tokens_by_source_total", 10, OWNER + ',source="local_compute"')
    sources += series("prompt_tokens_by_source_total", 90, OWNER + ',source="local_cache_hit"')
    assert one(reasons + sources).counters == {"finished_requests": 7, "computed_prompt_tokens": 10}


def test_a_step_is_a_heartbeat() -> None:
    """``iteration_tokens_total`` is a histogram whose name ends like a counter's: its count is the steps."""
    assert one(series("iteration_tokens_total_count", 12) + series("iteration_tokens_total_sum", 900)).counters == {"heartbeat": 12}


def test_refusals_are_counted_once() -> None:
    """The front end refuses before an engine is chosen: one rank carries the count, so that a sum over ranks is right."""
    body = engine(0.1, labels='model_name="m",engine="0"') + engine(0.1, labels='model_name="m",engine="1"')
    states = read(body + series("admission_rejections_total", 5, 'model_name="m",reason="max_num_queued_reqs"')).states
    assert [state.counters.get("rejected_requests") for state in states] == [5, None]


def test_histograms_lose_every_label_but_the_edge() -> None:
    """Label sets add up, an unreadable edge costs its line only, and a missing last bucket is the count."""
    lines = [
        ("time_in_queue_requests_bucket", 99, 'le="1"'),
        ("request_queue_time_seconds_bucket", 1, 'le="0.1",kind="a"'),
        ("request_queue_time_seconds_bucket", 2, 'le="0.1",kind="b"'),
        ("request_queue_time_seconds_bucket", 7, 'le="soon",kind="b"'),
        ("request_queue_time_seconds_count", 3, 'kind="a"'),
        ("request_queue_time_seconds_count", 4, 'kind="b"'),
        ("request_queue_time_seconds_sum", 0.5, 'kind="a"'),
        ("request_queue_time_seconds_sum", 1.5, 'kind="b"'),
    ]
    body = engine(0.5) + "".join(series(name, value, f"{OWNER},{labels}") for name, value, labels in lines)
    found = one(body).histograms["queue"]
    assert found.buckets == ((0.1, 3), (math.inf, 7))
    assert (found.count, found.sum) == (7, 2)


def test_replicas_behind_one_ray_endpoint_are_kept_apart() -> None:
    """Both say engine 0: the replica's id makes two ranks, and each keeps its own blocks and counters."""
    body = "".join(
        engine(usage, labels=f'{OWNER},ReplicaId="{name}",WorkerId="w{name}"').replace("vllm:", "ray_vllm_")
        + f'ray_vllm_num_preemptions_total{{{OWNER},ReplicaId="{name}"}} {count}\n'
        + f'ray_vllm_cache_config_info{{engine="0",ReplicaId="{name}",block_size="16",num_gpu_blocks="1001"}} 1\n'
        for name, usage, count in (("r2", 0.3, 2), ("r1", 0.8, 1))
    )
    first, second = read(body).states
    assert (first.rank, second.rank) == ("0/r1", "0/r2")
    assert (hbm(first).used, hbm(second).used) == (exactly(12800), exactly(4800))
    assert (first.counters, second.counters) == ({"preemptions": 1}, {"preemptions": 2})


def test_a_lone_replica_is_its_engine() -> None:
    """Without a second one the rank is the engine's, whoever says the replica's name."""
    state = one(engine(0.5, labels=OWNER + ',ReplicaId="r1"') + config())
    assert (state.rank, hbm(state).capacity) == ("0", exactly(16000))


def test_models_in_one_body_are_kept_apart() -> None:
    """Two servers' series in one body are two owners with one rank each; their blocks are not summed."""
    body = engine(0.1, labels='model_name="a"') + engine(0.2, labels='model_name="b"') + config()
    assert [(s.model, s.rank, hbm(s).used) for s in read(body).states] == [("a", "0", exactly(1600)), ("b", "0", exactly(3200))]


def test_labels_are_optional() -> None:
    """Before 0.7 there is no engine label, and a relabelling may take the model's name."""
    state = one("vllm:num_requests_running 4\n" + series("kv_cache_usage_perc", 0.5, 'engine=""') + config())
    assert (state.model, state.rank, state.running) == (None, "0", exactly(4))
    assert hbm(state).used == exactly(8000)


def test_an_engine_that_has_not_stepped_is_there() -> None:
    """With several API servers the gauges are born with the first step: until then they are unknown, and nothing is missing."""
    body = series("generation_tokens_total", 0) + series("num_requests_waiting", 0, 'model_name="m",engine="1"')
    body += "".join(series(name, 0, 'model_name="m",engine="1"') for name in ("kv_cache_usage_perc", "num_requests_running"))
    reading = read(body + config("0", num_gpu_blocks=2002) + config("1", num_gpu_blocks=2002))
    assert [(s.rank, s.running, hbm(s).capacity) for s in reading.states] == [
        ("0", UNKNOWN, exactly(16000)),
        ("1", ZERO, exactly(16000)),
    ]
    assert reading.missing == ()


def test_what_should_be_there_is_missed() -> None:
    """An engine that works without its gauges or its configuration is told how to get them, once for the target."""
    body = series("generation_tokens_total", 9) + series("generation_tokens_total", 9, 'model_name="m",engine="1"')
    assert [m.series for m in read(body).missing] == [
        "vllm:kv_cache_usage_perc",
        "vllm:num_requests_running",
        "vllm:num_requests_waiting",
        "vllm:cache_config_info",
    ]


def test_nothing_of_vllm_gives_no_state() -> None:
    """A body of which no engine can be made out has none."""
    assert read("process_start_time_seconds 5\n") == Reading(())


def test_waiting_by_reason_is_no_second_queue() -> None:
    """Its parts are the queue, and stand in for it where they are alone."""
    parts = "".join(series("num_requests_waiting_by_reason", n, f'{OWNER},reason="{r}"') for r, n in (("capacity", 2), ("deferred", 7)))
    whole, alone = one(series("num_requests_waiting", 9) + parts), one(parts)
    assert whole.waiting == alone.waiting == exactly(9)
    assert (whole.waiting_capacity, whole.waiting_deferred) == (exactly(2), exactly(7))


def test_swapped_requests_wait() -> None:
    """V0 counts preempted requests apart once it has moved their KV to the host; they wait like the others."""
    assert one(series("num_requests_waiting", 4) + series("num_requests_swapped", 2)).waiting == exactly(6)


def test_a_request_waits_for_kv_until_it_has_arrived() -> None:
    """The last stage has its KV and waits for the scheduler only."""
    stages = ("waiting_to_start", 1), ("in_progress", 2), ("completed_waiting", 4)
    body = "".join(series("num_requests_kv_fetch_by_stage", n, f'{OWNER},stage="{stage}"') for stage, n in stages)
    assert one(body).gauges["waiting_prefetch"] == exactly(3)


def levels(current: str) -> str:
    """The three series of the sleep state."""
    names = ("awake", "weights_offloaded", "discard_all")
    return "".join(series("engine_sleep_state", float(name == current), f'{OWNER},sleep_state="{name}"') for name in names)


@pytest.mark.parametrize("level", ["weights_offloaded", "discard_all"])
def test_a_sleeping_pool_is_no_free_capacity(level: str) -> None:
    """Both levels of sleep discard the KV: the pools are listed and nothing about them is known."""
    levels = "".join(
        series("engine_sleep_state", float(s == level), f'{OWNER},sleep_state="{s}"') for s in ("awake", "weights_offloaded", "discard_all")
    )
    state = one(engine(0.0, 0, 0) + config() + levels)
    assert state.asleep
    assert (hbm(state).measured, hbm(state).capacity, hbm(state).reclaimable) == (False, UNKNOWN, UNKNOWN)


def test_an_engine_is_awake_unless_it_says_otherwise() -> None:
    """Three series of one state are one engine."""
    assert not one(engine(0.5) + levels("awake")).asleep


def test_the_start_of_the_process_is_the_engines_only_when_it_is_alone() -> None:
    """Several processes, or an agent that exports for replicas elsewhere, do not say when the engine started."""
    assert one(engine(0.1) + "process_start_time_seconds 5\n").started == 5
    assert one(engine(0.1) + 'process_start_time_seconds{a="1"} 5\nprocess_start_time_seconds{a="2"} 6\n').started is None
    assert one(engine(0.1, labels=OWNER + ',ReplicaId="r"') + "process_start_time_seconds 5\n").started is None


def test_a_step_changes_the_fingerprint_and_a_setting_the_identity() -> None:
    """Frozen figures are told by the one, another configuration by the other; a repeated scrape changes neither."""
    body = engine(0.5) + config() + series("generation_tokens_total", 5)
    now, again = one(body), one(body)
    stepped, larger = one(body.replace("} 5", "} 6")), one(body.replace("1001", "2001"))
    assert (now.fingerprint, now.identity) == (again.fingerprint, again.identity)
    assert (now.fingerprint != stepped.fingerprint, now.identity) == (True, stepped.identity)
    assert now.identity != larger.identity


def free_and_bare(*more: str) -> Interval:
    """The free blocks that may hold nothing, of 100 that turned over twice: 90 in use, 4 requests running, one answered."""
    body = engine(0.9, running=4) + config(num_gpu_blocks=101, prefix_cache_retention_interval="None", kv_cache_size_tokens=1616,
                                           kv_cache_max_concurrency=1.0)  # fmt: skip
    body += series("prompt_tokens_by_source_total", 3200, f'{OWNER},source="local_compute"') + series("generation_tokens_total", 32)
    body += series("num_preemptions_total", 0) + 'http_requests_total{handler="/metrics"} 9\n'
    body += "".join(series(f"time_to_first_token_seconds{end}", 1, f'{OWNER},le="+Inf"') for end in ("_bucket", "_sum", "_count"))
    outcome = Outcome("t", 10.0, None, 0.0, states=(one(body + "".join(more)),))
    return hbm(Refiner().refine(outcome).states[0]).available * exactly(1 / 16)


def test_a_running_request_holds_one_bare_block_and_more_with_drafts() -> None:
    """Each may leave its last block unfinished, and the blocks that a draft reaches into; what a hand-over holds is in no count."""
    drafted = [series("spec_decode_num_accepted_tokens_per_pos_total", 0, f'{OWNER},position="{i}"') for i in range(3)]
    assert free_and_bare() == Interval(0, 5)
    assert free_and_bare(*drafted[:1]) == free_and_bare(*drafted) == Interval(0, 10)
    assert free_and_bare(series("nixl_num_failed_transfers_total", 0)) == Interval(0, 10)


def test_the_version_comes_from_beside() -> None:
    """``/version`` is optional, and an odd answer of it is none."""
    (told,) = read(engine(0.1), side={"version": {"version": "0.32.0"}}).states
    (odd,) = read(engine(0.1), side={"version": ["0.32.0"]}).states
    assert (told.facts.get("version"), odd.facts.get("version")) == ("0.32.0", None)


def test_the_longest_sequence_follows_from_the_pool() -> None:
    """Tokens are concurrency times the longest sequence, rounded down; a concurrency with digits cut off proves nothing."""
    exact, cut = ({"kv_cache_size_tokens": "15953", "kv_cache_max_concurrency": told} for told in (repr(1000 / 257), "3.89"))
    assert [CacheConfig.of(told).context for told in (exact, cut)] == [4100, None]


if __name__ == "__main__":
    for name in VERSIONS:
        (DATA / f"{name}.json").write_text(json.dumps(goldens(name), indent=1) + "\n")
