"""What is behind vLLM's HBM: its own KV offloading to host memory, or a connector to something else.

Both ways of offloading call pinned blocks used and count cached ones as free, so a tier that is full reads about 0 between transfers.
The swap space of the V0 engine is none of these: it caches nothing, and what waits there is part of the queue.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from kvwatch.engines.vllm_pools import Blocks, CacheConfig, read_number
from kvwatch.engines.vllm_series import Series
from kvwatch.model import Missing
from kvwatch.pool import Pool, Tier
from kvwatch.quantity import UNKNOWN, ZERO, Interval, at_most, exactly
from kvwatch.target import L2Setting

GIB = 1024.0**3
NATIVE = (
    "kv_offload_store_bytes",
    "kv_offload_load_bytes",
    "kv_offload_total_bytes",
    "kv_offload_cpu_cache_usage_perc",
    "kv_offload_allocation_failure",
)
SIMPLE = ("simple_kv_offload_info", "simple_kv_offload_used_blocks", "simple_kv_offload_save_outcomes", "simple_kv_offload_load_blocks")
HANDOVER = ("nixl_num_failed_transfers", "nixl_num_failed_notifications", "nixl_num_kv_expired_reqs")
"""Registered by the connector that hands KV from prefill to decode engines: its hits come from another engine's HBM, not from a tier."""
LMCACHE_SERVER = "lmcache_mp_lookup_duration_seconds"


@dataclass(frozen=True, slots=True)
class HostTier:
    """What is known of the tier behind HBM: no pool where nothing but its existence is."""

    pools: tuple[Pool, ...] = ()
    facts: Mapping[str, str] = field(default_factory=dict)
    counters: Mapping[str, float] = field(default_factory=dict)
    gauges: Mapping[str, Interval] = field(default_factory=dict)


def host_tier(series: Series, config: CacheConfig, blocks: Blocks, setting: L2Setting) -> HostTier:
    """Find the tier by the series its connector registers, else by the traffic any connector causes."""
    if series.configured(*NATIVE) or (config.offload_gib is not None and config.offload_backend == "native"):
        return _native(series, config, setting)
    if series.configured(*SIMPLE):
        return _simple(series, blocks)
    if series.configured(LMCACHE_SERVER, LMCACHE_SERVER + "_count"):
        return HostTier(facts={"l2_kind": "lmcache-server", "l2_configured": "true"})
    if config.offload_gib is not None and config.offload_backend == "lmcache":
        return HostTier(facts={"l2_kind": "lmcache", "l2_configured": "true"})
    return HostTier(facts={"l2_configured": "true"}) if _connected(series) else HostTier()


def _connected(series: Series) -> bool:
    """Whether a connector to some tier is at work: its counters exist on every engine and move only with one."""
    if series.configured(*HANDOVER):
        return False
    queries = series.counter("external_prefix_cache_queries")
    return series.configured("num_requests_kv_fetch_by_stage") or (queries is not None and queries > 0)


def _native(series: Series, config: CacheConfig, setting: L2Setting) -> HostTier:
    """OffloadingConnector: its usage gauge counts what transfers pin, not what is there (vllm/v1/kv_offload/cpu/manager.py).

    A tier never holds more than was stored since the engine started. All its flat series are born with their first transfer.
    """
    stored, loaded = _moved(series, "store", "GPU_to_CPU"), _moved(series, "load", "CPU_to_GPU")
    counters = {"l2_written_bytes": stored, "l2_read_bytes": loaded, "l2_store_failures": _born(series, "kv_offload_allocation_failure")}
    if stored == 0 and loaded == 0:
        series.note("configured-not-used", "KV offloading is configured and nothing has been stored yet")
    pinned = series.gauge("kv_offload_cpu_cache_usage_perc", most=1.0)
    if not pinned.known and stored == 0:
        pinned = ZERO
    capacity = _native_capacity(config, setting)
    used = pinned * capacity if pinned.known else UNKNOWN
    resident = UNKNOWN
    if stored is not None and (stored > 0 or used.hi < math.inf):
        resident = at_most(max(stored, used.hi if used.hi < math.inf else 0.0))
    return HostTier(
        pools=(Pool.of("l2", "kv", "bytes", capacity=capacity, resident=resident, used_ratio=pinned, source="vllm:kv_offload_*"),),
        facts={"l2_kind": "native-offload", "l2_configured": "true"},
        counters={name: value for name, value in counters.items() if value is not None},
        gauges={"l2_pinned_ratio": pinned} if pinned.known else {},
    )


