"""vLLM's pools told apart: which free blocks hold cache, and how full the host tier is, by KV events or by what was computed. Pure."""

from __future__ import annotations

import math
from dataclasses import replace

from kvwatch.events.estimate import Estimate
from kvwatch.events.ledger import LedgerView
from kvwatch.events.memory import PoolReading
from kvwatch.model import EngineState
from kvwatch.pool import Guess, Pool
from kvwatch.quantity import UNKNOWN, ZERO, Interval, exactly

ENOUGH_CHUNKS = 16
"""Chunks the host tier must have stored before their mean size is believed."""
SIZE_SLACK = 0.05
"""How far the mean chunk size may be off: a transfer's bytes are counted when it ends, its blocks when it begins."""

SOURCES = {
    "events": "KV events",
    "partial-events": "KV events in part, and tokens computed since the start",
    "metrics": "tokens computed since the start",
    "caching-off": "prefix caching is off",
}


def pool_reading(state: EngineState) -> PoolReading | None:
    """The state as the block pool counts; None where the number of blocks or the usage is not sure."""
    pool, blocks, size = (
        state.pool("l1", "full"),
        state.gauges.get("usable_blocks", UNKNOWN).exact,
        state.gauges.get("block_size", UNKNOWN).exact,
    )
    running, waiting = state.running.exact, state.waiting.exact
    if pool is None or blocks is None or size is None or running is None or waiting is None:
        return None
    usage = pool.used_ratio.exact
    if usage is None and not state.asleep:
        return None
    counters, finished, first = state.counters, state.histograms.get("generation"), state.histograms.get("ttft")
    computed, generated = counters.get("computed_prompt_tokens"), counters.get("generation_tokens")
    # One that only hands KV over holds blocks of requests that run no more: its failures are counted, even when it fetches nothing.
    connector = "waiting_prefetch" in state.gauges or "transfer_failures" in counters or state.facts.get("l2_configured") == "true"
    ahead = state.gauges.get("lookahead_tokens", ZERO).hi
    return PoolReading(
        blocks=round(blocks),
        used=0 if usage is None else round(usage * blocks),  # asleep: everything was discarded
        running=running,
        waiting=waiting,
        block_size=size,
        caching=state.facts.get("prefix_caching") != "false",
        plain=state.gauges.get("kv_groups", UNKNOWN).exact == 1 and not connector,
        bare_first=state.facts.get("reuses_bare_first") == "true",
        tail_blocks=1 + math.ceil(ahead / size),
        computed_tokens=computed + generated if computed is not None and generated is not None else None,
        first_tokens=None if first is None else first.count,
        generated_tokens=generated,
        generating_tokens=generated - finished.sum if generated is not None and finished is not None else None,
        preemptions=counters.get("preemptions"),
        resets=counters.get("cache_reset_calls"),
        asleep=state.asleep,
        started=state.started,
        identity=state.identity,
    )


def split_pool(pool: Pool, reading: PoolReading, found: Estimate) -> Pool:
    """The pool with its free blocks told apart; the pool as it was where that contradicts what is measured."""
    if pool.capacity.exact is None or not pool.measured:
        return pool
    tokens = exactly(pool.capacity.exact / reading.blocks)
    guess = None
    if found.evictable_guess is not None and found.available_guess is not None:
        guess = Guess(found.evictable_guess * tokens.lo, found.available_guess * tokens.lo, SOURCES[found.method])
    split = pool.restated(
        f"evictable by {SOURCES[found.method]}",
        used=pool.used,
        used_ratio=pool.used_ratio,
        held=pool.held,
        evictable=found.evictable * tokens,
        available=found.available * tokens,
    )
    return pool if split is pool else replace(split, guess=guess)


def host_pool(pool: Pool, state: EngineState, view: LedgerView | None) -> Pool:
    """The host tier with what its own events say it holds."""
    if view is None or view.open or not view.cpu.known:
        return pool
    per_block = _host_block(pool, state, view)
    if per_block is None:
        return pool
    return pool.restated(
        "resident by KV events of the host tier",
        used=pool.used if pool.used.exact is None else Interval(0.0, pool.used.hi),
        resident=(view.cpu * per_block).capped(pool.capacity.hi),
    )


def _host_block(pool: Pool, state: EngineState, view: LedgerView) -> Interval | None:
    """What one block of the host tier takes in the pool's unit: a block's tokens, or its mean share of the bytes stored."""
    if pool.unit == "tokens":
        size = state.gauges.get("block_size", UNKNOWN)
        return size if size.known else None
    stored = state.counters.get("l2_written_bytes")
    if stored is None or view.cpu.exact is None or view.cpu_stored < ENOUGH_CHUNKS:
        return None
    mean = stored / view.cpu_stored
    return Interval(mean * (1 - SIZE_SLACK), mean * (1 + SIZE_SLACK))
