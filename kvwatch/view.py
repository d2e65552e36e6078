"""What a signal may look at: one owner's history up to a sample, and what was known of its surroundings at that moment."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from kvwatch.baseline import Baseline
from kvwatch.history import Track
from kvwatch.model import EngineState, GpuState, Outcome
from kvwatch.pool import Pool
from kvwatch.quantity import UNKNOWN, Interval
from kvwatch.span import Frame, Span
from kvwatch.target import Target

FRESH_INTERVALS = 3.0


@dataclass(frozen=True, slots=True)
class Watch:
    """The settings that signals read: seconds, and the SLO in seconds or None."""

    interval: float = 15.0
    window: float = 60.0
    startup_grace: float = 900.0
    slo_ttft_p99: float | None = None

    @property
    def stale_seconds(self) -> float:
        """What is older is not shown any more, and what happened in a gap that long was not seen."""
        return FRESH_INTERVALS * self.interval


@dataclass(frozen=True, slots=True)
class TargetView:
    """One target at its newest turn: ``failures`` turns in a row brought nothing, ``answered`` says whether it ever gave a sample."""

    target: Target
    last: Outcome
    failures: int
    answered: bool
    first_tried: float
    watch: Watch


@dataclass(slots=True)
class View:
    """One owner at the moment of its newest sample.

    ``peers`` are the fresh histories of the other owners that serve the same model; ``server`` is the history of the LMCache server
    that the configuration names as this owner's L2; ``gpus`` are the GPUs proven to be this engine's, None when that is unknown.
    Values of signals are read once and remembered for the moment.
    """

    track: Track
    target: Target
    watch: Watch
    peers: tuple[Track, ...] = ()
    server: Track | None = None
    gpus: tuple[GpuState, ...] | None = None
    read: dict[str, Interval | None] = field(default_factory=dict)
    spans: dict[float, Span] = field(default_factory=dict)

    @property
    def frame(self) -> Frame:
        """The newest sample."""
        return self.track.frames[-1]

    @property
    def state(self) -> EngineState:
        """What the owner said in it."""
        return self.frame.state

    @property
    def now(self) -> float:
        """Its time, monotonic seconds."""
        return self.frame.at

    @property
    def baseline(self) -> Baseline:
        """What calm time was like before this sample."""
        return self.track.baseline

    def window(self) -> Span:
        """The configured window."""
        return self.recent(self.watch.window)

    def recent(self, seconds: float) -> Span:
        """A window of another length."""
        if seconds not in self.spans:
            self.spans[seconds] = self.track.span(seconds)
        return self.spans[seconds]

    def steps(self) -> Iterator[tuple[Frame, Frame]]:
        """Pairs of neighbouring samples of this life, newest first."""
        return itertools.pairwise(self.track.life())

    def before(self, seconds: float) -> Iterator[Frame]:
        """Earlier frames of this life, newest first, at most ``seconds`` old."""
        frames = self.track.life()
        next(frames, None)
        for frame in frames:
            if self.now - frame.at > seconds:
                return
            yield frame

    def value(self, name: str, reader: Callable[[View], Interval | None]) -> Interval | None:
        """Read a signal once."""
        if name not in self.read:
            self.read[name] = reader(self)
        return self.read[name]

    def l1_pools(self) -> tuple[Pool, ...]:
        """The pools in HBM."""
        return tuple(p for p in self.state.pools if p.tier == "l1")

    def l2_track(self) -> Track:
        """Whose counters tell about L2: the owner's, or those of the LMCache server it is tied to."""
        return self.track if self.server is None else self.server

    def l2_pool(self) -> Pool | None:
        """The host KV pool of the owner, or of the LMCache server it is tied to."""
        return self.l2_track().frames[-1].state.pool("l2", "kv")

    def l2_increase(self, *counters: str) -> float | None:
        """What L2's counters grew in the window: of the first one that is known."""
        span = self.window() if self.server is None else self.server.span(self.watch.window)
        return span.increase(*counters)

    def gauge(self, name: str) -> Interval:
        """A further gauge of the owner; unknown when it is not reported."""
        return self.state.gauges.get(name, UNKNOWN)
