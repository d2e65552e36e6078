"""What SGLang counts, under the names every engine shares.

Labelled counters appear with their first increment (sglang/srt/observability/metrics_collector.py), so where the release is proven to have
one, absent is 0. Counters of the request side name no rank: with several owners only the first one gets those that nobody else counts,
so that a sum over owners stays true.
"""

from __future__ import annotations

from collections.abc import Mapping

from kvwatch.engines.sglang_series import Series
from kvwatch.engines.sglang_side import OLDEST, Version
from kvwatch.model import Histogram, Note

EVIDENCE: tuple[tuple[Version, tuple[str, ...]], ...] = (
    ((0, 5, 21), ("scheduler_idle_seconds_total", "scheduler_process_cpu_seconds_total")),
    ((0, 5, 19), ("prefill_effective_tokens_total", "hicache_dropped_tokens_total", "hicache_backup_tokens_total")),
    ((0, 5, 15), ("kv_available_tokens", "kv_evictable_tokens", "kv_used_tokens", "page_size", "num_prefill_bootstrap_queue_reqs")),
    ((0, 5, 10), ("full_token_usage", "hicache_host_total_tokens")),
    ((0, 5, 8), ("realtime_tokens_total", "num_retracted_requests_total", "http_responses_total", "process_cpu_seconds_total")),
    ((0, 5, 6), ("max_total_num_tokens", "new_token_ratio", "evicted_tokens_total")),
)
"""Families by the first release that is known to have them."""
LABELS: Mapping[str, Version] = {"engine_type": (0, 4, 6), "tp_rank": (0, 4, 9), "moe_ep_rank": (0, 5, 8)}
"""Labels of the scheduler's gauges by the first release that is known to have them."""
HITS: Version = (0, 4, 6)
RETRACTIONS: Version = (0, 5, 8)
EVICTIONS: Version = (0, 5, 6)
L2_FLOWS: Version = (0, 5, 19)
KV = ("", "kv")
"""Values of the ``pool`` label that mean the KV pool; there was no label before 0.5.19."""
STORAGE = {
    "backuped_tokens_total": "l3_written_tokens",
    "prefetched_tokens_total": "l3_read_tokens",
    "storage_prefetch_unfulfilled_tokens_total": "l3_load_failures",
}
RETRACTED = ("num_retracted_input_tokens_total", "num_retracted_output_tokens_total")
FAILURES = ("num_transfer_failed_reqs_total", "num_bootstrap_failed_reqs_total")
REFUSED = "503"

HISTOGRAMS: Mapping[str, tuple[str, ...]] = {
    "ttft": ("time_to_first_token_seconds",),
    "queue": ("queue_time_seconds", "queue_time_s"),
    "prompt": ("prompt_tokens_histogram",),
    "generation": ("generation_tokens_histogram",),
    "l2_load": ("load_back_duration_seconds",),
}
"""Where each histogram comes from: today's name, then what it was called."""
STAGES = "per_stage_req_latency_seconds"
PREFILL_STAGES = ("prefill_forward", "chunked_prefill", "chunked")
"""Passes over a prompt: its last or only one, and those before it. Together they are rather too much than too little."""


def oldest_release(series: Series, told: Version | None) -> Version:
    """The oldest release this can be: what the server says, or what its families prove."""
    proven = [version for version, names in EVIDENCE if any(series.has(name) for name in names)]
    labelled = [version for label, version in LABELS.items() if series.label("num_running_reqs", label) is not None]
    return max([OLDEST, *proven, *labelled, *([told] if told is not None else [])])


def read_counters(series: Series, release: Version, *, role: str | None, hicache: bool, first: bool) -> dict[str, float]:
    """All counters of one owner. ``first`` is the owner that stands for the target; ``hicache`` says whether a host tier is proven."""
    retractions = _retractions(series, release)
    found = {
        "preemptions": retractions,
        # What was thrown away: an upper bound of what is computed again, since a part of it may still be cached.
        "recomputed_tokens": 0.0 if retractions == 0 else _added(*(series.count(name) for name in RETRACTED)),
        "l1_evicted_tokens": _cache(series, "evicted_tokens_total", release, EVICTIONS),
        "heartbeat": _heartbeat(series),
        **_tokens(series),
        **_hits(series, release, hicache=hicache),
    }
    if hicache:
        found |= {
            "l2_written_tokens": _cache(series, "hicache_backup_tokens_total", release, L2_FLOWS),
            "l2_read_tokens": _cache(series, "load_back_tokens_total", release, EVICTIONS),
            "l2_dropped_tokens": _cache(series, "hicache_dropped_tokens_total", release, L2_FLOWS),
            "l2_written_bytes": _bytes(series, "hicache_backup", release),
            "l2_read_bytes": _bytes(series, "load_back", release),
        }
    if any(series.has(name) or name in series.merged for name in STORAGE):
        found |= {name: _cache(series, family, release, OLDEST) for family, name in STORAGE.items()}
    if role in ("prefill", "decode"):
        found["transfer_failures"] = _added(*(_born(series, name, release, OLDEST) for name in FAILURES))
    if first:
        found |= {
            "finished_requests": series.count("num_requests_total"),
            "rejected_requests": _rejected(series),
        }
    return {name: value for name, value in found.items() if value is not None}


