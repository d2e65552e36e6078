"""Locks of an LMCache server, which exports none: proven where its eviction loop asks for room in vain, and nowhere else.

With KVWATCH_CAPTURES naming a folder of recordings (``lmcache/SCENARIO/{metrics,gt}.jsonl.gz``), the proof is held against what was locked.
"""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any

import pytest

from kvwatch.engines import Scrape, lmcache
from kvwatch.exposition import parse
from kvwatch.model import EngineState, Outcome
from kvwatch.quantity import TRUE, Interval, exactly
from kvwatch.refine import Refiner
from kvwatch.target import Target
from tests.states import host

CAPTURES = Path(os.environ.get("KVWATCH_CAPTURES", "no recordings")) / "lmcache"
MIB = 2.0**20


def body(asked: float, *, usage: float = 0.95, evicted: float = 840, started: float = 5.0, dropped: float = 0) -> str:
    """A server of 100 MiB; the loop has run a hundred times more than it ``asked`` for room."""
    return (
        f"lmcache_mp_l1_memory_usage_bytes{{l1_tag='_default'}} {usage * 100 * MIB}\n"
        f"lmcache_mp_l1_usage_ratio{{l1_tag='_default'}} {usage}\n"
        f"lmcache_mp_l1_staging_bytes{{l1_tag='_default'}} 0\nlmcache_mp_l1_eviction_loop_ticks_total {asked + 100}\n"
        f"lmcache_mp_l1_eviction_loop_triggered_total {asked}\nlmcache_mp_l1_evicted_chunks_total{{l1_tag='_default'}} {evicted}\n"
        f"lmcache_mp_event_bus_dropped_events_total {dropped}\nprocess_start_time_seconds {started}\n"
    ).replace("'", '"')


def read(text: str, at: float) -> EngineState:
    """One sample, as the engine file reads it."""
    exposition = parse(text.encode(), lmcache.select)
    (state,) = lmcache.read(Scrape(Target("t", "http://127.0.0.1/metrics"), at, 1000.0 + at, exposition)).states
    return state


def watched(*bodies: str) -> list[EngineState]:
    """The samples of a server, one after the other."""
    refiner = Refiner()
    return [refiner.refine(Outcome("t", i, i, 0.1, states=(read(text, float(i)),))).states[0] for i, text in enumerate(bodies)]


def used(state: EngineState) -> Interval:
    """Bytes used of its pool."""
    return host(state).used


def test_three_rounds_in_vain_prove_that_everything_is_locked() -> None:
    """Then what is resident is used, nothing of it can be taken, and the pinned share is whole."""
    *before, state = watched(body(40), body(42), body(43))
    assert [used(s).lo for s in before] == [0, 0]
    assert [used(s).hi for s in before] == pytest.approx([95 * MIB] * 2)
    assert used(state).exact == pytest.approx(95 * MIB)
    assert (host(state).evictable, state.gauges["l2_pinned_ratio"]) == (exactly(0), TRUE)
    assert host(state).available.exact == pytest.approx(5 * MIB)


@pytest.mark.parametrize(
    ("second", "third"),
    [
        pytest.param({"evicted": 840}, {"evicted": 841}, id="something went in the end"),
        pytest.param({"evicted": 841}, {"evicted": 841}, id="something went in between, two rounds ago"),
        pytest.param({"usage": 0.7}, {}, id="there was room in between"),
        pytest.param({}, {"usage": 0.7}, id="there is room now"),
        pytest.param({"started": 6.0}, {"started": 6.0}, id="another process"),
        pytest.param({"dropped": 1}, {"dropped": 1}, id="evictions may have been counted nowhere"),
    ],
)
def test_nothing_is_proven_where_the_loop_may_have_freed_something(second: dict[str, float], third: dict[str, float]) -> None:
    """Only rounds of one process, without a victim and without a gap, count."""
    *_, state = watched(body(40), body(44, **second), body(46, **third))
    assert used(state).exact is None
    assert "l2_pinned_ratio" not in state.gauges


def test_one_sample_proves_nothing() -> None:
    """Its counts are of the server's whole life."""
    (state,) = watched(body(500, evicted=0))
    assert used(state).exact is None


def lines(scenario: str, name: str) -> list[dict[str, Any]]:
    """A file of a recording."""
    with gzip.open(CAPTURES / scenario / f"{name}.jsonl.gz", "rt") as file:
        return [json.loads(line) for line in file]


@pytest.mark.skipif(not CAPTURES.is_dir(), reason="KVWATCH_CAPTURES names no recordings")
@pytest.mark.parametrize(("scenario", "proven"), [("mp_l1", False), ("mp_tp2_l2fs", True), ("mp_bus_drop", False)])
def test_what_is_called_locked_was_locked(scenario: str, proven: bool) -> None:  # noqa: FBT001  a parameter of the table
    """In real recordings, one of them with locks on everything: no scrape says so of a pool in which anything was free."""
    refiner, claims, truth = Refiner(), 0, [g["before"] | {"t": g["t"]} for g in lines(scenario, "gt") if "before" in g]
    for scrape in lines(scenario, "metrics"):
        state = refiner.refine(Outcome("t", scrape["t"], scrape["t"], 0.1, states=(read(scrape["body"], scrape["t"]),))).states[0]
        if "l2_pinned_ratio" in state.gauges:
            claims += 1
            then = min(truth, key=lambda g: abs(g["t"] - scrape["t"]))
            assert then["read_locked_count"] == then["total_object_count"]
    assert bool(claims) is proven
