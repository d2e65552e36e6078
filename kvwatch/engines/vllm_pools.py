"""vLLM's KV pool in HBM: how many blocks and tokens it has, and how much of it is in use.

vLLM reports the share of its blocks that requests hold (``get_usage`` in vllm/v1/core/block_pool.py) and its cache configuration as
labels. Cached blocks that nobody holds are free to it, so evictable and available are only known together.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from kvwatch.engines.vllm_series import Series
from kvwatch.model import Pool
from kvwatch.quantity import UNKNOWN, ZERO, Interval, exactly

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
    return value if math.isfinite(value) and value > 0 else None


@dataclass(frozen=True, slots=True)
class CacheConfig:
    """What the labels of ``cache_config_info`` say (vllm/config/cache.py); None for a label that is missing or says "None".

    ``blocks`` is summed over the data-parallel engines of one front end and repeated on each (vllm/v1/engine/core_client.py);
    ``override`` and ``tokens`` are one engine's. All three count the null block.
    """

    block_size: float | None
    attention_block_size: float | None
    blocks: float | None
    override: float | None
    tokens: float | None
    concurrency: float | None
    mamba: bool
    prefix_caching: bool | None
    dtype: str | None
    memory_fraction: float | None
    memory_bytes: float | None
    offload_gib: float | None
    offload_backend: str | None
    cpu_blocks: float | None

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
            prefix_caching={"True": True, "False": False}.get(labels.get("enable_prefix_caching", "")),
            dtype=None if labels.get("cache_dtype", "None") == "None" else labels["cache_dtype"],
            memory_fraction=read_number(labels, "gpu_memory_utilization"),
            memory_bytes=read_number(labels, "kv_cache_memory_bytes"),
            offload_gib=read_number(labels, "kv_offloading_size"),
            offload_backend=labels.get("kv_offloading_backend"),
            cpu_blocks=read_number(labels, "num_cpu_blocks"),
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

    def one_group(self, blocks: float) -> bool:
        """Whether the token count is what that many blocks of a single KV group hold."""
        if self.tokens is None or self.page is None:
            return False
        held = blocks * self.page
        if self.context is not None:  # counted in sequences of full length, whose last block is cut off
            held = min(held, blocks * self.context / math.ceil(self.context / self.page))
        return abs(self.tokens - held) <= 1

    def identity(self) -> str:
        """What must stay equal for one run's numbers to be compared with another's."""
        return f"{self.blocks} {self.override} {self.tokens} {self.page} {self.dtype}"


@dataclass(frozen=True, slots=True)
class Blocks:
    """The blocks of one engine that can hold KV, and the tokens they hold; None and unknown where the configuration does not tell.

    ``each`` is the tokens of one block. ``proven`` is false where that does not account for every token: several KV groups share the
    pool, or the usage does not come out as a whole number of blocks. ``hybrid`` is None where one group and several look alike.
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
    usable, whole = _usable(config, usage, engines, reserved)
    every = None if usable is None else usable + reserved
    hybrid = _hybrid(config, every)
    if config.tokens is not None and (every is None or hybrid):
        null = config.tokens / every if every is not None else config.page if config.page is not None else 0.0
        return Blocks(usable, None, exactly(float(math.floor(config.tokens - reserved * null))), proven=False, hybrid=hybrid)
    each = None if config.mamba else config.page  # the size of a mamba block says nothing about tokens
    capacity = UNKNOWN if usable is None or each is None else exactly(usable * each)
    return Blocks(usable, each, capacity, proven=whole and hybrid is not True, hybrid=hybrid)


def _usable(config: CacheConfig, usage: Interval, engines: int, reserved: int) -> tuple[float | None, bool]:
    """Usable blocks, and whether the usage comes out whole, as it trivially does at 0 and 1.

    The usage is a fraction of exactly these blocks, which refutes most wrong counts: ranks of different size, a sum that is none.
    """
    loaded = usage.exact if usage.exact is not None and 0 < usage.exact < 1 else None

    def whole(usable: float) -> bool:
        return loaded is not None and abs(loaded * usable - round(loaded * usable)) <= WHOLE

    said = config.override if config.override is not None else None if config.blocks is None else config.blocks / engines
    said = said if said is not None and said.is_integer() else None
    confirmed: dict[float, bool] = {}  # a count of usable blocks -> whether the tokens confirm it; the likeliest first
    if said is not None:
        confirmed[said - reserved] = config.one_group(said)
        confirmed.setdefault(said - 1, False)
    if config.blocks is not None:
        confirmed.setdefault(config.blocks - reserved, config.one_group(config.blocks))
    if config.tokens is not None and config.page is not None and (config.tokens / config.page).is_integer():
        confirmed.setdefault(config.tokens / config.page - reserved, False)
    best = max(confirmed, key=lambda usable: (whole(usable), confirmed[usable]), default=None)
    if best is None or not (whole(best) or confirmed[best]):
        best = None if said is None else said - reserved
    return best, best is not None and (loaded is None or whole(best))


def _hybrid(config: CacheConfig, blocks: float | None) -> bool | None:
    """Whether several KV groups share the blocks; None where nothing tells."""
    if config.tokens is not None and config.page is not None and blocks is not None:
        return not config.one_group(blocks)
    enlarged = config.attention_block_size is not None and config.attention_block_size != config.block_size
    return True if config.mamba or enlarged else None


def l1_pool(series: Series, config: CacheConfig, blocks: Blocks, usage: Interval) -> Pool:
    """The pool in HBM: used and reclaimable as exact as the usage, the split of reclaimable only without prefix caching."""
    evictable = ZERO if usage.known and config.prefix_caching is False else UNKNOWN
    if blocks.capacity.known and not blocks.proven:
        series.note("approximate-capacity", "the pool's size in tokens is not exact: several KV groups share it, or a count is missing")
    used = blocks.held(usage)
    if used.lo > 0:
        series.note("block-granular", f"used counts whole blocks of {blocks.each:g} tokens, filled or not")
    source = "vllm:kv_cache_usage_perc x cache_config_info" if blocks.capacity.known else "vllm:kv_cache_usage_perc"
    return Pool.of("l1", "full", "tokens", capacity=blocks.capacity, used=used, evictable=evictable, used_ratio=usage, source=source)
