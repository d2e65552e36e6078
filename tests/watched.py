"""A small site on loopback: recorded engines, a stand-in for NVML, ``kvwatch serve`` watching them, and a Prometheus that scrapes it."""

from __future__ import annotations

import gzip
import json
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

import pytest
import yaml

from kvwatch.demo.replay import Incident, Tape, read_incident, replaying
from kvwatch.recording import Line
from tests.daemon_child import serving
from tests.loopback import kept_port
from tests.servers import Server, over_time, prometheus

ROOT = Path(__file__).parents[1]
DATA = Path(__file__).parent / "data"
CARD = "GPU-11111111-2222-3333-4444-555555555555"
NVML = f"""
from tests.stubs.nvml import Card, FakeNvml
GIB = 1 << 30
binding = FakeNvml(Card({CARD!r}, memory=(80 * GIB, 60 * GIB, 18 * GIB, 2 * GIB)))
def __getattr__(name):
    return getattr(binding, name)
"""
"""What the daemon imports as pynvml."""
MODEL = {"architectures": ["LlamaForCausalLM"], "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2,
         "num_hidden_layers": 2, "torch_dtype": "bfloat16"}  # fmt: skip
BEGIN_SECONDS = 5.0
"""Where the recordings are when the site starts: calm traffic for long enough to learn from, and then the collapse."""
PERIOD_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class Prometheus:
    """A server that has scraped since ``began`` (Unix seconds)."""

    server: Server
    began: float

    def series(self, expr: str) -> list[Mapping[str, str]]:
        """Labels of everything an expression gave since it began. AssertionError when the expression is refused."""
        return [found["metric"] for found in over_time(self.server, expr, self.began, time.time())]


def incidents() -> Mapping[str, Incident]:
    """What the engines answered: two that collapse, one with a native host tier in bytes, and a cache server."""
    demo = Path(str(files("kvwatch.demo"))) / "recordings"
    return {
        "sglang": read_incident(demo / "sglang-hicache"),
        "vllm": read_incident(demo / "vllm"),
        "offload": _paced(DATA / "exposition" / "vllm-offload.jsonl.gz", 10.0),
        "lmcache": _paced(DATA / "lmcache" / "server.jsonl.gz", 1.0),
    }


def _paced(file: Path, pause: float) -> Incident:
    """Bodies without times, so far apart."""
    with gzip.open(file, "rt", encoding="utf-8") as records:
        bodies = [json.loads(record)["body"] for record in records]
    return Incident(tuple(Line(pause * i, pause * i, body, None) for i, body in enumerate(bodies)), ())


@contextmanager
def watched_site(folder: Path) -> Iterator[Prometheus]:
    """The whole site while the tests run; everything ends with it."""
    (folder / "nvml").mkdir()
    (folder / "nvml" / "pynvml.py").write_text(NVML)
    (folder / "config.json").write_text(json.dumps(MODEL))
    with ExitStack() as stack:
        environment = stack.enter_context(pytest.MonkeyPatch.context())
        environment.setenv("PYTHONPATH", f"{folder / 'nvml'}:{ROOT}")
        tape = Tape(time.monotonic(), BEGIN_SECONDS, PERIOD_SECONDS)
        urls = {name: stack.enter_context(replaying(incident, tape)) for name, incident in incidents().items()}
        urls["gone"] = f"http://127.0.0.1:{stack.enter_context(kept_port())}"
        (folder / "kvwatch.yaml").write_text(yaml.safe_dump(_settings(folder, urls)))
        kvwatch = stack.enter_context(serving(folder, "--config", str(folder / "kvwatch.yaml")))
        began = time.time()
        yield Prometheus(stack.enter_context(prometheus(folder, kvwatch.address)), began)


def _settings(folder: Path, urls: Mapping[str, str]) -> Mapping[str, object]:
    """Findings fire after a second; the last target never answers."""
    targets: list[dict[str, object]] = [{"name": name, "url": url} for name, url in urls.items()]
    for target in targets[:2]:
        target |= {"model_config": str(folder / "config.json"), "gpus": [CARD]}
    soon = {rule: {"hold": "1s"} for rule in ("l1-saturated", "l1-saturated-l2-idle", "preemption-storm", "ttft-degraded")}
    return {"interval": "1s", "window": "20s", "targets": targets, "thresholds": soon}
