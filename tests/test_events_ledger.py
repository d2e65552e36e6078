"""The ledger against a cache that is known completely: the count is exact while nothing is lost, and never wrong."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from kvwatch.events.batch import CPU, GPU, Batch, Cleared, Event, Removed, Stored
from kvwatch.events.estimate import estimate
from kvwatch.events.ledger import Ledger
from kvwatch.events.memory import PoolMemory, PoolReading
from kvwatch.quantity import UNKNOWN, Interval, exactly

Step = st.tuples(
    st.sampled_from(["store", "remove", "clear", "lose", "garble"]), st.sampled_from([GPU, CPU]), st.integers(0, 1), st.integers(0, 5)
)


def batch(*events: Event) -> Batch:
    """One message."""
    return Batch(0.0, events)


@given(st.lists(st.tuples(Step, st.booleans()), max_size=120), st.sampled_from([1000, 3]), st.booleans())
def test_the_truth_is_inside_whatever_is_lost(steps: list[tuple[tuple[str, str, int, int], bool]], limit: int, late: bool) -> None:  # noqa: FBT001
    """Equal hashes, two tiers, two groups, losses, clears and a table too large to keep: both tiers' counts are inside their bounds."""
    ledger, truth, exact = Ledger(limit), Counter[tuple[str, int, int]](), not late
    if late:
        truth.update({(GPU, 0, 1): 2, (CPU, 0, 2): 1})
        ledger.lose(0.0)
    for (what, tier, group, h), heard in steps:
        if what == "store":
            truth[tier, group, h] += 1
            event: Event = Stored(tier, group, (h,), 16)
        elif what == "remove" and truth[tier, group, h]:
            truth[tier, group, h] -= 1
            event = Removed(tier, group, (h,))
        elif what == "clear":
            for key in [k for k in truth if k[0] == GPU]:
                del truth[key]
            event = Cleared()
        else:
            continue
        if heard:
            ledger.apply(batch(event), 0.0)
            exact = exact or what == "clear"
        else:
            ledger.lose(0.0)
            exact = False
        view = ledger.view(0.0)
        for name, told in ((GPU, view.gpu), (CPU, view.cpu)):
            assert told.lo <= sum(n for (t, _, _), n in truth.items() if t == name) <= told.hi
        assert view.recent.lo <= view.gpu.lo
        assert view.recent.hi >= view.gpu.hi
        if exact:
            assert view.gpu.exact is not None


def test_equal_prompts_are_counted_as_the_blocks_they_are() -> None:
    """Two blocks with one hash are two blocks, and one removal leaves one."""
    ledger = Ledger()
    ledger.apply(batch(Stored(GPU, 0, (7,)), Stored(GPU, 0, (7,))), 0.0)
    assert ledger.view(0.0).gpu == exactly(2)
    ledger.apply(batch(Removed(GPU, 0, (7,))), 1.0)
    assert ledger.view(1.0).gpu == exactly(1)


def test_one_hash_in_two_groups_is_two_blocks() -> None:
    """Hybrid models cache one prefix once per group, with the same hash."""
    ledger = Ledger()
    ledger.apply(batch(Stored(GPU, 0, (7,)), Stored(GPU, 1, (7,), window=128)), 0.0)
    view = ledger.view(0.0)
    assert view.gpu == exactly(2)
    assert view.groups == 2


def test_what_left_without_having_come_proves_blocks_nobody_told_of() -> None:
    """An unknown removal ends the certainty of a count that was exact."""
    ledger = Ledger()
    ledger.apply(batch(Stored(GPU, 0, (1,)), Removed(GPU, 0, (2,))), 0.0)
    assert ledger.view(0.0).gpu == Interval(1, float("inf"))


def test_an_emptied_device_cache_says_nothing_of_the_host_tier() -> None:
    """AllBlocksCleared names no medium: HBM is empty, the host tier holds anything up to what it held."""
    ledger = Ledger()
    ledger.apply(batch(Stored(GPU, 0, (1, 2)), Stored(CPU, 0, (1, 2, 3))), 0.0)
    ledger.apply(batch(Cleared(), Stored(CPU, 0, (9,))), 1.0)
    view = ledger.view(1.0)
    assert view.gpu == exactly(0)
    assert view.cpu == Interval(1, 4)
    assert view.clears == 1


def test_other_tiers_are_not_counted_and_no_name_means_hbm_while_there_is_none() -> None:
    """Old releases name no medium; where HBM is named, events without a name are another connector's."""
    ledger = Ledger()
    ledger.apply(batch(Stored(None, 0, (1,)), Stored("STORAGE", 0, (1,)), Stored("cpu", 0, (1,))), 0.0)
    assert ledger.view(0.0).gpu == exactly(1)
    ledger.apply(batch(Stored(GPU, 0, (1,))), 1.0)
    ledger.apply(batch(Stored(None, 0, (3, 4))), 2.0)
    assert ledger.view(2.0).gpu.lo == 1
    assert ledger.view(2.0).cpu == UNKNOWN


