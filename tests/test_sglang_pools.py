"""SGLang: what its pools hold, and what nobody may conclude about them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvwatch.quantity import UNKNOWN, Interval, at_most, exactly
from tests.sglang_bodies import BUSY, RANK0, cache, kv, lines, loads, one, read
from tests.states import codes, hbm


def test_three_states_are_a_partition() -> None:
    """Used, evictable and available are exact: a full pool of evictable tokens is under no pressure."""
    pool = hbm(one(lines(kv(20, 700, 280))))
    assert (pool.used, pool.evictable, pool.available, pool.held) == tuple(exactly(v) for v in (20, 700, 280, 0))
    assert (pool.reclaimable, pool.used_ratio, pool.resident_ratio) == (exactly(980), exactly(0.02), exactly(0.72))


def test_a_gap_between_the_states_and_the_capacity_is_held() -> None:
    """What none of the three states has, nobody can have: it is not given to available."""
    pool = hbm(one(lines(kv(500, 240, 200))))
    assert (pool.held, pool.reclaimable) == (exactly(60), exactly(440))


def test_states_of_two_publications_are_bounded_by_used() -> None:
    """A scrape between two writes may read states that exceed the pool; capacity stays, and the excess may be missing anywhere."""
    state = one(lines(kv(600, 300, 200)))
    pool = hbm(state)
    assert (pool.capacity, pool.used, pool.reclaimable) == (exactly(1000), exactly(600), exactly(400))
    assert (pool.evictable, pool.available) == (Interval(200, 300), Interval(100, 200))
    assert "ambiguous-gauge" in codes(state)


@given(st.tuples(*[st.integers(0, 2000)] * 3), st.integers(1, 3000))
def test_whatever_the_gauges_say_the_states_can_sum_to_the_capacity(states: tuple[int, int, int], capacity: int) -> None:
    """No reading gives a pool whose parts exceed it or leave some of it unaccounted for."""
    pool = hbm(one(lines(kv(*states, capacity=capacity))))
    parts = [pool.used, pool.evictable, pool.available, pool.held]
    assert sum(p.lo for p in parts) <= pool.capacity.hi + 1e-6
    if pool.measured:
        assert sum(p.hi for p in parts) >= pool.capacity.lo - 1e-6


@pytest.mark.parametrize("value", ["NaN", "-5", "+Inf"])
def test_a_state_no_engine_can_mean_is_unknown_and_spoils_no_other(value: str) -> None:
    """The value is dropped and named, the rest of the pool stays, and nothing is computed from the hole."""
    state = one(lines({**kv(200, value, 300), "num_running_reqs": 1}))
    pool = hbm(state)
    assert (pool.used, pool.available, pool.evictable, state.running) == (exactly(200), exactly(300), at_most(500), exactly(1))
    assert [name for name, _ in state.implausible] == ["sglang:kv_evictable_tokens"]
    assert "implausible-value" in codes(state)


@pytest.mark.parametrize("name", ["kv_used_tokens", "kv_evictable_tokens", "kv_available_tokens"])
def test_a_part_greater_than_its_pool_is_dropped(name: str) -> None:
    """No scrape between two writes explains it; the value is named, also beside a NaN, and nothing is computed from it."""
    state = one(lines({**kv(200, 300, 500), name: 2500, "swa_used_tokens": "NaN"}))
    assert [found for found, _ in state.implausible] == ["sglang:swa_used_tokens", f"sglang:{name}"]
    assert state.implausible[-1][1] == 2500
    assert (hbm(state).capacity, hbm(state).held.exact) == (exactly(1000), None)
    assert [(n.code, n.text.count("=")) for n in state.notes if n.code == "implausible-value"] == [("implausible-value", 2)]


def test_the_greater_of_two_pools_may_exceed_the_other() -> None:
    """``num_used_tokens`` is the sliding-window pool's where that one is larger."""
    assert one(lines({**kv(200, 300, 500), "swa_token_usage": 0.5, "num_used_tokens": 1500})).implausible == ()


def test_a_usage_above_one_is_dropped() -> None:
    """A ratio over the whole is no ratio."""
    state = one(lines({"token_usage": 1.4, "num_running_reqs": 1}))
    assert state.pool("l1", "full") is None
    assert state.implausible == (("sglang:token_usage", 1.4),)


def test_token_usage_is_the_greatest_of_all_pools() -> None:
    """Where the state slots are the fullest pool it says nothing about the KV pool but an upper end."""
    slots = {"mamba_used_tokens": 36, "mamba_available_tokens": 4, "mamba_evictable_tokens": 0, "mamba_usage": 0.9}
    state = one(lines({**kv(150, 100, 750), **slots, "token_usage": 0.9}))
    assert hbm(state).used_ratio == exactly(0.15)
    assert (hbm(state, "mamba").unit, hbm(state, "mamba").capacity, hbm(state, "mamba").used_ratio) == ("slots", exactly(40), exactly(0.9))
    coarse = one(lines({"max_total_num_tokens": 1000, "token_usage": 0.9, "mamba_usage": 0.9}))
    assert (hbm(coarse).used_ratio, hbm(coarse).used.hi) == (Interval(0.0, 0.905), 905)


