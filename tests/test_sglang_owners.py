"""SGLang: whose a number is."""

from __future__ import annotations

import pytest

from kvwatch.quantity import exactly
from tests.sglang_bodies import BUSY, RANK0, cache, kv, lines, one, read, recorded
from tests.states import codes, hbm


def test_ranks_that_repeat_each_other_are_one_owner() -> None:
    """TP, PP and EP ranks describe the same pool: running is 8, not 32."""
    body = "".join(lines(BUSY, tp_rank=str(t), pp_rank=str(p), moe_ep_rank=str(t)) for p in (1, 0) for t in (1, 0))
    state = one(body)
    assert (state.running, hbm(state).capacity) == (exactly(8), exactly(1000))


def test_under_dp_attention_tp_rank_moves_with_dp_rank() -> None:
    """Each data-parallel rank owns a pool, and cache counters go to their rank."""
    body = "".join(lines({**BUSY, "num_queue_reqs": d}, dp_rank=str(d), tp_rank=str(2 * d + t)) for d in (0, 1) for t in (0, 1))
    body += "".join(
        cache("evicted_tokens_total", 100 + d, tp_rank=str(2 * d + t), pp_rank="0", dp_rank=str(d)) for d in (0, 1) for t in (0, 1)
    )
    states = read(body).states
    assert [(s.rank, s.waiting, s.counters["l1_evicted_tokens"]) for s in states] == [("0", exactly(0), 100), ("1", exactly(1), 101)]


def test_plain_replicas_share_cache_counters_that_nobody_may_claim() -> None:
    """They all call themselves rank 0 there and are added up: unknown for each, though the tier is proven."""
    body = lines(BUSY, dp_rank="0") + lines(BUSY, dp_rank="1")
    body += cache("evicted_tokens_total", 100, **RANK0) + cache("hicache_dropped_tokens_total", 0, pool="kv", **RANK0)
    for state in read(body).states:
        assert not {"l1_evicted_tokens", "l2_dropped_tokens"} & state.counters.keys()
        assert state.facts["l2_kind"] == "hicache"
        assert "merged-ranks" in codes(state)


def test_every_owner_sees_first_tokens_and_the_first_one_counts_the_ends() -> None:
    """Latency is measured for all ranks together; a sum over owners of what is counted must stay true."""
    states = read(recorded("0.5.23-dp2")).states
    assert [s.histograms["ttft"].count for s in states] == [44, 44]
    assert [s.counters.get("finished_requests") for s in states] == [43, None]
    assert [s.counters["generation_tokens"] for s in states] == [2040, 1916]
    assert all("joined-by-target" in codes(s) and s.joined for s in states)


def test_tokens_are_counted_by_every_rank_and_bytes_by_each() -> None:
    """Of four ranks' evictions one is read; their byte counts are shards and add up."""
    ranks = [{**RANK0, "tp_rank": str(t)} for t in range(4)]
    body = lines({**BUSY, "hicache_host_total_tokens": 2000})
    body += "".join(cache("evicted_tokens_total", 6000, **r) + cache("hicache_backup_bytes_total", 50, **r) for r in ranks)
    counters = one(body).counters
    assert (counters["l1_evicted_tokens"], counters["l2_written_bytes"]) == (6000, 200)


def test_counters_without_ranks_are_the_sum_of_the_ranks_that_show() -> None:
    """Up to 0.5.19 the registry adds up what every TP rank counted; the ranks are visible in their own series."""
    body = lines(BUSY) + "".join(lines({"num_retracted_requests_total": 2}, tp_rank=str(t)) for t in range(1, 4))
    state = one(body + cache("evicted_tokens_total", 4000))
    assert state.counters["l1_evicted_tokens"] == 1000
    assert "merged-ranks" in codes(state)


def test_the_empty_priority_is_the_total() -> None:
    """With priority scheduling each priority has a series beside it."""
    body = lines(BUSY, priority="") + lines({"num_queue_reqs": 2}, priority="0") + lines({"num_queue_reqs": 1}, priority="5")
    assert one(body).waiting == exactly(3)


@pytest.mark.parametrize("turn", [1, -1])
def test_of_two_readings_of_one_series_the_fuller_is_taken(turn: int) -> None:
    """Whatever the order of the lines; never the sum."""
    body = "".join([lines({"kv_used_tokens": 900}), lines({"kv_used_tokens": 200})][::turn]) + lines(
        {**kv(0, 50, 50), "kv_used_tokens": 200}
    )
    state = one(body)
    assert hbm(state).used == exactly(900)
    assert "duplicate-series" in codes(state)


def test_two_models_behind_one_address_are_two_owners() -> None:
    """What names its model goes to it; what names none is nobody's."""
    ttft = 'sglang:time_to_first_token_seconds_{}{{model_name="{}"{}}} {}\n'
    body = lines(BUSY) + lines({**BUSY, "num_running_reqs": 1}, model_name="n") + cache("evicted_tokens_total", 5, **RANK0)
    body += "".join(ttft.format(*part) for part in (("bucket", "n", ',le="+Inf"', 7), ("sum", "n", "", 2), ("count", "n", "", 7)))
    m, n = read(body).states
    assert (m.model, n.model, n.running, n.histograms["ttft"].count) == ("m", "n", exactly(1), 7)
    assert "ttft" not in m.histograms
    assert "l1_evicted_tokens" not in m.counters


def test_per_process_gauges_make_no_second_owner() -> None:
    """The retraction gauge of each process is the last event's size; only the counter counts."""
    state = one(lines({**BUSY, "num_retracted_requests_total": 3}) + lines({"num_retracted_reqs": 4}, pid="31"))
    assert state.counters["preemptions"] == 3
