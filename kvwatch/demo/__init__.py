"""The ``demo`` command: recorded incidents of real engines on loopback, and the real daemon watching them.

``recordings/`` holds what an SGLang 0.5.23 and a vLLM 0.32.0 with tiny random models answered while clients overloaded them; HELP texts are
neutral.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from importlib.resources import as_file, files
from typing import TextIO

from kvwatch.address import ListenError
from kvwatch.config import load
from kvwatch.daemon import Daemon
from kvwatch.demo.replay import Tape, read_incident, replaying
from kvwatch.demo.story import Story
from kvwatch.rules import names
from kvwatch.web.app import build_app
from kvwatch.web.server import build_server, listen

ENGINES = {
    "sglang-hicache": "SGLang 0.5.23: 8,192 tokens of KV in HBM (L1), twice as much in host memory (L2, write_through_selective)",
    "vllm": "vLLM 0.32.0: 255 blocks of 32 tokens in HBM (L1), no host tier",
}
PAUSE_SECONDS = 15.0
"""How long the last answers stand before the recordings begin again."""
LOOK_SECONDS = 0.5
PAGE = ("127.0.0.1", 9477)
CONFIG = """
interval: 1s
nvml: off
slo: {ttft_p99: 2s}
thresholds:
  l1-saturated: {hold: 10s}
  l1-saturated-l2-idle: {hold: 10s}
  preemption-storm: {hold: 10s}
targets:
"""
"""The daemon's configuration; the targets, whose ports are only known then, come below."""


def run(seconds: float | None, address: tuple[str, int] | None, skip: float, out: TextIO) -> int:
    """Show the demo until Ctrl-C, or for some seconds; ``skip`` begins so far into the incidents. Raises ListenError."""
    sockets = _listen(address)
    try:
        with ExitStack() as stack:
            engines = _engines(stack, skip)
            daemon = stack.enter_context(_watching(engines, sockets))
            _introduce(engines, _url(sockets[0]), out)
            _tell(daemon, seconds, out)
    except KeyboardInterrupt:
        print(file=out)  # below the ^C of the terminal
    return 0


def _listen(address: tuple[str, int] | None) -> tuple[socket.socket, ...]:
    """The wanted address, or the usual port if it is free, or any."""
    if address is not None:
        return listen(*address)
    try:
        return listen(*PAGE)
    except ListenError:
        return listen(PAGE[0], 0)


def _url(opened: socket.socket) -> str:
    host, port = opened.getsockname()[:2]
    shown = {"::": "127.0.0.1", "0.0.0.0": "127.0.0.1"}.get(host, f"[{host}]" if ":" in host else host)  # noqa: S104  compared, not listened on
    return f"http://{shown}:{port}"


def _engines(stack: ExitStack, skip: float) -> Mapping[str, str]:
    """Start the recorded engines, all at the same time; their URLs by name."""
    folder = stack.enter_context(as_file(files("kvwatch.demo") / "recordings"))
    incidents = {name: read_incident(folder / name) for name in ENGINES}
    tape = Tape(time.monotonic(), skip, max(i.seconds for i in incidents.values()) + PAUSE_SECONDS)
    return {name: stack.enter_context(replaying(incident, tape)) for name, incident in incidents.items()}


@contextmanager
def _watching(engines: Mapping[str, str], sockets: Sequence[socket.socket]) -> Iterator[Daemon]:
    """Run the daemon and its pages in threads; both end with the block."""
    targets = "".join(f"- {json.dumps({'name': name, 'url': url})}\n" for name, url in engines.items())
    config = load(CONFIG + targets, "the demo's configuration", names())
    daemon = Daemon(config, lambda: config)
    server = build_server(build_app(daemon, reload_endpoint=False))
    thread = threading.Thread(target=server.run, kwargs={"sockets": list(sockets)}, name="pages", daemon=True)
    thread.start()
    daemon.start()
    try:
        yield daemon
    finally:
        daemon.stop()
        server.should_exit = True
        thread.join()


def _introduce(engines: Mapping[str, str], page: str, out: TextIO) -> None:
    print("Two incidents of real engines, recorded on tiny models, replayed on this machine at their own pace:\n", file=out)
    for name, url in engines.items():
        print(f"  {name:14}  {ENGINES[name]}\n  {'':14}  {url}", file=out)
    print(
        "\nWhat will happen: calm traffic for about 30 s; then more requests than L1 holds: they queue, running ones are preempted,\n"
        "first tokens take seconds. kvwatch says why, and what to do. (Findings fire after 10 s here, 30 s by default.)\n"
        "After two minutes it begins again, as if the engines had been restarted.\n\n"
        f"  page     {page}/\n"
        f"  verdict  curl -s '{page}/diagnose?format=text'\n"
        f"  metrics  curl -s {page}/metrics\n\n"
        "Ctrl-C ends it.\n",
        file=out,
        flush=True,
    )


def _tell(daemon: Daemon, seconds: float | None, out: TextIO) -> None:
    """Print the story until the time is over."""
    story, begun = Story(), time.monotonic()
    while seconds is None or time.monotonic() - begun < seconds:
        time.sleep(LOOK_SECONDS)
        for line in story.lines(daemon.judge(), time.monotonic() - begun):
            print(line, file=out, flush=True)
