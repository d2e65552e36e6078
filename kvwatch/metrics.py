"""One snapshot as Prometheus families: what /metrics gives. Pure; nothing lives longer than the answer.

A series that is unknown is absent. Ratios and states are gauges of the moment; counters and histograms are the engine's own, under one
name for all engines.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from zlib import crc32

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from kvwatch import __version__
from kvwatch.model import Histogram
from kvwatch.pool import Pool
from kvwatch.quantity import UNKNOWN, Interval
from kvwatch.report import Verdict
from kvwatch.signals import CONDITIONS, SIGNALS, TARGET_CONDITIONS, TARGET_SIGNALS
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


def families(said: Verdict, *, gpu_processes: bool = False) -> Iterator[Metric]:
    """All families of one verdict; those of GPU processes only when asked for."""
    owners = [o for o in said.snapshot.owners if not o.stale]
    yield from _pools(owners)
    yield from _requests(owners)
    yield from _counters(owners)
    yield from _histograms(owners)
    yield from _signals(owners)
    yield from _targets(said)
    yield from _gpus(said, processes=gpu_processes)
    yield from _findings(said)
    yield from _infos(said, owners)


def _labels(o: OwnerSnapshot) -> tuple[str, ...]:
    return (o.state.target, o.state.engine, _short(o.state.model or ""), _short(o.state.rank))


def _short(text: str) -> str:
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


def _pools(owners: Iterable[OwnerSnapshot]) -> Iterator[Metric]:
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


def _requests(owners: Iterable[OwnerSnapshot]) -> Iterator[Metric]:
    family = GaugeMetricFamily("kvwatch_requests", "requests by state; waiting_capacity and waiting_deferred are parts of waiting",
                               labels=(*OWNER, "state"))  # fmt: skip
    for o in owners:
        for state, q in (("running", o.state.running), ("waiting", o.state.waiting), ("waiting_capacity", o.state.waiting_capacity),
                         ("waiting_deferred", o.state.waiting_deferred)):  # fmt: skip
            if q.exact is not None:
                family.add_metric((*_labels(o), state), q.exact)
    yield family


def _counters(owners: Iterable[OwnerSnapshot]) -> Iterator[Metric]:
    owners = list(owners)
    made: dict[str, CounterMetricFamily] = {}
    for counter, name, help_text, tier in COUNTERS:
        family = made.setdefault(
            name, CounterMetricFamily(f"kvwatch_{name}", help_text, labels=OWNER if tier is None else (*OWNER, "tier"))
        )
        for o in owners:
            if counter in o.state.counters:
                family.add_metric(_labels(o) if tier is None else (*_labels(o), tier), o.state.counters[counter])
    yield from made.values()


def _histograms(owners: Iterable[OwnerSnapshot]) -> Iterator[Metric]:
    owners = list(owners)
    for key, name, help_text in HISTOGRAMS:
        family = HistogramMetricFamily(f"kvwatch_{name}", help_text, labels=OWNER)
        for o in owners:
            h = o.state.histograms.get(key)
            if h is not None and h.buckets:
                family.add_metric(_labels(o), _edges(h), h.sum)
        yield family


def _edges(h: Histogram) -> list[tuple[str, float]]:
    return [("+Inf" if math.isinf(edge) else repr(edge).removesuffix(".0"), count) for edge, count in h.buckets]


def _signals(owners: Iterable[OwnerSnapshot]) -> Iterator[Metric]:
    owners = list(owners)
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


def _targets(said: Verdict) -> Iterator[Metric]:
    up = GaugeMetricFamily("kvwatch_target_up", "whether the last scrape of a target succeeded", labels=("target",))
    took = GaugeMetricFamily("kvwatch_scrape_duration_seconds", "time the last scrape took", labels=("target",))
    body = GaugeMetricFamily("kvwatch_scrape_body_bytes", "size of the last body", labels=("target",))
    last = GaugeMetricFamily("kvwatch_last_scrape_timestamp_seconds", "when the last good scrape was taken, Unix time", labels=("target",))
    failures = CounterMetricFamily("kvwatch_scrape_failures", "failed scrapes by reason", labels=("target", "reason"))
    malformed = GaugeMetricFamily("kvwatch_scrape_malformed_lines", "lines of the last body that could not be read", labels=("target",))
    for t in said.snapshot.targets:
        at = (t.target.name,)
        if t.last is not None:
            up.add_metric(at, 1.0 if t.last.ok else 0.0)
            took.add_metric(at, t.last.duration)
        if t.last_good is not None:
            body.add_metric(at, t.last_good.body_bytes)
            malformed.add_metric(at, t.last_good.malformed_lines)
            if t.last_good.wall is not None:
                last.add_metric(at, t.last_good.wall)
        for reason, count in t.failures.items():
            failures.add_metric((*at, reason), count)
    yield from (up, took, body, last, failures, malformed)
    yield from _events(said)
    judged = [(t.target.name, t.judged.values) for t in said.snapshot.targets if t.judged is not None]
    named = [(s.name, s.help) for s in TARGET_SIGNALS] + [(c.name, f"{c.help} (0 or 1)") for c in TARGET_CONDITIONS]
    for name, help_text in named:
        family = GaugeMetricFamily(f"kvwatch_{name}", help_text, labels=("target",))
        for target, values in judged:
            value = values.get(name, UNKNOWN)
            if value.exact is not None:
                family.add_metric((target,), value.exact)
        yield family


EVENT_COUNTERS = (("batches", "batches of KV events taken"), ("gaps", "gaps in the KV events that were given up"),
                  ("lost", "messages of KV events lost"),
                  ("replays", "replays of KV events asked for"), ("garbled", "messages that were no KV events"))  # fmt: skip


def _events(said: Verdict) -> Iterator[Metric]:
    """How listening to KV events goes, by target and rank."""
    heard = [
        (t.target.name, rank, stats) for t in said.snapshot.targets if t.last_good is not None for rank, stats in t.last_good.events.items()
    ]
    for name, help_text in EVENT_COUNTERS:
        family = CounterMetricFamily(f"kvwatch_event_{name}", help_text, labels=("target", "rank"))
        for target, rank, stats in heard:
            family.add_metric((target, rank), getattr(stats, name))
        yield family
    lag = GaugeMetricFamily("kvwatch_event_lag_seconds", "age of the newest KV event when it was taken", labels=("target", "rank"))
    for target, rank, stats in heard:
        if stats.lag_seconds is not None:
            lag.add_metric((target, rank), max(0.0, stats.lag_seconds))
    yield lag


def _gpus(said: Verdict, *, processes: bool) -> Iterator[Metric]:
    reading = said.snapshot.gpus
    if reading is None:
        return
    yield GaugeMetricFamily("kvwatch_nvml_up", "whether NVML answers", value=1.0 if reading.nvml.state == "ok" else 0.0)
    memory = GaugeMetricFamily("kvwatch_hbm_bytes", "GPU memory by state; the states sum to the total", labels=("gpu", "uuid", "state"))
    by_process = GaugeMetricFamily("kvwatch_hbm_process_bytes", "GPU memory by process", labels=("gpu", "uuid", "pid"))
    for g in reading.gpus:
        for state, value in (("used", g.used), ("free", g.free), ("reserved", g.reserved)):
            if value is not None:
                memory.add_metric((str(g.index), g.uuid, state), value)
        for p in g.processes or ():
            if p.used is not None:
                by_process.add_metric((str(g.index), g.uuid, str(p.pid)), p.used)
    yield memory
    if processes:
        yield by_process


def _findings(said: Verdict) -> Iterator[Metric]:
    family = GaugeMetricFamily("kvwatch_finding", "a finding that fires", labels=("rule", "severity", "reason", *OWNER))
    for f in said.findings:
        if f.status == "firing":
            s = f.subject
            family.add_metric(
                (f.rule, f.severity, f.reason or "", s.target, s.engine or "", _short(s.model or ""), _short(s.rank or "")), 1.0
            )
    yield family


def _infos(said: Verdict, owners: Iterable[OwnerSnapshot]) -> Iterator[Metric]:
    engine = GaugeMetricFamily(
        "kvwatch_engine_info", "what an engine says of itself", labels=(*OWNER, "version", "role", "l2", "write_policy", "kv_dtype")
    )
    for o in owners:
        facts = o.state.facts
        engine.add_metric(
            (*_labels(o), *(_short(facts.get(f, "")) for f in ("version", "role", "l2_kind", "write_policy", "kv_dtype"))), 1.0
        )
    yield engine
    keys = sorted({key for t in said.snapshot.targets for key in t.target.labels})
    info = GaugeMetricFamily("kvwatch_target_info", "where a target is", labels=("target", "url", *keys))
    for t in said.snapshot.targets:
        info.add_metric((t.target.name, _short(t.target.url), *(_short(t.target.labels.get(k, "")) for k in keys)), 1.0)
    yield info
    yield GaugeMetricFamily("kvwatch_findings_firing", "findings that fire", value=sum(1 for f in said.findings if f.status == "firing"))
    build = GaugeMetricFamily("kvwatch_build_info", "the version that runs", labels=("version",))
    build.add_metric((__version__,), 1.0)
    yield build
