"""``kvwatch serve`` as a child process on loopback, for tests of what only a whole daemon shows."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

PATIENCE_SECONDS = 30.0
"""How long anything that must happen may take before the test has failed; nothing here waits for it to pass."""


@dataclass(frozen=True, slots=True)
class Child:
    """A daemon that listens: its process, its pages, and the file that its log goes to."""

    process: subprocess.Popen[bytes]
    pages: httpx.Client
    log_file: Path

    @property
    def address(self) -> str:
        """HOST:PORT."""
        return self.pages.base_url.netloc.decode()

    @property
    def log(self) -> str:
        """All that it logged so far."""
        return self.log_file.read_text(encoding="utf-8")

    def page(self, path: str) -> str:
        """What a page says now."""
        return self.pages.get(path).raise_for_status().text

    def reload(self) -> None:
        """Order the configuration to be read again, as ``systemctl reload`` does."""
        self.process.send_signal(signal.SIGHUP)

    def logs(self, words: str) -> None:
        """Wait until it logged these words."""
        eventually(lambda: words in self.log, lambda: f"{words!r} in the log:\n{self.log}")

    def shows(self, words: str, page: str = "/metrics") -> None:
        """Wait until a page has these words."""
        eventually(lambda: words in self.page(page), lambda: f"{words!r} in {page}:\n{self.page(page)}\n{self.log}")


def eventually(holds: Callable[[], bool], what: Callable[[], str]) -> None:
    """Ask until it holds; AssertionError with ``what`` when that takes too long."""
    last = time.monotonic() + PATIENCE_SECONDS
    while not holds():
        assert time.monotonic() < last, f"not within {PATIENCE_SECONDS:g} s: {what()}"
        time.sleep(0.02)


@contextmanager
def serving(folder: Path, *arguments: str) -> Iterator[Child]:
    """``kvwatch serve`` with these arguments on a free port, while the test runs; ``folder`` takes its log."""
    log_file = folder / "log"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("KVWATCH_")}
    command = [sys.executable, "-m", "kvwatch", "serve", "--listen", "127.0.0.1:0", *arguments]
    with log_file.open("wb") as log, subprocess.Popen(command, env=environment, stdout=log, stderr=log) as process:
        try:
            eventually(
                lambda: process.poll() is not None or "listening on" in log_file.read_text(encoding="utf-8"),
                lambda: "a daemon that listens",
            )
            listening = re.search(r"listening on (http://\S+:\d+)", log_file.read_text(encoding="utf-8"))
            assert listening, log_file.read_text(encoding="utf-8")
            with httpx.Client(base_url=listening[1], trust_env=False, timeout=PATIENCE_SECONDS) as pages:
                yield Child(process, pages, log_file)
        finally:
            process.kill()
