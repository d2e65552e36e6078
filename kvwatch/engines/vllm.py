"""vLLM, from the V0 engine of 0.6 to 0.32: recognised by ``vllm:`` series, also in Ray's spelling.

The scheduler's gauges are written after every step and stand still without traffic; request histograms are observed when a request
ends, time to first token when it exists (vllm/v1/metrics/loggers.py). Counters of client aborts do not exist: an aborted request just
leaves the gauges.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping

from kvwatch.engines import Reading, Scrape, SidePage
from kvwatch.engines.samples import meant, plausible
from kvwatch.engines.vllm_offload import HANDOVER, LMCACHE_SERVER, NATIVE, SIMPLE, HostTier, host_tier, unseen_tier
from kvwatch.engines.vllm_pools import V0_ONLY, CacheConfig, count_blocks, l1_pool
from kvwatch.engines.vllm_series import PREFIX, Series, split
from kvwatch.exposition import Exposition
from kvwatch.model import EngineState, Missing
from kvwatch.pool import Pool
from kvwatch.quantity import UNKNOWN, Interval, at_least, exactly, maybe

NAME = "vllm"
SIDE = (SidePage("version", "/version", 300.0), SidePage("kv_event_sources", "/kv_event_sources", 60.0))

USAGE = ("kv_cache_usage_perc", "gpu_cache_usage_perc")
"""Share of blocks in use, 0 to 1; the first name since 0.10."""
QUEUES = ("num_requests_running", "num_requests_waiting", "num_requests_waiting_by_reason", "num_requests_swapped")
GAUGES = (*USAGE, *QUEUES, *V0_ONLY, "engine_sleep_state", "num_requests_kv_fetch_by_stage", "cache_config_info")

COUNTERS: Mapping[str, tuple[str, ...]] = {
    "preemptions": ("num_preemptions",),
    "prompt_tokens": ("prompt_tokens",),
    "generation_tokens": ("generation_tokens",),
    "finished_requests": ("request_success",),
    "rejected_requests": ("admission_rejections",),
    "l1_queried_tokens": ("prefix_cache_queries", "gpu_prefix_cache_queries"),
    "l1_hit_tokens": ("prefix_cache_hits", "gpu_prefix_cache_hits"),
    "heartbeat": ("iteration_tokens_total_count",),
}
"""Families by the counter they are, newest name first. A step of the scheduler observes its tokens once, so that count is a heartbeat."""

HISTOGRAMS: Mapping[str, tuple[str, ...]] = {
    "ttft": ("time_to_first_token_seconds",),
    "queue": ("request_queue_time_seconds", "time_in_queue_requests"),
    "prefill": ("request_prefill_time_seconds",),
    "prompt": ("request_prompt_tokens",),
    "generation": ("request_generation_tokens",),
}

TELLING = (*GAUGES, *(name + end for names in COUNTERS.values() for name in names for end in ("", "_total")))
"""The families by whose labels engines are told apart. With several API servers the gauges are born with an engine's first step."""

DRAFTED = "spec_decode_num_accepted_tokens_per_pos"
"""A series for each position of a draft, only with speculative decoding and from the start (vllm/v1/spec_decode/metrics.py)."""
EXTERNAL = ("external_prefix_cache_queries", "external_prefix_cache_hits")


def _wanted() -> frozenset[str]:
    counted = [name for names in COUNTERS.values() for name in names]
    counted += [*EXTERNAL, "prompt_tokens_by_source", DRAFTED, *NATIVE, *SIMPLE, *HANDOVER]
    observed = [LMCACHE_SERVER, *(name for names in HISTOGRAMS.values() for name in names)]
    parts = [name + part for name in observed for part in ("", "_bucket", "_sum", "_count")]
    return frozenset(PREFIX + n for n in (*GAUGES, *counted, *(name + "_total" for name in counted), *parts))


WANTED = _wanted()
PROCESS_START = "process_start_time_seconds"
CALLS = "http_requests_total"
EMPTYING = ("/reset_prefix_cache", "/sleep", "/collective_rpc")
"""Calls of the front end after which the prefix cache may be empty (vllm/entrypoints/serve)."""


def select(name: str) -> str | None:
    """``vllm:x`` for a wanted sample or family, however it is spelled: ``vllm:x``, or ``vllm_x`` and ``ray_vllm_x`` under Ray."""
    bare = name.removeprefix("ray_")
    canonical = PREFIX + bare.removeprefix("vllm_") if bare.startswith("vllm_") else bare
    return canonical if canonical in WANTED or name in (PROCESS_START, CALLS) else None


