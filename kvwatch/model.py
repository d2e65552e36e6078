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
from kvwatch.schema import EngineName

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
    """What kvwatch had to decide about odd data: a code that stays the same and one sentence."""

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
    ``counters``, ``gauges``, ``histograms`` and ``facts`` are keyed by the names of the schema (schema.py);
    a key that is absent is unknown. A counter the engine file knows to be 0 although its series is not born
    yet is present with 0. ``joined`` is true where first tokens and ends of requests are those of all owners
    of the target together.
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

    @property
    def serves(self) -> bool:
        """Whether it runs requests."""
        return self.owner.serves

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

    @property
    def serves(self) -> bool:
        """Whether it runs requests; LMCache keeps KV for engines that do."""
        return self.engine != "lmcache"


_LONGEST_RANK = 9


def rank_number(rank: str) -> int:
    """A rank as a number, to sort by; 0, the only one there may be, where it is none or longer than any number of ranks."""
    return int(rank) if len(rank) <= _LONGEST_RANK and rank.isdecimal() else 0


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