def _native_capacity(config: CacheConfig, setting: L2Setting) -> Interval:
    """Bytes of the tier over all its workers: as the operator says, else as ``--kv-offloading-size`` says (GiB over all TP ranks)."""
    if setting.capacity_bytes is not None:
        workers = setting.workers if setting.per == "worker" and setting.workers is not None else 1
        return exactly(setting.capacity_bytes * workers)
    return UNKNOWN if config.offload_gib is None else exactly(config.offload_gib * GIB)


def _moved(series: Series, direction: str, transfer_type: str) -> float | None:
    """Bytes moved in one direction, under the new name or the deprecated one."""
    flat = series.counter(f"kv_offload_{direction}_bytes")
    if flat is None:
        flat = series.counter("kv_offload_total_bytes", transfer_type=transfer_type)
    registered = series.configured(f"kv_offload_{direction}_bytes", "kv_offload_total_bytes")
    return 0.0 if flat is None and registered else flat


def _born(series: Series, name: str) -> float | None:
    """A counter that gets its first sample with its first event: 0 while it is only registered."""
    value = series.counter(name)
    return 0.0 if value is None and series.configured(name) else value


def _simple(series: Series, blocks: Blocks) -> HostTier:
    """SimpleCPUOffloadConnector: blocks as in HBM; what it calls used is pinned, and its own null block is always among it.

    With ``backend="disk"`` there is no host tier and the disk is behind HBM. Only eager stores are counted
    (vllm/v1/simple_kv_offload/metrics.py).
    """
    info = series.info("simple_kv_offload_info")
    tier: Tier = "l3" if info.get("backend") == "disk" else "l2"
    total = read_number(info, "capacity_blocks")
    room = UNKNOWN if total is None else exactly(total - 1)
    pinned = series.gauge("simple_kv_offload_used_blocks", most=math.inf if total is None else total)
    pinned = pinned - exactly(1.0) if pinned.known else UNKNOWN
    each = blocks.mean
    counters = {f"{tier}_read_tokens": series.counter("simple_kv_offload_load_blocks", phase="completed")}
    if info.get("lazy_offload", "false").lower() == "false":
        counters[f"{tier}_written_tokens"] = series.counter("simple_kv_offload_save_outcomes", outcome="stored")
    known = {name: count * each for name, count in counters.items() if count is not None and each is not None}
    dropped = series.counter("simple_kv_offload_save_outcomes", outcome="dropped_cpu_full")
    return HostTier(
        pools=(
            Pool.of(
                tier,
                "kv",
                "tokens",
                capacity=room * exactly(each) if each is not None and room.known else UNKNOWN,
                used_ratio=pinned / room if pinned.known and room.known else UNKNOWN,
                source="vllm:simple_kv_offload_used_blocks x simple_kv_offload_info",
            ),
        ),
        facts={"l2_kind": "simple-offload", "l2_configured": "true"} if tier == "l2" else {},
        counters=known if dropped is None else {**known, "l2_store_failures": dropped},
        gauges={"l2_pinned_ratio": pinned / room} if tier == "l2" and pinned.known and room.known else {},
    )


def unseen_tier(kind: str | None) -> Missing:
    """Where the content of a tier would be told that is only known to exist."""
    if kind == "lmcache-server":
        return Missing(
            "lmcache_mp_l1_memory_usage_bytes",
            "the engine's KV goes to an LMCache server, whose pool only that server exports",
            "make the server a target (http://HOST:8080, started with --http-host) and name it in this target's l2: {from: NAME}",
        )
    return Missing(
        "lmcache:local_cache_usage",
        "a KV connector is at work and nothing says what its host tier holds",
        "LMCache: start the engine with PROMETHEUS_MULTIPROC_DIR set to an empty directory; KV offloading of vLLM: update it",
    )
