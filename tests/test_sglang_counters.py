"""SGLang: what it counts, and what a series that is not there means."""

from __future__ import annotations

import pytest

from tests.sglang_bodies import BUSY, RANK0, cache, lines, loads, one, read, recorded


def test_a_counter_that_is_not_born_is_zero_where_the_release_has_it() -> None:
    """Labelled series appear with their first increment."""
    host = {"hicache_host_used_tokens": 300, "hicache_host_total_tokens": 2000}
    counters = one(lines({**BUSY, **host, "prefill_effective_tokens_total": 0})).counters
    names = ("preemptions", "l1_evicted_tokens", "l2_read_tokens", "l2_written_tokens", "l2_dropped_tokens")
    assert [counters[name] for name in names] == [0] * 5


def test_a_counter_the_release_may_not_have_is_unknown() -> None:
    """0.4.3 counts neither retractions nor evictions; 0.5.10 does not count what is written to the host tier."""
    old = one('sglang:num_running_reqs{model_name="m"} 1\nsglang:num_used_tokens{model_name="m"} 5\n').counters
    assert not {"preemptions", "l1_evicted_tokens"} & old.keys()
    assert "l2_written_tokens" not in one(recorded("0.5.10-tp2")).counters


def test_bytes_that_are_not_told_are_not_zero_beside_tokens() -> None:
    """A flow that moved tokens moved bytes; only one that moved nothing has none of either."""
    host = lines({**BUSY, "prefill_effective_tokens_total": 0, "hicache_host_total_tokens": 2000})
    counters = one(host + cache("hicache_backup_tokens_total", 90, pool="kv", **RANK0)).counters
    assert (counters["l2_written_tokens"], counters.get("l2_written_bytes"), counters["l2_read_bytes"]) == (90, None, 0)
    ranks = host + lines(BUSY, dp_rank="1") + cache("hicache_backup_tokens_total", 90, pool="kv")
    assert all("l2_written_bytes" not in state.counters for state in read(ranks).states), "merged tokens are some rank's bytes"


def test_the_servers_own_word_dates_a_release() -> None:
    """A cold server of 0.5.23 has counters that its series do not prove."""
    cold = lines({"max_total_num_tokens": 8192})
    assert "preemptions" not in one(cold).counters
    state = one(cold, loads(0.1))
    assert (state.counters["preemptions"], state.facts["version"]) == (0, "0.5.23")


def test_retracted_tokens_are_unknown_where_only_the_requests_are_counted() -> None:
    """Requests that were retracted had tokens."""
    assert "recomputed_tokens" not in one(lines({**BUSY, "num_retracted_requests_total": 3})).counters


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"total_retracted_reqs": 7}, 7),
        ({"num_retractions_sum": 5, "num_retractions_count": 40}, 5),
        ({}, None),
    ],
)
def test_older_releases_tell_retractions_otherwise(values: dict[str, float], expected: float | None) -> None:
    """A gauge that only grows (0.4.9 to 0.5.2), the requests that ended (0.5.6), or not at all."""
    body = "".join(f'sglang:{name}{{model_name="m"}} {value}\n' for name, value in {"num_running_reqs": 1, **values}.items())
    assert one(body).counters.get("preemptions") == expected


def test_hits_come_from_counters_by_tier() -> None:
    """What missed HBM was looked up in the host tier; the hit-rate gauge, which is 0 most of the time, is not read."""
    tiers = {"input": 100, "device_hit": 700, "host_hit": 150, "storage_hit": 50}
    body = lines({**BUSY, "cache_hit_rate": 0, "hicache_host_used_tokens": 1, "hicache_host_total_tokens": 2})
    body += "".join(lines({"prefill_effective_tokens_total": value}, mode=mode) for mode, value in tiers.items())
    body += 'sglang:prefetched_tokens_total{storage_backend="file",tp_rank="0"} 50\n'
    counters = one(body).counters
    names = ("l1_queried_tokens", "l1_hit_tokens", "l2_queried_tokens", "l2_hit_tokens", "l3_hit_tokens", "computed_prompt_tokens")
    assert [counters[name] for name in names] == [1000, 700, 300, 150, 50, 100]


