"""What one pool owner said lately: a bounded ring of samples, and everything that is computed over time from it.

An increase is the sum of positive steps between samples of one life of the engine; nothing is ever counted across a restart. A
quantile is read from bucket increases of the window, interpolated inside a bucket as Prometheus' ``histogram_quantile`` does.
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from kvwatch.model import EngineState, Histogram, OwnerKey
from kvwatch.quantity import UNKNOWN, Interval, at_least, exactly

KEEP_SECONDS = 900.0
"""The page draws the last fifteen minutes; no rule looks back further."""
MOST_FRAMES = 1200
"""Upper bound of the ring, whatever the interval."""
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
class Baseline:
    """What calm time with traffic looked like: bucket increases of first tokens, and mean rates.

    ``scrapes`` and ``seconds`` say how much history stands behind it. ``running``, ``sequences`` and ``resident`` are requests and tokens
    times seconds. Counts are halved when they grow large, so that the baseline follows a slow drift without forgetting a night.
    """

    identity: str = ""
    scrapes: int = 0
    seconds: float = 0.0
    ttft: tuple[tuple[float, float], ...] = ()
    tokens: float = 0.0
    token_seconds: float = 0.0
    queried: float = 0.0
    hit: float = 0.0
    running: float = 0.0
    running_seconds: float = 0.0
    sequences: float = 0.0
    resident: float = 0.0

    LEAST_SCRAPES = 12
    LEAST_SECONDS = 15.0
    LEAST_FIRST_TOKENS = 20
    MOST_FIRST_TOKENS = 100_000.0

    @property
    def ready(self) -> bool:
        """Whether enough calm traffic was seen to compare with."""
        return self.scrapes >= self.LEAST_SCRAPES and self.seconds >= self.LEAST_SECONDS

    def ttft_quantile(self, q: float) -> Interval:
        """Seconds to first token in calm time; unknown before enough first tokens were seen."""
        if not self.ready or not self.ttft or self.ttft[-1][1] < self.LEAST_FIRST_TOKENS:
            return UNKNOWN
        return quantile(self.ttft, q)

    def token_rate(self) -> Interval:
        """Generated tokens per second in calm time."""
        return exactly(self.tokens / self.token_seconds) if self.ready and self.token_seconds > 0 else UNKNOWN

    def hit_ratio(self) -> Interval:
        """Share of looked-up tokens found in L1 in calm time."""
        return exactly(min(1.0, self.hit / self.queried)) if self.ready and self.queried > 0 else UNKNOWN

    def mean_sequence(self) -> Interval:
        """Resident tokens per running request in calm time."""
        return exactly(self.resident / self.sequences) if self.ready and self.sequences > 0 and self.resident > 0 else UNKNOWN

    def mean_running(self) -> Interval:
        """Requests running in calm time."""
        return exactly(self.running / self.running_seconds) if self.ready and self.running_seconds > 0 else UNKNOWN

    def learn(self, before: Frame, after: Frame) -> Baseline:
        """Take one calm step into account; a step without traffic teaches nothing."""
        step = Span((before, after))
        generated, prompts = step.increase("generation_tokens"), step.increase("prompt_tokens")
        first = step.buckets("ttft")
        traffic = any(i is not None and i > 0 for i in (generated, prompts)) or bool(first and first[-1][1] > 0)
        if not traffic:
            return self
        seconds = after.at - before.at
        queried, hit = step.increase("l1_queried_tokens"), step.increase("l1_hit_tokens")
        known_hits = queried is not None and hit is not None
        running, held = after.state.running.exact, _used_tokens(after)
        return Baseline(
            identity=self.identity,
            scrapes=self.scrapes + (1 if self.scrapes else 2),  # the first step stands between two scrapes
            seconds=self.seconds + seconds,
            ttft=_faded(_merged(self.ttft, first or ()), self.MOST_FIRST_TOKENS),
            tokens=self.tokens + (generated if generated is not None else 0.0),
            token_seconds=self.token_seconds + (seconds if generated is not None else 0.0),
            queried=self.queried + (queried if known_hits and queried is not None else 0.0),
            hit=self.hit + (hit if known_hits and hit is not None else 0.0),
            running=self.running + (seconds * running if running is not None else 0.0),
            running_seconds=self.running_seconds + (seconds if running is not None else 0.0),
            sequences=self.sequences + (seconds * running if running is not None and held is not None else 0.0),
            resident=self.resident + (seconds * held if running is not None and held is not None else 0.0),
        )


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

    def increase(self, counter: str) -> float | None:
        """Sum of positive steps of a counter; None when it is unknown now or there is only one sample.

        A counter born inside the span counts from 0: its owner was known before.
        """
        if not self.judged or counter not in self.frames[-1].state.counters:
            return None
        seen = [f.counters[counter] for f in self.frames if counter in f.counters]
        born = 0.0 if counter in self.frames[0].counters else seen[0]
        return born + sum(max(0.0, b - a) for a, b in itertools.pairwise(seen))

    def rate(self, counter: str) -> Interval:
        """Increase per second."""
        grown = self.increase(counter)
        return UNKNOWN if grown is None else exactly(grown / self.seconds)

    def buckets(self, name: str) -> tuple[tuple[float, float], ...] | None:
        """Cumulative bucket increases of a histogram; None when it is unknown, then or now, or there is only one sample."""
        last = self.frames[-1].state.histograms.get(name) if self.frames else None
        if not self.judged or last is None or self.frames[0].light:
            return None
        first = self.frames[0].histograms.get(name)
        if first is None:
            return last.buckets
        before = dict(first.buckets)
        return tuple((edge, max(0.0, count - before.get(edge, 0.0))) for edge, count in last.buckets)

    def observations(self, name: str) -> float | None:
        """How many values a histogram took in."""
        grown = self.buckets(name)
        return None if grown is None else grown[-1][1] if grown else 0.0

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


def _carried(before: Mapping[str, _Count], now: Mapping[str, _Count]) -> Mapping[str, _Count]:
    """What is known now, and the last of what is not."""
    return now if before.keys() <= now.keys() else {**before, **now}


def _used_tokens(frame: Frame) -> float | None:
    pool = frame.state.pool("l1", "full")
    return pool.used.exact if pool is not None and pool.unit == "tokens" else None


def quantile(buckets: tuple[tuple[float, float], ...], q: float) -> Interval:
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


def _merged(a: tuple[tuple[float, float], ...], b: tuple[tuple[float, float], ...]) -> tuple[tuple[float, float], ...]:
    """Sum two sets of cumulative buckets; when the edges changed the newer ones begin anew."""
    if not a or not b:
        return a or b
    if [edge for edge, _ in a] != [edge for edge, _ in b]:
        return b
    return tuple((edge, x + y) for (edge, x), (_, y) in zip(a, b, strict=True))


def _faded(buckets: tuple[tuple[float, float], ...], most: float) -> tuple[tuple[float, float], ...]:
    return tuple((edge, count / 2) for edge, count in buckets) if buckets and buckets[-1][1] > most else buckets


class Track:
    """The ring of one owner. Not thread safe: its Store holds the lock."""

    def __init__(self, key: OwnerKey) -> None:
        """Begin with nothing known."""
        self.key = key
        self.frames: deque[Frame] = deque(maxlen=MOST_FRAMES)
        self.baseline = Baseline()
        self.restarted_at: float | None = None

    def append(self, state: EngineState, window: float = math.inf) -> Frame:
        """Add a sample and return its frame; a sample that is not newer than the last replaces it.

        Histograms are kept for a window of so many seconds, which is all that anybody asks for.
        """
        last = self.frames[-1] if self.frames else None
        if last is not None and state.at <= last.at:
            self.frames.pop()
        frame = Frame.after(last, state)
        if last is not None and frame.epoch != last.epoch:
            self.restarted_at = state.at
        self.frames.append(frame)
        while self.frames[0].at < frame.at - KEEP_SECONDS:
            self.frames.popleft()
        self._lighten(window)
        if state.identity != self.baseline.identity:
            self.baseline = Baseline(identity=state.identity)
        return frame

    def _lighten(self, window: float) -> None:
        """Let go of the histograms of all samples before the one that the window begins with."""
        now, first = self.frames[-1].at, len(self.frames) - 1
        while first > 0 and now - self.frames[first].at < window:
            first -= 1
        for i in range(first - 1, -1, -1):
            if self.frames[i].light:
                break
            self.frames[i] = self.frames[i].lightened()

    def keep(self, values: Mapping[str, Interval]) -> None:
        """Keep signals of the newest sample."""
        self.frames[-1] = replace(self.frames[-1], values=values)

    def learn(self) -> None:
        """Learn from the newest sample, which was calm."""
        if len(self.frames) > 1:
            before, newest = self.frames[-2], self.frames[-1]
            if before.epoch == newest.epoch and newest.at - before.at >= LEAST_SPAN:
                self.baseline = self.baseline.learn(before, newest)

    @property
    def restarted(self) -> bool:
        """Whether the newest sample is the first of a new life."""
        return self.restarted_at is not None and self.restarted_at == self.frames[-1].at

    def life(self) -> Iterator[Frame]:
        """Frames of the engine's present life, newest first."""
        epoch = self.frames[-1].epoch if self.frames else 0
        return itertools.takewhile(lambda f: f.epoch == epoch, reversed(self.frames))

    def span(self, seconds: float) -> Span:
        """The frames back to the newest one that is at least ``seconds`` old, or to the oldest of this life."""
        taken: list[Frame] = []
        now = self.frames[-1].at if self.frames else 0.0
        for frame in self.life():
            taken.append(frame)
            if now - frame.at >= seconds:
                break
        return Span(tuple(reversed(taken)))


def is_restart(before: Frame, after: EngineState) -> bool:
    """Whether the engine's process is a new one."""
    if before.state.started is not None and after.started is not None:
        return abs(after.started - before.state.started) > 1.0
    return any(
        name in before.counters and name in after.counters and after.counters[name] < before.counters[name] for name in LIFE_COUNTERS
    )
