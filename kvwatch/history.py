"""What one pool owner said lately: a bounded ring of samples, and what its calm time was like."""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import replace

from kvwatch.baseline import Baseline
from kvwatch.model import EngineState, OwnerKey
from kvwatch.quantity import Interval
from kvwatch.span import LEAST_SPAN, Frame, Span

KEEP_SECONDS = 900.0
"""The page draws the last fifteen minutes; no rule looks back further."""
MOST_FRAMES = 1200
"""Upper bound of the ring, whatever the interval."""


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
