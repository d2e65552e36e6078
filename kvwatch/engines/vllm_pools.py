"""vLLM's KV pool in HBM: how many blocks and tokens it has, and how much of it is in use.

vLLM reports the share of its blocks that requests hold (``get_usage`` in vllm/v1/core/block_pool.py) and its cache configuration as
labels. Cached blocks that nobody holds are free to it, so evictable and available are only known together.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from kvwatch.engines.samples import meant
from kvwatch.engines.vllm_series import Series
from kvwatch.pool import Pool
from kvwatch.quantity import UNKNOWN, ZERO, Interval, exactly, maybe

WHOLE = 1e-6
"""How far usage times blocks may be from a whole number of blocks."""
V0_ONLY = ("cpu_cache_usage_perc", "num_requests_swapped")
"""Gauges of the V0 engine; it sets no block aside."""


def read_number(labels: Mapping[str, str], key: str) -> float | None:
    """A label as a positive number; None where it is missing, "None" or no number."""
    try:
        value = float(labels.get(key, ""))
    except ValueError:
        return None
    return value if value > 0 and meant(value) else None


@dataclass(frozen=True, slots=True)
class CacheConfig:
    """What the labels of ``cache_config_info`` say (vllm/config/cache.py); None for a label that is missing or says "None".

    ``blocks`` is summed over the data-parallel engines of one front end and repeated on each (vllm/v1/engine/core_client.py);
    ``retention`` marks releases that hand out bare
    blocks before cached ones; ``override`` and ``tokens`` are one engine's. All three count the null block.
    """

    block_size: float | None
    attention_block_size: float | None
    blocks: float | None
    override: float | None
    tokens: float | None
    concurrency: float | None
    mamba: bool
    retention: bool
    prefix_caching: bool | None
    dtype: str | None
    memory_fraction: float | None
    memory_bytes: float | None
    offload_gib: float | None
    offload_backend: str | None

    @classmethod
    def of(cls, labels: Mapping[str, str]) -> CacheConfig:
        """Read the labels by name: the set changes with every release."""
        return cls(
            block_size=read_number(labels, "block_size"),
            attention_block_size=read_number(labels, "effective_attention_block_size"),
            blocks=read_number(labels, "num_gpu_blocks"),
            override=read_number(labels, "num_gpu_blocks_override"),
            tokens=read_number(labels, "kv_cache_size_tokens"),
            concurrency=read_number(labels, "kv_cache_max_concurrency"),
            mamba=read_number(labels, "mamba_block_size") is not None or labels.get("mamba_cache_mode", "none") not in ("none", "None"),
            retention="prefix_cache_retention_interval" in labels,
            prefix_caching={"True": True, "False": False}.get(labels.get("enable_prefix_caching", "")),
            dtype=None if labels.get("cache_dtype", "None") == "None" else labels["cache_dtype"],
            memory_fraction=read_number(labels, "gpu_memory_utilization"),
            memory_bytes=read_number(labels, "kv_cache_memory_bytes"),
            offload_gib=read_number(labels, "kv_offloading_size"),
            offload_backend=labels.get("kv_offloading_backend"),
        )

    @property
    def page(self) -> float | None:
        """Tokens in one block of an attention group."""
        return self.attention_block_size or self.block_size

    @property
    def context(self) -> float | None:
        """Longest sequence in tokens: the pool's tokens are the concurrency times this, rounded down (vllm/v1/core/kv_cache_utils.py)."""
        if self.tokens is None or self.concurrency is None:
            return None
        longest = math.ceil(self.tokens / self.concurrency - WHOLE)
        return float(longest) if math.floor(self.concurrency * longest + WHOLE) == self.tokens else None

    @property
    def blocks_by_tokens(self) -> float | None:
        """One engine's blocks if they are of a single KV group: the concurrency counts sequences of full length, to the whole block."""
        if self.tokens is None or self.page is None:
            return None
        if self.context is None or self.concurrency is None:
            return self.tokens / self.page
        return round(self.concurrency * math.ceil(self.context / self.page), 6)

    def one_group(self, blocks: float) -> bool:
        """Whether the token count is what that many blocks of a single KV group hold, give or take one of them."""
        return self.blocks_by_tokens is not None and abs(self.blocks_by_tokens - blocks) <= 1

    def identity(self) -> str:
        """What must stay equal for one run's numbers to be compared with another's."""
        return f"{self.blocks} {self.override} {self.tokens} {self.page} {self.dtype}"


