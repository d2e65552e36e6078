"""Every SGLang family that is read, and which collector writes it.

Not read, because they mislead: ``cache_hit_rate`` (the last prefill only, zeroed by decode reports up to 0.5.19), ``num_retracted_reqs``
(the last retraction since the last report, per process), ``utilization`` and ``pending_prealloc_token_usage`` (never written),
``gen_throughput`` (one interval, with the idle time before it), ``fwd_occupancy`` (NaN unless a timer is on).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto

PREFIX = "sglang:"


class World(Enum):
    """Which collector writes a family, and with it which labels tell whose it is."""

    SCHEDULER = auto()
    REQUEST = auto()
    CACHE = auto()
    STORAGE = auto()
    HTTP = auto()


def _families(world: World, names: str) -> dict[str, World]:
    return dict.fromkeys(names.split(), world)


HISTOGRAMS: Mapping[str, World] = {
    **_families(World.SCHEDULER, "queue_time_seconds queue_time_s per_stage_req_latency_seconds"),
    **_families(
        World.REQUEST,
        "time_to_first_token_seconds prompt_tokens_histogram generation_tokens_histogram num_retractions",
    ),
    **_families(World.CACHE, "load_back_duration_seconds"),
}

PLAIN: Mapping[str, World] = {
    **_families(
        World.SCHEDULER,
        "max_total_num_tokens max_total_num_tokens_swa page_size context_len kv_cache_memory_usage_gb"
        " kv_used_tokens kv_evictable_tokens kv_available_tokens full_token_usage token_usage num_used_tokens"
        " swa_used_tokens swa_evictable_tokens swa_available_tokens swa_token_usage"
        " mamba_used_tokens mamba_evictable_tokens mamba_available_tokens mamba_usage"
        " hicache_host_used_tokens hicache_host_total_tokens hicache_host_mamba_used_states hicache_host_mamba_total_states"
        " num_running_reqs num_queue_reqs num_grammar_queue_reqs new_token_ratio decode_sum_seq_lens"
        " num_prefill_bootstrap_queue_reqs num_prefill_prealloc_queue_reqs num_prefill_inflight_queue_reqs"
        " num_prefill_infight_queue_reqs num_decode_prealloc_queue_reqs num_decode_transfer_queue_reqs"
        " streaming_session_held_tokens total_retracted_reqs lora_pool_slots_used lora_pool_slots_total"
        " num_retracted_requests_total num_retracted_input_tokens_total num_retracted_output_tokens_total"
        " realtime_tokens_total prefill_effective_tokens_total scheduler_idle_seconds_total scheduler_process_cpu_seconds_total"
        " num_transfer_failed_reqs_total num_bootstrap_failed_reqs_total",
    ),
    **_families(
        World.REQUEST,
        "prompt_tokens_total generation_tokens_total cached_tokens_total num_requests_total",
    ),
    **_families(
        World.CACHE,
        "evicted_tokens_total load_back_tokens_total load_back_bytes_total hicache_backup_tokens_total hicache_backup_bytes_total"
        " hicache_dropped_tokens_total",
    ),
    **_families(World.STORAGE, "prefetched_tokens_total backuped_tokens_total storage_prefetch_unfulfilled_tokens_total"),
    **_families(World.HTTP, "http_responses_total process_cpu_seconds_total"),
}

WORLDS: Mapping[str, World] = {
    **PLAIN,
    **HISTOGRAMS,
    **{name + suffix: world for name, world in HISTOGRAMS.items() for suffix in ("_bucket", "_sum", "_count")},
}
"""Every sample and family name that is read, without the prefix, and who writes it."""

RATIOS = frozenset({"full_token_usage", "token_usage", "swa_token_usage", "mamba_usage", "new_token_ratio"})
FREE = ("_available_tokens", "_evictable_tokens")
RANKS = ("tp_rank", "pp_rank", "moe_ep_rank", "attn_cp_rank")


def canonical(name: str) -> str | None:
    """The name a sample or family is kept under, prefix included; a counter that lost its ``_total`` gets it back."""
    bare = name.removeprefix(PREFIX)
    if bare == name:
        return None
    return name if bare in WORLDS else name + "_total" if bare + "_total" in WORLDS else None


def world_of(name: str) -> World | None:
    """Which collector writes a sample, by its canonical name."""
    return WORLDS.get(name.removeprefix(PREFIX))
