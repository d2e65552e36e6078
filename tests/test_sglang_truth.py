"""SGLang: recordings of the real server against the true state of its pools at the same time.

With KVWATCH_CAPTURES naming a folder of recordings (``sglang/SCENARIO/{metrics,loads,gt}.jsonl.gz``), every scrape in them is checked.
"""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from kvwatch.engines import Scrape, sglang
from kvwatch.exposition import Memo, parse
from kvwatch.model import EngineState
from kvwatch.quantity import Interval
from kvwatch.target import Target
from tests.sglang_bodies import DATA, one
from tests.states import hbm

CAPTURES = Path(os.environ.get("KVWATCH_CAPTURES", "no recordings")) / "sglang"
LAG_TOKENS = 40 * 16
"""Gauges are pushed every 40th step, and 16 requests ran at once in the recordings: so many tokens they can lag."""

Row = Mapping[str, float]


def json_lines(path: Path) -> list[dict[str, object]]:
    """The values of a JSON Lines file."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def numbers(row: object) -> Row:
    """The numbers of a ground truth line."""
    assert isinstance(row, dict)
    return {name: float(value) for name, value in row.items() if isinstance(value, int | float)}


def admits(quantity: Interval, values: Sequence[float]) -> bool:
    """Whether a quantity allows for what was true lately, up to the lag."""
    return quantity.lo <= max(values) + LAG_TOKENS and min(values) - LAG_TOKENS <= quantity.hi


def assert_true(state: EngineState, truth: Sequence[Row]) -> None:
    """The pools are what they were when the gauges were pushed, and their states sum to the capacity."""
    full, host = hbm(state), state.pool("l2", "kv")
    assert full.measured
    assert admits(full.used, [t["max_total"] - t["avail"] - t["evictable"] for t in truth])
    assert admits(full.evictable, [t["evictable"] for t in truth])
    assert admits(full.available, [t["avail"] for t in truth])
    assert full.capacity.exact == truth[0]["max_total"]
    assert full.used.lo + full.reclaimable.lo + full.held.lo == full.capacity.lo
    if host is not None:
        assert admits(host.resident, [t["host_total"] - t["host_avail"] for t in truth])
        assert host.available.lo + host.resident.lo == host.capacity.lo == truth[0]["host_total"]


RECORDED = json_lines(DATA / "truth.jsonl.gz")


@pytest.mark.parametrize("row", RECORDED, ids=[f"{row['scenario']}-{i}" for i, row in enumerate(RECORDED)])
def test_recordings_agree_with_the_truth(row: dict[str, object]) -> None:
    """In the middle of every phase of three recordings, with and without a host tier, cold, full and draining."""
    assert isinstance(row["body"], str)
    assert isinstance(row["truth"], list)
    assert_true(one(row["body"], {"loads": row["loads"]} if row["loads"] else {}), [numbers(t) for t in row["truth"]])


def scrapes(folder: Path) -> Iterator[tuple[str, float, float, Mapping[str, object]]]:
    """Body, times of sending and receiving, and the side pages of every good scrape."""
    reports = [(numbers(r)["t"], str(r["body"])) for r in json_lines(folder / "loads.jsonl.gz") if "body" in r]
    for scrape in json_lines(folder / "metrics.jsonl.gz"):
        if "body" in scrape:
            sent, received = numbers(scrape)["t"], numbers(scrape)["t1"]
            asked, report = min(reports, key=lambda r: abs(r[0] - sent))
            yield str(scrape["body"]), sent, received, {"loads": json.loads(report)} if abs(asked - sent) < 1 else {}


@pytest.mark.skipif(not CAPTURES.is_dir(), reason="KVWATCH_CAPTURES names no recordings")
@pytest.mark.parametrize("scenario", ["nohicache", "nohicache_noretract", "hicache_wt", "hicache_wts", "dp2"])
def test_every_scrape_of_the_recordings_agrees_with_the_truth(scenario: str) -> None:
    """No pool is wrong beyond the age of its gauges, and no counter ever falls or vanishes."""
    truth = [numbers(row) for row in json_lines(CAPTURES / scenario / "gt.jsonl.gz") if "avail" in row]
    before: dict[str, Mapping[str, float]] = {}
    memo = Memo()
    for body, sent, received, side in scrapes(CAPTURES / scenario):
        exposition = parse(body.encode(), sglang.select, memo)
        age = max((t["last_log_age"] for t in truth if sent - 1 < t["t"] <= received and "last_log_age" in t), default=0.0)
        lately = [t for t in truth if sent - age - 1 <= t["t"] <= received]
        for state in sglang.read(Scrape(Target("t", "u"), sent, sent, exposition, side)).states:
            assert all(state.counters[name] >= value for name, value in before.get(state.rank, {}).items())
            before[state.rank] = state.counters
            if lately and scenario != "dp2":  # there both schedulers write one file
                assert_true(state, lately)
    assert before