@dataclass(frozen=True, slots=True)
class Blocks:
    """The blocks of one engine that can hold KV, and the tokens they hold; None and unknown where the configuration does not tell.

    ``each`` is the tokens of one block. ``proven`` is false where blocks times that are not the capacity: several KV groups share the
    pool, or the blocks are not counted. ``hybrid`` is None where one group and several look alike.
    """

    usable: float | None
    each: float | None
    capacity: Interval
    proven: bool
    hybrid: bool | None

    @property
    def mean(self) -> float | None:
        """Tokens of one block, on average where groups differ."""
        return self.capacity.exact / self.usable if self.capacity.exact is not None and self.usable else None

    def held(self, usage: Interval) -> Interval:
        """Tokens in the blocks that are in use: usage times blocks is a whole number but for float noise."""
        if not self.proven or usage.exact is None or self.usable is None or self.each is None:
            return UNKNOWN
        return exactly(round(usage.exact * self.usable) * self.each)


def count_blocks(config: CacheConfig, usage: Interval, engines: int, *, reserved: int) -> Blocks:
    """Find the blocks of one engine of ``engines`` behind a front end; ``reserved`` of its blocks never hold KV (the null block)."""
    usable, counted = _usable(config, usage, engines, reserved)
    each = None if config.mamba else config.page  # the size of a mamba block says nothing about tokens
    enlarged = config.attention_block_size is not None and config.attention_block_size != config.block_size
    declared = True if config.mamba or enlarged else None
    if usable is None or not counted:
        capacity = UNKNOWN
        if config.tokens is not None:
            capacity = exactly(max(0.0, config.tokens - reserved * (config.page if config.page is not None else 0.0)))
        elif usable is not None and each is not None:
            capacity = exactly(usable * each)
        return Blocks(None, each, capacity, proven=False, hybrid=declared)
    if config.blocks_by_tokens is None:
        capacity = UNKNOWN if each is None else exactly(usable * each)
        return Blocks(usable, each, capacity, proven=declared is None, hybrid=declared)
    if config.tokens is not None and not config.one_group(usable + reserved):
        return Blocks(usable, None, exactly(float(math.floor(config.tokens * usable / (usable + reserved)))), proven=False, hybrid=True)
    return Blocks(usable, config.page, maybe(config.page) * exactly(usable), proven=True, hybrid=False)


def _usable(config: CacheConfig, usage: Interval, engines: int, reserved: int) -> tuple[float | None, bool]:
    """Usable blocks, and whether that is their count or only near it.

    The usage is a fraction of exactly these blocks, which refutes nearly every wrong count: a share of a sum over ranks of different
    size, or a null block where there is none. At 0 and 1 it refutes nothing.
    """
    said = config.override if config.override is not None else None if config.blocks is None else config.blocks / engines
    by_tokens = config.blocks_by_tokens
    likely = [] if said is None else [said - reserved, said - 1]
    likely += [] if by_tokens is None else [by_tokens - reserved]
    if usage.exact is not None and 0 < usage.exact < 1:
        held = usage.exact
        for usable in likely:
            if usable.is_integer() and abs(held * usable - round(held * usable)) <= WHOLE:
                return usable, True
        return (None if said is None else float(math.floor(said) - reserved)), False
    if said is None:
        return None, False
    unopposed = by_tokens is None or config.one_group(said) or engines == 1 or config.override is not None
    return float(math.floor(said) - reserved), said.is_integer() and unopposed


def l1_pool(series: Series, config: CacheConfig, blocks: Blocks, usage: Interval) -> Pool:
    """The pool in HBM: used and reclaimable as exact as the usage, the split of reclaimable only without prefix caching."""
    evictable = ZERO if usage.known and config.prefix_caching is False else UNKNOWN
    if blocks.capacity.known and not blocks.proven:
        series.note(
            "approximate-capacity", "the pool's size in tokens is not exact: several KV groups share it, or its blocks are not counted"
        )
    used = blocks.held(usage)
    if used.lo > 0:
        series.note("block-granular", f"used counts whole blocks of {blocks.each:g} tokens, filled or not")
    source = "vllm:kv_cache_usage_perc x cache_config_info" if blocks.capacity.known else "vllm:kv_cache_usage_perc"
    return Pool.of("l1", "full", "tokens", capacity=blocks.capacity, used=used, evictable=evictable, used_ratio=usage, source=source)
