"""The pool in HBM as rules see it: how full, whether the next request fits, and what else can bound admission."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from kvwatch.model import EngineState
from kvwatch.pool import Pool
from kvwatch.quantity import MAYBE, TRUE, UNKNOWN, ZERO, Interval, Truth, at_most, exactly
from kvwatch.signals import l1
from kvwatch.signals.kinds import branches, holds
from tests.samples import Amount, calm_time, hbm, histogram, moment, sample


def side(used_ratio: Amount) -> Pool:
    """A pool for states, counted in slots."""
    return Pool.of("l1", "mamba", "slots", capacity=exactly(10), used_ratio=Interval(0, 1) if used_ratio is None else exactly(used_ratio))  # type: ignore[arg-type]


def test_the_fullest_pool_binds() -> None:
    """The used ratio is that of the pool that stops admission, the reclaimable share that of the one with least to take."""
    view = moment(sample(pools=[hbm(300), side(0.9)]))
    assert l1.used_ratio.of(view) == exactly(0.9)
    assert l1.full_used_ratio.of(view) == exactly(0.3)
    assert l1.side_used_ratio.of(view) == exactly(0.9)
    assert l1.reclaimable_ratio.of(view).lo == pytest.approx(0.1)


def test_a_pool_of_which_nothing_is_known_leaves_the_ratio_open() -> None:
    """It may be the fullest: what is known of the others is a lower bound, and an upper one of what can be taken."""
    view = moment(sample(pools=[hbm(600), Pool.of("l1", "swa", "tokens", capacity=exactly(100))]))
    assert l1.used_ratio.of(view).lo == pytest.approx(0.6)
    assert l1.used_ratio.of(view).exact is None
    assert l1.reclaimable_ratio.of(view) == at_most(0.4)


def test_without_pools_nothing_is_known() -> None:
    """No pool is not an empty pool."""
    view = moment(sample())
    quantities = (l1.used_ratio, l1.full_used_ratio, l1.reclaimable_ratio, l1.resident_ratio, l1.evictable_ratio, l1.session_ratio)
    assert [signal.of(view) for signal in quantities] == [UNKNOWN] * 6
    assert l1.side_used_ratio.told(view) is None


def test_where_no_prompt_is_told_nobody_says_what_the_next_request_lacks() -> None:
    """Whether prompts are not exported or none ended in the window: no number, and a pool with room is not full by it."""
    for told in ({}, PROMPTS):
        view = moment(*(sample(at, pools=[hbm(500)], histograms=told) for at in (0, 10)))
        assert l1.shortfall.told(view) is None
        assert holds(l1.saturated, view, {}) is False


def test_the_split_of_what_is_free_stays_open() -> None:
    """A gauge of use alone: resident between used and all of it, evictable between nothing and what is free."""
    view = moment(sample(pools=[hbm(600)]))
    assert l1.resident_ratio.of(view) == Interval(0.6, 1.0)
    assert l1.evictable_ratio.of(view) == at_most(0.4)


def test_a_ratio_of_an_unknown_capacity_still_says_what_can_be_taken() -> None:
    """A usage gauge without the pool's size is enough for shares."""
    view = moment(sample(pools=[Pool.of("l1", "full", "tokens", used_ratio=exactly(0.97))]))
    assert l1.reclaimable_ratio.of(view).lo == pytest.approx(0.03)
    assert holds(l1.saturated, view, {}) is True


PROMPTS = {"prompt": histogram(0, 0, 0, 0, 0)}
ASKED = {"prompt": histogram(0, 0, 0, 0, 4, total=160)}
"""Four prompts of 40 tokens on average."""


@pytest.mark.parametrize(
    ("used", "asked", "block", "expected"),
    [
        (970, {}, None, True),  # by 0.95 of the pool, which is 5 % left, too
        (949, {}, None, False),
        (970, ASKED, None, True),
        (940, ASKED, None, False),  # 60 are left, 40 asked for
        (940, ASKED, 64, True),  # a block of 64 does not fit
        (940, ASKED, 16, False),  # three blocks of 16 do
    ],
)
def test_saturated_is_about_the_next_request(used: float, asked: dict[str, object], block: float | None, expected: Truth) -> None:
    """By 0.95 used, by 5 % left, or by less left than one more request needs, its prompt rounded up to blocks."""
    gauges: dict[str, Amount] = {} if block is None else {"block_size": block}
    states = [sample(at, pools=[hbm(used)], histograms=h, gauges=gauges) for at, h in ((0, PROMPTS), (10, asked or PROMPTS))]  # type: ignore[arg-type]
    assert holds(l1.saturated, moment(*states), {}) is expected


