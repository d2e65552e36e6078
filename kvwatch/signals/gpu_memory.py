"""The GPU's memory around the pool: what is free or somebody else's, and what the pool could gain of it."""

from __future__ import annotations

import math

from kvwatch.quantity import UNKNOWN, Interval, at_least, exactly
from kvwatch.signals.kinds import Signal
from kvwatch.signals.scheduler import mean_sequence
from kvwatch.view import View

MEMORY_RESERVE = 0.03
"""Share of a GPU left free for what no engine accounts for."""
MOST_MEMORY = 0.95


def _free(view: View) -> Interval:
    """Free share of the tightest GPU of this engine; unknown unless the GPUs are proven to be its."""
    gpus = view.gpus
    if not gpus or any(g.state != "ok" or g.free is None or not g.total or g.coherent for g in gpus):
        return UNKNOWN
    return exactly(min(g.free / g.total for g in gpus if g.free is not None and g.total))


def _foreign(view: View) -> Interval:
    """Bytes on this engine's GPUs that are proven to belong to another process."""
    gpus = view.gpus
    if not gpus or any(g.coherent or g.state != "ok" for g in gpus):
        return UNKNOWN
    known = [p for g in gpus for p in g.processes or ()]
    if any(g.processes is None for g in gpus) or any(p.mine is None for p in known):
        return UNKNOWN
    sizes = [p.used for p in known if p.mine is False]
    told = float(sum(size for size in sizes if size is not None))
    return at_least(told) if None in sizes else exactly(told)


def _fraction(view: View) -> Interval:
    """The configured share of the GPU."""
    return view.gauge("memory_fraction")


def _next_fraction(view: View) -> Interval:
    """What the share could be raised to: what is free less a reserve, at most 0.95."""
    now, unused = view.gauge("memory_fraction").exact, free.of(view).exact
    if now is None or unused is None:
        return UNKNOWN
    better = math.floor(round(min(now + unused - MEMORY_RESERVE, MOST_MEMORY) * 100, 6)) / 100  # 0.7 + 0.2 is a little less than 0.9
    return exactly(better) if better > now else UNKNOWN


def _kv_growth(view: View) -> Interval:
    """Tokens the pool would gain by that, from what its tokens take now."""
    better, now, pool = next_fraction.of(view).exact, view.gauge("memory_fraction").exact, view.state.pool("l1", "full")
    if better is None or now is None or pool is None or pool.unit != "tokens" or not view.gpus:
        return UNKNOWN
    totals = [g.total for g in view.gpus if g.total is not None]
    per_gpu = view.gauge("kv_pool_bytes")
    if per_gpu.lo > 0 and pool.capacity.known:
        return exactly((better - now) * min(totals)) * pool.capacity / per_gpu
    return exactly((better - now) * sum(totals)) / view.gauge("kv_bytes_per_token")


def _more_sequences(view: View) -> Interval:
    return kv_growth.of(view) / mean_sequence.of(view)


free = Signal("hbm_free_ratio", "ratio", "free share of the engine's GPU memory", _free)
foreign = Signal("hbm_foreign_bytes", "bytes", "GPU memory held by other processes on the engine's GPUs", _foreign, bounded=True)
fraction = Signal("memory_fraction", "fraction", "share of GPU memory the engine was given", _fraction)
next_fraction = Signal(
    "memory_fraction_next", "fraction", "share of GPU memory the engine could be given with what is free", _next_fraction
)
kv_growth = Signal("kv_growth_tokens", "tokens", "tokens the pool would gain by that larger share of GPU memory", _kv_growth)
more_sequences = Signal(
    "kv_growth_sequences", "requests", "sequences of the present length the pool would gain by that larger share", _more_sequences
)

SIGNALS = (free, foreign, fraction, next_fraction, kv_growth, more_sequences)
