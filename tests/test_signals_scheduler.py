"""The scheduler as rules see it: requests, tokens and preemptions."""

from __future__ import annotations

import pytest

from kvwatch.quantity import MAYBE, TRUE, UNKNOWN, ZERO, Interval, at_least, at_most, exactly
from kvwatch.schema import EngineName
from kvwatch.signals import scheduler
from kvwatch.signals.kinds import holds
from kvwatch.view import View, Watch
from tests.samples import Amount, calm_time, hbm, histogram, moment, sample

NOTHING = histogram(0, 0, 0, 0, 0)


def window(*, seconds: float = 10.0, engine: EngineName = "vllm", pools: bool = True, running: Amount = 4, **grown: float) -> View:
    """Two samples, between which counters grew by so much."""
    states = [
        sample(
            at,
            engine=engine,
            pools=[hbm(800)] if pools else [],
            running=running,
            waiting=2,
            counters={n: 100.0 + (v if at else 0.0) for n, v in grown.items()},
        )
        for at in (0.0, seconds)
    ]
    return moment(*states, baseline=calm_time())


def test_rates_are_increases_per_second() -> None:
    """Exact in a window, unknown without the counter, and unknown when the samples are stuck together."""
    assert scheduler.token_rate.of(window(generation_tokens=50)) == exactly(5.0)
    assert scheduler.preemption_rate.of(window(preemptions=50)) == exactly(5.0)
    assert scheduler.token_rate.of(window()) == UNKNOWN
    assert scheduler.preemption_rate.of(window(seconds=0.4, preemptions=50)) == UNKNOWN


def test_counts_of_the_window() -> None:
    """Preemptions and refusals are what they grew by; unknown without the counter."""
    assert scheduler.preemptions.of(window(preemptions=3)) == exactly(3)
    assert scheduler.preempted_share.of(window(preemptions=3)) == exactly(0.75)
    assert scheduler.preempted_share.of(window(preemptions=3, running=0)) == UNKNOWN
    assert scheduler.rejected.of(window(rejected_requests=2)) == exactly(2)
    assert scheduler.rejected.of(window()) == UNKNOWN
    assert scheduler.preemptions.of(window()) == UNKNOWN


@pytest.mark.parametrize(
    ("preemptions", "seconds", "running", "expected"),
    [(2, 10, 40, True), (1, 10, 40, False), (3, 60, 30, True), (3, 60, 31, False), (2, 60, 4, False)],
)
def test_heavy_is_fast_or_many_of_the_running(preemptions: float, seconds: float, running: float, expected: object) -> None:
    """More than one in ten seconds, or at least three that are a tenth of the running requests."""
    assert holds(scheduler.heavy_preemption, window(seconds=seconds, running=running, preemptions=preemptions), {}) is expected


def test_the_token_rate_against_calm_time_is_the_last_fifteen_seconds() -> None:
    """Not the window's: a collapse is seen at once."""
    counts = [(0, 0), (15, 1500), (30, 3000), (45, 3150)]
    view = moment(*(sample(at, generation_tokens=n) for at, n in counts), baseline=calm_time(rate=100.0))
    late = [(0, 0), (40, 3000), (45, 3100), (50, 3150), (55, 3200)]
    gap = moment(*(sample(at, generation_tokens=n) for at, n in late), baseline=calm_time(rate=100.0))
    assert scheduler.token_change.of(gap).known, "a gap before the last fifteen seconds does not matter"
    assert scheduler.token_change.of(view) == exactly(0.1)
    assert scheduler.token_rate.of(view) == exactly(70.0)


def test_a_gap_in_the_scrapes_leaves_the_change_unknown() -> None:
    """A step longer than three intervals says nothing about now; nor does an engine without calm time."""
    states = [sample(0, generation_tokens=0), sample(16, generation_tokens=10)]
    assert scheduler.token_change.of(moment(*states, baseline=calm_time())) == UNKNOWN
    assert scheduler.token_change.of(moment(*states, baseline=calm_time(), watch=Watch(interval=6.0))).known
    assert scheduler.token_change.of(moment(*states, watch=Watch(interval=6.0))) == UNKNOWN


def test_an_engine_that_just_began_is_not_measured_against_calm_time() -> None:
    """It fills its batch first: for a window after a restart the change is unknown, then it is what it is."""

    def after(seconds: int) -> Interval:
        lives = [sample(at, generation_tokens=1500 + at, started=1.0) for at in (0, 15)]
        lives += [sample(15 + at, generation_tokens=at, started=20.0) for at in range(5, seconds + 1, 5)]
        return scheduler.token_change.of(moment(*lives, baseline=calm_time(rate=10.0)))

    assert after(60) == UNKNOWN
    assert after(65) == exactly(0.1)


