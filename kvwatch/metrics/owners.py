"""What pool owners say: their pools, requests, counters and histograms, and the signals read from them. Unknown is absent."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from zlib import crc32

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from kvwatch.model import Histogram
from kvwatch.pool import Pool
from kvwatch.quantity import UNKNOWN, Interval
from kvwatch.signals import CONDITIONS, SIGNALS
from kvwatch.store import OwnerSnapshot

OWNER = ("target", "engine", "model", "rank")
POOL = (*OWNER, "tier", "pool")
LONGEST_LABEL = 256

COUNTERS: tuple[tuple[str, str, str, str | None], ...] = (
    ("preemptions", "preemptions", "requests preempted or retracted", None),
    ("prompt_tokens", "prompt_tokens", "prompt tokens, as the engine counts them", None),
    ("generation_tokens", "generation_tokens", "generated tokens", None),
    ("l1_queried_tokens", "prefix_cache_queried_tokens", "prompt tokens looked up, by tier", "l1"),
    ("l2_queried_tokens", "prefix_cache_queried_tokens", "prompt tokens looked up, by tier", "l2"),
    ("l1_hit_tokens", "prefix_cache_hit_tokens", "prompt tokens found, by tier", "l1"),
    ("l2_hit_tokens", "prefix_cache_hit_tokens", "prompt tokens found, by tier", "l2"),
    ("l3_hit_tokens", "prefix_cache_hit_tokens", "prompt tokens found, by tier", "l3"),
    ("l2_written_tokens", "tier_written_tokens", "tokens written into a tier", "l2"),
    ("l3_written_tokens", "tier_written_tokens", "tokens written into a tier", "l3"),
    ("l2_read_tokens", "tier_read_tokens", "tokens read from a tier", "l2"),
    ("l3_read_tokens", "tier_read_tokens", "tokens read from a tier", "l3"),
    ("l2_written_bytes", "tier_written_bytes", "bytes written into a tier", "l2"),
    ("l3_written_bytes", "tier_written_bytes", "bytes written into a tier", "l3"),
    ("l2_read_bytes", "tier_read_bytes", "bytes read from a tier", "l2"),
    ("l3_read_bytes", "tier_read_bytes", "bytes read from a tier", "l3"),
    ("l1_evicted_tokens", "evicted_tokens", "tokens evicted from a tier", "l1"),
)
"""Engine counter, exported name without ``_total``, help, tier label or None."""

HISTOGRAMS = (("ttft", "ttft_seconds", "seconds to the first token"), ("queue", "queue_seconds", "seconds before the first scheduling"))


def _labels(o: OwnerSnapshot) -> tuple[str, ...]:
    return (o.state.target, o.state.engine, short(o.state.model or ""), short(o.state.rank))


def short(text: str) -> str:
    """A label stays short whatever the engine says, and two texts stay two."""
    return text if len(text) <= LONGEST_LABEL else f"{text[: LONGEST_LABEL - 9]}…{crc32(text.encode(errors='replace')):08x}"


def partition(p: Pool) -> Mapping[str, float]:
    """The finest exact partition of a pool; empty when there is none."""
    parts = {name: q.exact for name, q in (("used", p.used), ("evictable", p.evictable), ("available", p.available), ("held", p.held),
             ("reclaimable", p.reclaimable), ("resident", p.resident))}  # fmt: skip
    if p.measured and p.capacity.exact is not None:
        for names in (("used", "evictable", "available", "held"), ("used", "reclaimable", "held"), ("resident", "available", "held")):
            known = {name: value for name in names if (value := parts[name]) is not None}
            if len(known) == len(names):
                return known
    return {}


def pools(owners: Iterable[OwnerSnapshot]) -> Iterator[Metric]:
    """The parts of every pool: exactly where that is known, and as ranges."""
    units = {u: (GaugeMetricFamily(f"kvwatch_pool_{u}", f"{u} of a pool by state; the states sum to the capacity", labels=(*POOL, "state")),
                 GaugeMetricFamily(f"kvwatch_pool_capacity_{u}", f"capacity of a pool in {u}", labels=POOL))
             for u in ("tokens", "bytes")}  # fmt: skip
    size = GaugeMetricFamily("kvwatch_kv_bytes_per_token", "bytes one token takes in the pools of all GPUs of an owner", labels=OWNER)
    low = GaugeMetricFamily("kvwatch_pool_min_tokens", "least tokens a state may have", labels=(*POOL, "state"))
    high = GaugeMetricFamily("kvwatch_pool_max_tokens", "most tokens a state may have", labels=(*POOL, "state"))
    ratio = GaugeMetricFamily("kvwatch_pool_used_ratio", "used share of a pool", labels=POOL)
    least = GaugeMetricFamily("kvwatch_pool_resident_min_ratio", "least share of a pool that holds data", labels=POOL)
    most = GaugeMetricFamily("kvwatch_pool_resident_max_ratio", "most share of a pool that holds data", labels=POOL)
    for o in owners:
        per_token = o.state.gauges.get("kv_bytes_per_token", UNKNOWN).exact
        if per_token is not None:
            size.add_metric(_labels(o), per_token)
        for p in o.state.pools:
            at = (*_labels(o), p.tier, p.pool)
            for unit, factor in _units(p, per_token):
                states, capacity = units[unit]
                for state, value in partition(p).items():
                    states.add_metric((*at, state), value * factor)
                if p.capacity.exact is not None:
                    capacity.add_metric(at, p.capacity.exact * factor)
            if p.unit == "tokens" and p.measured:
                for state, q in (("used", p.used), ("evictable", p.evictable), ("available", p.available), ("reclaimable", p.reclaimable),
                                 ("resident", p.resident)):  # fmt: skip
                    _add_bounds(low, high, (*at, state), q)
            if p.used_ratio.exact is not None:
                ratio.add_metric(at, p.used_ratio.exact)
            _add_bounds(least, most, at, p.resident_ratio)
    yield from (family for pair in units.values() for family in pair)
    yield from (low, high, ratio, least, most, size)


def _units(p: Pool, per_token: float | None) -> Iterator[tuple[str, float]]:
    if p.unit in {"tokens", "bytes"}:
        yield p.unit, 1.0
    if p.unit == "tokens" and per_token is not None:
        yield "bytes", per_token


def _add_bounds(low: GaugeMetricFamily, high: GaugeMetricFamily, labels: tuple[str, ...], q: Interval) -> None:
    if q.known:
        low.add_metric(labels, q.lo)
        if not math.isinf(q.hi):
            high.add_metric(labels, q.hi)


def requests(owners: Iterable[OwnerSnapshot]) -> Iterator[Metric]:
    """Who runs and who waits."""
    family = GaugeMetricFamily("kvwatch_requests", "requests by state; waiting_capacity and waiting_deferred are parts of waiting",
                               labels=(*OWNER, "state"))  # fmt: skip
    for o in owners:
        for state, q in (("running", o.state.running), ("waiting", o.state.waiting), ("waiting_capacity", o.state.waiting_capacity),
                         ("waiting_deferred", o.state.waiting_deferred)):  # fmt: skip
            if q.exact is not None:
                family.add_metric((*_labels(o), state), q.exact)
    yield family


def counters(owners: Sequence[OwnerSnapshot]) -> Iterator[Metric]:
    """The engines' counters under one name."""
    made: dict[str, CounterMetricFamily] = {}
    for counter, name, help_text, tier in COUNTERS:
        family = made.setdefault(
            name, CounterMetricFamily(f"kvwatch_{name}", help_text, labels=OWNER if tier is None else (*OWNER, "tier"))
        )
        for o in owners:
            if counter in o.state.counters:
                family.add_metric(_labels(o) if tier is None else (*_labels(o), tier), o.state.counters[counter])
    yield from made.values()


