"""LMCache inside the engine's worker processes: series ``lmcache:*``, one host pool per worker, each holding its shard of the same tokens.

Bytes add up over workers; requests and tokens are counted by every rank in full, so the largest count is the count. The values move to
Prometheus every 10 s (lmcache/observability.py). Some families look useful and are not read: ``num_stored_tokens_total`` counts what was
asked whether or not it fitted, ``local_cpu_evict_count_total`` counts attempts whether or not anything was evicted, the hit-rate gauges
cover one flush interval and say 1 without traffic, and ``remote_cache_usage`` has no writer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kvwatch.engines import Scrape
from kvwatch.engines.samples import greatest, merge_histogram, plausible, refused, total
from kvwatch.exposition import Exposition, Sample
from kvwatch.model import EngineState, Histogram, Note
from kvwatch.pool import Pool
from kvwatch.quantity import UNKNOWN, ZERO, Interval, at_most, exactly
from kvwatch.target import L2Setting

USAGE = "lmcache:local_cache_usage"
DISK_USAGE = "lmcache:local_storage_usage"
ACTIVE = "lmcache:active_memory_objs_count"
PINNED = "lmcache:pinned_memory_objs_count"
HEALTHY = "lmcache:lmcache_is_healthy"
STORES = "lmcache:num_store_requests_total"
STORED = "lmcache:time_to_store_count"
EVICTED = "lmcache:local_cpu_evict_keys_count_total"
LOOKED_UP, FOUND = "lmcache:num_lookup_tokens_total", "lmcache:num_lookup_hits_total"
RETRIEVES = "lmcache:num_retrieve_requests_total"

PER_RANK = {"l2_store_requests": STORES, "l2_stores_done": STORED, "l2_read_tokens": "lmcache:num_hit_tokens_total"}
"""Counted by each rank in full."""
PER_SHARD = {"l2_evicted_objects": EVICTED, "l2_evict_failures": "lmcache:local_cpu_evict_failed_count_total"}
"""Counted by each rank for its own shard."""
REMOTE_BYTES = {"l3_written_bytes": "lmcache:num_remote_write_bytes_total", "l3_read_bytes": "lmcache:num_remote_read_bytes_total"}
REMOTE_PINGS = "lmcache:remote_ping_successes_total"
REMOTE_FAILURES = ("lmcache:remote_ping_errors_total", "lmcache:get_blocking_failed_count")
HISTOGRAMS = {"l2_load": "lmcache:time_to_retrieve"}

WANTED = frozenset(
    {USAGE, DISK_USAGE, ACTIVE, PINNED, HEALTHY, LOOKED_UP, FOUND, RETRIEVES, REMOTE_PINGS, *REMOTE_FAILURES}
    | {*PER_RANK.values(), *PER_SHARD.values(), *REMOTE_BYTES.values()}
    | {f"{family}{suffix}" for family in HISTOGRAMS.values() for suffix in ("_bucket", "_sum", "_count")}
)
"""Samples that are read here, as written."""


@dataclass(frozen=True, slots=True)
class Worker:
    """One worker's pool: ``resident`` bytes, objects with a pin, all objects, and whether it ever held anything."""

    resident: float
    pinned: float | None
    objects: float | None
    ever_held: bool

    @property
    def used(self) -> Interval:
        """Bytes that cannot be evicted: the pinned share at least, because objects that are being copied are not counted as pinned."""
        if self.pinned is None or not self.objects or self.pinned > self.objects:
            return at_most(self.resident)
        return Interval(self.resident * min(1.0, self.pinned / self.objects), self.resident)


