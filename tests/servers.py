"""Prometheus and Alertmanager as child processes on free ports of loopback."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from tests.daemon_child import PATIENCE_SECONDS, eventually

LISTENING = re.compile(r"[Ll]istening on.* address=(127\.0\.0\.1:[1-9]\d*)")
ANY_PORT = "--web.listen-address=127.0.0.1:0"


@contextmanager
def started(log_file: Path, program: str, *arguments: str) -> Iterator[httpx.Client]:
    """A server that says in its log where it listens; gives a client of its pages, and ends with the block."""
    with log_file.open("wb") as log, subprocess.Popen([program, ANY_PORT, *arguments], stdout=log, stderr=log) as process:
        try:
            eventually(lambda: process.poll() is not None or bool(LISTENING.search(log_file.read_text())), log_file.read_text)
            address = LISTENING.search(log_file.read_text())
            assert address, log_file.read_text()
            with httpx.Client(base_url=f"http://{address[1]}", trust_env=False, timeout=PATIENCE_SECONDS) as pages:
                eventually(lambda: pages.get("/-/ready").is_success, log_file.read_text)
                yield pages
        finally:
            process.kill()
