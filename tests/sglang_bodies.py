"""Bodies of SGLang's /metrics for tests, made by its label sets, and the way to read them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from kvwatch.engines import Reading, Scrape, sglang
from kvwatch.exposition import parse
from kvwatch.model import EngineState
from kvwatch.target import Target

DATA = Path(__file__).parent / "data" / "sglang"
NOW = 1_796_000_000.0


def read(body: str, side: Mapping[str, object] | None = None) -> Reading:
    """A body as one turn of a target named "t"."""
    return sglang.read(Scrape(Target("t", "http://127.0.0.1/metrics"), 10.0, NOW, parse(body.encode(), sglang.select), side or {}))


def recorded(version: str) -> str:
    """A body of the data folder."""
    return (DATA / f"{version}.prom").read_text()


def one(body: str, side: Mapping[str, object] | None = None) -> EngineState:
    """The only state in a body."""
    (state,) = read(body, side).states
    return state


def lines(values: Mapping[str, float | str], **labels: str) -> str:
    """Scheduler series of one rank; labels given replace or extend the usual ones."""
    told = {"model_name": "m", "engine_type": "unified", "tp_rank": "0", "pp_rank": "0", "moe_ep_rank": "0", **labels}
    text = ",".join(f'{key}="{value}"' for key, value in told.items())
    return "".join(f"sglang:{name}{{{text}}} {value}\n" for name, value in values.items())


def cache(name: str, value: float, **labels: str) -> str:
    """One series of the radix cache, which names no model."""
    told = {"cache_type": "UnifiedRadixCache", **labels}
    return f"sglang:{name}{{" + ",".join(f'{key}="{value}"' for key, value in told.items()) + f"}} {value}\n"


def kv(used: float | str, evictable: float | str, available: float | str, capacity: float = 1000) -> dict[str, float | str]:
    """The three states of the KV pool and its size."""
    states = {"kv_used_tokens": used, "kv_evictable_tokens": evictable, "kv_available_tokens": available}
    return {"max_total_num_tokens": capacity, **states}


RANK0 = {"tp_rank": "0", "pp_rank": "0", "dp_rank": "0"}
BUSY: Mapping[str, float | str] = {"num_running_reqs": 8, "num_queue_reqs": 3, **kv(700, 200, 100)}
"""A scheduler with a queue."""


def loads(age: float, rank: int = 0, **entry: object) -> dict[str, object]:
    """What /v1/loads answered with one report of that age, as the side pages of a scrape."""
    report = {"dp_rank": rank, "timestamp": NOW - age, "num_running_reqs": 5, "num_waiting_reqs": 9, "num_used_tokens": 40, **entry}
    return {"loads": {"loads": [report], "version": "0.5.23"}}