def workers_state(scrape: Scrape, owners: int = 1) -> EngineState | None:
    """What the workers behind one port say together; None without any of their series.

    ``owners`` is how many data-parallel engines share the port: their workers have equal labels and are already summed there.
    """
    exposition = scrape.exposition
    if not any(name.startswith("lmcache:") for name in exposition.samples):
        return None
    workers = _workers(exposition)
    capacity = _capacity(scrape.target.l2, workers, owners)
    stale = _stale(scrape.target.l2, workers, capacity, owners)
    notes = () if stale is None else _stale_notes(stale, capacity)
    if greatest(exposition.get(HEALTHY)) == 0:
        notes = (*notes, Note("l2-bypassed", "LMCache calls itself unhealthy: it is bypassed and the engine computes everything again"))
    return EngineState(
        target=scrape.target.name,
        engine="lmcache",
        model=None,
        rank="0",
        at=scrape.at,
        pools=_pools(exposition, workers, capacity, _unseen(scrape.target.l2, workers, owners), stale=stale is not None),
        counters=_counters(exposition),
        gauges={} if stale is not None else _gauges(workers),
        histograms=_histograms(exposition),
        facts={"l2_kind": "lmcache", "l2_configured": "true"},
        notes=notes,
        started=greatest(exposition.get("process_start_time_seconds")),
        implausible=refused(exposition, WANTED) + (() if stale is None else ((USAGE, stale),)),
    )


def model_names(exposition: Exposition) -> frozenset[str]:
    """What the workers call the model: the path given to the engine, and the served name where it is known."""
    labels = (s.labels for s in exposition.get(USAGE))
    return frozenset(name for found in labels for key in ("model_name", "served_model_name") if (name := found.get(key)))


def _of_workers(exposition: Exposition, name: str) -> tuple[Sample, ...]:
    """The samples of processes that have a pool; ``role="scheduler"`` is a label view without an engine behind it."""
    return tuple(s for s in plausible(exposition.get(name)) if s.labels.get("role") != "scheduler")


def _by_worker(exposition: Exposition, name: str) -> dict[tuple[str, str], float]:
    values: dict[tuple[str, str], float] = {}
    for s in _of_workers(exposition, name):
        key = s.labels.get("model_name", ""), s.labels.get("worker_id", "")
        values[key] = values.get(key, 0.0) + s.value
    return values


def _workers(exposition: Exposition) -> tuple[Worker, ...]:
    resident, pinned, objects, stored, evicted = (_by_worker(exposition, name) for name in (USAGE, PINNED, ACTIVE, STORED, EVICTED))
    return tuple(
        Worker(size, pinned.get(key), objects.get(key), ever_held=size > 0 or any(key in n and n[key] > 0 for n in (stored, evicted)))
        for key, size in resident.items()
    )


def _capacity(setting: L2Setting, workers: tuple[Worker, ...], owners: int) -> Interval:
    """Bytes of the whole tier, from the configuration alone: LMCache does not export it.

    Where only some workers ever held anything the model may keep one latent for all ranks (MLA), and then only those built a pool
    (``save_only_first_rank``, lmcache/v1/cache_engine.py): the others may or may not have one.
    """
    size = setting.capacity_bytes
    if size is None:
        return UNKNOWN
    if setting.per == "instance":
        return exactly(size)
    if setting.workers is not None:
        return exactly(size * setting.workers)
    holders = sum(w.ever_held for w in workers)
    if not workers:
        return UNKNOWN
    return Interval(size * owners * (holders or len(workers)), size * owners * len(workers))


def _unseen(setting: L2Setting, workers: tuple[Worker, ...], owners: int) -> float:
    """Bytes of the pools of workers that are configured and not behind this port, as on the second node of a tensor-parallel engine."""
    if setting.capacity_bytes is None or setting.per == "instance" or setting.workers is None:
        return 0.0
    return setting.capacity_bytes * max(0, setting.workers - len(workers) * owners)


