"""How right the split of vLLM's free blocks is: recordings of real engines against the true state of their block pools.

    python tests/evaluate_events.py FOLDER...      every folder below with vLLM's metrics and a ground truth beside them

For each recording, with its KV events, with a late join, with an end of the messages in the middle, with 1 % of them lost for good, and
from metrics alone: how many scrapes have the truth outside the interval, and the error of the guess of ``available`` in blocks. A scrape
is compared with the looks at the pool within a tenth of a second that saw as many blocks in use. Exit 1 when a truth is outside.
"""

from __future__ import annotations

import bisect
import gzip
import json
import random
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from kvwatch.events.replay import RecordedRank, open_recording
from kvwatch.exposition import Memo
from kvwatch.model import Outcome
from kvwatch.recording import RECORDING, lines
from kvwatch.refine import Refiner, no_events
from kvwatch.target import Target
from kvwatch.turn import Clocked, finished

NEAR = 0.1
Prepare = Callable[[dict[str, RecordedRank], float], Mapping[str, RecordedRank]]


@dataclass(slots=True)
class Score:
    """What came out for one rank of one recording."""

    scrapes: int = 0
    outside: int = 0
    errors: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Truth:
    """Looks at one rank's pool, by time."""

    times: list[float]
    rows: list[dict[str, float]]

    @classmethod
    def of(cls, folder: Path, rank: str) -> Truth | None:
        """The recorded truth, or None where there is none."""
        file = folder / ("gt.jsonl.gz" if rank == "0" else f"gt.dp{rank}.jsonl.gz")
        if not file.is_file():
            return None
        with gzip.open(file, "rt") as stream:
            rows = [row for row in map(json.loads, stream) if {"used", "evict", "avail"} <= row.keys()]
        return cls([row["t"] for row in rows], rows) if rows else None

    def near(self, at: float, used: float) -> list[dict[str, float]]:
        """Looks around a scrape that saw as many blocks in use."""
        lo, hi = bisect.bisect_left(self.times, at - NEAR), bisect.bisect(self.times, at + NEAR)
        return sorted((r for r in self.rows[lo:hi] if r["used"] == used), key=lambda r: abs(r["t"] - at))


def whole(ranks: dict[str, RecordedRank], _middle: float) -> Mapping[str, RecordedRank]:
    """The recording as it is."""
    return ranks


def late(ranks: dict[str, RecordedRank], middle: float) -> Mapping[str, RecordedRank]:
    """As a subscriber that joins in the middle, without a replay."""
    for rank in ranks.values():
        rank.lines = (line for line in list(rank.lines) if line[0] >= middle)
        rank.spare.clear()
        rank.track.sequence.confirmed = False
        rank._next = None  # what was read ahead is before the join
    return ranks


def ending(ranks: dict[str, RecordedRank], middle: float) -> Mapping[str, RecordedRank]:
    """As a subscriber whose connection dies in the middle."""
    for rank in ranks.values():
        rank.lines = (line for line in list(rank.lines) if line[0] < middle)
    return ranks


def lossy(ranks: dict[str, RecordedRank], _middle: float) -> Mapping[str, RecordedRank]:
    """With 1 % of the messages lost for good."""
    chance = random.Random(1)
    for rank in ranks.values():
        rank.lines = (line for line in list(rank.lines) if chance.random() >= 0.01)
        rank.spare.clear()
    return ranks


def outcomes(folder: Path, prepare: Prepare | None) -> Iterator[Outcome]:
    """The recording as kvwatch reads it, with the events prepared."""
    scrapes = list(lines(folder / RECORDING))
    middle = scrapes[len(scrapes) // 2].t
    ranks = {} if prepare is None else prepare(open_recording(folder), middle)
    target, memo, refiner = Target(folder.name, ""), Memo(), Refiner()
    for scrape in scrapes:
        if scrape.body is not None:
            outcome = finished(target, Clocked(scrape.t, scrape.t, max(0.0, scrape.t1 - scrape.t)), scrape.body.encode(), {}, memo)
            yield refiner.refine(outcome, (lambda rank, at: ranks[rank].view(at) if rank in ranks else None) if ranks else no_events)


def scores(folder: Path, prepare: Prepare | None) -> dict[str, Score]:
    """Each rank's score."""
    truths = {rank: truth for rank in ("0", "1") if (truth := Truth.of(folder, rank)) is not None}
    found = {rank: Score() for rank in truths}
    for outcome in outcomes(folder, prepare):
        for state in outcome.states:
            pool, blocks = state.pool("l1", "full"), state.gauges.get("usable_blocks")
            if pool is None or blocks is None or pool.capacity.exact is None or pool.used.exact is None or state.rank not in truths:
                continue
            tokens = pool.capacity.exact / blocks.lo
            looks = truths[state.rank].near(outcome.at, round(pool.used.exact / tokens))
            if not looks:
                continue
            score = found[state.rank]
            score.scrapes += 1
            lo, hi = pool.evictable.lo / tokens - 1e-6, pool.evictable.hi / tokens + 1e-6
            score.outside += not any(lo <= look["evict"] <= hi for look in looks)
            if pool.guess is not None:
                score.errors.append(abs(pool.guess.available / tokens - looks[0]["avail"]))
    return found


WAYS: Mapping[str, Prepare | None] = {"events": whole, "late join": late, "early end": ending, "1 % lost": lossy, "metrics": None}


def main(places: list[str]) -> int:
    """Print the table; 1 when a truth was outside its interval."""
    outside = 0
    print(f"{'recording':22} {'rank':4} {'with':10} {'scrapes':>7} {'outside':>7} {'MAE':>7} {'max':>6}  (available, in blocks)")
    folders = [file.parent for place in places for file in sorted(Path(place).rglob(RECORDING)) if file.parent.parent.name == "vllm"]
    for folder in folders:
        for way, prepare in WAYS.items():
            for rank, score in scores(folder, prepare).items():
                outside += score.outside
                mean = f"{sum(score.errors) / len(score.errors):.2f}" if score.errors else "-"
                most = f"{max(score.errors):.0f}" if score.errors else "-"
                print(f"{folder.name:22} {rank:4} {way:10} {score.scrapes:7} {score.outside:7} {mean:>7} {most:>6}")
    print(f"\nscrapes with the truth outside: {outside}")
    return 1 if outside else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
