"""The one schema: under which names the numbers and facts of all engines are known, and what each means. Engine files report no others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

EngineName = Literal["vllm", "sglang", "lmcache"]

COUNTERS: Mapping[str, str] = {
    "preemptions": "requests preempted (vLLM) or retracted (SGLang)",
    "prompt_tokens": "prompt tokens of requests, as the engine counts them",
    "generation_tokens": "generated tokens; every step where the engine says so, else at the end of a request",
    "computed_prompt_tokens": "prompt tokens that were really computed (no cache hit)",
    "recomputed_tokens": "tokens computed again after a preemption or retraction",
    "finished_requests": "requests that ended",
    "rejected_requests": "requests refused for capacity before they entered the queue",
    "l1_queried_tokens": "tokens looked up in the prefix cache of L1",
    "l1_hit_tokens": "tokens found there",
    "l2_queried_tokens": "tokens looked up in L2",
    "l2_hit_tokens": "tokens found in L2",
    "l3_hit_tokens": "tokens found in L3",
    "l1_evicted_tokens": "tokens evicted from L1",
    "l2_evicted_objects": "objects evicted from L2",
    "l2_written_tokens": "tokens written into L2",
    "l2_written_bytes": "bytes written into L2",
    "l2_written_objects": "objects written into L2 (LMCache server: one chunk of one rank)",
    "l2_read_tokens": "tokens read from L2 into L1",
    "l2_read_bytes": "bytes read from L2 into L1",
    "l2_read_objects": "objects read from L2 into L1",
    "l2_store_requests": "stores the engine asked L2 for; says nothing about success",
    "l2_stores_done": "stores that put at least one object into L2",
    "l2_store_failures": "stores or objects dropped because L2 had no room",
    "l2_evict_failures": "eviction attempts of L2 that found no victim",
    "l2_dropped_tokens": "tokens evicted from L1 and lost although L2 should have kept them",
    "l2_evict_rounds": "eviction rounds of L2 that asked for room",
    "l2_ticks": "eviction rounds of L2, triggered or not: its heartbeat",
    "l3_written_tokens": "tokens written into L3",
    "l3_written_bytes": "bytes written into L3",
    "l3_read_tokens": "tokens read from L3",
    "l3_read_bytes": "bytes read from L3",
    "l3_load_failures": "tokens, objects or pings that L3 failed to deliver",
    "transfer_failures": "KV transfers or bootstraps of prefill/decode disaggregation that failed",
    "cache_reset_calls": "vLLM: HTTP calls that may have emptied the prefix cache",
    "heartbeat": "grows while the scheduler works or idles; stands still when it is dead",
}
"""Every counter an engine file may report, and what one step of it means."""
GAUGES: Mapping[str, str] = {
    "new_token_ratio": "SGLang: share of the remaining output that the last admission reserved",
    "running_cap": "most requests the engine runs at once",
    "waiting_grammar": "requests that wait for a grammar",
    "waiting_prefetch": "requests that wait for KV from a lower tier",
    "adapter_slots_ratio": "share of the slots for adapters that are taken",
    "prefill_bootstrap_queue": "PD prefill: requests in the handshake",
    "prefill_inflight_queue": "PD prefill: requests whose KV is being sent",
    "decode_prealloc_queue": "PD decode: requests that wait for room",
    "decode_transfer_queue": "PD decode: requests whose KV is being received",
    "decode_retracted_queue": "PD decode: retracted requests",
    "session_held_tokens": "L1 tokens held by sessions",
    "l2_pinned_ratio": "share of L2 pinned by transfers or locks",
    "block_size": "tokens in one block or page",
    "usable_blocks": "vLLM: blocks that can hold KV (without the null block)",
    "kv_groups": "vLLM: KV cache groups",
    "lookahead_tokens": "vLLM: tokens a running request may be drafted ahead (speculative decoding)",
    "memory_fraction": "share of HBM the engine may use (--gpu-memory-utilization, --mem-fraction-static)",
    "kv_bytes_per_token": "bytes one token takes in the pools of all GPUs of one owner",
    "kv_pool_bytes": "bytes of the L1 pool on one GPU",
    "running_tokens": "tokens of the running sequences (logical)",
    "token_budget": "most tokens in one step",
    "loads_age_seconds": "age of the scheduler's own load report",
}
"""Further gauges an engine file may report."""
HISTOGRAMS: Mapping[str, str] = {
    "ttft": "seconds to the first token, observed when it exists",
    "queue": "seconds from arrival to the first scheduling",
    "prefill": "seconds from scheduling to the first token",
    "prefill_passes": "seconds of a pass over a request's prompt",
    "prompt": "prompt tokens per request",
    "generation": "generated tokens per request",
    "step_tokens": "tokens of one engine step",
    "l2_load": "seconds of one load from L2 into L1",
}
"""Histograms an engine file may report, all labels but ``le`` summed away."""
FACTS: Mapping[str, str] = {
    "version": "engine version",
    "write_policy": "HiCache write policy",
    "role": "unified, prefill or decode",
    "l2_kind": "hicache, lmcache, lmcache-server, native-offload or simple-offload",
    "l2_configured": "true when an L2 is proven to exist, whatever is known of its content",
    "prefix_caching": "true or false",
    "reuses_bare_first": "vLLM: true when free blocks without content are handed out before cached ones",
    "hybrid": "true when several KV groups share the pool",
    "kv_dtype": "data type of the KV cache",
}
"""Text facts about an engine's configuration, for rules, remedies and kvwatch_engine_info."""
