"""How many blocks are in the prefix caches of one engine, told from its events.

Equal prompts give several blocks with one hash, each with its own stored and its own removed event (vllm/v1/core/block_pool.py
never merges them), so copies are counted. While every message since the start is known the count is exact. After a loss only what was
stored since then is certain: what was there before may be gone, and the lost messages may have stored more.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field

from kvwatch.events.batch import CPU, GPU, Batch, Cleared, Removed, Stored
from kvwatch.quantity import UNKNOWN, Interval

HASHES = 500_000
"""Most hashes remembered per publisher, about 110 bytes each; of more only the number is kept."""
SWING_SECONDS = 0.25
"""How far gauges and events may be apart: messages were up to 0.11 s late on a starved machine."""
SWING_STEP = 0.01


@dataclass(frozen=True, slots=True)
class Window:
    """A group that keeps only the last ``blocks`` of a sequence, and the share of the generated ones that it does not hash."""

    blocks: float
    bare_share: float


@dataclass(frozen=True, slots=True)
class LedgerView:
    """What a ledger knew at one moment.

    ``gpu`` are the hashed blocks in HBM, ``recent`` all values they had in the last ``SWING_SECONDS``, ``cpu`` the blocks or chunks in
    the host tier; an upper end without bound means that only the pool's size is one. ``open`` says that messages are being waited
    for and nothing is known meanwhile.

    ``epoch`` counts restarts of the publisher, ``stretch`` how often the count began anew (restart, loss, clear). ``net`` is what this
    stretch stored in HBM less what it removed, ``dip`` how much less it was within ``SWING_SECONDS``. ``evictions`` counts removals
    from HBM, ``net_at_eviction`` is ``net`` after the last step with one. ``clears`` counts emptied caches, ``batches`` messages,
    ``cpu_stored`` blocks that entered the host tier in this epoch.
    """

    epoch: int
    stretch: int
    open: bool
    gpu: Interval = UNKNOWN
    recent: Interval = UNKNOWN
    cpu: Interval = UNKNOWN
    net: int = 0
    dip: int = 0
    evictions: int = 0
    net_at_eviction: int | None = None
    clears: int = 0
    batches: int = 0
    cpu_stored: int = 0
    groups: int = 0
    windows: tuple[Window, ...] = ()

    def tail_blocks(self, generated_blocks: float) -> float:
        """Bare blocks of a running request that has generated that many: an unfinished one in each group, and what windows do not hash."""
        return self.groups + sum(w.bare_share * min(w.blocks, generated_blocks) for w in self.windows)


@dataclass(slots=True)
class _Table:
    """The hashes of one tier and group: ``size`` surely cached blocks, copies of each hash in ``copies`` (None: too many to remember),
    and ``doubtful`` blocks more that may be cached (None: any number).
    """  # noqa: D205

    doubtful: int | None
    size: int = 0
    copies: dict[int, int] | None = field(default_factory=dict)
    block_sizes: set[int] = field(default_factory=set)
    window: int | None = None
    generated: int = 0
    generated_bare: int = 0

    def store(self, event: Stored) -> None:
        self.size += len(event.hashes)
        if event.block_size:
            self.block_sizes.add(event.block_size)
        if event.window is not None:
            self.window = event.window
            if event.tokens == event.block_size:  # one block at a time is what a decoding request fills
                self.generated += 1
                self.generated_bare += not event.hashes
        if self.copies is not None:
            for h in event.hashes:
                self.copies[h] = self.copies.get(h, 0) + 1

    def remove(self, hashes: tuple[int, ...]) -> None:
        """Take one copy of each hash out; one that nobody had told us of proves that there are others."""
        for h in hashes:
            copies = self.size if self.copies is None else self.copies.get(h, 0)
            if copies:
                self.size -= 1
                if copies == 1 and self.copies is not None:
                    del self.copies[h]
                elif self.copies is not None:
                    self.copies[h] = copies - 1
            elif self.doubtful:
                self.doubtful -= 1
            else:
                self.doubtful = None

    def become(self, doubtful: int | None) -> None:
        """Forget every hash; that many blocks may still be cached."""
        self.size, self.copies, self.doubtful = 0, {}, doubtful

    def sliding(self) -> Window | None:
        """The group's window, if it has one and has said how large its blocks are."""
        if self.window is None or len(self.block_sizes) != 1:
            return None
        return Window(self.window / min(self.block_sizes), self.generated_bare / self.generated if self.generated else 0.0)

    @property
    def least(self) -> int:
        """Blocks that are surely cached. In a group with several block sizes one may have several hashes (``cache_partial_block``)."""
        return self.size if len(self.block_sizes) <= 1 else 0

    @property
    def most(self) -> float:
        """Blocks that may be cached, infinity when only the pool's size is a bound."""
        return math.inf if self.doubtful is None else self.size + self.doubtful


