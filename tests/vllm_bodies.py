"""Bodies of vLLM in a few words, and what is looked at in what is read from them."""

from __future__ import annotations

from collections.abc import Mapping

from kvwatch.engines import Reading, Scrape, vllm
from kvwatch.exposition import parse
from kvwatch.model import EngineState
from kvwatch.target import L2Setting, Target

UNTOLD = L2Setting()
OWNER = 'model_name="m",engine="0"'


def read(body: str, l2: L2Setting = UNTOLD, side: Mapping[str, object] | None = None) -> Reading:
    """A body as one turn of a target named "t"; LMCache's series are kept as its own engine file keeps them."""
    exposition = parse(body.encode(), lambda name: name if name.startswith("lmcache:") else vllm.select(name))
    return vllm.read(Scrape(Target("t", "http://127.0.0.1/metrics", l2=l2), 10.0, None, exposition, side or {}))


def one(body: str, l2: L2Setting = UNTOLD) -> EngineState:
    """The only state in a body."""
    (state,) = read(body, l2).states
    return state


def series(name: str, value: float, labels: str = OWNER) -> str:
    """One line of a body."""
    return f"vllm:{name}{{{labels}}} {value}\n"


def config(rank: str = "0", /, **labels: object) -> str:
    """A ``cache_config_info`` line; 1000 usable blocks of 16 tokens unless said."""
    told = {"block_size": 16, "num_gpu_blocks": 1001, **labels}
    return f'vllm:cache_config_info{{engine="{rank}",' + ",".join(f'{k}="{v}"' for k, v in told.items()) + "} 1.0\n"


def engine(usage: float, running: float = 3, waiting: float = 0, labels: str = OWNER) -> str:
    """The scheduler's gauges."""
    gauges = {"kv_cache_usage_perc": usage, "num_requests_running": running, "num_requests_waiting": waiting}
    return "".join(series(name, value, labels) for name, value in gauges.items())