def test_hits_come_from_steps_where_tiers_are_not_told() -> None:
    """0.5.8: computed and cached prompt tokens of every step."""
    body = (
        lines(BUSY)
        + lines({"realtime_tokens_total": 100}, mode="prefill_compute")
        + lines({"realtime_tokens_total": 400}, mode="prefill_cache")
    )
    counters = one(body).counters
    assert (counters["l1_queried_tokens"], counters["l1_hit_tokens"], counters["generation_tokens"]) == (500, 400, 0)


def test_hits_come_from_finished_requests_before_that() -> None:
    """With their tier where a host tier is proven: the host series that is not born yet is 0."""
    requests = 'sglang:prompt_tokens_total{model_name="m"} 1000\nsglang:cached_tokens_total{model_name="m",cache_source="device"} 250\n'
    counters = one(lines({**BUSY, "hicache_host_total_tokens": 5}) + requests).counters
    assert (counters["l1_queried_tokens"], counters["l1_hit_tokens"], counters["l2_hit_tokens"]) == (1000, 250, 0)


def test_a_storage_tier_that_reads_nothing_reads_zero() -> None:
    """Hits that were promised and not delivered are failures; the read counter is not even born."""
    labels = {"storage_backend": "file", "tp_rank": "0", "dp_rank": "0"}
    body = lines(BUSY) + cache("backuped_tokens_total", 34277, **labels)
    body += cache("storage_prefetch_unfulfilled_tokens_total", 6000, reason="storage_transfer", **labels)
    body += cache("storage_prefetch_unfulfilled_tokens_total", 1, reason="dropped", **labels)
    state = one(body)
    assert [state.counters[f"l3_{name}"] for name in ("written_tokens", "read_tokens", "load_failures")] == [34277, 0, 6001]


def test_refusals_are_answers_of_503_to_posts() -> None:
    """A failing health check refuses no work."""
    answer = 'sglang:http_responses_total{{endpoint="/x",status_code="{}",method="{}"}} {}\n'
    body = lines(BUSY) + answer.format(200, "POST", 90) + answer.format(503, "POST", 4) + answer.format(503, "GET", 50)
    assert one(body).counters["rejected_requests"] == 4


def test_a_busy_frontend_does_not_hide_a_dead_scheduler() -> None:
    """The fingerprint is of what the scheduler writes; the heartbeat counts its idle and busy seconds and its tokens."""
    beating = {**BUSY, "scheduler_idle_seconds_total": 1.5, "scheduler_process_cpu_seconds_total": 2.0}
    alive = 'sglang:http_responses_total{{status_code="200",method="POST"}} {0}\nsglang:num_requests_total{{model_name="m"}} {0}\n'
    before, after = (one(lines(beating) + alive.format(count)) for count in (1, 2))
    assert before.fingerprint == after.fingerprint
    assert before.counters["heartbeat"] == 3.5
    assert one(lines({**beating, "scheduler_idle_seconds_total": 1.6})).fingerprint != before.fingerprint


def test_passes_over_prompts_are_timed_by_stage() -> None:
    """The last pass and the chunks before it; other stages are none, and a second rank tells the same."""

    def stage(name: str, seconds: float, rank: str = "0") -> str:
        family = "per_stage_req_latency_seconds"
        told = lines({f"{family}_sum": seconds, f"{family}_count": 2}, stage=name, tp_rank=rank)
        return told + lines({f"{family}_bucket": 2}, stage=name, tp_rank=rank, le="+Inf")

    body = lines(BUSY) + stage("prefill_forward", 3) + stage("chunked_prefill", 4) + stage("request_process", 50)
    for told in (body, body + stage("prefill_forward", 3, "1")):
        passes = one(told).histograms["prefill_passes"]
        assert (passes.sum, passes.count) == (7, 4)
    assert "prefill_passes" not in one(lines(BUSY) + stage("request_process", 50)).histograms
