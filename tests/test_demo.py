"""The demo: what a newcomer sees, and what is left of it afterwards."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path

import httpx
import pytest

from kvwatch.config import load
from kvwatch.demo import CONFIG, ENGINES
from kvwatch.demo.replay import Incident, Tape, read_incident
from kvwatch.demo.story import Story
from kvwatch.exposition import Memo
from kvwatch.report import verdict
from kvwatch.rules import active, names
from kvwatch.store import Store
from kvwatch.target import Target
from kvwatch.turn import Clocked, finished
from kvwatch.view import Watch

RECORDINGS = Path(str(files("kvwatch.demo"))) / "recordings"
ADDRESS = re.compile(r"http://127\.0\.0\.1:(\d+)")
PERIOD = 115.0


@contextmanager
def demo(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """The command as a person starts it, on a free port."""
    command = [sys.executable, "-m", "kvwatch", "demo", "--listen", "127.0.0.1:0", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def open_ports(said: str) -> list[str]:
    """Ports of the addresses in the output that somebody still listens on."""
    ports = sorted(set(ADDRESS.findall(said)))
    assert len(ports) == 3, said
    opened = []
    for port in ports:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", int(port))) == 0:
                opened.append(port)
    return opened


def test_it_names_the_flagship_and_ends_with_ctrl_c() -> None:
    """The first lines give the addresses, the flagship is told, page and metrics answer, Ctrl-C leaves no trace, no port, no traceback."""
    with demo("--skip", "28", "--for", "60") as process:
        assert process.stdout is not None
        said = ""
        for line in process.stdout:
            said += line
            if "l1-saturated-l2-idle" in line:
                break
        assert "sglang-hicache: Requests queue: HBM (L1) admits no more" in said.splitlines()[-1]
        page = re.search(r"page +(\S+)/", said)
        assert page is not None
        with httpx.Client(base_url=page[1], trust_env=False, timeout=30) as pages:
            assert "<title>kvwatch" in pages.get("/").text
            assert 'kvwatch_pool_capacity_tokens{engine="sglang"' in pages.get("/metrics").text
            assert "l1-saturated-l2-idle" in {f["rule"] for f in pages.get("/diagnose").json()["findings"]}
        assert len(open_ports(said)) == 3
        process.send_signal(signal.SIGINT)
        rest, errors = process.communicate()
    assert (process.returncode, errors) == (0, "")
    assert open_ports(said + rest) == []


def test_it_ends_by_itself() -> None:
    """After the time asked for it is over, with exit code 0 and nothing on stderr."""
    with demo("--for", "1") as process:
        said, errors = process.communicate()
    assert (process.returncode, errors) == (0, "")
    assert said.startswith("Two incidents of real engines")
    assert open_ports(said) == []


def test_a_taken_address_is_one_line(capfd: pytest.CaptureFixture[str]) -> None:
    """An address that was asked for and is in use is an error that says so, not another address."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        done = subprocess.run([sys.executable, "-m", "kvwatch", "demo", "--listen", address], check=False)
    out, errors = capfd.readouterr()
    assert (done.returncode, out) == (1, "")
    assert re.fullmatch(rf"kvwatch demo: cannot listen on {re.escape(address)}: .*\n", errors)


def seconds(tape: Tape, begin: int, end: int) -> Iterator[tuple[int, float]]:
    """Each second of a stretch, and where the tape stands."""
    return ((now, tape.second(now)) for now in range(begin, end))


@pytest.fixture(scope="module")
def incidents() -> dict[str, Incident]:
    """The recordings that are shipped."""
    return {name: read_incident(RECORDINGS / name) for name in ENGINES}


def test_the_story_is_calm_then_critical_then_over_and_again(incidents: dict[str, Incident]) -> None:
    """Without any waiting: two rounds of the tape bring, for each engine, its root, the end of it, and no alarm about the new beginning."""
    config = load(CONFIG.removesuffix("targets:\n"), "", names())
    rules, story, tape = active(config.thresholds), Story(), Tape(0, 0, PERIOD)
    targets, memos = [Target(name, name) for name in incidents], {name: Memo() for name in incidents}
    store = Store(targets, Watch(1, slo_ttft_p99=config.slo_ttft_p99), rules)
    told: list[str] = []
    for now, second in seconds(tape, 0, 230):
        for target in targets:
            incident = incidents[target.name]
            loads = incident.loads_at(second, now)
            side = {} if loads is None else {"loads": json.loads(loads)}
            store.add(finished(target, Clocked(now, now), incident.metrics_at(second, now).encode(), side, memos[target.name]))
        told += story.lines(verdict(store.snapshot(now), rules), now)
    critical = [line for line in told if "CRITICAL" in line]
    assert [re.sub(r".*CRITICAL +(\S+): .*\((\S+), .*", r"\1 \2", line) for line in critical] == 2 * [
        "vllm l1-saturated", "sglang-hicache l1-saturated-l2-idle",
    ]  # fmt: skip
    assert all(int(line.split()[0]) % PERIOD < 50 for line in critical)
    assert "write-starved" in critical[1]
    assert [line.split(maxsplit=3)[-1] for line in told if " over " in line and "l1-saturated" in line] == 2 * [
        "vllm: l1-saturated", "sglang-hicache: l1-saturated-l2-idle",
    ]  # fmt: skip
    assert told[0].split()[2] == "ok"


def test_times_in_the_answers_are_of_now(incidents: dict[str, Incident]) -> None:
    """A load report is as old as it was then, and vLLM's start is the same all through one round and another in the next."""
    report = json.loads(incidents["sglang-hicache"].loads_at(40, 1_900_000_000) or "")
    assert report["timestamp"].startswith("2030-03-17T17:4")
    assert 0 <= 1_900_000_000 - report["loads"][0]["timestamp"] < 5
    vllm, tape = incidents["vllm"], Tape(0, 0, PERIOD)
    started = re.compile(r"^process_start_time_seconds (\S+)", re.MULTILINE)
    starts = [float(started.findall(vllm.metrics_at(second, now))[0]) for now, second in seconds(tape, 0, 230)]
    assert starts[:115] == pytest.approx([starts[0]] * 115, abs=0.01)
    assert starts[115:] == pytest.approx([starts[0] + PERIOD] * 115, abs=0.01)
    assert incidents["vllm"].loads_at(40, 0) is None