def test_a_higher_limit_of_the_used_share_is_not_undone_by_the_free_one() -> None:
    """A pool of which 4 % is free is 96 % used: who asks for 97 % does not hear of it, by either share."""
    view = moment(sample(pools=[hbm(960)]))
    assert holds(l1.saturated, view, {}) is True
    assert holds(l1.saturated, view, {"l1_used_ratio": 0.97}) is False
    assert holds(l1.saturated, view, {"l1_reclaimable_ratio": 0.03}) is False
    assert holds(l1.saturated, moment(sample(pools=[hbm(970)])), {"l1_used_ratio": 0.97}) is True


def test_a_small_pool_is_saturated_far_below_095() -> None:
    """Half used, but the prompts of the window need more than the other half."""
    before, after = {"prompt": histogram(0, 0, 0, 0, 0)}, {"prompt": histogram(0, 0, 0, 0, 2, total=1400)}
    view = moment(sample(0, pools=[hbm(500)], histograms=before), sample(10, pools=[hbm(500)], histograms=after))
    assert l1.shortfall.of(view) == exactly(200)
    assert holds(l1.saturated, view, {}) is True


def test_five_percent_left_saturate_where_states_are_held() -> None:
    """Held tokens are no usage, yet cannot be taken: 0.75 used with 0.2 held is full."""
    view = moment(sample(pools=[hbm(750, held=200)]))
    assert l1.used_ratio.of(view) == exactly(0.75)
    assert holds(l1.saturated, view, {}) is True
    assert holds(l1.saturated, moment(sample(pools=[hbm(750, held=199)])), {}) is False


def test_saturated_is_unknown_between_the_limits() -> None:
    """An interval that reaches over 0.95 proves neither."""
    view = moment(sample(pools=[Pool.of("l1", "full", "tokens", capacity=exactly(1000), used_ratio=Interval(0.9, 0.97))]))
    assert holds(l1.saturated, view, {}) is None


@pytest.mark.parametrize(
    ("waiting", "for_capacity", "deferred", "expected"),
    [(5, None, None, 5), (5, 2, None, 2), (5, None, 4, 1), (5, 2, 3, 2), (None, None, None, None)],
)
def test_only_those_who_wait_for_capacity_count(waiting: Amount, for_capacity: Amount, deferred: Amount, expected: Amount) -> None:
    """Where the engine says why requests wait, those put aside for another reason are none; else all of them are."""
    view = moment(sample(waiting=waiting, for_capacity=for_capacity, deferred=deferred))
    assert l1.waiting.of(view).exact == expected


def preempted(*counts: float | None, step: float = 5.0, waiting: Amount = 3, used: float = 990) -> list[EngineState]:
    """Samples with these counts of preemptions; None where the scrape lacks the series."""
    return [
        sample(1000 + i * step, pools=[hbm(used)], waiting=waiting, running=4, counters={} if n is None else {"preemptions": n})
        for i, n in enumerate(counts)
    ]


def test_a_preemption_is_present_for_fifteen_seconds() -> None:
    """Then it is over."""
    assert l1.preempting.of(moment(*preempted(0, 1))) == TRUE
    assert l1.preempting.of(moment(*preempted(0, 1, 1, 1))) == TRUE
    assert l1.preempting.of(moment(*preempted(0, 1, 1, 1, 1))) == ZERO


def test_a_preemption_is_present_for_two_scrapes_if_that_is_longer() -> None:
    """With scrapes half a minute apart, both of the last steps count."""
    assert l1.preempting.of(moment(*preempted(0, 1, 1, step=30))) == TRUE
    assert l1.preempting.of(moment(*preempted(0, 1, 1, 1, step=30))) == ZERO


def test_an_idle_pool_that_is_reset_is_not_preempting() -> None:
    """An administrative reset of the cache preempts without a queue and with room."""
    assert l1.preempting.of(moment(*preempted(0, 4, waiting=0, used=300))) == ZERO
    assert l1.preempting.of(moment(*preempted(0, 4, waiting=0, used=920))) == TRUE


def test_pressure_at_either_end_of_the_step_is_enough() -> None:
    """The victim may have emptied the pool, and the queue may have been served since."""
    states = [sample(0, pools=[hbm(990)], waiting=0, preemptions=0), sample(5, pools=[hbm(400)], waiting=0, preemptions=1)]
    assert l1.preempting.of(moment(*states)) == TRUE