def _stale(setting: L2Setting, workers: tuple[Worker, ...], capacity: Interval, owners: int) -> float | None:
    """The bytes that no pool can hold, when one or all report more than their capacity.

    After a restart with an old PROMETHEUS_MULTIPROC_DIR the sum still includes the dead process (lmcache/observability.py, mode "sum").
    """
    most = capacity.hi
    if workers and setting.per == "worker" and setting.capacity_bytes is not None:
        labelled = owners if setting.workers is None else max(1.0, setting.workers / len(workers))
        most = setting.capacity_bytes * labelled
        worst = max(w.resident for w in workers)
        if worst > most:
            return worst
    resident = sum(w.resident for w in workers)
    return resident if resident > capacity.hi else None


def _stale_notes(resident: float, capacity: Interval) -> tuple[Note, ...]:
    return (
        Note("implausible-value", f"{USAGE} says {resident:.0f} B where at most {capacity.hi:.0f} B fit; it is not used"),
        Note(
            "stale-multiproc",
            "files of an earlier process in PROMETHEUS_MULTIPROC_DIR are still counted: empty it before each start of the engine "
            "(or the configured l2.capacity is too small: LMCache's max_local_cpu_size is in GiB)",
        ),
    )


def _pools(exposition: Exposition, workers: tuple[Worker, ...], capacity: Interval, unseen: float, *, stale: bool) -> tuple[Pool, ...]:
    source = f"{USAGE} of {len(workers)} worker{'' if len(workers) == 1 else 's'}"
    resident, used = UNKNOWN, UNKNOWN
    if workers and not stale:
        seen = sum(w.resident for w in workers)
        resident, used = Interval(seen, seen + unseen), sum((w.used for w in workers), ZERO)
        used = Interval(used.lo, used.hi + unseen)
    host = Pool.of("l2", "kv", "bytes", capacity=capacity, resident=resident, used=used, source=source)
    disk = total(_of_workers(exposition, DISK_USAGE))
    if not disk:  # 0 is also what a worker without a disk tier says
        return (host,)
    return host, Pool.of("l3", "kv", "bytes", resident=UNKNOWN if stale else exactly(disk), source=DISK_USAGE)


def _gauges(workers: tuple[Worker, ...]) -> Mapping[str, Interval]:
    pinned = [w.pinned for w in workers if w.pinned is not None]
    objects = [w.objects for w in workers if w.objects is not None]
    if not pinned or not sum(objects) or sum(pinned) > sum(objects):
        return {}
    return {"l2_pinned_ratio": exactly(sum(pinned) / sum(objects))}


def _counters(exposition: Exposition) -> Mapping[str, float]:
    found = {key: greatest(_of_workers(exposition, name)) for key, name in PER_RANK.items()}
    found |= {key: total(_of_workers(exposition, name)) for key, name in PER_SHARD.items()}
    if found["l2_stores_done"] is None and found["l2_store_requests"] is not None:
        found["l2_stores_done"] = 0.0  # a histogram is born with its first observation, a counter with the process
    # Only synchronous lookups are counted; a scheduler that looks up by itself counts under its own role.
    looked_up, hits = greatest(exposition.get(LOOKED_UP)), greatest(exposition.get(FOUND))
    if looked_up or not greatest(exposition.get(RETRIEVES)):
        found |= {"l2_queried_tokens": looked_up, "l2_hit_tokens": hits}
    written, read = (total(exposition.get(name)) for name in REMOTE_BYTES.values())
    failures = [n for name in REMOTE_FAILURES if (n := total(exposition.get(name))) is not None]
    if written or read or total(exposition.get(REMOTE_PINGS)) or any(failures):  # else there may be no remote storage at all
        found |= {"l3_written_bytes": written, "l3_read_bytes": read, "l3_load_failures": sum(failures) if failures else None}
    return {key: value for key, value in found.items() if value is not None}


def _histograms(exposition: Exposition) -> Mapping[str, Histogram]:
    merged = {
        key: merge_histogram(*(_of_workers(exposition, f"{family}{suffix}") for suffix in ("_bucket", "_sum", "_count")))
        for key, family in HISTOGRAMS.items()
    }
    return {key: histogram for key, histogram in merged.items() if histogram is not None}