class Ledger:
    """The counts of one publisher, fed in the order of its messages by one thread.

    Times are seconds of the caller's clock. ``limit`` is the number of hashes to remember.
    """

    def __init__(self, limit: int = HASHES) -> None:
        """Begin with the empty cache of an engine that has published nothing yet."""
        self._limit = limit
        self._epoch = self._stretch = self._evictions = self._clears = self._batches = 0
        self._forget()

    def _forget(self) -> None:
        self._tables: dict[tuple[str, int], _Table] = {}
        self._exact = {GPU: True, CPU: True}
        self._names_gpu = False
        self._cpu_stored = 0
        self._net = 0
        self._net_at_eviction: int | None = None
        self._recent: deque[tuple[float, float, float, int]] = deque()

    def restart(self, at: float) -> None:
        """Begin anew: the publisher is another one, with an empty cache."""
        self._forget()
        self._epoch += 1
        self._begin(at)

    def lose(self, at: float) -> None:
        """Take note that messages are missing before the next one."""
        for table in self._tables.values():
            table.become(None)
        self._exact = {GPU: False, CPU: False}
        self._begin(at)

    def apply(self, batch: Batch, at: float) -> None:
        """Take the events of the next message."""
        evictions = self._evictions
        self._batches += 1
        for event in batch.events:
            if isinstance(event, Cleared):
                self._clear(at)
            elif (tier := self._tier(event.medium, at)) is not None:
                self._move(event, tier)
        if self._evictions > evictions:
            self._net_at_eviction = self._net
        if sum(t.size for t in self._tables.values()) > self._limit:
            max(self._tables.values(), key=lambda t: len(t.copies or ())).copies = None
        self._note(at)

    def _tier(self, medium: str | None, at: float) -> str | None:
        """Whose blocks these are; None for tiers that are not counted. Releases that name no medium know only HBM."""
        if medium == GPU and not self._names_gpu:
            self._names_gpu = True
            if any(tier == GPU for tier, _ in self._tables):  # what had no name was not HBM's: another connector's events
                self.lose(at)
        if medium is None and not self._names_gpu:
            return GPU
        return medium if medium in (GPU, CPU) else None

    def _move(self, event: Stored | Removed, tier: str) -> None:
        table = self._tables.get((tier, event.group))
        if table is None:
            table = self._tables[tier, event.group] = _Table(0 if self._exact[tier] else None)
        amount = len(event.hashes)
        if isinstance(event, Stored):
            table.store(event)
            self._cpu_stored += amount if tier == CPU else 0
        else:
            table.remove(event.hashes)
            amount = -amount
        if tier == GPU:
            self._net += amount
            self._evictions += max(0, -amount)

    def _clear(self, at: float) -> None:
        """HBM's cache is empty. Whether the host tier was emptied too (``reset_connector_cache``) is not said."""
        for (tier, _), table in self._tables.items():
            table.become(0 if tier == GPU else None if table.doubtful is None else table.size + table.doubtful)
        self._exact[GPU] = True
        self._clears += 1
        self._begin(at)

    def _begin(self, at: float) -> None:
        self._stretch += 1
        self._net = 0
        self._net_at_eviction = None
        self._recent = deque((t, lo, hi, 0) for t, lo, hi, _ in self._recent)
        self._note(at)

    def _bounds(self, tier: str) -> tuple[float, float]:
        """The least and the most blocks that may be cached in a tier."""
        lo, hi = 0.0, 0.0 if self._exact[tier] else math.inf
        for (owner, _), table in self._tables.items():
            if owner == tier:
                lo += table.least
                hi += table.most
        return lo, hi

    def _note(self, at: float) -> None:
        """Remember the bounds for ``recent``; those less than a step apart share an entry."""
        lo, hi = self._bounds(GPU)
        recent = self._recent
        if recent and at < recent[-1][0] + SWING_STEP:
            first, least, most, net = recent[-1]
            recent[-1] = (first, min(lo, least), max(hi, most), min(net, self._net))
        else:
            recent.append((at, lo, hi, self._net))
        while len(recent) > 1 and recent[1][0] <= at - SWING_SECONDS:
            recent.popleft()

    def view(self, at: float, *, open: bool = False) -> LedgerView:  # noqa: A002  the word for an unfilled gap
        """What is known at a time; nothing about the caches while messages are being waited for."""
        gpu, cpu = (UNKNOWN, UNKNOWN) if open else (Interval(*self._bounds(GPU)), Interval(*self._bounds(CPU)))
        recent, lowest = gpu, self._net
        for i, (first, lo, hi, net) in enumerate(self._recent):
            ended = self._recent[i + 1][0] if i + 1 < len(self._recent) else first + SWING_STEP
            if ended > at - SWING_SECONDS:
                recent, lowest = recent.hull(Interval(lo, hi)), min(lowest, net)
        groups = [table for (tier, _), table in self._tables.items() if tier == GPU]
        return LedgerView(
            epoch=self._epoch,
            stretch=self._stretch,
            open=open,
            gpu=gpu,
            recent=recent,
            cpu=cpu,
            net=self._net,
            dip=self._net - lowest,
            evictions=self._evictions,
            net_at_eviction=self._net_at_eviction,
            clears=self._clears,
            batches=self._batches,
            cpu_stored=self._cpu_stored,
            groups=len(groups),
            windows=tuple(window for table in groups if (window := table.sliding()) is not None),
        )
