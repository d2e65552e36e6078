"""Whether data can be believed: the turns of a target, and values no engine can mean."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvwatch.model import Missing, Outcome
from kvwatch.quantity import TRUE, UNKNOWN, ZERO, exactly
from kvwatch.signals import trust
from kvwatch.signals.kinds import holds
from kvwatch.target import Target
from kvwatch.view import TargetView, Watch
from tests.samples import lost, moment, sample, turn

GOOD = turn(sample(1000.0))


def seen(last: Outcome = GOOD, *, failures: int = 0, answered: bool = True, first_tried: float = 0.0) -> TargetView:
    """A target at its newest turn, with an interval of 10 s and ten minutes of grace."""
    return TargetView(Target("t", "http://t/metrics"), last, failures, answered, first_tried, Watch(interval=10.0, startup_grace=600.0))


@pytest.mark.parametrize(("failures", "answered", "expected"), [(2, True, False), (3, True, True), (100, True, True), (3, False, False)])
def test_three_failures_in_a_row_lose_a_target_that_answered(failures: int, answered: bool, expected: bool) -> None:  # noqa: FBT001  a table's column
    """One that never answered is starting."""
    view = seen(lost("t", 100.0), failures=failures, answered=answered)
    assert trust.failures.of(view) == exactly(failures)
    assert holds(trust.down, view, {}) is expected


def test_the_grace_of_a_starting_target_ends() -> None:
    """After it, one that never answered is down as well."""
    assert holds(trust.down, seen(lost("t", 599.0), failures=9, answered=False), {}) is False
    assert holds(trust.down, seen(lost("t", 600.0), failures=9, answered=False), {}) is True
    assert holds(trust.down, seen(lost("t", 600.0), failures=9, answered=False, first_tried=1.0), {}) is False
    assert trust.unanswered.of(seen()) == ZERO
    assert (trust.answered.of(seen()), trust.answered.of(seen(answered=False))) == (TRUE, ZERO)


def test_scraping_takes_its_share_of_the_interval() -> None:
    """A turn that timed out took its time, too; of a target that never answered nothing is known."""
    assert trust.scrape_share.of(seen(replace(GOOD, duration=6.0))) == exactly(0.6)
    assert trust.scrape_share.of(seen(replace(lost("t", 5.0), duration=9.0))) == exactly(0.9)
    assert trust.scrape_share.of(seen(lost("t", 5.0), answered=False)) == UNKNOWN


def test_missing_series_are_those_of_a_good_scrape() -> None:
    """Without an answer nobody knows what is missing."""
    assert trust.missing_series.of(seen(replace(GOOD, missing=(Missing("a", "w", "e"), Missing("b", "w", "e"))))) == exactly(2)
    assert trust.missing_series.of(seen(lost("t", 5.0))) == UNKNOWN


def test_implausible_values_are_counted() -> None:
    """Each value that was dropped."""
    assert trust.implausible.of(moment(sample(implausible=(("vllm:kv_cache_usage_perc", -0.2),)))) == exactly(1)
    assert trust.implausible.of(moment(sample())) == ZERO
