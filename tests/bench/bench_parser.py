"""What reading a body costs beside prometheus_client's parser: a recorded vLLM body under load, and what the engine file wants of it.

Both take turns, so that a busy machine slows them alike, and the medians of the rounds are compared.
"""

from __future__ import annotations

import gzip
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from kvwatch.engines.vllm import select
from kvwatch.exposition import Memo, parse

RECORDING = Path(__file__).parents[1] / "data" / "exposition" / "vllm.jsonl.gz"
ROUNDS = 40
TURNS = 4


def seconds(read: Callable[[], object], turns: int = TURNS) -> float:
    """What one call takes, as the mean of a few."""
    begun = time.perf_counter()
    for _ in range(turns):
        read()
    return (time.perf_counter() - begun) / turns


def run() -> list[tuple[str, str]]:
    """The ratios, for the four ways a body can be new; about 3 s."""
    with gzip.open(RECORDING, "rt", encoding="utf-8") as lines:
        texts = [json.loads(line)["body"] for line in lines][1:]  # the first is idle: another shape
    bodies = [text.encode() for text in texts]
    warm, still, moved = Memo(), Memo(), Memo()
    longer = bodies[0].replace(b"# HELP vllm:n", b'vllm:num_requests_running{engine="1",model_name="x"} 0.0\n# HELP vllm:n', 1)

    readers: dict[str, Callable[[], object]] = {
        "prometheus_client": lambda: list(text_string_to_metric_families(texts[0])),
        "next body of a busy engine": lambda: [parse(body, select, warm) for body in bodies],
        "same body again": lambda: [parse(bodies[0], select, still) for _ in bodies],
        "a line more or less": lambda: [parse(body, select, moved) for body in (longer, bodies[0])],
        "first body": lambda: parse(bodies[0], select),
    }
    calls = {"next body of a busy engine": len(bodies), "same body again": len(bodies), "a line more or less": 2}
    taken: dict[str, list[float]] = {name: [] for name in readers}
    for _ in range(ROUNDS):
        for name, read in readers.items():
            taken[name].append(seconds(read) / calls.get(name, 1))
    cost = {name: statistics.median(times) for name, times in taken.items()}
    oracle = cost.pop("prometheus_client")
    size, count = len(bodies[0]), parse(bodies[0], select).sample_lines
    return [
        (f"prometheus_client, {size / 1000:.0f} kB, {count} samples", f"{oracle * 1e6:.0f} us"),
        *((name, f"{time_taken * 1e6:.0f} us, {oracle / time_taken:.1f} times as fast") for name, time_taken in cost.items()),
    ]


if __name__ == "__main__":
    for what, figure in run():
        print(f"{what:44} {figure}")
