"""Whether a publisher is silent though its engine fills blocks: then its messages are lost, and what they told last is no longer so.

A lost message is noticed by the number of the next one. Where none comes any more (a dead connection, a recorder that was stopped)
only the engine's own counters can tell: every block that a request fills while it generates is published in the same step.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from kvwatch.events.ledger import LedgerView
from kvwatch.events.memory import PoolReading
from kvwatch.quantity import UNKNOWN


@dataclass(frozen=True, slots=True)
class Quiet:
    """The first scrape ``since`` which a publisher has said nothing more than ``told``: its epoch and how many messages."""

    since: PoolReading
    told: tuple[int, int]

    @classmethod
    def after(cls, before: Quiet | None, reading: PoolReading, view: LedgerView) -> Quiet:
        """Take the next scrape, and what the events had told by then."""
        told = view.epoch, view.batches
        if before is not None and before.told == told and reading.follows(before.since):
            return before
        return cls(reading, told)

    def contradicts(self, reading: PoolReading) -> bool:
        """Whether a block was surely filled, and so a message lost, between ``since`` and a scrape."""
        return reading.caching and (self._generated(reading) or self._computed(reading))

    def _generated(self, reading: PoolReading) -> bool:
        """More was generated than that: almost a block by each request, and a token whose keys and values are yet to be written."""
        since = self.since
        if reading.generated_tokens is None or since.generated_tokens is None:
            return False
        if reading.first_tokens is None or since.first_tokens is None:
            return False
        resumed = since.waiting if reading.preempted else 0.0
        requests = since.running + resumed + reading.first_tokens - since.first_tokens
        return reading.generated_tokens - since.generated_tokens > requests * (reading.block_size + 1)

    def _computed(self, reading: PoolReading) -> bool:
        """More was filled than requests held before: a prompt's tokens are counted when it is complete, its blocks published before."""
        since = self.since
        if reading.filled is None or since.filled is None or (since.waiting and since.preempted):
            return False
        return reading.filled - since.filled > since.used + since.running


def silenced(view: LedgerView) -> LedgerView:
    """A view that knows nothing of the caches until the publisher is heard again."""
    return replace(view, open=True, gpu=UNKNOWN, recent=UNKNOWN, cpu=UNKNOWN)