def recognise(exposition: Exposition) -> bool:
    """Whether any vLLM family is in the body, with a sample or not."""
    return any(name.startswith(PREFIX) for names in (exposition.samples, exposition.types) for name in names)


def read(scrape: Scrape) -> Reading:
    """A state for each engine in the body; what it lacks is said once for the target."""
    engines = split(scrape.exposition, TELLING)
    started = _started(scrape.exposition, engines)
    lmcache = scrape.target.l2.source is not None or any(name.startswith("lmcache:") for name in scrape.exposition.samples)
    missing: dict[Missing, None] = {}
    states = []
    for series in engines:
        state = _state(scrape, series, started)
        states.append(state)
        missing.update(dict.fromkeys(_missing(series, state, lmcache=lmcache)))
    return Reading(tuple(states), tuple(missing))


def _state(scrape: Scrape, series: Series, started: float | None) -> EngineState:
    config = CacheConfig.of(series.info("cache_config_info"))
    usage = series.gauge(*USAGE, most=1.0)
    if series.has("gpu_cache_usage_perc") and not series.has("kv_cache_usage_perc"):
        series.note("renamed-series", "this vLLM still calls vllm:kv_cache_usage_perc vllm:gpu_cache_usage_perc")
    blocks = count_blocks(config, usage, series.engines, reserved=0 if series.has(*V0_ONLY) else 1)
    full = l1_pool(series, config, blocks, usage)
    tier = host_tier(series, config, blocks, scrape.target.l2)
    asleep = _asleep(series)
    capacity, deferred = (series.gauge("num_requests_waiting_by_reason", reason=r) for r in ("capacity", "deferred"))
    running, waiting = series.gauge("num_requests_running"), _waiting(series, capacity + deferred)
    counters = {**_counters(series, tier), **tier.counters}
    histograms = {name: found for name, families in HISTOGRAMS.items() if (found := series.histogram(*families)) is not None}
    calls = scrape.exposition.get(CALLS)
    if calls:
        counters["cache_reset_calls"] = sum(s.value for s in plausible(calls) if s.labels.get("handler") in EMPTYING)
    known = {
        "block_size": maybe(config.page),
        "usable_blocks": maybe(blocks.usable),
        "kv_groups": UNKNOWN if blocks.hybrid is None else at_least(2.0) if blocks.hybrid else exactly(1.0),
        "lookahead_tokens": _lookahead(series),
        "memory_fraction": maybe(config.memory_fraction),
        "kv_pool_bytes": maybe(config.memory_bytes if config.override is None else None),  # the override replaces what the bytes would hold
        "waiting_prefetch": _fetching(series),
        **tier.gauges,
    }
    return EngineState(
        target=scrape.target.name,
        engine="vllm",
        model=series.origin.model,
        rank=series.rank,
        at=scrape.at,
        pools=tuple(_discarded(p) if asleep else p for p in (full, *tier.pools)),
        running=running,
        waiting=waiting,
        waiting_capacity=capacity,
        waiting_deferred=deferred,
        counters=counters,
        gauges={name: value for name, value in known.items() if value.known},
        histograms=histograms,
        facts={**_facts(scrape, config, blocks.hybrid), **_half(series, tier), **tier.facts},
        notes=tuple(series.notes),
        started=started,
        identity=f"{series.origin.model} {config.identity()}",
        asleep=asleep,
        implausible=tuple(series.implausible),
        fingerprint=zlib.crc32(repr((usage, running, waiting, capacity, deferred, sorted(counters.items()))).encode()),
    )


def _waiting(series: Series, by_reason: Interval) -> Interval:
    """Requests that do not run; the V0 engine counts those it swapped out apart from its queue."""
    if not series.has("num_requests_waiting"):
        return by_reason
    queued = series.gauge("num_requests_waiting")
    return queued + series.gauge("num_requests_swapped") if series.has("num_requests_swapped") else queued


def _fetching(series: Series) -> Interval:
    """Waiting requests whose KV is still on its way; ``completed_waiting`` has arrived and waits for the scheduler."""
    stages = [series.gauge("num_requests_kv_fetch_by_stage", stage=s) for s in ("waiting_to_start", "in_progress")]
    return stages[0] + stages[1]


