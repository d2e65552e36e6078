"""What ``kvwatch serve`` costs beside one engine: resident memory, share of a core, and how soon it can say something.

A loopback server answers every scrape with a vLLM body, so the figures hold for one target scraped every 5 s with GPU watching on.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
BODY = max((REPOSITORY / "tests/data/vllm").glob("*.prom"), key=lambda path: path.stat().st_size).read_bytes()
CARDS = """
import pynvml
from tests.stubs.nvml import Card, FakeNvml
cards = FakeNvml(*(Card(f"GPU-{index}", memory=(80 << 30, 70 << 30, 9 << 30, 1 << 30)) for index in range(8)))
for name in dir(cards):
    if name.startswith("nvml"):
        setattr(pynvml, name, getattr(cards, name))
"""
"""A ``sitecustomize`` that loads the real NVML binding and lets eight cards answer its calls, as a host without a GPU has none."""
INTERVAL_SECONDS = 5
WATCHED_SECONDS = 40
START_LIMIT_SECONDS = 30


class Engine(BaseHTTPRequestHandler):
    """Answers ``/metrics`` with ``BODY`` and every other path with 404, on a connection that stays open."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """Serve one page."""
        body = BODY if self.path == "/metrics" else b""
        self.send_response(200 if body else 404)
        self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name the base class gave it
        """Say nothing: figures alone are printed."""


@contextlib.contextmanager
def engine() -> Iterator[int]:
    """A loopback engine; yields its port."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Engine) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield server.server_port
        finally:
            server.shutdown()


@contextlib.contextmanager
def sidecar(target_port: int) -> Iterator[tuple[int, int]]:
    """``kvwatch serve`` watching that port; yields its pid and its own port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder, "kvwatch.yaml")
        config.write_text(f"interval: {INTERVAL_SECONDS}s\ntargets:\n  - url: http://127.0.0.1:{target_port}/metrics\n", encoding="utf-8")
        Path(folder, "sitecustomize.py").write_text(CARDS, encoding="utf-8")
        search = os.pathsep.join([folder, str(REPOSITORY)])
        command = [sys.executable, "-m", "kvwatch", "serve", "--config", str(config), "--listen", f"127.0.0.1:{port}"]
        with subprocess.Popen(command, env=os.environ | {"PYTHONPATH": search}, stderr=subprocess.DEVNULL) as process:
            try:
                yield process.pid, port
            finally:
                process.terminate()


def has_verdict(port: int) -> bool:
    """Whether ``GET /diagnose`` names an engine yet; False as well while nothing listens."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/diagnose")
        return bool(json.loads(connection.getresponse().read())["engines"])
    except OSError:
        return False
    finally:
        connection.close()


def processor_seconds(pid: int) -> float:
    """User and system time of all threads of a process so far (fields 14 and 15 of ``/proc/PID/stat``), to 10 ms."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_bytes(pid: int) -> int:
    """``VmRSS`` of a process."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    return int(status.partition("VmRSS:")[2].split()[0]) * 1024


def run() -> list[tuple[str, str]]:
    """The three figures beside their targets; about 45 s."""
    with engine() as target_port:
        begun = time.monotonic()
        with sidecar(target_port) as (pid, port):
            while not has_verdict(port):
                if time.monotonic() - begun > START_LIMIT_SECONDS:
                    return [("start to first verdict", f"none within {START_LIMIT_SECONDS} s (target 2 s)")]
                time.sleep(0.02)
            first_verdict = time.monotonic() - begun
            time.sleep(INTERVAL_SECONDS)  # the second scrape fills what the first one left empty
            before, since = processor_seconds(pid), time.monotonic()
            time.sleep(WATCHED_SECONDS)
            share = (processor_seconds(pid) - before) / (time.monotonic() - since)
            resident = resident_bytes(pid)
    return [
        ("start to first verdict", f"{first_verdict:.2f} s (target 2 s)"),
        ("share of a core, one target every 5 s", f"{share:.2%} (target 0.50%)"),
        ("resident memory, GPU watching on", f"{resident / 1e6:.1f} MB (target 75 MB)"),
    ]
