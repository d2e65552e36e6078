"""What SGLang says beside /metrics: ``/v1/loads``, the scheduler's own fresh load report, and ``/server_info``, its configuration.

The gauges of /metrics are pushed at prefills, every 40th decode step and every 30 s when idle; the load report is written at every
prefill, every 15th decode step and 20 times a second while the scheduler idles or stalls (sglang/srt/managers/load_snapshot.py), and it
says when. ``/server_info`` repeats all server arguments, secrets among them: only the fields below are ever looked at.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from kvwatch.engines.samples import meant
from kvwatch.model import rank_number

FRESH_SECONDS = 2.0
"""A report this young is newer than the gauges can be relied on to be."""

Version = tuple[int, int, int]
OLDEST: Version = (0, 4, 3)


@dataclass(frozen=True, slots=True)
class Load:
    """One rank's load report: requests and tokens; ``age`` in seconds when it was handed out, None where no clock tells."""

    age: float | None
    running: float | None = None
    waiting: float | None = None
    used_tokens: float | None = None
    capacity_tokens: float | None = None
    running_cap: float | None = None
    grammar: float | None = None
    queues: Mapping[str, float] = field(default_factory=dict)

    @property
    def fresh(self) -> bool:
        """Whether it is surely newer than the gauges."""
        return self.age is not None and self.age <= FRESH_SECONDS


@dataclass(frozen=True, slots=True)
class Loads:
    """The answer of ``/v1/loads`` by data-parallel rank."""

    version: str | None
    ranks: Mapping[str, Load]


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """The allow-listed part of ``/server_info``; None where it was not said.

    ``running_caps`` are the limits of the ranks in order; ``step_tokens`` the prefill tokens of one step.
    """

    version: str | None = None
    model: str | None = None
    write_policy: str | None = None
    role: str | None = None
    kv_dtype: str | None = None
    hicache: bool | None = None
    prefix_caching: bool | None = None
    capacity_tokens: float | None = None
    page_size: float | None = None
    memory_fraction: float | None = None
    step_tokens: float | None = None
    running_cap: float | None = None
    running_caps: tuple[float | None, ...] = ()

    def cap(self, rank: str) -> float | None:
        """Most running requests of a data-parallel rank."""
        index = rank_number(rank)
        own = self.running_caps[index] if index < len(self.running_caps) else None
        return self.running_cap if own is None else own


def read_loads(page: object, wall: float | None) -> Loads | None:
    """The load reports, or None when the page has another shape.

    A report's age is told by the server's clock, which stamps the answer too; without that stamp by ``wall``, the time of the scrape.
    """
    entries = _items(page, "loads") if isinstance(page, Mapping) else None
    if not isinstance(page, Mapping) or entries is None:
        return None
    now = _stamp(page.get("timestamp"))
    ranks = {}
    for entry in entries:
        if not isinstance(entry, Mapping):
            return None
        rank = _number(entry, "dp_rank")
        ranks["0" if rank is None else str(int(rank))] = _load(entry, wall if now is None else now)
    return Loads(_text(page, "version"), ranks)


def _load(entry: Mapping[str, object], now: float | None) -> Load:
    written = _positive(entry, "timestamp")
    age = None if written is None or now is None else now - written
    pd, queues = _section(entry, "disaggregation"), _section(entry, "queues")
    split = pd.get("mode") in ("prefill", "decode")
    bootstrap = _number(pd, "prefill_bootstrap_queue_reqs")
    found = {
        "prefill_bootstrap_queue": _number(pd, "prefill_prealloc_queue_reqs") if bootstrap is None else bootstrap,
        "prefill_inflight_queue": _number(pd, "prefill_inflight_queue_reqs"),
        "decode_prealloc_queue": _number(pd, "decode_prealloc_queue_reqs"),
        "decode_transfer_queue": _number(pd, "decode_transfer_queue_reqs"),
        "decode_retracted_queue": _number(pd, "decode_retracted_queue_reqs"),
    }
    waiting = _number(queues, "waiting")
    return Load(
        age=None if age is None or age < -FRESH_SECONDS else max(0.0, age),  # a clock that runs ahead tells nothing
        running=_number(entry, "num_running_reqs"),
        # With prefill and decode apart the total counts the hand-over queues too.
        waiting=_number(entry, "num_waiting_reqs") if waiting is None and not split else waiting,
        used_tokens=_number(entry, "num_used_tokens"),
        capacity_tokens=_positive(entry, "max_total_num_tokens"),
        running_cap=_positive(entry, "max_running_requests"),
        grammar=_number(queues, "grammar"),
        queues={name: value for name, value in found.items() if value is not None} if split else {},
    )


def read_server_info(page: object) -> ServerInfo | None:
    """The configuration, or None when the page has another shape."""
    if not isinstance(page, Mapping):
        return None
    states = _items(page, "internal_states") or ()
    caps = tuple(_positive(state, "effective_max_running_requests_per_dp") if isinstance(state, Mapping) else None for state in states)
    cap, ranks = _positive(page, "max_running_requests"), _positive(page, "dp_size")
    if cap is not None and ranks is not None and page.get("enable_dp_attention") is True:
        cap //= ranks  # with DP attention the argument is for all ranks together (sglang/srt/managers/tp_worker.py)
    chunk, radix = _positive(page, "chunked_prefill_size"), page.get("disable_radix_cache")
    role = _text(page, "disaggregation_mode")
    return ServerInfo(
        version=_text(page, "version"),
        model=_text(page, "served_model_name"),
        write_policy=_text(page, "hicache_write_policy"),
        role="unified" if role == "null" else role,
        kv_dtype=_text(page, "kv_cache_dtype"),
        hicache=_truth(page.get("enable_hierarchical_cache")),
        prefix_caching=None if not isinstance(radix, bool) else not radix,
        capacity_tokens=_positive(page, "max_total_num_tokens"),
        page_size=_positive(page, "page_size"),
        memory_fraction=_positive(page, "mem_fraction_static"),
        step_tokens=_positive(page, "max_prefill_tokens") if chunk is None else chunk,
        running_cap=cap,
        running_caps=caps,
    )


def read_version(text: str | None) -> Version | None:
    """The release in a version text such as ``0.5.10.post1``; None for a development build, which says 0.0.0."""
    found = re.match(r"v?(\d{1,9})\.(\d{1,9})\.(\d{1,9})", text or "")
    version = (int(found[1]), int(found[2]), int(found[3])) if found else None
    return version if version is not None and version >= OLDEST else None


def _items(page: Mapping[str, object], key: str) -> Sequence[object] | None:
    value = page.get(key)
    return value if isinstance(value, list) else None


def _section(entry: Mapping[str, object], key: str) -> Mapping[str, object]:
    found = entry.get(key)
    return found if isinstance(found, Mapping) else {}


def _text(page: Mapping[str, object], key: str) -> str | None:
    value = page.get(key)
    return value if isinstance(value, str) and value else None


def _truth(value: object) -> bool | None:
    return value if isinstance(value, bool) else None


def _number(page: Mapping[str, object], key: str) -> float | None:
    value = page.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or not meant(value):
        return None
    return float(value)


def _positive(page: Mapping[str, object], key: str) -> float | None:
    value = _number(page, key)
    return value if value is not None and value > 0 else None


def _stamp(value: object) -> float | None:
    """Unix seconds of an ISO 8601 time with a zone."""
    try:
        when = datetime.fromisoformat(value) if isinstance(value, str) else None
    except ValueError:
        return None
    return None if when is None or when.tzinfo is None else when.timestamp()
