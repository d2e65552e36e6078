"""Time: increases over births, gaps and restarts, quantiles of a window, and what calm time was like."""

from __future__ import annotations

import math

import pytest

from kvwatch.history import Baseline, Track, quantile
from kvwatch.model import EngineState, Histogram, OwnerKey
from kvwatch.quantity import UNKNOWN, at_least, exactly

KEY = OwnerKey("t", "vllm", "m", "0")
EDGES = (1.0, 2.0, 10.0, math.inf)


def state(
    at: float, *, identity: str = "a", started: float | None = None, ttft: tuple[float, ...] | None = None, **counters: float
) -> EngineState:
    """One sample."""
    histograms = {} if ttft is None else {"ttft": Histogram(tuple(zip(EDGES, ttft, strict=True)), ttft[-1], ttft[-1])}
    return EngineState(
        "t", "vllm", "m", "0", at, counters=counters, histograms=histograms, identity=identity, started=started, running=exactly(1)
    )


def track(*states: EngineState, calm: bool = False) -> Track:
    """A history of samples."""
    made = Track(KEY)
    for s in states:
        made.append(s)
        made.settle({}, calm=calm)
    return made


def test_one_sample_has_no_rate() -> None:
    """A lifetime count at first sight says nothing about now."""
    assert track(state(0, preemptions=5000)).span(60).increase("preemptions") is None


def test_two_samples_too_close_have_none_either() -> None:
    """Scrapes that were stuck arrive together."""
    assert track(state(0, x=1), state(0.4, x=9)).span(60).rate("x") == UNKNOWN


def test_a_counter_born_in_the_window_counts_from_zero() -> None:
    """Its owner was known before; one that pauses for a sample is not born again."""
    assert track(state(0), state(10, x=4), state(20, x=6)).span(60).increase("x") == 6
    assert track(state(0, x=100), state(10), state(20, x=103)).span(60).increase("x") == 3


def test_an_unknown_counter_is_no_zero() -> None:
    """A counter that is not there now has no increase."""
    assert track(state(0, x=1), state(10)).span(60).increase("x") is None


def test_a_drop_is_never_negative() -> None:
    """A single counter that was reset loses that step only."""
    assert track(state(0, x=10), state(10, x=2), state(20, x=5)).span(60).increase("x") == 3


def test_nothing_is_counted_across_a_restart() -> None:
    """A new process is a new life: its first sample has no rate."""
    made = track(state(0, generation_tokens=900, preemptions=5), state(15, generation_tokens=10, preemptions=0))
    assert made.restarted
    assert made.span(60).increase("generation_tokens") is None
    assert track(state(0, started=100.0, x=1), state(9, started=200.0, x=50)).restarted


def test_the_window_reaches_to_the_newest_sample_that_is_old_enough() -> None:
    """Or to the oldest there is."""
    made = track(*(state(t, x=t) for t in range(0, 100, 10)))
    assert made.span(25).seconds == 30
    assert made.span(500).seconds == 90


@pytest.mark.parametrize(("q", "expected"), [(0.5, 1.0), (0.75, 1.5), (0.9, 1.8), (0.99, 1.98)])
def test_quantiles_interpolate_inside_a_bucket(q: float, expected: float) -> None:
    """As Prometheus' histogram_quantile does: 5 values up to 1 s, 5 more up to 2 s."""
    assert quantile(tuple(zip(EDGES, (5.0, 10.0, 10.0, 10.0), strict=True)), q).exact == pytest.approx(expected)


def test_a_quantile_beyond_the_last_edge_is_a_lower_bound() -> None:
    """Nobody knows how late the latest are."""
    assert quantile(tuple(zip(EDGES, (0.0, 0.0, 1.0, 9.0), strict=True)), 0.99) == at_least(10.0)
    assert quantile(tuple(zip(EDGES, (0.0,) * 4, strict=True)), 0.99) == UNKNOWN


def test_the_window_counts_not_the_lifetime() -> None:
    """A calm past does not hide a bad minute."""
    made = track(state(0, ttft=(1000, 1000, 1000, 1000)), state(60, ttft=(1000, 1000, 1010, 1010)))
    p99 = made.span(60).quantile("ttft", 0.99).exact
    assert p99 is not None
    assert p99 > 9


def calm_minutes(*, scrapes: int, step: float = 5.0, first_tokens: int = 5, calm: bool = True, moving: bool = True) -> Baseline:
    """What is learned from a run of equal samples."""
    samples = (
        state(i * step, ttft=(i * first_tokens if moving else 0,) * 4, generation_tokens=i * 50.0 if moving else 0.0)
        for i in range(scrapes)
    )
    return track(*samples, calm=calm).baseline


def test_a_baseline_needs_twelve_scrapes_and_twenty_first_tokens() -> None:
    """Before that it is unknown."""
    assert calm_minutes(scrapes=11).ttft_quantile(0.99) == UNKNOWN
    assert calm_minutes(scrapes=12).ttft_quantile(0.99).known
    assert calm_minutes(scrapes=12, first_tokens=1).ttft_quantile(0.99) == UNKNOWN
    assert calm_minutes(scrapes=12).token_rate() == exactly(10.0)
    assert calm_minutes(scrapes=14, step=1.0).ttft_quantile(0.99) == UNKNOWN, "fifteen seconds, too"


def test_pain_and_idle_time_teach_nothing() -> None:
    """Only calm samples with traffic count."""
    assert calm_minutes(scrapes=40, calm=False).scrapes == 0
    assert calm_minutes(scrapes=40, moving=False).scrapes == 0


def test_a_baseline_survives_a_restart_but_not_another_model() -> None:
    """It belongs to the configuration, not to the process."""
    made = track(*(state(i * 5.0, ttft=(i * 5,) * 4, generation_tokens=i * 50.0) for i in range(20)), calm=True)
    made.append(state(200, generation_tokens=1))
    assert made.baseline.ready
    made.append(state(205, identity="b", generation_tokens=2))
    assert not made.baseline.ready
