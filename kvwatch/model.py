"""The values that cross rooms: frozen, slotted, without opinion.

Bytes become an ``Exposition`` (exposition.py), an engine file turns that into ``EngineState``s, one
per pool owner, and everything after that reads only what is defined here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from kvwatch.quantity import UNKNOWN, ZERO, Interval

Tier = Literal["l1", "l2", "l3"]
PoolName = Literal["full", "swa", "mamba", "kv"]
Unit = Literal["tokens", "bytes", "slots"]
EngineName = Literal["vllm", "sglang", "lmcache"]
Severity = Literal["critical", "warning", "info"]
Status = Literal["firing", "pending", "unknown"]
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
NOISE = 1e-9
"""What sums and differences of floats may be off, as a share of the largest of them."""


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


class Contradiction(ValueError):
    """The parts of a pool cannot all be true at once."""


@dataclass(frozen=True, slots=True)
class Guess:
    """The most likely split of what is free, in the pool's unit; inside the proven intervals, and ``source`` says what it stands on."""

    evictable: float
    available: float
    source: str


@dataclass(frozen=True, slots=True)
class Pool:
    """One KV pool of one owner as a partition used + evictable + available + held = capacity.

    All quantities are in ``unit``; a ratio can be known where the capacity is not. Build it with
    ``Pool.of``, which narrows every interval from the others. ``measured`` is false when the scrape
    said nothing about the content: the capacity alone bounds nothing.
    """

    tier: Tier
    pool: PoolName
    unit: Unit
    capacity: Interval
    used: Interval
    evictable: Interval
    available: Interval
    held: Interval
    reclaimable: Interval
    resident: Interval
    used_ratio: Interval
    resident_ratio: Interval
    source: str
    measured: bool
    guess: Guess | None = None

    @classmethod
    def of(  # noqa: PLR0913  one keyword per quantity of the partition
        cls,
        tier: Tier,
        pool: PoolName,
        unit: Unit,
        *,
        capacity: Interval = UNKNOWN,
        used: Interval = UNKNOWN,
        evictable: Interval = UNKNOWN,
        available: Interval = UNKNOWN,
        held: Interval = ZERO,
        reclaimable: Interval = UNKNOWN,
        resident: Interval = UNKNOWN,
        used_ratio: Interval = UNKNOWN,
        resident_ratio: Interval = UNKNOWN,
        source: str = "",
    ) -> Pool:
        """Narrow all quantities by each other and return the pool.

        Raises Contradiction when no content of the pool satisfies everything given.
        """
        given = (used, evictable, available, reclaimable, resident, used_ratio, resident_ratio)
        measured = any(q.known for q in given)
        if not measured:
            return cls(tier, pool, unit, capacity, UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, source, measured)
        noise = NOISE * max(1.0, *(b for q in (capacity, held, *given) for b in (q.lo, q.hi) if b < math.inf))
        try:
            used_ratio, resident_ratio = (r.capped(1.0) if r.known else r for r in (used_ratio, resident_ratio))
            room = Interval(0.0, capacity.hi)
            used = _narrow(noise, used, _scaled(used_ratio, capacity), room)
            resident = _narrow(noise, resident, _scaled(resident_ratio, capacity), room)
            evictable, available = _narrow(noise, evictable, room), _narrow(noise, available, room)
            for _ in range(3):  # the constraints form a tree of depth three
                reclaimable = _narrow(noise, reclaimable, evictable + available, capacity - (used + held))
                resident = _narrow(noise, resident, used + evictable, capacity - (available + held))
                used = _narrow(noise, used, resident - evictable, capacity - (reclaimable + held))
                evictable = _narrow(noise, evictable, reclaimable - available, resident - used)
                available = _narrow(noise, available, reclaimable - evictable, capacity - (resident + held))
            used_ratio, resident_ratio = _ratio(used_ratio, used, capacity), _ratio(resident_ratio, resident, capacity)
        except ValueError as error:
            msg = f"{tier} {pool}: the reported states cannot all be true ({error})"
            raise Contradiction(msg) from error
        return cls(
            tier,
            pool,
            unit,
            capacity,
            used,
            evictable,
            available,
            held,
            reclaimable,
            resident,
            used_ratio,
            resident_ratio,
            source,
            measured,
        )


def _scaled(ratio: Interval, capacity: Interval) -> Interval:
    """What a ratio says about the amount; a bound only as good as the capacity."""
    return ratio * capacity if ratio.known else UNKNOWN