def test_several_hashes_of_one_block_are_no_proof_of_several_blocks() -> None:
    """A group with partial blocks gives one block several hashes: they bound the blocks only from above."""
    ledger = Ledger()
    ledger.apply(batch(Stored(GPU, 0, (1,), 64), Stored(GPU, 0, (2,), 16)), 0.0)
    assert ledger.view(0.0).gpu == Interval(0, 2)


def test_recent_values_are_kept_for_a_scrape_that_is_a_little_older() -> None:
    """The bounds of the last quarter of a second are there, older ones are forgotten."""
    ledger = Ledger()
    ledger.apply(batch(Stored(GPU, 0, tuple(range(10)))), 0.0)
    ledger.apply(batch(Removed(GPU, 0, (0, 1, 2))), 10.0)
    assert ledger.view(10.1).recent == Interval(7, 10)
    assert ledger.view(10.4).recent == exactly(7)


def reading(**changes: float | bool | None) -> PoolReading:
    """An idle engine that is fully understood, with changes."""
    given: dict[str, float | bool] = {
        "blocks": 100,
        "used": 0,
        "running": 0,
        "waiting": 0,
        "block_size": 16,
        "plain": True,
        "bare_first": True,
    }
    known: dict[str, float | bool] = {"computed_tokens": 8000, "first_tokens": 10, "preemptions": 0, "resets": 0, "started": 1.0}
    return PoolReading(**(given | known | changes))  # type: ignore[arg-type]


def test_a_restarted_engine_is_not_what_the_events_told_of_the_old_one() -> None:
    """Until the new engine has published, the count is the old one's: only the free blocks are certain."""
    ledger = Ledger()
    ledger.apply(batch(Stored(GPU, 0, tuple(range(90)))), 0.0)
    memory = PoolMemory.begin(reading(), ledger.view(1.0))
    assert estimate(memory, ledger.view(1.0)).available == exactly(10)
    view = ledger.view(2.0)
    memory = memory.step(reading(started=2.0, computed_tokens=0, first_tokens=0), view)
    assert estimate(memory, view).available == Interval(0, 100)
    assert estimate(memory, view).available_guess == 100
    ledger.restart(3.0)
    ledger.apply(batch(Stored(GPU, 0, (1, 2))), 3.0)
    view = ledger.view(4.0)
    memory = memory.step(reading(started=2.0, computed_tokens=40, first_tokens=1), view)
    assert estimate(memory, view).available == exactly(98)


def test_a_sleep_empties_the_cache_before_the_events_say_so() -> None:
    """AllBlocksCleared comes with the first step after waking; until then nothing cached is certain."""
    ledger = Ledger()
    ledger.apply(batch(Stored(GPU, 0, tuple(range(90)))), 0.0)
    memory = PoolMemory.begin(reading(), ledger.view(1.0)).step(reading(asleep=True), ledger.view(2.0))
    for at in (3.0, 4.0):
        memory = memory.step(reading(), ledger.view(at))
        assert estimate(memory, ledger.view(at)).available == Interval(0, 100)
    ledger.apply(batch(Cleared(), Stored(GPU, 0, (1,))), 5.0)
    memory = memory.step(reading(computed_tokens=8100), ledger.view(6.0))
    assert estimate(memory, ledger.view(6.0)).available == exactly(99)


def test_more_blocks_than_there_are_means_that_the_count_is_wrong() -> None:
    """Hits reported as stored again make the count grow: it is distrusted until the cache is emptied."""
    ledger = Ledger()
    ledger.apply(batch(Stored(GPU, 0, tuple(range(120)))), 0.0)
    memory = PoolMemory.begin(reading(computed_tokens=None), ledger.view(1.0))
    assert estimate(memory, ledger.view(1.0)).available == Interval(0, 100)
    ledger.apply(batch(Cleared(), Stored(GPU, 0, (1,))), 2.0)
    memory = memory.step(reading(computed_tokens=None), ledger.view(3.0))
    assert estimate(memory, ledger.view(3.0)).available == exactly(99)


def test_without_prefix_caching_nothing_is_evictable() -> None:
    """Every free block is empty, whatever else is known."""
    found = estimate(PoolMemory.begin(reading(caching=False, used=30, running=2)))
    assert found.evictable == exactly(0)
    assert found.available == exactly(70)


def test_an_older_block_pool_proves_nothing_by_its_metrics() -> None:
    """Before 0.23 freed bare blocks queued behind cached ones: a full turn of the pool does not mean that it is full of cache."""
    memory = PoolMemory.begin(reading(bare_first=False, computed_tokens=16_000_000, first_tokens=1000))
    assert estimate(memory).available == Interval(0, 100)
    assert estimate(memory).available_guess is None
