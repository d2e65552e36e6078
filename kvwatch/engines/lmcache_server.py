"""A stand-alone LMCache server: series ``lmcache_mp_*``, one host pool for many engines, with tier names one off.

It calls HBM "L0", its host pool "L1" and storage "L2": those are L1, L2 and L3 here. Gauges are read when scraped; counters are made from
events and lose some when the event queue overflows. They count objects: one chunk of one rank. A family is born with its first event, so
what a live server (its eviction loop ticks) does not show has not happened.
"""

from __future__ import annotations

from collections.abc import Mapping

from kvwatch.engines import Scrape
from kvwatch.engines.samples import greatest, plausible, refused, total
from kvwatch.exposition import Exposition
from kvwatch.model import EngineState, Missing, Note
from kvwatch.pool import Pool
from kvwatch.quantity import UNKNOWN, ZERO, Interval, at_least, exactly

USAGE, RATIO = "lmcache_mp_l1_memory_usage_bytes", "lmcache_mp_l1_usage_ratio"
STAGING = "lmcache_mp_l1_staging_bytes"
TICKS = "lmcache_mp_l1_eviction_loop_ticks_total"
SUBMITTED = ("lmcache_mp_num_submitted_stores_total", "lmcache_mp:sm_write_requests_total")
FAILED = "lmcache_mp_l1_allocation_failure_chunks_total"
HIT = "lmcache_mp_lookup_hit_tokens_total"
STORAGE_USAGE = "lmcache_mp_l2_usage_bytes"
ADAPTERS = ("lmcache_mp_l2_store_adapters", "lmcache_mp_l2_adapters")
DROPPED = "lmcache_mp_event_bus_dropped_events_total"

COUNTERS = {
    "l2_written_objects": ("lmcache_mp_l1_write_chunks_total", "lmcache_mp_l1_write_keys_total", "lmcache_mp:l1_write_keys_total"),
    "l2_evicted_objects": ("lmcache_mp_l1_evicted_chunks_total", "lmcache_mp_l1_evicted_keys_total", "lmcache_mp:l1_evicted_keys_total"),
    "l2_read_objects": ("lmcache_mp_num_chunks_loaded_total",),
    "l2_evict_rounds": ("lmcache_mp_l1_eviction_loop_triggered_total",),
    "l2_queried_tokens": ("lmcache_mp_lookup_requested_tokens_total",),
    "l3_load_failures": ("lmcache_mp_l2_prefetch_failure_chunks_total",),
}
"""Newest spelling first; summed over tenants (``cache_salt``), models and managers. Only written objects prove a store:
``num_finished_stores`` also counts stores of which nothing fitted. ``l1_read_chunks`` is no read: it counts copies to storage too."""

HITS = {"l2_hit_tokens": "lmcache_mp_lookup_hit_l1_tokens_total", "l3_hit_tokens": "lmcache_mp_lookup_hit_l2_tokens_total"}

WANTED = frozenset(
    {USAGE, RATIO, STAGING, TICKS, *SUBMITTED, FAILED, HIT, STORAGE_USAGE, *ADAPTERS, DROPPED, *HITS.values()}
    | {name for names in COUNTERS.values() for name in names}
)
"""Samples that are read here, as written."""

NO_OCCUPANCY = Missing(
    USAGE, "an LMCache server of 0.3.15 to 0.4.2 does not export what its pool holds", "upgrade the LMCache server to 0.4.7 or later"
)


def server_state(scrape: Scrape) -> EngineState | None:
    """What a server says of its pool and its storage; None without any of its series."""
    exposition = scrape.exposition
    if not any(name.startswith(("lmcache_mp_", "lmcache_mp:")) for name in exposition.samples):
        return None
    return EngineState(
        target=scrape.target.name,
        engine="lmcache",
        model=None,
        rank="0",
        at=scrape.at,
        pools=(_host(scrape), *_storage(exposition)),
        counters=_counters(exposition),
        facts={"l2_kind": "lmcache-server", "l2_configured": "true"},
        notes=_notes(exposition),
        started=greatest(exposition.get("process_start_time_seconds")),
        implausible=refused(exposition, WANTED) + tuple((RATIO, s.value) for s in plausible(exposition.get(RATIO)) if s.value > 1),
    )


def old_spelling(exposition: Exposition) -> bool:
    """Whether the server is of the releases that wrote names with a colon and exported no occupancy."""
    return any(name.startswith("lmcache_mp:") for name in exposition.samples)