def histograms(owners: Sequence[OwnerSnapshot]) -> Iterator[Metric]:
    """The engines' histograms with their own buckets."""
    for key, name, help_text in HISTOGRAMS:
        family = HistogramMetricFamily(f"kvwatch_{name}", help_text, labels=OWNER)
        for o in owners:
            h = o.state.histograms.get(key)
            if h is not None and h.buckets:
                family.add_metric(_labels(o), _edges(h), h.sum)
        yield family


def _edges(h: Histogram) -> list[tuple[str, float]]:
    return [("+Inf" if math.isinf(edge) else repr(edge).removesuffix(".0"), count) for edge, count in h.buckets]


def signals(owners: Sequence[OwnerSnapshot]) -> Iterator[Metric]:
    """Everything that is derived, with both ends where it is often a range, and every condition."""
    for s in SIGNALS:
        exact = GaugeMetricFamily(f"kvwatch_{s.name}", s.help, labels=OWNER)
        low = GaugeMetricFamily(f"kvwatch_{s.name}_min", f"{s.help} (at least)", labels=OWNER)
        high = GaugeMetricFamily(f"kvwatch_{s.name}_max", f"{s.help} (at most)", labels=OWNER)
        for o in owners:
            value = o.judged.values.get(s.name, UNKNOWN)
            if value.exact is not None:
                exact.add_metric(_labels(o), value.exact)
            if s.bounded:
                _add_bounds(low, high, _labels(o), value)
        yield exact
        if s.bounded:
            yield low
            yield high
    for c in CONDITIONS:
        labels = (*OWNER, "reason") if c.labels else OWNER
        family = GaugeMetricFamily(f"kvwatch_{c.name}", f"{c.help} (0 or 1)", labels=labels)
        for o in owners:
            values = o.judged.branches.get(c.name, {}) if c.labels else {"": o.judged.values.get(c.name, UNKNOWN)}
            for reason, value in values.items():
                if value.exact is not None:
                    family.add_metric((*_labels(o), reason) if c.labels else _labels(o), value.exact)
        yield family


def infos(owners: Iterable[OwnerSnapshot]) -> Iterator[Metric]:
    """What engines say of themselves."""
    info = GaugeMetricFamily(
        "kvwatch_engine_info", "what an engine says of itself", labels=(*OWNER, "version", "role", "l2", "write_policy", "kv_dtype")
    )
    for o in owners:
        facts = o.state.facts
        info.add_metric((*_labels(o), *(short(facts.get(f, "")) for f in ("version", "role", "l2_kind", "write_policy", "kv_dtype"))), 1.0)
    yield info