def test_unknown_preemptions_are_not_none() -> None:
    """Without the counter, or with one sample of it, neither is proven."""
    assert l1.preempting.of(moment(*preempted(7))) == MAYBE
    assert l1.preempting.of(moment(*preempted(None, None))) == MAYBE


def test_a_counter_that_pauses_for_a_scrape_is_no_storm() -> None:
    """After a scrape without it the lifetime count is no new preemption."""
    assert l1.preempting.of(moment(*preempted(5000, None, 5000))) == ZERO
    assert l1.preempting.of(moment(*preempted(5000, None, 5001))) == TRUE


Counts = Sequence[float]


def sglang(  # noqa: PLR0913  one keyword for each thing that could explain the queue
    running: Counts = (8, 8, 6),
    *,
    waiting: Amount = 5,
    used: float = 70_000,
    cap: Amount = 32,
    ratio: float = 0.2,
    step: float = 5.0,
    **gauges: Amount,
) -> list[EngineState]:
    """SGLang with a queue and a pool of 100,000 tokens that has room; its running requests over the window."""
    told: dict[str, Amount] = {"new_token_ratio": ratio, **gauges} | ({} if cap is None else {"running_cap": cap})
    return [
        sample(i * step, engine="sglang", pools=[hbm(used, 100_000)], running=n, waiting=waiting, gauges=told)
        for i, n in enumerate(running)
    ]


def test_budget_bound_is_proven_by_elimination() -> None:
    """Requests wait, running is below its maximum and its cap, and nothing else explains the queue."""
    assert l1.budget_bound.of(moment(*sglang())) == TRUE
    assert l1.budget_bound.of(moment(*sglang((8, 8, 8)))) == TRUE, "at its maximum without having just set it"


