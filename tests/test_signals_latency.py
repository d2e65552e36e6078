"""First tokens as rules see them: how late, against what, and what the time went to."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from kvwatch.baseline import Baseline
from kvwatch.model import EngineState
from kvwatch.quantity import UNKNOWN, ZERO, Interval, at_least, at_most, exactly
from kvwatch.signals import latency
from kvwatch.signals.kinds import holds
from kvwatch.view import View, Watch
from tests.samples import Amount, calm_time, hbm, histogram, moment, sample

NOTHING = histogram(0, 0, 0, 0, 0)


def first_tokens(*counts: float, waiting: Amount = 0, calm: Baseline | None = None, slo: float | None = None) -> View:
    """A window in which first tokens came with these cumulative counts up to 1, 2, 5, 10 s and beyond."""
    states = [sample(at, waiting=waiting, histograms={"ttft": h}) for at, h in ((0, NOTHING), (10, histogram(*counts)))]
    return moment(*states, baseline=calm, watch=Watch(interval=5.0, slo_ttft_p99=slo))


def test_quantiles_are_the_windows() -> None:
    """Median and p99 of the first tokens of the window, interpolated inside a bucket."""
    view = first_tokens(50, 100, 100, 100, 100)
    assert latency.p50.of(view) == exactly(1.0)
    assert latency.p99.of(view).exact == pytest.approx(1.98)
    assert latency.p99.of(first_tokens(0, 0, 0, 0, 0)) == UNKNOWN


def test_beyond_the_last_edge_is_at_least_that_late() -> None:
    """The slowdown is then a lower bound, and enough to be high."""
    view = first_tokens(0, 0, 0, 0, 10, calm=calm_time(p99=1.0))
    assert latency.p99.of(view) == at_least(10.0)
    assert latency.ratio.of(view).lo == pytest.approx(10.0)
    assert math.isinf(latency.ratio.of(view).hi)
    assert holds(latency.high, view, {}) is True


def test_late_is_against_the_calm_time_of_this_engine() -> None:
    """Twice the calm p99 is high, whatever that is in seconds; without a calm time neither is proven."""
    assert holds(latency.high, first_tokens(0, 100, 100, 100, 100, calm=calm_time(p99=0.9)), {}) is True
    assert holds(latency.high, first_tokens(0, 100, 100, 100, 100, calm=calm_time(p99=1.5)), {}) is False
    assert holds(latency.high, first_tokens(0, 100, 100, 100, 100), {}) is None


def test_an_slo_is_high_without_any_calm_time() -> None:
    """A configured SLO is judged at once; without one it says nothing."""
    assert latency.slo_ratio.of(first_tokens(0, 100, 100, 100, 100, slo=0.995)).exact == pytest.approx(2.0)
    assert holds(latency.high, first_tokens(0, 100, 100, 100, 100, slo=1.0), {}) is True
    assert latency.slo_ratio.told(first_tokens(0, 100, 100, 100, 100)) is None
    assert latency.slo_ratio.of(first_tokens(0, 0, 0, 0, 0, slo=1.0)) == UNKNOWN


def coming(*counts: float | None, step: float = 5.0, waiting: Amount = 2, calm: Baseline | None = None) -> View:
    """Samples with these counts of first tokens; None where the histogram is absent."""
    states = [
        sample(1000 + i * step, waiting=waiting, histograms={} if n is None else {"ttft": histogram(n, n, n, n, n)})
        for i, n in enumerate(counts)
    ]
    return moment(*states, baseline=calm)


def test_the_age_of_the_last_first_token() -> None:
    """Since the newest sample with a new one; at least the time watched when none came; unknown without the histogram."""
    assert latency.since_first_token.of(coming(1, 2, 2, 2)) == exactly(10.0)
    assert latency.since_first_token.of(coming(2, 2, 2)) == at_least(10.0)
    assert latency.since_first_token.of(coming(2)) == at_least(0.0)
    assert latency.since_first_token.of(coming(2, None)) == UNKNOWN
    assert latency.since_first_token.of(coming(2, None, 2)) == at_least(10.0), "a pause of the series is no first token"


def test_no_first_token_is_a_stall_against_twice_the_calm_time() -> None:
    """And never below five seconds, however quick the engine is."""
    assert latency.stall_ratio.of(coming(1, 2, 2, 2, calm=calm_time(p99=0.1))).exact == pytest.approx(2.0)
    assert latency.stall_ratio.of(coming(1, 2, 2, 2, calm=calm_time(p99=5.0))).exact == pytest.approx(1.0)
    assert latency.stall_ratio.of(coming(1, 2, 2, 2)) == UNKNOWN


def test_fresh_while_first_tokens_come_or_are_awaited() -> None:
    """An engine that nobody asks is not late any more."""
    assert holds(latency.fresh, coming(1, 2, 2, waiting=0), {}) is True
    assert holds(latency.fresh, coming(1, 2, 2, 2, 2, 2, waiting=0), {}) is False
    assert holds(latency.fresh, coming(1, 2, 2, 2, 2, 2, waiting=1), {}) is True


def parts(**seconds: float) -> list[EngineState]:
    """A window in which four requests took these mean seconds by stage."""
    return [
        sample(0, histograms=dict.fromkeys(seconds, NOTHING)),
        sample(10, histograms={name: histogram(0, 0, 0, 0, 4, total=4 * mean) for name, mean in seconds.items()}),
    ]


def test_shares_of_the_way_to_the_first_token() -> None:
    """Where queueing and prefill are both timed, of the two; else queueing of the whole, at most all of it."""
    timed = moment(*parts(ttft=9.0, queue=3.0, prefill=1.0))
    assert latency.queue_share.of(timed) == exactly(0.75)
    assert latency.prefill_share.of(timed) == exactly(0.25)
    assert latency.queue_share.of(moment(*parts(ttft=4.0, queue=3.0))) == exactly(0.75)
    assert latency.queue_share.of(moment(*parts(ttft=2.0, queue=3.0))) == exactly(1.0)
    assert latency.prefill_share.of(moment(*parts(ttft=4.0, queue=3.0))) == UNKNOWN
    assert latency.queue_share.of(moment(*parts(ttft=4.0))) == UNKNOWN


def test_loading_is_at_most_all_of_it() -> None:
    """Loads overlap with waiting and with each other, so their share is only bounded."""
    assert latency.load_share.of(moment(*parts(ttft=4.0, l2_load=1.0))) == at_most(0.25)
    assert latency.load_share.of(moment(*parts(ttft=1.0, l2_load=9.0))) == at_most(1.0)
    assert latency.load_share.of(moment(*parts(ttft=1.0))) == UNKNOWN


def pained(  # noqa: PLR0913  each is one way to hurt
    *, waiting: float = 0, used: float = 300, preemptions: float = 0, then: float = 0, late: float = 0, calm: bool = True
) -> object:
    """Whether it hurts: ``preemptions`` 30 s ago, ``then`` just now, ``late`` first tokens beyond ten seconds."""
    quick = 10 - late
    states = [
        sample(at, pools=[hbm(used)], waiting=waiting, preemptions=n, generation_tokens=at, histograms={"ttft": h})
        for at, n, h in (
            (0, 0, NOTHING), (10, preemptions, NOTHING), (36, preemptions, NOTHING),
            (40, preemptions + then, histogram(quick, quick, quick, quick, 10)),
        )
    ]  # fmt: skip
    return holds(latency.pain, moment(*states, baseline=calm_time() if calm else None), {})


@pytest.mark.parametrize(
    ("truth", "expected"),
    [
        (pained(), False),
        (pained(used=990), False),
        (pained(waiting=3), False),
        (pained(waiting=3, used=990), True),
        (pained(waiting=1, preemptions=1), True),
        (pained(preemptions=9), False),
        (pained(waiting=3, then=1), True),
        (pained(late=5), True),
        (pained(late=5, calm=False), None),
    ],
    ids=["calm", "full without a queue", "a queue with room", "a queue on a full pool", "a queue after preemptions",
         "preempted long ago, nobody waits", "just preempted", "late first tokens", "late, but no calm time to compare with"],
)  # fmt: skip
def test_what_hurts(truth: object, expected: object) -> None:
    """A full pool alone does not: users must wait for it, be preempted, or get their first token late."""
    assert truth is expected


def test_a_queue_without_any_first_token_hurts() -> None:
    """With room in the pool, too: that is a budget that is used up, or worse."""
    states = [sample(at, pools=[hbm(300)], waiting=3, preemptions=0, histograms={"ttft": histogram(9, 9, 9, 9, 9)}) for at in (0, 5, 10)]
    assert holds(latency.pain, moment(*states, baseline=calm_time(p99=1.0)), {}) is True
    assert latency.stall_ratio.of(moment(*states, baseline=calm_time(p99=1.0))) == Interval(2.0, math.inf)
    assert holds(latency.pain, moment(*states[:2], baseline=calm_time(p99=1.0)), {}) is True, "five seconds are enough"
    nobody = [replace(state, waiting=ZERO) for state in states]
    assert holds(latency.pain, moment(*nobody, baseline=calm_time(p99=1.0)), {}) is not True, "nobody waits for one"


def test_the_baseline_says_what_stands_behind_it() -> None:
    """Its p99 and the calm seconds it was learned from."""
    view = first_tokens(1, 1, 1, 1, 1, calm=calm_time(p99=1.5, seconds=77.0))
    assert latency.baseline.of(view).exact == pytest.approx(1.5)
    assert latency.baseline_seconds.of(view) == exactly(77.0)
    assert latency.baseline.of(first_tokens(1, 1, 1, 1, 1)) == UNKNOWN
