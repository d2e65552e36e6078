"""The interval arithmetic and the partition of a pool: never narrower than the truth, never a guess."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvwatch.model import Contradiction, Pool
from kvwatch.quantity import MAYBE, TRUE, UNKNOWN, ZERO, Interval, Truth, all_of, any_of, at_least, at_most, exactly, negate
from kvwatch.report import quantity

amounts = st.integers(0, 10_000)
PARTS = ("used", "evictable", "available", "reclaimable", "resident", "used_ratio", "resident_ratio")


@given(amounts, amounts, amounts, amounts, st.sampled_from("+-*/"))
def test_arithmetic_contains_every_possible_result(a: int, b: int, c: int, d: int, op: str) -> None:
    """Whatever two quantities are within their bounds, the result is within the bounds of the result (never below zero)."""
    x, y = Interval(min(a, b), max(a, b)), Interval(min(c, d), max(c, d))
    results = {"+": x + y, "-": x - y, "*": x * y, "/": x / y}[op]
    for u in (x.lo, x.hi):
        for v in (y.lo, y.hi):
            if op == "/" and v == 0:
                continue
            truth = {"+": u + v, "-": max(0.0, u - v), "*": u * v, "/": u / v if v else 0.0}[op]
            assert results.lo <= truth + 1e-9
            assert results.hi >= truth - 1e-9


@pytest.mark.parametrize(
    ("value", "op", "limit", "expected"),
    [
        (exactly(5), ">", 4, True), (exactly(4), ">", 4, False), (Interval(3, 5), ">", 4, None), (UNKNOWN, ">", 0, None),
        (at_least(5), ">=", 5, True), (Interval(0, 4), ">=", 5, False), (Interval(0, 4), "<=", 4, True), (Interval(0, 5), "<=", 4, None),
        (Interval(5, 9), "<=", 4, False), (Interval(0, 3), "<", 4, True), (Interval(4, 9), "<", 4, False), (MAYBE, "==", 1, None),
        (TRUE, "==", 1, True), (ZERO, "==", 1, False),
    ],
)  # fmt: skip
def test_a_comparison_holds_only_for_the_whole_interval(value: Interval, op: str, limit: float, expected: Truth) -> None:
    """True when all of it satisfies the condition, false when none does, else unknown."""
    assert value.compare(op, limit) is expected  # type: ignore[arg-type]  # the table's operators


def test_three_valued_logic() -> None:
    """One false decides a conjunction, one true a disjunction, and unknown stays unknown."""
    assert all_of([True, None, False]) is False
    assert all_of([True, None]) is None
    assert any_of([False, None, True]) is True
    assert any_of([False, None]) is None
    assert negate(None) is None


def test_what_is_no_interval_is_refused() -> None:
    """Inverted bounds and NaN are contradictions in the data."""
    for lo, hi in ((2.0, 1.0), (math.nan, 1.0), (0.0, math.nan), (math.inf, math.inf)):
        with pytest.raises(ValueError, match="no interval"):
            Interval(lo, hi)


def test_json_says_number_bounds_or_null() -> None:
    """Exact, bounded, from below, unknown."""
    assert [quantity(q) for q in (exactly(3.0), Interval(0, 4), at_least(2), UNKNOWN)] == [3, [0, 4], [2, None], None]


@settings(max_examples=300)
@given(amounts, amounts, amounts, amounts, st.sets(st.sampled_from(PARTS)))
def test_the_true_partition_is_always_inside(used: int, evictable: int, available: int, held: int, told: set[str]) -> None:
    """From any part of the truth the pool derives intervals that contain the whole truth, and exact parts sum to the capacity."""
    capacity = used + evictable + available + held
    truth: dict[str, float] = {"used": used, "evictable": evictable, "available": available}
    truth |= {"reclaimable": evictable + available, "resident": used + evictable}
    if capacity:
        truth |= {"used_ratio": used / capacity, "resident_ratio": (used + evictable) / capacity}
    given_parts = {name: exactly(truth[name]) for name in told if name in truth}
    pool = Pool.of("l1", "full", "tokens", capacity=exactly(capacity), held=exactly(held), **given_parts)  # type: ignore[arg-type]
    for name, value in truth.items():
        q: Interval = getattr(pool, name)
        slack = 1e-6 * max(1.0, capacity)
        assert q.lo - slack <= value <= q.hi + slack, name
    if told & {"used"} and told & {"evictable"} and pool.measured:
        assert pool.available.exact == pytest.approx(available, abs=1e-6 * max(1.0, capacity))


def test_capacity_alone_bounds_nothing() -> None:
    """A pool of which the scrape measured nothing is unknown, not between empty and full."""
    pool = Pool.of("l2", "kv", "bytes", capacity=exactly(100))
    assert not pool.measured
    assert all(q == UNKNOWN for q in (pool.used, pool.evictable, pool.available, pool.reclaimable, pool.resident, pool.used_ratio))


def test_usage_without_capacity_is_a_ratio_only() -> None:
    """A known ratio of an unknown capacity says nothing in tokens."""
    pool = Pool.of("l1", "full", "tokens", used_ratio=exactly(0.41))
    assert pool.used_ratio == exactly(0.41)
    assert not pool.used.known
    assert pool.resident_ratio == Interval(0.41, 1.0) or not pool.resident_ratio.known


def test_a_contradiction_is_refused() -> None:
    """Parts that exceed the capacity cannot all be true."""
    with pytest.raises(Contradiction, match="cannot all be true"):
        Pool.of("l1", "full", "tokens", capacity=exactly(10), used=exactly(8), evictable=exactly(5))


def test_a_host_tier_by_its_occupancy() -> None:
    """HiCache: resident and available exact, used and evictable anywhere in what is resident."""
    pool = Pool.of("l2", "kv", "tokens", capacity=exactly(100), resident=exactly(30))
    assert (pool.available, pool.used, pool.evictable) == (exactly(70), at_most(30), at_most(30))
