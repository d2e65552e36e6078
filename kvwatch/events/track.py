"""One publisher followed: its frames in, its ledger out, and a count of everything that went wrong on the way."""

from __future__ import annotations

from collections.abc import Sequence as Frames
from dataclasses import dataclass, field

from kvwatch.events.decode import END, GarbledBatch, decode, parse
from kvwatch.events.ledger import Ledger, LedgerView
from kvwatch.events.sequence import Lost, Message, Restarted, Sequence, Step


@dataclass(slots=True)
class Track:
    """Messages of one publisher through order and decoding into its ledger; owned by one thread.

    ``topic`` None accepts any. ``ts`` is the engine's clock (Unix seconds) in the last message applied, ``lost`` counts messages that
    will never be seen, ``gaps`` how often some were given up, ``garbled`` what could not be read, ``ignored`` events of unknown types.
    """

    topic: str | None = None
    sequence: Sequence = field(default_factory=Sequence)
    ledger: Ledger = field(default_factory=Ledger)
    ts: float | None = None
    batches: int = 0
    events: int = 0
    ignored: int = 0
    garbled: int = 0
    gaps: int = 0
    lost: int = 0
    restarts: int = 0

    def live(self, frames: Frames[bytes], at: float) -> None:
        """Take one message of the subscription."""
        message = self._parse(frames)
        if message is not None and message.number != END:
            self._apply(self.sequence.live(message), at)

    def replayed(self, frames: Frames[bytes], at: float) -> Message | None:
        """Take one message of a replay and return it (numbered END when it is the last), None when it was garbled."""
        message = self._parse(frames)
        if message is not None and message.number != END:
            self._apply(self.sequence.replayed(message), at)
        return message

    def ended(self, start: int, answers: int, at: float) -> None:
        """Take the end of a replay that was asked for from ``start`` and brought ``answers`` messages."""
        self._apply(self.sequence.ended(start, answers), at)

    def give_up(self, at: float) -> None:
        """Go on without the messages of the first gap."""
        self._apply(self.sequence.give_up(), at)

    def restart(self, at: float) -> None:
        """Forget the publisher: the engine is another one."""
        self._apply(self.sequence.restart(), at)

    def view(self, at: float) -> LedgerView:
        """What is known at a time of the caller's clock."""
        return self.ledger.view(at, open=self.sequence.open)

    def _parse(self, frames: Frames[bytes]) -> Message | None:
        try:
            return parse(frames, self.topic)
        except GarbledBatch:
            self.garbled += 1
            return None

    def _apply(self, steps: list[Step], at: float) -> None:
        for step in steps:
            if isinstance(step, Message):
                self._read(step, at)
            elif isinstance(step, Restarted):
                self.restarts += 1
                self.ledger.restart(at)
            elif isinstance(step, Lost):
                self.gaps += 1
                self.lost += step.count
                self.ledger.lose(at)

    def _read(self, message: Message, at: float) -> None:
        """Apply one message; one that cannot be read is as good as lost."""
        self.batches += 1
        try:
            batch = decode(message.payload)
        except GarbledBatch:
            self.garbled += 1
            self.ledger.lose(at)
            return
        self.ts = batch.ts
        self.events += len(batch.events)
        self.ignored += batch.ignored
        self.ledger.apply(batch, at)