def test_requests_against_calm_time() -> None:
    """Running now against running then; unknown without either."""
    assert scheduler.running_change.of(window(running=6)) == exactly(1.5)
    assert scheduler.running_change.of(window(running=None)) == UNKNOWN
    assert scheduler.running_change.of(moment(sample(running=6))) == UNKNOWN


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ((1, 2, 2, 2), exactly(10.0)),
        ((2, 2, 2), at_least(10.0)),
        ((2,), UNKNOWN),
        ((2, 2, None), UNKNOWN),
        ((2, None, 2), at_least(10.0)),
    ],
    ids=["since the last", "at least the time watched", "one sample", "unknown now", "a pause is no token"],
)
def test_time_without_a_token(counts: tuple[float | None, ...], expected: Interval) -> None:
    """Since the newest sample with progress; at least the time watched when there was none."""
    states = [sample(i * 5.0, counters={} if n is None else {"generation_tokens": n}) for i, n in enumerate(counts)]
    assert scheduler.tokenless.of(moment(*states)) == expected


@pytest.mark.parametrize("counter", ["computed_prompt_tokens", "prompt_tokens", "finished_requests"])
def test_any_progress_ends_it(counter: str) -> None:
    """Prefill is work, too; so is a request that ends."""
    states = [sample(at, counters={"generation_tokens": 7, counter: at}) for at in (0.0, 5.0)]
    assert scheduler.tokenless.of(moment(*states)) == ZERO


def test_a_first_token_is_progress_where_tokens_are_counted_late() -> None:
    """Some engines count generated tokens at the end of a request only."""
    states = [sample(at, generation_tokens=7, histograms={"ttft": histogram(n, n, n, n, n)}) for at, n in ((0, 1), (5, 2))]
    assert scheduler.tokenless.of(moment(*states)) == ZERO


@pytest.mark.parametrize("mine", [7, 8])
def test_what_all_ranks_count_together_is_nobodys_progress(mine: float) -> None:
    """A rank that stands still is seen although its neighbours give first tokens and end requests."""
    states = [
        sample(at, joined=True, generation_tokens=n, finished_requests=ends, histograms={"ttft": histogram(ends, ends, ends, ends, ends)})
        for at, n, ends in ((0, 7, 1), (20, mine, 5))
    ]
    assert scheduler.tokenless.of(moment(*states)) == (at_least(20) if mine == 7 else ZERO)


def standing(*prints: int, engine: EngineName = "vllm", running: Amount = 1, step: float = 30.0) -> Interval:
    """How long nothing changed, for these fingerprints."""
    return scheduler.frozen.of(moment(*(sample(i * step, engine=engine, running=running, fingerprint=p) for i, p in enumerate(prints))))


def test_frozen_is_time_without_change_against_what_the_engine_may_take() -> None:
    """A minute, 90 seconds for SGLang; nothing is frozen while nothing runs."""
    assert standing(1, 2, 2, 2) == exactly(1.0)
    assert standing(1, 2, 2, 2, engine="sglang").exact == pytest.approx(2 / 3)
    assert standing(1, 2, 2, 2, engine="lmcache") == exactly(1.0)
    assert standing(2, 2, 3) == ZERO
    assert standing(2, 2, 2, running=0) == ZERO
    assert standing(2, 2, 2, running=None) == UNKNOWN


def test_a_load_report_is_stale_in_two_scrapes_only() -> None:
    """One late report is a hiccup; without running requests, or without reports, nothing is stale."""

    def stale(*ages: Amount, running: Amount = 1) -> Interval | None:
        states = [sample(i * 5.0, running=running, gauges={} if a is None else {"loads_age_seconds": a}) for i, a in enumerate(ages)]
        return scheduler.stale_loads.told(moment(*states))

    assert stale(9, 6) == exactly(6)
    assert stale(1, 6) == exactly(1)
    assert stale(6) is None
    assert stale(9, 6, running=0) is None
    assert stale(None, 6) is None


def test_sequences_and_how_many_fit() -> None:
    """Resident tokens per running request, and the pool divided by them; from finished requests while nothing runs."""
    busy = moment(sample(pools=[hbm(800)], running=4, waiting=2))
    assert scheduler.mean_sequence.of(busy) == exactly(200)
    assert scheduler.ceiling.of(busy) == exactly(5)
    assert scheduler.demand.of(busy) == exactly(6)
    assert scheduler.ceiling_share.of(busy).exact == pytest.approx(5 / 6)
    done = {"prompt": histogram(0, 0, 0, 0, 2, total=300), "generation": histogram(0, 0, 0, 0, 2, total=100)}
    idle = moment(sample(0, pools=[hbm(0)], running=0, histograms={"prompt": NOTHING, "generation": NOTHING}),
                  sample(9, pools=[hbm(0)], running=0, histograms=done))  # fmt: skip
    assert scheduler.mean_sequence.of(idle) == exactly(200)
    assert scheduler.ceiling.of(idle) == exactly(5)
    nobody = moment(sample(pools=[hbm(0)], running=0, waiting=0))
    assert scheduler.mean_sequence.of(nobody) == UNKNOWN
    half = moment(
        *(sample(at, pools=[hbm(0)], running=0, histograms={"prompt": h}) for at, h in ((0, NOTHING), (9, histogram(0, 0, 0, 0, 2))))
    )
    assert scheduler.mean_sequence.of(half) == UNKNOWN, "answers are part of it"
    assert scheduler.ceiling.of(nobody) == UNKNOWN
    assert scheduler.ceiling_share.of(nobody) == UNKNOWN


