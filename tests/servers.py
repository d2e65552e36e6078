"""Prometheus and Alertmanager as child processes on free ports of loopback."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import yaml

from tests.daemon_child import PATIENCE_SECONDS, eventually

LISTENING = re.compile(r"[Ll]istening on.* address=(127\.0\.0\.1:[1-9]\d*)")
ANY_PORT = "--web.listen-address=127.0.0.1:0"
STEP = "1s"
"""Between two scrapes, and between two evaluations of the alerts."""


@dataclass(frozen=True, slots=True)
class Server:
    """One that is ready: its process and its pages."""

    process: subprocess.Popen[bytes]
    pages: httpx.Client

    @property
    def address(self) -> str:
        """HOST:PORT."""
        return self.pages.base_url.netloc.decode()


@contextmanager
def started(log_file: Path, program: str, *arguments: str) -> Iterator[Server]:
    """A server that says in its log where it listens, until the block ends."""
    with log_file.open("wb") as log, subprocess.Popen([program, ANY_PORT, *arguments], stdout=log, stderr=log) as process:
        try:
            eventually(lambda: process.poll() is not None or bool(LISTENING.search(log_file.read_text())), log_file.read_text)
            address = LISTENING.search(log_file.read_text())
            assert address, log_file.read_text()
            with httpx.Client(base_url=f"http://{address[1]}", trust_env=False, timeout=PATIENCE_SECONDS) as pages:
                eventually(lambda: pages.get("/-/ready").is_success, log_file.read_text)
                yield Server(process, pages)
        finally:
            process.kill()


@contextmanager
def prometheus(folder: Path, kvwatch: str, alerting: Mapping[str, object] | None = None) -> Iterator[Server]:
    """A Prometheus that scrapes one kvwatch at HOST:PORT; ``alerting`` adds to its configuration."""
    config = {
        "global": {"scrape_interval": STEP, "scrape_timeout": STEP, "evaluation_interval": STEP},
        "scrape_configs": [{"job_name": "kvwatch", "static_configs": [{"targets": [kvwatch]}]}],
        **(alerting or {}),
    }
    file = folder / "prometheus.yaml"
    file.write_text(yaml.safe_dump(config))
    arguments = (f"--config.file={file}", f"--storage.tsdb.path={folder / 'tsdb'}")
    with started(folder / "prometheus.log", "prometheus", *arguments) as server:
        yield server


def over_time(prometheus: Server, expr: str, began: float, ended: float) -> list[Mapping[str, Any]]:
    """Series that an expression gave between two times (Unix seconds). AssertionError when the expression is refused."""
    asked = {"query": expr, "start": f"{began:.3f}", "end": f"{ended:.3f}", "step": STEP}
    answer = prometheus.pages.post("/api/v1/query_range", data=asked).json()
    assert answer["status"] == "success", f"{expr}: {answer.get('error')}"
    found: list[Mapping[str, Any]] = answer["data"]["result"]
    return found


@contextmanager
def alertmanager(folder: Path, program: str, config: Mapping[str, object]) -> Iterator[Server]:
    """An Alertmanager of its own, in no cluster."""
    file = folder / "alertmanager.yaml"
    file.write_text(yaml.safe_dump(config))
    arguments = (f"--config.file={file}", f"--storage.path={folder / 'alertmanager'}", "--cluster.listen-address=")
    with started(folder / "alertmanager.log", program, *arguments) as server:
        yield server