def _lookahead(series: Series) -> Interval:
    """Tokens of a draft: as many as there are positions."""
    positions = {s.labels.get("position") for name in (DRAFTED, DRAFTED + "_total") for s in series.samples.get(name, ())}
    return exactly(float(len(positions))) if positions else UNKNOWN


def _asleep(series: Series) -> bool:
    """Whether the KV cache is discarded, as both levels of sleep do (vllm/v1/engine/core.py)."""
    levels = [series.gauge("engine_sleep_state", sleep_state=s) for s in ("weights_offloaded", "discard_all")]
    return any(level.lo > 0 for level in levels)


def _discarded(pool: Pool) -> Pool:
    return Pool.of(pool.tier, pool.pool, pool.unit, source=pool.source)


def _counters(series: Series, tier: HostTier) -> dict[str, float]:
    found = {name: series.counter(*families) for name, families in COUNTERS.items()}
    found["computed_prompt_tokens"] = series.counter("prompt_tokens_by_source", source="local_compute")
    if tier.facts.get("l2_configured") == "true":  # exported by every engine, and 0 without a connector
        found["l2_queried_tokens"], found["l2_hit_tokens"] = (series.counter(name) for name in EXTERNAL)
    failures = [count for name in HANDOVER if (count := series.counter(name)) is not None]
    found["transfer_failures"] = sum(failures) if failures else None
    if series.counter("gpu_prefix_cache_queries") is not None and series.counter("prefix_cache_queries") is None:
        series.note("unit-unclear", "the first V1 releases counted cache lookups in blocks under this name: their ratio alone is sure")
    return {name: value for name, value in found.items() if value is not None}


def _half(series: Series, tier: HostTier) -> dict[str, str]:
    """Which half of a disaggregated pair, by its traffic: KV came to a decode engine, none to a prefill one that was asked as often.

    The configuration does not tell, since either may be ``kv_both``. A tier behind HBM has hits too, so beside one nothing is known.
    """
    asked, found = (series.counter(name) for name in EXTERNAL)
    if tier.facts or not series.configured(*HANDOVER) or not asked or found is None:
        return {}
    return {"role": "decode" if found > 0 else "prefill"}


def _facts(scrape: Scrape, config: CacheConfig, hybrid: bool | None) -> dict[str, str]:  # noqa: FBT001  three-valued
    page = scrape.side.get("version")
    version = page.get("version") if isinstance(page, Mapping) else None
    facts = {
        "version": version if isinstance(version, str) else None,
        "prefix_caching": None if config.prefix_caching is None else str(config.prefix_caching).lower(),
        "reuses_bare_first": str(config.retention).lower(),
        "hybrid": None if hybrid is None else str(hybrid).lower(),
        "kv_dtype": config.dtype,
    }
    return {name: text for name, text in facts.items() if text is not None}


def _started(exposition: Exposition, engines: tuple[Series, ...]) -> float | None:
    """Start of the process, in Unix seconds; None where several processes answer, or one agent does for the replicas of others."""
    values = {s.value for s in exposition.get(PROCESS_START) if s.value > 0 and meant(s.value)}
    return values.pop() if len(values) == 1 and not any(e.origin.replica for e in engines) else None


def _missing(series: Series, state: EngineState, *, lmcache: bool) -> list[Missing]:
    """What this engine should export and does not; ``lmcache`` says that an LMCache's own series are at hand."""
    found = []
    worked = [state.counters[name] for name in ("generation_tokens", "prompt_tokens", "heartbeat") if name in state.counters]
    if not worked or any(worked):  # the gauges of an engine that has not stepped yet may not be born
        gauges = (
            (USAGE, "the use of the KV pool in HBM is unknown"),
            (QUEUES[:1], "the running requests are unknown"),
            (QUEUES[1:3], "the queue is unknown"),
        )
        enable = "start vLLM without --disable-log-stats, and let no relabelling drop it"
        found = [Missing(PREFIX + names[0], why, enable) for names, why in gauges if not series.has(*names)]
    if not series.has("cache_config_info"):
        enable = "update vLLM (the first V1 releases leave it out), and let no relabelling drop it"
        found.append(Missing(PREFIX + "cache_config_info", "the KV pool is known as a ratio, not in tokens", enable))
    if state.facts.get("l2_configured") == "true" and not lmcache and not any(p.tier == "l2" for p in state.pools):
        found.append(unseen_tier(state.facts.get("l2_kind")))
    return found