def _narrow(noise: float, own: Interval, *others: Interval) -> Interval:
    """Intersect, letting float noise pass: a bound that only rounding contradicts is the own bound."""
    lo, hi = own.lo, own.hi
    for other in others:
        if lo == hi and other.lo - noise <= lo <= other.hi + noise:
            continue
        lo, hi = max(lo, other.lo), min(hi, other.hi)
        if 0 < lo - hi <= noise:
            lo = hi
    return Interval(lo, hi)


def _ratio(own: Interval, part: Interval, capacity: Interval) -> Interval:
    """The share of the capacity, narrowed by what was reported; unknown without either."""
    if own.exact is not None or capacity.lo == 0:
        return own
    return _narrow(NOISE, own, (part / capacity).capped(1.0))


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
    knows to be 0 although its series is not born yet is present with 0.
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


def rank_number(rank: str) -> int | None:
    """A rank as a number, to sort by; None where it is none, or longer than any number of ranks."""
    return int(rank) if len(rank) <= _LONGEST_RANK and rank.isdecimal() else None


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


@dataclass(frozen=True, slots=True)
class Evidence:
    """One term of a finding with the value that made it true."""

    signal: str
    value: Interval
    op: str
    limit: float
    unit: str


@dataclass(frozen=True, slots=True)
class Subject:
    """What a finding is about: a pool owner, or a target (engine, model and rank None)."""

    target: str
    engine: str | None = None
    model: str | None = None
    rank: str | None = None


@dataclass(frozen=True, slots=True)
class Advice:
    """One thing to do, and why."""

    do: str
    because: str


@dataclass(frozen=True, slots=True)
class Finding:
    """The only thing every output prints; what it tells is of the last sample that had its terms true, ``quiet_seconds`` ago."""

    rule: str
    severity: Severity
    status: Status
    subject: Subject
    since_seconds: float | None
    reason: str | None
    title: str
    evidence: tuple[Evidence, ...]
    missing: tuple[str, ...]
    explanation: str
    remedy: tuple[Advice, ...]
    causes: tuple[str, ...]
    caused_by: str | None
    runbook: str
    quiet_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Tls:
    """How a target's certificate is judged."""

    ca_file: str | None = None
    server_name: str | None = None
    insecure_skip_verify: bool = False


@dataclass(frozen=True, slots=True)
class L2Setting:
    """What the operator says about L2 because the engine does not export it.

    ``capacity_bytes`` is one worker's when ``per`` is "worker" (times ``workers``, or the workers seen),
    the whole tier's when "instance". ``source`` names the LMCache server target that is this engine's L2.
    """

    capacity_bytes: float | None = None
    per: Literal["worker", "instance"] = "worker"
    workers: int | None = None
    source: str | None = None


@dataclass(frozen=True, slots=True)
class EventSource:
    """Where vLLM publishes KV events: endpoints by data-parallel rank; ``bind`` when the engine connects to us."""

    subscribe: tuple[str, ...] = ()
    replay: tuple[str, ...] = ()
    bind: bool = False


@dataclass(frozen=True, slots=True)
class Side:
    """Which optional endpoints beside /metrics may be asked. ``events`` None means find them by asking the engine."""

    loads: bool = True
    server_info: bool = True
    events: bool = True
    event_source: EventSource | None = None


@dataclass(frozen=True, slots=True)
class Target:
    """One thing to scrape, as configured.

    ``url`` holds no credentials and may be printed; those it was written with are ``userinfo`` (``user:password``), which may not.
    ``candidate`` marks a guess (an engine's default port on loopback): it is shown only once it answered. ``kv_bytes_per_token`` is what
    ``model_config`` says one token takes, by the name of the KV data type ("auto": the model's own).
    """

    name: str
    url: str
    engine: Literal["auto", "vllm", "sglang", "lmcache"] = "auto"
    labels: Mapping[str, str] = field(default_factory=dict)
    bearer_token_file: str | None = None
    tls: Tls = Tls()
    l2: L2Setting = L2Setting()
    model_config: str | None = None
    gpus: tuple[str, ...] = ()
    side: Side = Side()
    candidate: bool = False
    kv_bytes_per_token: Mapping[str, float] = field(default_factory=dict)
    userinfo: str | None = field(default=None, repr=False)
