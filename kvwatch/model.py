"""The values that cross rooms: frozen, slotted, without opinion.

Bytes become an ``Exposition`` (exposition.py), an engine file turns that into ``EngineState``s, one
per pool owner, and everything after that reads only what is defined here, in pool.py, target.py and finding.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from kvwatch.pool import Pool, PoolName, Tier
from kvwatch.quantity import UNKNOWN, Interval

EngineName = Literal["vllm", "sglang", "lmcache"]
Reason = Literal[
    "refused",
    "timeout",
    "dns",
    "tls",
    "http_status",
    "redirect",
    "too_large",
    "not_exposition",
    "malformed",
    "empty",
    "unknown_engine",
    "bug",
]
"""Why a scrape failed; a closed set, so that it may be a label."""


@dataclass(frozen=True, slots=True)
class Note:
    """What kvwatch had to decide about odd data: a code of the contract and one sentence."""

    code: str
    text: str


@dataclass(frozen=True, slots=True)
class Missing:
    """A series that should be there for this engine and is not, and what would bring it."""

    series: str
    why: str
    enable: str


@dataclass(frozen=True, slots=True)
class Histogram:
    """Cumulative buckets of an engine's histogram: ``(upper edge, count)``, ascending, last edge infinite."""

    buckets: tuple[tuple[float, float], ...]
    sum: float
    count: float


@dataclass(frozen=True, slots=True)
class EngineState:
    """What one pool owner said in one scrape.

    ``at`` is monotonic seconds (for files: seconds of the recording). ``started`` is the process start
    in Unix seconds where exported, ``identity`` whatever must stay equal for a baseline to hold (model,
    capacity, configuration). Request counts are intervals because a gauge can be ambiguous.
    ``counters``, ``gauges``, ``histograms`` and ``facts`` are keyed by the names of ``COUNTERS``,
    ``GAUGES``, ``HISTOGRAMS`` and ``FACTS``; a key that is absent is unknown. A counter the engine file
    knows to be 0 although its series is not born yet is present with 0. ``joined`` is true where first
    tokens and ends of requests are those of all owners of the target together.
    """

    target: str
    engine: EngineName
    model: str | None
    rank: str
    at: float
    pools: tuple[Pool, ...] = ()
    running: Interval = UNKNOWN
    waiting: Interval = UNKNOWN
    waiting_capacity: Interval = UNKNOWN
    waiting_deferred: Interval = UNKNOWN
    counters: Mapping[str, float] = field(default_factory=dict)
    gauges: Mapping[str, Interval] = field(default_factory=dict)
    histograms: Mapping[str, Histogram] = field(default_factory=dict)
    facts: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[Note, ...] = ()
    started: float | None = None
    identity: str = ""
    asleep: bool = False
    joined: bool = False
    implausible: tuple[tuple[str, float], ...] = ()
    fingerprint: int = 0

    @property
    def owner(self) -> OwnerKey:
        """Who this is about."""
        return OwnerKey(self.target, self.engine, self.model, self.rank)

    def pool(self, tier: Tier, name: PoolName) -> Pool | None:
        """The pool of that tier and name, if the owner has one."""
        return next((p for p in self.pools if p.tier == tier and p.pool == name), None)


@dataclass(frozen=True, slots=True, order=True)
class OwnerKey:
    """A pool owner: the scheduler that owns a KV pool (a data-parallel rank), or an LMCache server."""

    target: str
    engine: str
    model: str | None
    rank: str


_LONGEST_RANK = 9


def rank_number(rank: str) -> int:
    """A rank as a number, to sort by; 0, the only one there may be, where it is none or longer than any number of ranks."""
    return int(rank) if len(rank) <= _LONGEST_RANK and rank.isdecimal() else 0


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


@dataclass(frozen=True, slots=True)
class ScrapeError:
    """An expected failure: a closed reason and one sentence that says what to do."""

    reason: Reason
    detail: str


EventState = Literal["listening", "silent", "exact", "partial"]


@dataclass(frozen=True, slots=True)
class EventStats:
    """How listening to one rank's KV events goes.

    ``lag_seconds`` is the engine's clock against ours in the last message; None before any.
    """

    state: EventState
    batches: int
    events: int
    gaps: int
    lost: int
    replays: int
    garbled: int
    restarts: int
    lag_seconds: float | None


@dataclass(frozen=True, slots=True)
class Outcome:
    """One turn of one target: what it said, or why it said nothing.

    ``at`` and ``duration`` are monotonic seconds; ``wall`` is Unix seconds, or None for files without a time.
    """

    target: str
    at: float
    wall: float | None
    duration: float
    states: tuple[EngineState, ...] = ()
    error: ScrapeError | None = None
    missing: tuple[Missing, ...] = ()
    body_bytes: int = 0
    malformed_lines: int = 0
    events: Mapping[str, EventStats] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether this is a sample."""
        return self.error is None


NvmlStateName = Literal["ok", "no-library", "no-driver", "driver-mismatch", "unavailable", "stuck", "off"]
GpuStateName = Literal["ok", "lost", "unified", "not-supported", "no-permission", "unavailable"]


@dataclass(frozen=True, slots=True)
class NvmlState:
    """How the NVML library is, apart from any single GPU."""

    state: NvmlStateName
    detail: str | None = None


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process on a GPU; ``used`` in bytes or None, ``mine`` None where ownership is unknown."""

    pid: int
    used: int | None
    mine: bool | None


@dataclass(frozen=True, slots=True)
class GpuState:
    """One GPU or MIG instance. Every number is bytes or None (unknown, never 0); ``processes`` None when unknown.

    ``parent`` is the UUID of a MIG row's card. ``coherent`` marks boards where the OS may use HBM too.
    """

    host: str
    index: int
    uuid: str
    name: str
    state: GpuStateName
    detail: str | None = None
    parent: str | None = None
    profile: str | None = None
    total: int | None = None
    used: int | None = None
    free: int | None = None
    reserved: int | None = None
    processes: tuple[GpuProcess, ...] | None = None
    notes: tuple[Note, ...] = ()
    coherent: bool = False


@dataclass(frozen=True, slots=True)
class GpuReading:
    """One round over all GPUs, at monotonic seconds."""

    at: float
    nvml: NvmlState
    gpus: tuple[GpuState, ...] = ()
