"""The messages of one publisher in their order, whichever socket they came by.

A publisher numbers its messages from 0 and keeps the last ones for replay (``ZmqEventPublisher`` in vllm/distributed/kv_events.py).
Live messages can be dropped anywhere, replayed ones too, and a restarted engine begins at 0 again. A ``Sequence`` takes both kinds
and gives back what may be applied now: messages without a hole, or the admission that some are lost.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

HELD_MESSAGES = 20_000
HELD_BYTES = 64 << 20
"""What may wait behind a gap: twice the publisher's usual replay buffer."""


@dataclass(frozen=True, slots=True)
class Message:
    """One message with its place in the stream; ``payload`` is not decoded yet."""

    number: int
    payload: bytes


@dataclass(frozen=True, slots=True)
class Lost:
    """``count`` messages will never be seen; nothing is known of what they said."""

    count: int


@dataclass(frozen=True, slots=True)
class Restarted:
    """The publisher began again with an empty cache."""


Step = Message | Lost | Restarted


@dataclass(slots=True)
class Sequence:
    """Puts the messages of one publisher in order; owned by one thread.

    ``next`` is the first number not given back yet. Before anything came it is 0: a late join is a gap like any other. ``confirmed``
    is false until something proves what the publisher has published. ``replays`` says that it does answer replays.
    """

    next: int = 0
    confirmed: bool = False
    replays: bool = False
    held_bytes: int = 0
    _held: dict[int, bytes] = field(default_factory=dict)
    _order: list[int] = field(default_factory=list)
    _last_live: int = -1
    _print: int | None = None

    @property
    def gap(self) -> bool:
        """Whether a message is missing while later ones are here."""
        return bool(self._held)

    @property
    def open(self) -> bool:
        """Whether the publisher's present state is not known: nothing came yet, or something is missing."""
        return self.gap or not self.confirmed

    @property
    def wanted(self) -> int:
        """Where a replay should start: at the last message applied, which proves that the publisher is still the same."""
        return max(0, self.next - 1)

    def live(self, message: Message) -> list[Step]:
        """Take one message of the subscription, where numbers grow: one that does not is a restarted publisher's."""
        steps = self.restart() if message.number <= self._last_live else []
        self._last_live = message.number
        return steps + self._take(message)

    def replayed(self, message: Message) -> list[Step]:
        """Take one message of a replay; one that was applied before shows whether the publisher is still the same."""
        other = message.number == self.next - 1 and self._print not in (None, hash(message.payload))
        steps = self.restart() if other else []
        self.replays = True
        return steps + self._take(message)

    def ended(self, start: int, answers: int) -> list[Step]:
        """Take the end of a replay that was asked for from ``start`` and brought ``answers`` messages.

        The publisher's buffer always holds its last message, so an empty answer to ``start`` 0 means that it never published anything,
        and an empty one to a message applied before that it is another publisher.
        """
        if answers or self.gap:
            return []
        if start > 0:
            return self.restart() if self.replays else []
        self.confirmed = True
        return []

    def restart(self) -> list[Step]:
        """Forget the publisher: what comes next is another one's."""
        self.next, self.confirmed, self.replays, self._last_live, self._print = 0, False, False, -1, None
        self._held.clear()
        self._order.clear()
        self.held_bytes = 0
        return [Restarted()]

    def give_up(self) -> list[Step]:
        """Declare the messages of the first gap lost and give back what waited behind it."""
        if not self._held:
            return []
        while self._order[0] not in self._held:
            heapq.heappop(self._order)
        lost = Lost(self._order[0] - self.next)
        self.next = self._order[0]
        self.confirmed = True
        return [lost, *self._drain()]

    def _take(self, message: Message) -> list[Step]:
        if message.number < self.next or message.number in self._held:
            return []
        self._held[message.number] = message.payload
        self.held_bytes += len(message.payload)
        if message.number == self.next:
            return self._drain()
        heapq.heappush(self._order, message.number)
        steps: list[Step] = []
        while len(self._held) > HELD_MESSAGES or self.held_bytes > HELD_BYTES:
            steps += self.give_up()
        return steps

    def _drain(self) -> list[Step]:
        steps: list[Step] = []
        while (payload := self._held.pop(self.next, None)) is not None:
            self.held_bytes -= len(payload)
            self._print = hash(payload)
            self.confirmed = True
            steps.append(Message(self.next, payload))
            self.next += 1
        if not self._held:
            self._order.clear()
        return steps
