"""vLLM against recordings with the true state of its block pool beside every scrape: what is claimed is true.

The whole recordings are read where ``KVWATCH_CAPTURES`` names their folder; a few scrapes of each are always read.
"""

from __future__ import annotations

import bisect
import gzip
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kvwatch.model import EngineState
from kvwatch.pool import Pool
from tests.states import hbm
from tests.vllm_bodies import read

SUBSET = Path(__file__).parent / "data" / "vllm" / "truth.jsonl.gz"
CAPTURES = Path(os.environ.get("KVWATCH_CAPTURES", "")) / "vllm"
SCENARIOS = ("base", "dp2", "noprefix", "offload_native_local", "reset")
PAGE = 32
USABLE = 255
SKEW_BLOCKS = 40
"""A scrape and a look at the pool are up to half a second apart, and an engine of 2 ms a step moves this far meanwhile."""

Look = tuple[int, int, int]
"""Blocks used, evictable and available at one moment."""


@dataclass(frozen=True, slots=True)
class Sample:
    """A scrape and, by rank, every look at the pool within half a second of it."""

    body: str
    looks: dict[str, list[Look]]


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The JSON values of a file with one on each line."""
    with gzip.open(path, "rt") as lines:
        yield from map(json.loads, lines)


def subset() -> Iterator[Sample]:
    """The committed scrapes."""
    for row in read_lines(SUBSET):
        yield Sample(row["body"], row["truth"])


def recording(folder: Path) -> Iterator[Sample]:
    """Every scrape of one recording."""
    looks: dict[str, tuple[list[float], list[Look]]] = {}
    for rank, name in (("0", "gt.jsonl.gz"), ("1", "gt.dp1.jsonl.gz")):
        if (folder / name).exists():
            rows = [row for row in read_lines(folder / name) if "used" in row]
            looks[rank] = [r["t"] for r in rows], [(r["used"], r["evict"], r["avail"]) for r in rows]
    for scrape in read_lines(folder / "metrics.jsonl.gz"):
        near = {
            rank: all_looks[bisect.bisect(times, scrape["t"] - 0.5) : bisect.bisect(times, scrape["t"] + 0.5)]
            for rank, (times, all_looks) in looks.items()
        }
        yield Sample(scrape["body"], near)


def check(sample: Sample) -> int:
    """Hold every claim of the scrape against the truth; the number of pools that said anything."""
    states = read(sample.body).states
    assert [state.rank for state in states] == sorted(sample.looks)
    return sum(check_pool(hbm(state), sample.looks[state.rank]) for state in states if knows(state))


def knows(state: EngineState) -> bool:
    """Whether the pool was measured: with several API servers the gauges are born with the first step."""
    assert hbm(state).capacity.exact == USABLE * PAGE
    return hbm(state).measured


def check_pool(pool: Pool, looks: list[Look]) -> int:
    """Used is the truth within the skew, the rest adds up, and at every moment with that use the split is inside the intervals."""
    used, reclaimable = pool.used.exact, pool.reclaimable.exact
    assert used is not None
    assert used % PAGE == 0
    assert reclaimable == USABLE * PAGE - used
    blocks = used / PAGE
    if looks:
        held = [look[0] for look in looks]
        assert min(held) - SKEW_BLOCKS <= blocks <= max(held) + SKEW_BLOCKS
        if min(held) == max(held):  # nothing moved: then there is no skew either
            assert blocks == held[0]
    for _, evictable, available in (look for look in looks if look[0] == blocks):
        assert pool.evictable.lo <= evictable * PAGE <= pool.evictable.hi
        assert pool.available.lo <= available * PAGE <= pool.available.hi
    return 1


def test_claims_hold_on_a_few_scrapes() -> None:
    """Cold, saturated, drained, two ranks, without prefix caching, with offloading, after a cache reset."""
    assert sum(check(sample) for sample in subset()) >= 20


@pytest.mark.skipif(not CAPTURES.is_dir(), reason="KVWATCH_CAPTURES names no recordings")
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_claims_hold_on_whole_recordings(scenario: str) -> None:
    """Every scrape of every recording, not only the ones that were picked."""
    assert sum(check(sample) for sample in recording(CAPTURES / scenario)) >= 45