def _host(scrape: Scrape) -> Pool:
    """The server's "L1", all managers together: a store tries them in order, so one full and one empty is normal."""
    exposition, configured = scrape.exposition, scrape.target.l2.capacity_bytes
    usage, ratio = _by_manager(exposition, USAGE), _by_manager(exposition, RATIO)
    if TICKS not in exposition.samples:  # before 0.5.6 the gauges say 0 while there is no manager yet, and then carry no tag
        usage, ratio = ({k: v for k, v in values.items() if v > 0 or k[0]} for values in (usage, ratio))
    heaps = [_heap(usage.get(manager), ratio.get(manager)) for manager in usage.keys() | ratio.keys()]
    capacity = sum(heaps, ZERO) if heaps else UNKNOWN
    if configured is not None and capacity.exact is None and configured >= capacity.lo:
        capacity = exactly(configured)
    # The heap grows towards its configured size while it is allocated lazily (lazy_memory_allocator.py): what it is now counts.
    resident = exactly(sum(usage.values())) if usage else UNKNOWN
    staging = total(exposition.get(STAGING))
    used = Interval(0.0 if staging is None else min(staging, resident.lo), resident.hi)
    share = sum(ratio.values()) if len(ratio) == 1 and capacity.exact is None else None
    # The two gauges are read one after the other: only beside an empty pool does a ratio of 0 add anything.
    whole = exactly(share) if share is not None and share <= 1 and (not usage or resident.hi == share == 0) else UNKNOWN
    others = sorted({backend for _, backend in usage} - {"", "dram"})
    source = f"{USAGE}, {RATIO}" + (f" ({', '.join(others)})" if others else "")
    return Pool.of("l2", "kv", "bytes", capacity=capacity, used=used, resident=resident, resident_ratio=whole, source=source)


def _by_manager(exposition: Exposition, name: str) -> dict[tuple[str, str], float]:
    """Values by manager tag and backend; both are "" before 0.5.6, which has one manager. Other labels are the exporter's own."""
    return {(s.labels.get("l1_tag", ""), s.labels.get("backend", "")): s.value for s in plausible(exposition.get(name))}


def _heap(usage: float | None, ratio: float | None) -> Interval:
    """Bytes of one manager's heap: its usage over its ratio, which says nothing while it is empty."""
    if not usage or not ratio or ratio > 1:
        return UNKNOWN if not usage else at_least(usage)
    return exactly(round(usage / ratio))


def _storage(exposition: Exposition) -> tuple[Pool, ...]:
    """The server's "L2". Its usage counts what this process stored, not what was there before, and adapters of one type hide each other."""
    usage = total(exposition.get(STORAGE_USAGE))
    adapters = [s.value for name in ADAPTERS for s in plausible(exposition.get(name)) if s.labels.get("state", "active") == "active"]
    if usage is None and not any(adapters):
        return ()
    return (Pool.of("l3", "kv", "bytes", resident=UNKNOWN if usage is None else at_least(usage), source=STORAGE_USAGE),)


def _counters(exposition: Exposition) -> Mapping[str, float]:
    alive = bool(greatest(exposition.get(TICKS)))
    found = {key: _first(exposition, names) for key, names in COUNTERS.items()}
    found["l2_store_failures"] = total(s for s in exposition.get(FAILED) if s.labels.get("during") != "l2_prefetch")
    found["l2_ticks"] = total(exposition.get(TICKS))
    hits = {key: total(exposition.get(name)) for key, name in HITS.items()}
    if any(hits.values()) or not total(exposition.get(HIT)):  # else a release that does not tell where it was found
        found |= hits
    if alive:
        found = {key: 0.0 if value is None else value for key, value in found.items()}
    found["l2_store_requests"] = _first(exposition, SUBMITTED)
    if alive and found["l2_store_requests"] is None and STAGING in exposition.samples:  # 0.5.6 has both
        found["l2_store_requests"] = 0.0
    return {key: value for key, value in found.items() if value is not None}


def _first(exposition: Exposition, names: tuple[str, ...]) -> float | None:
    return next((value for name in names if (value := total(exposition.get(name))) is not None), None)


def _notes(exposition: Exposition) -> tuple[Note, ...]:
    dropped = total(exposition.get(DROPPED))
    undercounted = (
        Note("undercounted", f"the server dropped {dropped:.0f} events: its counters miss what they stood for") if dropped else None
    )
    renamed = Note("renamed-series", "names with a colon, as LMCache 0.3.15 to 0.4.2 wrote them") if old_spelling(exposition) else None
    return tuple(note for note in (undercounted, renamed) if note is not None)
