"""Evictable and available blocks of one vLLM pool: what the numbers prove, and the best guess inside it.

With N usable blocks, U in use and H in the prefix cache, the free blocks F = N - U are evictable (cached) or available (empty), and
available + used and not cached = N - H. The events give H, the gauges U, ``PoolMemory`` bounds what the events did not tell.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from kvwatch.events.ledger import LedgerView
from kvwatch.events.memory import PoolMemory
from kvwatch.quantity import Interval, exactly

Method = Literal["caching-off", "events", "partial-events", "metrics"]


@dataclass(frozen=True, slots=True)
class Estimate:
    """Blocks that are free: ``evictable`` and ``available`` are proven, the guesses lie inside and add up to the free blocks.

    The guesses are None where nothing supports one. ``method`` is what the guess stands on.
    """

    evictable: Interval
    available: Interval
    evictable_guess: float | None
    available_guess: float | None
    method: Method


def estimate(memory: PoolMemory, view: LedgerView | None = None) -> Estimate:
    """Split the free blocks of the memory's last scrape; ``view`` is the one the memory was stepped with."""
    reading = memory.last
    free = float(reading.free)
    if not reading.caching:
        return Estimate(exactly(0.0), exactly(free), 0.0, free, "caching-off")
    usable = None if view is None or view.open or memory.distrusted == view.stretch else view
    trusted = None if memory.suspect else usable
    hi = min(free, memory.bare)
    lo = 0.0 if trusted is None else min(hi, max(0.0, free - trusted.recent.hi))
    if trusted is not None and reading.used == 0 and reading.running == 0 and trusted.recent.exact is not None:
        lo = hi  # nothing is held, so every bare block is free
    method, guess = _guess(memory, usable)
    if guess is not None:
        guess = min(max(guess, lo), hi)
    return Estimate(Interval(free - hi, free - lo), Interval(lo, hi), None if guess is None else free - guess, guess, method)


def _guess(memory: PoolMemory, view: LedgerView | None) -> tuple[Method, float | None]:
    """The most likely number of available blocks, and what it stands on."""
    reading = memory.last
    idle = reading.used == 0 and reading.running == 0
    if idle and memory.suspect == "empty":
        return "metrics", reading.blocks
    filled = 0.0 if reading.filled is None else reading.filled - memory.filled_from
    untouched = max(0.0, reading.blocks - max(memory.used_peak, math.floor(filled))) if reading.bare_first else math.inf
    hashed = None if view is None or memory.suspect == "empty" else view.gpu.exact
    if view is not None and hashed is not None:
        bare = reading.blocks - hashed
        held = 0.0 if idle else reading.running * view.tail_blocks(_generated_blocks(memory))
        return "events", max(0.0, bare - held if idle or reading.plain else min(bare - held, untouched))
    if math.isinf(untouched):
        return "metrics", None
    # requests that drain leave their unfinished blocks bare until something evicts: between none and all of them
    left = memory.running_last / 2 if idle else 0.0
    return "partial-events" if view is not None else "metrics", max(untouched, left)


def _generated_blocks(memory: PoolMemory) -> float:
    """Blocks that a running request has filled with what it generated, on average."""
    reading = memory.last
    if reading.generating_tokens is None or reading.running == 0:
        return 0.0
    return max(0.0, reading.generating_tokens - memory.aborted_tokens) / reading.running / reading.block_size