def test_sequences_against_calm_time() -> None:
    """How much longer they have become."""
    assert scheduler.sequence_change.of(moment(sample(pools=[hbm(800)], running=4), baseline=calm_time(sequence=100))) == exactly(2)
    assert scheduler.sequence_change.of(moment(sample(pools=[hbm(800)], running=4))) == UNKNOWN


def test_crowded_is_nearly_full_or_just_preempted() -> None:
    """Nine tenths, or one preemption in the window."""
    assert holds(scheduler.crowded, moment(sample(0, pools=[hbm(900)])), {}) is True
    assert holds(scheduler.crowded, window(preemptions=1), {}) is True
    assert holds(scheduler.crowded, window(preemptions=0), {}) is False


def test_unchanging_is_a_minute_or_two_stale_reports() -> None:
    """Either; what stands still for less is no sign."""

    def unchanging(seconds: float, age: float = 0.0) -> object:
        states = [sample(at, running=1, fingerprint=7, gauges={"loads_age_seconds": age}) for at in (0.0, seconds)]
        return holds(scheduler.unchanging, moment(*states), {})

    assert (unchanging(60.0), unchanging(59.0), unchanging(5.0, 5.5), unchanging(5.0, 5.0)) == (True, False, True, False)


def test_what_was_computed_twice_is_bounded_from_above() -> None:
    """Preempted tokens may still hit the prefix cache, so what they lost is a most."""
    assert scheduler.recompute_share.of(window(recomputed_tokens=50, computed_prompt_tokens=200)) == at_most(0.25)
    assert scheduler.recompute_share.of(window(recomputed_tokens=50, computed_prompt_tokens=0)) == at_most(1.0)
    assert scheduler.recompute_share.of(window(recomputed_tokens=0, computed_prompt_tokens=0)) == UNKNOWN
    assert scheduler.recompute_share.of(window(computed_prompt_tokens=5)) == UNKNOWN


def test_blocks_are_filled_but_for_the_last_of_each_request() -> None:
    """Proven from the requests that run, and from above by the tokens of their sequences; one token a block wastes nothing."""

    def fill(block: Amount, **gauges: Amount) -> Interval:
        return scheduler.block_fill.of(moment(sample(pools=[hbm(800)], running=4, gauges={"block_size": block, **gauges})))

    assert fill(100) == Interval(0.5, 1.0)
    assert fill(100, running_tokens=480) == Interval(0.5, 0.6)
    assert fill(100, running_tokens=9999) == Interval(0.5, 1.0)
    assert fill(1) == TRUE
    assert fill(2) == Interval(0.99, 1.0)
    assert scheduler.block_fill.of(moment(sample(pools=[hbm(0)], gauges={"block_size": 16}))) == UNKNOWN
    assert scheduler.block_fill.of(moment(sample(pools=[hbm(800)]))) == UNKNOWN


def test_the_cap_on_running_requests() -> None:
    """Reached, not reached, or not told."""
    assert scheduler.at_cap.of(moment(sample(running=8, gauges={"running_cap": 8}))) == TRUE
    assert scheduler.at_cap.of(moment(sample(running=7, gauges={"running_cap": 8}))) == ZERO
    assert scheduler.at_cap.of(moment(sample(running=7))) == MAYBE
    assert scheduler.at_cap.of(moment(sample(running=7, gauges={"running_cap": Interval(4, 8)}))) == MAYBE


def test_steps_against_their_budget() -> None:
    """Mean tokens of a step; unknown without steps or without the budget."""
    steps = [
        sample(at, gauges={"token_budget": 100}, histograms={"step_tokens": h})
        for at, h in ((0, NOTHING), (9, histogram(0, 0, 0, 0, 2, total=180)))
    ]
    assert scheduler.step_fill.of(moment(*steps)) == exactly(0.9)
    assert scheduler.step_fill.of(moment(steps[0])) == UNKNOWN


def test_requests_put_aside_are_a_lower_bound() -> None:
    """They may be counted under several names; the largest is proven. Unknown where no name is exported."""
    view = moment(sample(waiting=8, deferred=2, gauges={"waiting_grammar": 4}))
    assert scheduler.deferred.of(view) == at_least(4)
    assert scheduler.deferred_share.of(view).lo == pytest.approx(0.5)
    assert scheduler.deferred.of(moment(sample(waiting=8))) == UNKNOWN
    assert scheduler.deferred_share.of(moment(sample(waiting=0, deferred=0))) == UNKNOWN


def test_generated_tokens_are_a_lifetime_count() -> None:
    """They say only whether the engine is past its warm-up."""
    assert scheduler.generated.of(moment(sample(generation_tokens=0))) == ZERO
    assert scheduler.generated.of(moment(sample())) == UNKNOWN
