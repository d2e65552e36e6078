"""What one SGLang owner says besides pools and counters: requests, queues, settings, and what it leaves out."""

from __future__ import annotations

from dataclasses import dataclass

from kvwatch.engines.sglang_families import PREFIX
from kvwatch.engines.sglang_series import Series
from kvwatch.engines.sglang_side import Load, ServerInfo, Version
from kvwatch.model import Missing, Note
from kvwatch.pool import Pool
from kvwatch.quantity import Interval, exactly, maybe

GIB = 2.0**30
ROLES = ("unified", "prefill", "decode")
HICACHE = ("hicache_dropped_tokens_total", "hicache_backup_tokens_total", "load_back_tokens_total")
"""Counters that only a host tier brings; the first is there from the start since 0.5.19."""

QUEUES = {
    "prefill_bootstrap_queue": ("num_prefill_bootstrap_queue_reqs", "num_prefill_prealloc_queue_reqs"),
    "prefill_inflight_queue": ("num_prefill_inflight_queue_reqs", "num_prefill_infight_queue_reqs"),
    "decode_prealloc_queue": ("num_decode_prealloc_queue_reqs",),
    "decode_transfer_queue": ("num_decode_transfer_queue_reqs",),
}
"""Queues beside the main one: today's family, then what it was called (up to 0.5.10; with a typo up to 0.4.9)."""


@dataclass(frozen=True, slots=True)
class Report:
    """All that one scrape brought about one owner: its series, its load report and its configuration.

    ``version`` is what the server calls its release, ``release`` the oldest one it can be.
    """

    rank: str
    series: Series
    load: Load | None
    info: ServerInfo | None
    version: str | None
    release: Version

    @property
    def capacity(self) -> float | None:
        """Tokens of the KV pool in HBM, of one rank."""
        told = (self.load.capacity_tokens if self.load else None, self.info.capacity_tokens if self.info else None)
        return next((size for size in (self.series.gauge("max_total_num_tokens"), *told) if size is not None and size > 0), None)

    @property
    def role(self) -> str | None:
        """``unified``, or which half of a disaggregated pair; None where it changes at run time or nothing says it."""
        names = ("max_total_num_tokens", "num_running_reqs", "token_usage")
        label = next((role for name in names if (role := self.series.label(name, "engine_type")) is not None), None)
        told = label if label is not None else self.info.role if self.info else None
        return told if told in ROLES else None

    @property
    def hicache(self) -> bool:
        """Whether a host tier of SGLang's own is proven."""
        total = self.series.gauge("hicache_host_total_tokens")
        proven = any(self.series.has(name) or name in self.series.merged for name in HICACHE) and not self._lmcache
        return proven or (total is not None and total > 0) or (self.info is not None and self.info.hicache is True)

    @property
    def _lmcache(self) -> bool:
        kinds = (self.series.label(name, "cache_type") for name in ("evicted_tokens_total", "load_back_tokens_total"))
        return any(kind is not None and kind.startswith("LMCache") for kind in kinds)

    @property
    def running(self) -> Interval:
        """Requests in the batch. A prefill engine's report counts only what it decodes."""
        if self.load is not None and self.load.fresh and self.load.running is not None and self.role != "prefill":
            return exactly(self.load.running)
        return maybe(self.series.gauge("num_running_reqs"))

    @property
    def waiting(self) -> Interval:
        """Requests in the main queue, retracted ones among them, and those that wait beside it for a grammar; not those of a hand-over."""
        told = self.load.waiting if self.load is not None and self.load.fresh else None
        main = maybe(self.series.gauge("num_queue_reqs") if told is None else told)
        return main + self.deferred if self.deferred.known else main

    @property
    def deferred(self) -> Interval:
        """Requests that wait for their grammar, outside the main queue."""
        grammar, load = self.series.gauge("num_grammar_queue_reqs"), self.load
        return maybe(load.grammar if grammar is None and load is not None and load.fresh else grammar)

    @property
    def identity(self) -> str:
        """What was fixed when the server started and is exported from the first scrape on."""
        names = ("max_total_num_tokens", "max_total_num_tokens_swa", "page_size", "context_len")
        return " ".join([self.role or "", *(f"{name}={value:g}" for name in names if (value := self.series.gauge(name)) is not None)])

    def gauges(self) -> dict[str, Interval]:
        """Further gauges, those that are known."""
        series, load, info = self.series, self.load, self.info
        memory, running = series.gauge("kv_cache_memory_usage_gb"), series.gauge("num_running_reqs")
        page = series.gauge("page_size")
        adapters, slots = series.gauge("lora_pool_slots_used"), series.gauge("lora_pool_slots_total")
        found = {
            "new_token_ratio": series.gauge("new_token_ratio"),
            "running_cap": self._running_cap,
            "waiting_grammar": self.deferred.exact,
            "adapter_slots_ratio": adapters / slots if adapters is not None and slots else None,
            "session_held_tokens": series.gauge("streaming_session_held_tokens"),
            "block_size": page if page is not None or info is None else info.page_size,
            "memory_fraction": info.memory_fraction if info else None,
            "kv_pool_bytes": memory * GIB if memory else None,
            "running_tokens": series.gauge("decode_sum_seq_lens") if running else None,  # keeps its last value when idle
            "token_budget": info.step_tokens if info else None,
            "loads_age_seconds": load.age if load else None,
            **{name: series.gauge(self._family(name)) for name in QUEUES},
            **(load.queues if load is not None and load.fresh else {}),
        }
        return {name: exactly(value) for name, value in found.items() if value is not None}

    def facts(self) -> dict[str, str]:
        """What is known of the configuration."""
        info, hicache = self.info, self.hicache
        caching = None if info is None or info.prefix_caching is None else str(info.prefix_caching).lower()
        found = {
            "version": self.version,
            "write_policy": info.write_policy if info and hicache else None,
            "role": self.role,
            "l2_kind": "hicache" if hicache else "lmcache" if self._lmcache else None,
            "l2_configured": "true" if hicache or self._lmcache else None,
            "prefix_caching": caching,
            "kv_dtype": info.kv_dtype if info else None,
        }
        return {name: value for name, value in found.items() if value is not None}

    def renamed(self) -> tuple[Note, ...]:
        """A note for each queue that still has an older name."""
        old = [(today, self._family(name)) for name, (today, *_) in QUEUES.items()]
        return tuple(Note("renamed-series", f"{PREFIX}{family} is read for {PREFIX}{today}") for today, family in old if family != today)

    def missing(self, pool: Pool | None) -> tuple[Missing, ...]:
        """What should be known and is not, with what would bring it; nothing while the server never ran a batch.

        Counters that a release does not have yet are no such thing: nothing but another release would bring them.
        """
        if not self.series.has("num_running_reqs") or (pool is not None and pool.capacity.known):
            return ()
        enable = "let kvwatch ask /server_info, or upgrade to SGLang 0.5.6 or newer"
        return (Missing(f"{PREFIX}max_total_num_tokens", "without it the size of the KV pool is unknown", enable),)

    @property
    def _running_cap(self) -> float | None:
        if self.load is not None and self.load.running_cap is not None:
            return self.load.running_cap
        return None if self.info is None else self.info.cap(self.rank)

    def _family(self, queue: str) -> str:
        """The name a queue's family has in this release: today's unless only an older one is there."""
        today, *before = QUEUES[queue]
        return next((name for name in (today, *before) if self.series.has(name)), today)
