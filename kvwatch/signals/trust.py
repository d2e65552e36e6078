"""Whether the data can be believed: the target's turns, and values no engine can mean."""

from __future__ import annotations

from kvwatch.quantity import TRUE, UNKNOWN, ZERO, Interval, exactly
from kvwatch.signals.kinds import Condition, Signal, TargetSignal
from kvwatch.view import TargetView, View


def _failures(view: TargetView) -> Interval:
    return exactly(float(view.failures))


def _answered(view: TargetView) -> Interval:
    return TRUE if view.answered else ZERO


def _unanswered(view: TargetView) -> Interval:
    """Time without any answer against the grace a starting engine has."""
    return ZERO if view.answered else exactly((view.last.at - view.first_tried) / view.watch.startup_grace)


def _scrape_share(view: TargetView) -> Interval:
    """Of a target that never answered nothing is known: it is starting, not slow."""
    return exactly(view.last.duration / view.watch.interval) if view.answered else UNKNOWN


def _missing(view: TargetView) -> Interval:
    return exactly(float(len(view.last.missing))) if view.last.ok else UNKNOWN


def _implausible(view: View) -> Interval:
    return exactly(float(len(view.state.implausible)))


failures = TargetSignal("scrape_failures_in_row", "count", "scrapes in a row that failed", _failures)
answered = TargetSignal("target_answered", "condition", "the target has answered before", _answered)
unanswered = TargetSignal("startup_grace_use", "times", "time without any answer against the startup grace", _unanswered)
scrape_share = TargetSignal("scrape_share", "times", "time the last scrape took against the interval", _scrape_share)
missing_series = TargetSignal("missing_series", "count", "series that should be there and are not", _missing)
implausible = Signal("implausible_values", "count", "reported values no engine can mean", _implausible)

down = Condition(
    "target_gone", "the target stopped answering, or never began", "any",
    (
        Condition("target_lost", "it answered before", "all", (answered >= 1, failures >= 3), scope="target"),
        unanswered >= 1.0,
    ),
    scope="target",
)  # fmt: skip

SIGNALS = (implausible,)
TARGET_SIGNALS = (failures, answered, unanswered, scrape_share, missing_series)
TARGET_CONDITIONS = (down,)
