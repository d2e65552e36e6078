"""A recorded engine, answering over HTTP as it did then: ``/metrics`` and ``/v1/loads`` at the pace of the recording."""

from __future__ import annotations

import bisect
import json
import re
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from kvwatch.recording import LOADS, RECORDING, Line, lines

_Request = socket.socket | tuple[bytes, socket.socket]
STARTED = re.compile(r"^(process_start_time_seconds )(\S+)", re.MULTILINE)
"""What tells a new life of vLLM from the last one."""
PLAIN = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Incident:
    """The answers of one engine in the order they came; a scrape that failed then is none."""

    metrics: tuple[Line, ...]
    loads: tuple[Line, ...]

    @property
    def seconds(self) -> float:
        """From the first answer to the last."""
        return self.metrics[-1].t1 - self.metrics[0].t1

    def metrics_at(self, second: float, wall: float) -> str:
        """The exposition that was the newest so many seconds after the first one, as an engine would give it at ``wall`` (Unix seconds)."""
        return STARTED.sub(lambda m: f"{m[1]}{float(m[2]) + self._later(second, wall)}", self._newest(self.metrics, second))

    def loads_at(self, second: float, wall: float) -> str | None:
        """The load report of that time; None where the engine has no such page."""
        return _moved(json.loads(self._newest(self.loads, second)), self._later(second, wall)) if self.loads else None

    def _later(self, second: float, wall: float) -> float:
        """Seconds from then to now, the same from the first answer to the last."""
        return wall - self.metrics[0].t1 - second

    def _newest(self, answers: tuple[Line, ...], second: float) -> str:
        there = bisect.bisect_right(answers, self.metrics[0].t1 + second, key=lambda line: line.t1)
        return answers[max(there - 1, 0)].body or ""


def read_incident(folder: Path) -> Incident:
    """Read a folder with a recording, and its load reports where there are any."""
    loads = folder / LOADS
    return Incident(_answers(folder / RECORDING), _answers(loads) if loads.is_file() else ())


def _answers(file: Path) -> tuple[Line, ...]:
    return tuple(line for line in lines(file) if line.body is not None)


def _moved(report: dict[str, object], seconds: float) -> str:
    """A load report as it would have been written later: SGLang tells how old each entry is by two times in it."""
    said = report.get("timestamp")
    if isinstance(said, str):
        report["timestamp"] = (datetime.fromisoformat(said) + timedelta(seconds=seconds)).isoformat()
    entries = report.get("loads")
    for entry in entries if isinstance(entries, list) else ():
        entry["timestamp"] += seconds
    return json.dumps(report)


@dataclass(frozen=True, slots=True)
class Tape:
    """Where all recordings stand: ``skip`` seconds in when it is started, and over again after ``period`` seconds."""

    started: float
    skip: float
    period: float

    def second(self, now: float) -> float:
        """Seconds into the recordings at a monotonic time."""
        return (self.skip + now - self.started) % self.period


@contextmanager
def replaying(incident: Incident, tape: Tape, address: tuple[str, int] = ("127.0.0.1", 0)) -> Iterator[str]:
    """Answer at an address, unless told on a free port of loopback; gives the URL there."""

    class Page(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            second, wall = tape.second(time.monotonic()), time.time()
            path = self.path.partition("?")[0]
            loads = incident.loads_at(second, wall) if path == "/v1/loads" else None
            body = incident.metrics_at(second, wall) if path == "/metrics" else loads
            content = b"not recorded\n" if body is None else body.encode()
            self.send_response(404 if body is None else 200)
            self.send_header("Content-Type", PLAIN if loads is None else "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            """Keep quiet: the demo's lines are the ones to read."""

    with _Server(address, Page) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, name="replay", daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/metrics"
        finally:
            server.shutdown()
            thread.join()


class _Server(ThreadingHTTPServer):
    """Its connections end with the process, and one that a client drops is nobody's problem."""

    daemon_threads = True

    def handle_error(self, request: _Request, client_address: object) -> None:
        """Say what went wrong, unless it is that."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)
