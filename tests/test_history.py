"""Time: increases over births, gaps and restarts, quantiles of a window, and what calm time was like."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvwatch.baseline import Baseline
from kvwatch.history import MOST_FRAMES, Track
from kvwatch.model import EngineState, Histogram, OwnerKey
from kvwatch.pool import Pool
from kvwatch.quantity import UNKNOWN, at_least, exactly
from kvwatch.span import quantile

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
        if calm:
            made.learn()
    return made


def test_one_sample_has_no_rate() -> None:
    """A lifetime count at first sight says nothing about now."""
    assert track(state(0, preemptions=5000)).span(60).increase("preemptions") is None


def test_two_samples_too_close_have_none_either() -> None:
    """Scrapes that were stuck arrive together."""
    assert track(state(0, x=1), state(0.4, x=9)).span(60).rate("x") == UNKNOWN
    assert track(state(0, x=1), state(0.5, x=9)).span(60).rate("x") == exactly(16.0)


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


def test_a_series_that_pauses_for_a_scrape_is_not_born_anew() -> None:
    """A NaN or a broken line in one scrape: the lifetime count is no increase of the next, in a window that begins there, too."""
    made = track(state(0, x=5000), state(10), state(20, x=5003))
    assert made.span(10).increase("x") == 3
    assert made.span(60).increase("x") == 3
    lived = track(state(0, ttft=(900,) * 4), state(10), state(20, ttft=(900, 900, 902, 902)))
    assert lived.span(10).total("ttft") == exactly(2.0)
    assert lived.span(10).mean("ttft") == exactly(1.0)


def test_a_pause_teaches_nothing_false() -> None:
    """The calm time that begins with a scrape without the series does not learn a lifetime."""
    samples = [state(i * 5.0, ttft=None if i == 3 else (i * 5.0 + 1000,) * 4, generation_tokens=i * 50.0) for i in range(20)]
    baseline = track(*samples, calm=True).baseline
    assert baseline.ttft[-1][1] == 95
    assert baseline.token_rate() == exactly(10.0)


def test_a_restart_behind_a_pause_is_seen() -> None:
    """The counter that fell is compared with the last one there was."""
    made = track(state(0, generation_tokens=900), state(10), state(20, generation_tokens=5))
    assert made.restarted


def test_the_process_start_decides_where_it_is_told() -> None:
    """Counters that fall in the same process are no restart, and a clock that is adjusted by less than a second is none."""
    assert not track(state(0, started=100.0, generation_tokens=9), state(9, started=100.4, generation_tokens=1)).restarted
    assert track(state(0, started=100.0, generation_tokens=9), state(9, generation_tokens=1)).restarted, "else the counters do"
    assert track(state(0, started=100.0), state(9, started=101.5)).restarted


def test_each_life_is_its_own() -> None:
    """Frames, steps and windows reach back to the restart and no further."""
    made = track(state(0, generation_tokens=9), state(10, generation_tokens=1), state(20, generation_tokens=4))
    assert [f.at for f in made.life()] == [20, 10]
    assert made.span(60).seconds == 10
    assert made.span(60).increase("generation_tokens") == 3
    assert not made.restarted


def test_a_sample_that_is_not_newer_replaces_the_last() -> None:
    """Two answers of one moment are one sample."""
    made = track(state(0, x=1), state(10, x=5), state(10, x=7))
    assert [f.at for f in made.frames] == [0, 10]
    assert made.span(60).increase("x") == 6


def test_the_ring_is_bounded() -> None:
    """Fifteen minutes, and a number of samples, whatever the interval."""
    assert [f.at for f in track(*(state(t * 100.0) for t in range(20))).frames] == [t * 100.0 for t in range(10, 20)]
    assert len(track(*(state(t * 0.1) for t in range(1500))).frames) == MOST_FRAMES


def test_histograms_are_kept_for_the_window_alone() -> None:
    """The sample the window begins with is the oldest that has them; a quantile is the same, and of a longer window unknown."""
    samples = [state(i * 15.0, x=float(i), ttft=(i, 2.0 * i, 3.0 * i, 3.0 * i)) for i in range(20)]
    kept, all_of_them = Track(KEY), track(*samples)
    for s in samples:
        kept.append(s, 60.0)
    assert [f.at for f in kept.frames if f.histograms] == [f.at for f in kept.frames if f.state.histograms] == [225, 240, 255, 270, 285]
    assert [f.first_tokens for f in kept.frames] == [f.first_tokens for f in all_of_them.frames]
    assert kept.span(60).quantile("ttft", 0.9) == all_of_them.span(60).quantile("ttft", 0.9) != UNKNOWN
    assert kept.span(90).increase("x") == 6
    assert kept.span(90).quantile("ttft", 0.9) == kept.span(90).mean("ttft") == UNKNOWN


def test_sums_and_means_are_of_the_window() -> None:
    """What was taken in since its first sample; unknown when nothing was."""
    made = track(state(0, ttft=(3, 3, 3, 3)), state(10, ttft=(3, 5, 5, 7)))
    assert made.span(60).mean("ttft") == exactly(1.0)
    assert made.span(60).total("ttft") == exactly(4.0)
    still = track(state(0, ttft=(3, 3, 3, 3)), state(10, ttft=(3, 3, 3, 3)))
    assert still.span(60).mean("ttft") == UNKNOWN
    assert still.span(60).total("ttft") == UNKNOWN
    assert still.span(60).quantile("ttft", 0.5) == UNKNOWN
    assert still.span(60).total("queue") == UNKNOWN


def test_a_histogram_born_in_the_window_counts_from_zero() -> None:
    """Its owner was known before."""
    assert track(state(0), state(10, ttft=(1, 2, 2, 2))).span(60).total("ttft") == exactly(2.0)


@given(st.lists(st.floats(0.01, 30), min_size=1, max_size=40), st.floats(0.01, 1.0))
def test_a_quantile_lies_in_the_bucket_of_the_true_one(values: list[float], q: float) -> None:
    """Between the edges around the value of that rank; beyond the last edge it is at least that edge."""
    buckets = tuple((edge, float(sum(v <= edge for v in values))) for edge in EDGES)
    true = sorted(values)[max(0, math.ceil(q * len(values) - 1e-9) - 1)]
    low, high = max((e for e in (0.0, *EDGES) if e < true), default=0.0), min(e for e in EDGES if e >= true)
    found = quantile(buckets, q)
    assert low - 1e-9 <= found.lo
    assert found.hi <= high + 1e-9
    assert (found.exact is None) is math.isinf(high)


def test_calm_sequences_are_measured_where_both_are_known() -> None:
    """Tokens per running request, and requests running, only from samples that told them."""

    def told(at: float, *, running: float | None, used: float | None) -> EngineState:
        pools = () if used is None else (Pool.of("l1", "full", "tokens", capacity=exactly(1000), used=exactly(used)),)
        return EngineState("t", "vllm", "m", "0", at, pools=pools, running=UNKNOWN if running is None else exactly(running),
                           counters={"generation_tokens": at})  # fmt: skip

    half = [told(i * 5.0, running=None if i % 2 else 4, used=None if i % 3 else 200) for i in range(40)]
    baseline = track(*half, calm=True).baseline
    assert baseline.mean_running() == exactly(4.0)
    assert baseline.mean_sequence() == exactly(50.0)
    nothing = track(*(told(i * 5.0, running=None, used=None) for i in range(40)), calm=True).baseline
    assert nothing.ready
    assert (nothing.mean_running(), nothing.mean_sequence(), nothing.hit_ratio()) == (UNKNOWN,) * 3


def test_calm_hits_are_of_all_that_was_looked_up() -> None:
    """Steps in which only one of the two is told teach nothing about them."""
    known = [state(i * 5.0, generation_tokens=i, l1_queried_tokens=i * 10.0, l1_hit_tokens=i * 4.0) for i in range(20)]
    half = [state(i * 5.0, generation_tokens=i, l1_queried_tokens=i * 10.0) for i in range(20, 30)]
    assert track(*known, *half, calm=True).baseline.hit_ratio().exact == pytest.approx(0.4)


def test_calm_tokens_are_of_the_time_they_were_told() -> None:
    """A calm step that counts first tokens alone says nothing about the token rate."""
    known = [state(i * 5.0, ttft=(i,) * 4, generation_tokens=i * 50.0) for i in range(20)]
    half = [state(i * 5.0, ttft=(i,) * 4) for i in range(20, 30)]
    assert track(*known, *half, calm=True).baseline.token_rate() == exactly(10.0)


def test_first_tokens_count_from_their_birth() -> None:
    """None before, and those of the last sample that told them in a pause."""
    made = track(state(0), state(5, ttft=(1, 2, 2, 2)), state(10))
    assert [f.first_tokens for f in made.frames] == [0, 2, 2]


def test_a_night_is_not_forgotten_but_fades() -> None:
    """Counts are halved when they grow large, so that a baseline follows a drift and stays finite."""
    samples = (state(i * 5.0, ttft=(i * 50_000.0,) * 4, generation_tokens=i) for i in range(30))
    most = track(*samples, calm=True).baseline.ttft[-1][1]
    assert 50_000 <= most <= 2 * Baseline.MOST_FIRST_TOKENS


def test_other_buckets_begin_anew() -> None:
    """An engine that was given other edges is compared with what it did with them."""
    old = [state(i * 5.0, ttft=(i * 5.0,) * 4, generation_tokens=i) for i in range(14)]
    new = [
        replace(
            state(100 + i * 5.0, generation_tokens=20 + i),
            histograms={"ttft": Histogram(((3.0, i * 5.0), (math.inf, i * 5.0)), 0.0, i * 5.0)},
        )
        for i in range(14)
    ]
    assert track(*old, *new, calm=True).baseline.ttft == ((3.0, 65.0), (math.inf, 65.0))
