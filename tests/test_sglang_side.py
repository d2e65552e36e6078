"""SGLang: what its pages beside /metrics add, and what they must not."""

from __future__ import annotations

import pytest

from kvwatch.quantity import exactly
from tests.sglang_bodies import BUSY, lines, loads, one, read
from tests.states import hbm


def test_a_fresh_load_report_is_newer_than_the_gauges() -> None:
    """Requests come from it, those that wait for a grammar beside the main queue among them; the pool stays of one publication."""
    state = one(lines(BUSY), loads(1.0, queues={"waiting": 9, "grammar": 1}, max_running_requests=64))
    assert (state.running, state.waiting, hbm(state).used) == (exactly(5), exactly(10), exactly(700))
    assert (state.gauges["running_cap"], state.gauges["loads_age_seconds"], state.gauges["waiting_grammar"]) == tuple(
        map(exactly, (64, 1, 1))
    )


def test_an_old_load_report_only_tells_its_age() -> None:
    """A scheduler that stands still stops reporting: the gauges are no older than the report then."""
    state = one(lines(BUSY), loads(23.5))
    assert (state.running, state.waiting, state.gauges["loads_age_seconds"]) == (exactly(8), exactly(3), exactly(23.5))


def test_the_servers_clock_tells_the_age() -> None:
    """The answer is stamped by the clock that stamped the report, so two machines need not agree on the time."""
    report = {"dp_rank": 0, "timestamp": 1000.0, "num_running_reqs": 5}
    skewed = {"loads": {"timestamp": "1970-01-01T00:16:41.500000+00:00", "loads": [report]}}
    assert one(lines(BUSY), skewed).gauges["loads_age_seconds"] == exactly(1.5)
    assert "loads_age_seconds" not in one(lines(BUSY), loads(-60.0)).gauges


@pytest.mark.parametrize("page", [[], "no", {"loads": None}, {"loads": [3]}, {"error": "x"}, None])
def test_a_page_of_another_shape_is_ignored_and_said_once(page: object) -> None:
    """The metrics are read all the same."""
    state = one(lines(BUSY), {"loads": page})
    assert state.running == exactly(8)
    assert [note.code for note in state.notes] == ["side-page-unreadable"]


def test_hand_over_queues_come_from_the_report() -> None:
    """A decode engine that waits for transfers pushes no gauges, but it reports; its main queue is not the total of all."""
    pd = {"mode": "decode", "decode_prealloc_queue_reqs": 7, "decode_transfer_queue_reqs": 2, "decode_retracted_queue_reqs": 1}
    body = lines({**BUSY, "num_decode_prealloc_queue_reqs": 0}, engine_type="decode")
    state = one(body, loads(0.05, disaggregation=pd))
    names = ("decode_prealloc_queue", "decode_transfer_queue", "decode_retracted_queue")
    assert [state.gauges[name] for name in names] == [exactly(7), exactly(2), exactly(1)]
    assert (state.facts["role"], state.waiting, state.counters["transfer_failures"]) == ("decode", exactly(3), 0)


def test_before_any_series_is_born_the_report_names_the_ranks() -> None:
    """An old release exports nothing before its first request."""
    side = {**loads(0.1, rank=1), "server_info": {"served_model_name": "m"}}
    assert [(s.model, s.rank, s.running) for s in read("sglang:process_cpu_seconds_total 1\n", side).states] == [("m", "1", exactly(5))]
    assert read("sglang:process_cpu_seconds_total 1\n").states == ()


def test_secrets_of_the_configuration_go_nowhere() -> None:
    """/server_info repeats all arguments; only the fields that are understood are kept."""
    info = {
        "api_key": "s3cret",
        "admin_api_key": "s3cret",
        "model_path": "s3cret",
        "hicache_write_policy": "write_back",
        "kv_cache_dtype": "auto",
    }
    host = {"hicache_host_used_tokens": 300, "hicache_host_total_tokens": 2000}
    reading = read(lines({**BUSY, **host}), {"server_info": {**info, "mem_fraction_static": 0.85, "chunked_prefill_size": 4096}})
    (state,) = reading.states
    assert "s3cret" not in repr(reading)
    assert (state.facts["write_policy"], state.facts["kv_dtype"]) == ("write_back", "auto")
    assert (state.gauges["memory_fraction"], state.gauges["token_budget"]) == (exactly(0.85), exactly(4096))


@pytest.mark.parametrize(
    ("info", "cap"),
    [
        ({"max_running_requests": 64}, 64),
        ({"max_running_requests": 64, "dp_size": 4, "enable_dp_attention": True}, 16),
        ({"max_running_requests": 64, "dp_size": 4}, 64),
        ({"max_running_requests": None, "internal_states": [{"effective_max_running_requests_per_dp": 48}]}, 48),
        ({"max_running_requests": None}, None),
    ],
)
def test_the_cap_of_running_requests_is_a_ranks(info: dict[str, object], cap: float | None) -> None:
    """With DP attention the argument is for all ranks together; what the scheduler made of it goes first."""
    found = one(lines(BUSY), {"server_info": info}).gauges.get("running_cap")
    assert found == (None if cap is None else exactly(cap))


def test_an_unknown_size_is_said_with_what_would_tell_it() -> None:
    """Only once the server has run a batch, and not where the used ratio bounds it."""
    old = 'sglang:num_running_reqs{model_name="m"} 1\nsglang:num_used_tokens{model_name="m"} 500\n'
    (missing,) = read(old).missing
    assert missing.series == "sglang:max_total_num_tokens"
    assert "/server_info" in missing.enable
    assert read(old + 'sglang:token_usage{model_name="m"} 0.5\n').missing == ()
    assert read(old, {"server_info": {"max_total_num_tokens": 1000}}).missing == ()
    assert read(lines(BUSY)).missing == ()