def read_histograms(series: Series) -> tuple[dict[str, Histogram], tuple[Note, ...]]:
    """All histograms that hold an observation, and a note where one still has an older name."""
    found, old = {}, []
    for name, (today, *before) in HISTOGRAMS.items():
        for family in (today, *before):
            histogram = series.histogram(family)
            if histogram is not None:
                found[name] = histogram
                old.extend([f"sglang:{family} is read for sglang:{today}"] if family != today else [])
                break
    passes = series.histogram(STAGES, PREFILL_STAGES)
    return found | ({} if passes is None else {"prefill_passes": passes}), tuple(Note("renamed-series", text) for text in old)


def _born(series: Series, name: str, release: Version, since: Version) -> float | None:
    """The counter; 0 where the release has it and its series is not born yet."""
    if series.has(name):
        return series.count(name)
    return 0.0 if release >= since else None


def _cache(series: Series, name: str, release: Version, since: Version) -> float | None:
    """A cache or storage counter, of the KV pool where pools are told apart; every rank counts all tokens, but only its own bytes."""
    if name in series.merged:
        return None
    pooled = series.label(name, "pool") is not None
    value = series.count(name, pool=KV) if pooled else _born(series, name, release, since)
    return value if value is None or name.endswith("_bytes_total") else value / series.copies


def _bytes(series: Series, flow: str, release: Version) -> float | None:
    """The bytes of a flow between the tiers: where the series is not born they are 0 only while it moved no tokens either."""
    name, tokens = f"{flow}_bytes_total", f"{flow}_tokens_total"
    unborn = not series.has(name) and (tokens in series.merged or series.count(tokens))
    return None if unborn else _cache(series, name, release, L2_FLOWS)


def _added(*parts: float | None) -> float | None:
    known = [part for part in parts if part is not None]
    return sum(known) if len(known) == len(parts) else None


def _retractions(series: Series, release: Version) -> float | None:
    value = _born(series, "num_retracted_requests_total", release, RETRACTIONS)
    if value is not None:
        return value
    grown = series.gauge("total_retracted_reqs")  # 0.4.9 to 0.5.2: called a gauge, only grows
    if grown is not None:
        return grown
    return series.count("num_retractions_sum") if series.alone else None  # 0.5.6: by the requests that ended


def _heartbeat(series: Series) -> float | None:
    """Seconds and tokens the scheduler's loop accounts for: they grow while it idles and while it works."""
    names = [n for n in ("scheduler_idle_seconds_total", "scheduler_process_cpu_seconds_total", "realtime_tokens_total") if series.has(n)]
    return _added(*(series.count(n) for n in names)) if names else None


def _tokens(series: Series) -> dict[str, float | None]:
    """Prompt and generated tokens: of the rank, with each step, where the scheduler counts them."""
    stepwise, tiers = "realtime_tokens_total", "prefill_effective_tokens_total"
    if series.has(stepwise):
        generated = series.count(stepwise, mode=("decode",))
    else:
        generated = series.count("generation_tokens_total") if series.alone else None
    computed = series.count(tiers, mode=("input",))
    return {
        "generation_tokens": generated,
        "prompt_tokens": series.count("prompt_tokens_total") if series.alone else series.count(tiers),
        "computed_prompt_tokens": series.count(stepwise, mode=("prefill_compute",)) if computed is None else computed,
    }


def _hits(series: Series, release: Version, *, hicache: bool) -> dict[str, float | None]:
    """Prompt tokens by where they were found.

    By tier and without re-prefills since 0.5.19. Before, the finished requests tell the tiers (0.5.10) and the steps only hit or miss, in
    whatever tier.
    """
    tiers, stepwise, cached = "prefill_effective_tokens_total", "realtime_tokens_total", "cached_tokens_total"
    if series.has(tiers):
        missed_l1 = series.count(tiers, mode=("input", "host_hit", "storage_hit"))
        return {
            "l1_queried_tokens": series.count(tiers),
            "l1_hit_tokens": series.count(tiers, mode=("device_hit",)),
            "l2_queried_tokens": missed_l1 if hicache else None,
            "l2_hit_tokens": series.count(tiers, mode=("host_hit",)) if hicache else None,
            "l3_hit_tokens": series.count(tiers, mode=("storage_hit",)) if any(series.has(n) for n in STORAGE) else None,
        }
    by_tier = series.alone and series.label(cached, "cache_source") is not None
    host = series.count(cached, cache_source=("host",)) if by_tier and hicache else None
    if series.has(stepwise) and host is None:
        queried = series.count(stepwise, mode=("prefill_cache", "prefill_compute"))
        return {"l1_queried_tokens": queried, "l1_hit_tokens": series.count(stepwise, mode=("prefill_cache",))}
    if not series.alone:
        return {}
    queried = series.count("prompt_tokens_total")
    device = series.count(cached, cache_source=("", "device", "total"))  # "total" where a request's tiers were not told
    none_yet = 0.0 if queried is not None and release >= HITS and not series.has(cached) else None
    return {"l1_queried_tokens": queried, "l1_hit_tokens": none_yet if device is None else device, "l2_hit_tokens": host}


def _rejected(series: Series) -> float | None:
    """Requests answered with 503, which is what a full queue gives (managers/scheduler.py); health checks are GETs."""
    return series.count("http_responses_total", status_code=(REFUSED,), method=("", "POST"))
