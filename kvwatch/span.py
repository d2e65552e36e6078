"""Samples of one life of an engine, and what is computed from a run of them.

An increase is the sum of positive steps; nothing is ever counted across a restart. A quantile is read from bucket increases, interpolated
inside a bucket as Prometheus' ``histogram_quantile`` does.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from kvwatch.model import EngineState, Histogram
from kvwatch.quantity import UNKNOWN, Interval, at_least, exactly

Buckets = tuple[tuple[float, float], ...]
"""Upper edges, ascending and the last one infinite, with how many values lie at or below each."""
LEAST_SPAN = 0.5
"""Seconds two samples must be apart for a rate: scrapes that were stuck arrive together."""
_Count = TypeVar("_Count")

LIFE_COUNTERS = ("prompt_tokens", "generation_tokens", "finished_requests", "l1_queried_tokens", "heartbeat", "l2_ticks")
"""Counters that fall only when the engine's process is a new one."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One sample of one owner: what it said, in which life (``epoch``), and the signals that are kept of it for the page.

    ``counters`` and ``histograms`` are those of the sample, and the last ones of this life in the place of any that it lacks: a series
    that pauses for a scrape (a NaN, a line that cannot be read) is not born anew. ``first_tokens`` are those of this life so far, none
    before their histogram is born. A ``light`` frame has let go of its histograms, which take most of the room.
    """

    state: EngineState
    epoch: int
    counters: Mapping[str, float]
    histograms: Mapping[str, Histogram]
    first_tokens: float
    values: Mapping[str, Interval] = field(default_factory=dict)
    light: bool = False

    @classmethod
    def after(cls, before: Frame | None, state: EngineState) -> Frame:
        """The frame of a sample that follows another; its life is a new one when the engine restarted between them."""
        counters, histograms, epoch = state.counters, state.histograms, 0 if before is None else before.epoch
        if before is not None and is_restart(before, state):
            epoch += 1
        elif before is not None:
            counters, histograms = _carried(before.counters, counters), _carried(before.histograms, histograms)
        return cls(state, epoch, counters, histograms, histograms["ttft"].count if "ttft" in histograms else 0.0)

    def lightened(self) -> Frame:
        """The frame without its histograms."""
        return replace(self, state=replace(self.state, histograms={}), histograms={}, light=True)

    @property
    def at(self) -> float:
        """Monotonic seconds of the sample."""
        return self.state.at


@dataclass(frozen=True, slots=True)
class Span:
    """A run of frames of one life, oldest first."""

    frames: tuple[Frame, ...]

    @property
    def seconds(self) -> float:
        """From the first to the last sample."""
        return self.frames[-1].at - self.frames[0].at if self.frames else 0.0

    @property
    def judged(self) -> bool:
        """Whether a rate may be read from it."""
        return len(self.frames) > 1 and self.seconds >= LEAST_SPAN

    def increase(self, *counters: str) -> float | None:
        """Sum of positive steps of a counter, of several the first that is known now; None where none is or there is only one sample.

        A counter born inside the span counts from 0: its owner was known before.
        """
        counter = next((c for c in counters if c in self.frames[-1].state.counters), None) if self.judged else None
        if counter is None:
            return None
        seen = [f.counters[counter] for f in self.frames if counter in f.counters]
        born = 0.0 if counter in self.frames[0].counters else seen[0]
        return born + sum(max(0.0, b - a) for a, b in itertools.pairwise(seen))

    def rate(self, counter: str) -> Interval:
        """Increase per second."""
        grown = self.increase(counter)
        return UNKNOWN if grown is None else exactly(grown / self.seconds)

    def buckets(self, name: str) -> Buckets | None:
        """Cumulative bucket increases of a histogram; None when it is unknown, then or now, or there is only one sample."""
        last = self.frames[-1].state.histograms.get(name) if self.frames else None
        if not self.judged or last is None or self.frames[0].light:
            return None
        first = self.frames[0].histograms.get(name)
        if first is None:
            return last.buckets
        before = dict(first.buckets)
        return tuple((edge, max(0.0, count - before.get(edge, 0.0))) for edge, count in last.buckets)

    def quantile(self, name: str, q: float) -> Interval:
        """Quantile of the values taken in; unknown when there were none."""
        grown = self.buckets(name)
        return UNKNOWN if not grown else quantile(grown, q)

    def mean(self, name: str) -> Interval:
        """Mean of the values taken in; unknown when there were none."""
        total, count = self._grown(name)
        return exactly(total / count) if count > 0 and total >= 0 else UNKNOWN

    def total(self, name: str) -> Interval:
        """Sum of the values taken in; unknown when there were none."""
        total, count = self._grown(name)
        return exactly(total) if count > 0 and total >= 0 else UNKNOWN

    def _grown(self, name: str) -> tuple[float, float]:
        """How much the sum and the count of a histogram grew; nothing where it is unknown."""
        last = self.frames[-1].state.histograms.get(name) if self.frames else None
        if not self.judged or last is None or self.frames[0].light:
            return 0.0, 0.0
        first = self.frames[0].histograms.get(name, Histogram((), 0.0, 0.0))
        return last.sum - first.sum, last.count - first.count


def quantile(buckets: Buckets, q: float) -> Interval:
    """Read a quantile from cumulative buckets; at least the last finite edge when it lies beyond it."""
    total = buckets[-1][1] if buckets else 0.0
    if total <= 0:
        return UNKNOWN
    rank = q * total
    lower_edge, lower_count = 0.0, 0.0
    for edge, count in buckets:
        if count >= rank and count > lower_count:
            if math.isinf(edge):
                return at_least(lower_edge) if lower_edge > 0 else UNKNOWN
            return exactly(lower_edge + (edge - lower_edge) * (rank - lower_count) / (count - lower_count))
        lower_edge, lower_count = (lower_edge if math.isinf(edge) else edge), count
    return UNKNOWN


def is_restart(before: Frame, after: EngineState) -> bool:
    """Whether the engine's process is a new one."""
    if before.state.started is not None and after.started is not None:
        return abs(after.started - before.state.started) > 1.0
    return any(
        name in before.counters and name in after.counters and after.counters[name] < before.counters[name] for name in LIFE_COUNTERS
    )


def _carried(before: Mapping[str, _Count], now: Mapping[str, _Count]) -> Mapping[str, _Count]:
    """What is known now, and the last of what is not."""
    return now if before.keys() <= now.keys() else {**before, **now}