@pytest.mark.parametrize(
    ("states", "why"),
    [
        (sglang((6, 6, 8)), "running has just grown: admission goes on"),
        (sglang((32, 32, 32)), "running is at its cap"),
        (sglang(waiting_grammar=1), "a grammar may explain the queue"),
        (sglang(adapter_slots_ratio=1), "an adapter that finds no slot may"),
        (sglang(waiting_prefetch=1), "a prefetch from below may"),
        (sglang(decode_transfer_queue=1), "a transfer may"),
        (sglang(waiting=None), "nobody knows whether requests wait"),
        (sglang((6,)), "one sample has no window"),
        (sglang((8, 8, 8), cap=None), "a number that is pinned may be the cap"),
        (sglang((8, 8, 7), cap=None), "a dip of one is the moment between two admissions"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_budget_bound_is_unknown_while_something_else_may_explain_the_queue(states: list[EngineState], why: str) -> None:
    """Elimination needs every other reason excluded."""
    assert l1.budget_bound.of(moment(*states)) == MAYBE, why


def test_a_deep_dip_excludes_an_unknown_cap() -> None:
    """What once ran is no more than the cap, so far below it the cap does not bind."""
    assert l1.budget_bound.of(moment(*sglang((20, 20, 17), cap=None))) == TRUE
    assert l1.budget_bound.of(moment(*sglang((40, 40, 37), cap=None))) == MAYBE, "a tenth of the maximum, too"


def test_a_reserve_that_stays_high_is_proof_where_the_cap_is_unknown() -> None:
    """The last admission ratio decays within seconds of decoding; one that stays high is a setting, or follows retractions."""
    steady = (8.0,) * 8
    assert l1.budget_bound.of(moment(*sglang(steady, cap=None, ratio=0.5))) == TRUE
    assert l1.budget_bound.of(moment(*sglang(steady, cap=None, ratio=0.4))) == MAYBE
    assert l1.budget_bound.of(moment(*sglang(steady[:5], cap=None, ratio=0.6))) == MAYBE, "for the hold"


def test_budget_bound_is_refuted_by_more_room_than_could_be_charged() -> None:
    """Running x 4,096 + 4,096 + the longest prompt (8,192 where no histogram tells): nothing larger is ever asked for."""
    charge = 6 * 4096 + 4096 + 8192
    assert l1.budget_bound.of(moment(*sglang(used=100_000 - charge - 1))) == ZERO
    assert l1.budget_bound.of(moment(*sglang(used=100_000 - charge))) == TRUE


def test_the_windows_own_longest_prompt_is_what_could_be_charged() -> None:
    """The upper edge of the highest bucket that took in a prompt."""
    edges = (1000.0, 50_000.0, 90_000.0)
    states = [
        sample(at, engine="sglang", pools=[hbm(50_000, 100_000)], running=running, waiting=5, gauges={"running_cap": 32},
               histograms={"prompt": histogram(*counts, edges=edges)})
        for at, running, counts in ((0, 2, (9, 9, 9)), (5, 2, (9, 10, 10)))
    ]  # fmt: skip
    assert l1.budget_bound.of(moment(*states)) == TRUE, "a prompt of up to 50,000 came"
    short = [
        sample(at, engine="sglang", pools=[hbm(50_000, 100_000)], running=2, waiting=5, gauges={"running_cap": 32},
               histograms={"prompt": histogram(*counts, edges=edges)})
        for at, counts in ((0, (9, 9, 9)), (5, (11, 11, 11)))
    ]  # fmt: skip
    assert l1.budget_bound.of(moment(*short)) == ZERO, "only prompts of up to 1,000 came"


def test_nobody_waits_so_no_budget_binds() -> None:
    """And vLLM has no such budget."""
    assert l1.budget_bound.of(moment(*sglang(waiting=0))) == ZERO
    assert l1.budget_bound.of(moment(sample(waiting=5), sample(5, waiting=5))) == ZERO


def test_prefetches_from_storage_may_explain_the_queue() -> None:
    """Reads from L3 in the window leave it open."""
    states = [
        sample(at, engine="sglang", pools=[hbm(70_000, 100_000)], running=n, waiting=5, gauges={"running_cap": 32}, l3_read_tokens=read)
        for at, n, read in ((0, 8, 0), (5, 6, 100))
    ]
    assert l1.budget_bound.of(moment(*states)) == MAYBE


def test_l1_bound_names_which_of_the_three() -> None:
    """One exported condition with a reason each; all need requests that wait."""
    full = moment(*preempted(0, 0, used=990))
    assert branches(l1.bound, full, {}) == {"saturated": TRUE, "budget": ZERO, "preempting": ZERO}
    assert holds(l1.bound, full, {}) is True
    idle = moment(*preempted(0, 0, used=990, waiting=0))
    assert branches(l1.bound, idle, {}) == {"saturated": ZERO, "budget": ZERO, "preempting": ZERO}
    assert holds(l1.bound, moment(*sglang()), {}) is True


def test_unbound_needs_proof() -> None:
    """The opposite of bound where bound is false; where it is unknown neither holds."""
    room = moment(*preempted(0, 0, used=300))
    assert holds(l1.unbound, room, {}) is True
    unsure = moment(*preempted(None, None, used=300))
    assert holds(l1.unbound, unsure, {}) is None


def hits(queried: float, hit: float, baseline: bool = True) -> object:  # noqa: FBT001, FBT002  a table reads better
    """Hit ratio and its change against calm time."""
    view = moment(
        sample(0, l1_queried_tokens=0, l1_hit_tokens=0),
        sample(10, l1_queried_tokens=queried, l1_hit_tokens=hit),
        baseline=calm_time(hits=0.5) if baseline else None,
    )
    return l1.hit_ratio.of(view).exact, l1.hit_change.of(view).exact


def test_the_hit_ratio_is_the_windows_own() -> None:
    """Tokens found of those looked up, against the calm share; unknown where nothing was looked up or no calm time is known."""
    assert hits(1, 1) == (1.0, 2.0)
    assert hits(100, 25) == (0.25, 0.5)
    assert hits(0, 0) == (None, None)
    assert hits(100, 25, baseline=False) == (0.25, None)
    assert hits(10, 25) == (1.0, 2.0), "never above all of it"


def test_evictions_are_a_share_of_the_pool() -> None:
    """Tokens evicted in the window against the capacity; unknown without either."""
    states = [sample(at, pools=[hbm(500)], l1_evicted_tokens=n) for at, n in ((0, 50), (10, 300))]
    assert l1.evicted_ratio.of(moment(*states)) == exactly(0.25)
    assert l1.evicted_ratio.of(moment(sample(0, l1_evicted_tokens=1), sample(9, l1_evicted_tokens=2))) == UNKNOWN


def test_sessions_hold_a_share_of_the_pool() -> None:
    """What is held, and what sessions hold inside what is used."""
    assert l1.session_ratio.of(moment(sample(pools=[hbm(500, held=100)], gauges={"session_held_tokens": 150}))) == exactly(0.25)
    assert l1.session_ratio.of(moment(sample(pools=[hbm(500)]))) == ZERO