def test_gauges_that_stay_zero_are_no_pools() -> None:
    """Every model exports the families of sliding-window and state pools."""
    none = dict.fromkeys(("swa_used_tokens", "swa_evictable_tokens", "swa_available_tokens", "swa_token_usage", "mamba_usage"), 0)
    assert [p.pool for p in one(lines({**kv(1, 1, 998), **none})).pools] == ["full"]


def test_two_decimals_bound_a_ratio_and_no_more() -> None:
    """Before 0.5.6 the size is not exported: it lies where used tokens and the rounded ratio allow it, and everything follows from that."""
    state = one('sglang:num_used_tokens{model_name="m"} 500\nsglang:token_usage{model_name="m"} 0.5\n')
    pool = hbm(state)
    assert pool.used == exactly(500)
    assert (pool.used_ratio.lo, pool.used_ratio.hi) == pytest.approx((0.495, 0.505))
    assert (pool.capacity.lo, pool.capacity.hi) == pytest.approx((990.1, 1010.1), abs=0.1)
    assert "approximate-capacity" in codes(state)


def test_the_configuration_tells_a_size_that_is_not_exported() -> None:
    """With /server_info the pool of an old release is known to the token."""
    body = 'sglang:num_used_tokens{model_name="m"} 500\nsglang:token_usage{model_name="m"} 0.5\n'
    pool = hbm(one(body, {"server_info": {"max_total_num_tokens": 1003, "version": "0.4.3.post2"}}))
    assert (pool.capacity, pool.reclaimable, pool.evictable) == (exactly(1003), exactly(503), at_most(503))


def test_with_a_sliding_window_used_tokens_are_an_upper_end() -> None:
    """``num_used_tokens`` is the greater of two pools there; the full pool's own ratio decides."""
    body = lines({"max_total_num_tokens": 1000, "num_used_tokens": 400, "swa_token_usage": 0.8, "token_usage": 0.8})
    assert hbm(one(body)).used == at_most(400)
    assert hbm(one(body + lines({"full_token_usage": 0.25}))).used == exactly(250)
    assert hbm(one(body), "swa").used_ratio == exactly(0.8)


def test_a_cold_server_has_a_size_and_nothing_else() -> None:
    """Before the first batch the gauges do not exist; silence is not 0."""
    state = one(lines({"max_total_num_tokens": 8192, "page_size": 1}))
    assert (hbm(state).measured, hbm(state).used, state.running, state.waiting) == (False, UNKNOWN, UNKNOWN, UNKNOWN)
    assert read(lines({"max_total_num_tokens": 8192})).missing == ()


def test_a_cold_server_is_known_by_its_load_report() -> None:
    """The report exists from the start."""
    state = one(lines({"max_total_num_tokens": 8192}), loads(0.1))
    assert (hbm(state).used, hbm(state).reclaimable, state.running) == (exactly(40), exactly(8152), exactly(5))


def test_a_host_pool_tells_what_is_in_it_not_what_is_locked() -> None:
    """Resident and available are exact; used and evictable lie anywhere within resident."""
    pool = one(lines({**BUSY, "hicache_host_used_tokens": 300, "hicache_host_total_tokens": 2000})).pool("l2", "kv")
    assert pool is not None
    assert (pool.resident, pool.available, pool.used, pool.evictable) == (exactly(300), exactly(1700), at_most(300), at_most(300))


def test_a_host_pool_fuller_than_it_is_large_is_only_a_size() -> None:
    """Two numbers that cannot both be true prove nothing about the content."""
    state = one(lines({**BUSY, "hicache_host_used_tokens": 2300, "hicache_host_total_tokens": 2000}))
    pool = state.pool("l2", "kv")
    assert pool is not None
    assert (pool.capacity, pool.measured) == (exactly(2000), False)
    assert state.implausible == (("sglang:hicache_host_used_tokens", 2300.0),)


def test_a_host_tier_is_proven_before_its_gauges_exist() -> None:
    """Its drop counter is there from the start."""
    state = one(
        lines({"max_total_num_tokens": 8192}) + cache("hicache_dropped_tokens_total", 0, pool="kv", reason="host_pressure", **RANK0)
    )
    assert (state.facts["l2_kind"], state.facts["l2_configured"], state.pool("l2", "kv")) == ("hicache", "true", None)


def test_a_cache_of_lmcache_is_lmcaches() -> None:
    """SGLang may keep its host tier in LMCache, which then tells about it itself."""
    state = one(lines(BUSY) + cache("evicted_tokens_total", 10, **{**RANK0, "cache_type": "LMCacheUnifiedRadixCache"}))
    assert (state.facts["l2_kind"], "l2_written_tokens" in state.counters) == ("lmcache", False)
