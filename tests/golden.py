"""What an engine's state says, as JSON: for goldens that a person reads before they are committed."""

from __future__ import annotations

import math

from kvwatch.engines import Reading
from kvwatch.model import EngineState
from kvwatch.pool import Pool
from kvwatch.quantity import Interval

QUANTITIES = ("capacity", "used", "evictable", "available", "held", "reclaimable", "resident", "used_ratio", "resident_ratio")
REQUESTS = ("running", "waiting", "waiting_capacity", "waiting_deferred")


def plain(quantity: Interval) -> float | list[float | None]:
    """An exact quantity as a number, a bounded one as a pair."""
    return quantity.exact if quantity.exact is not None else [quantity.lo, None if math.isinf(quantity.hi) else quantity.hi]


def pool(p: Pool) -> dict[str, object]:
    """A pool; unknown quantities are left out."""
    known = {name: getattr(p, name) for name in QUANTITIES}
    return {"tier": p.tier, "pool": p.pool, "unit": p.unit, **{name: plain(q) for name, q in known.items() if q.known}}


def state(s: EngineState) -> dict[str, object]:
    """A state; histograms as count, sum and number of buckets, notes by their codes."""
    requests = {name: getattr(s, name) for name in REQUESTS}
    return {
        "model": s.model,
        "rank": s.rank,
        "requests": {name: plain(q) for name, q in requests.items() if q.known},
        "pools": [pool(p) for p in s.pools],
        "counters": dict(sorted(s.counters.items())),
        "gauges": {name: plain(q) for name, q in sorted(s.gauges.items())},
        "histograms": {name: [h.count, h.sum, len(h.buckets)] for name, h in sorted(s.histograms.items())},
        "facts": dict(sorted(s.facts.items())),
        "notes": sorted({note.code for note in s.notes}),
        "identity": s.identity,
    }


def reading(r: Reading) -> dict[str, object]:
    """All states of a scrape, and what it left out."""
    return {"states": [state(s) for s in r.states], "missing": [m.series for m in r.missing]}
