"""One turn: whose body it is, what is read in it, and every way in which it is none."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from kvwatch.exposition import Exposition
from kvwatch.model import ScrapeError
from kvwatch.quantity import exactly
from kvwatch.reading import engine_of, select, side_pages, take_in
from kvwatch.schema import EngineName
from kvwatch.target import Side, Target
from kvwatch.turn import Clocked, failed, finished

DATA = Path(__file__).parent / "data"
TARGET = Target("t", "http://t:8000/metrics")
WHEN = Clocked(at=7.0, wall=1_700_000_000.0, seconds=0.25)
BODIES: dict[str, EngineName] = {
    "vllm/0.32-offload.prom": "vllm",
    "vllm/0.6.prom": "vllm",
    "sglang/0.5.23-hicache.prom": "sglang",
    "sglang/0.4.3.prom": "sglang",
    "lmcache/server-0.5.6.prom": "lmcache",
}


def body(name: str) -> bytes:
    """A recorded exposition."""
    return (DATA / name).read_bytes()


def parsed(name: str) -> Exposition:
    """The same, parsed."""
    exposition = take_in(body(name))
    assert isinstance(exposition, Exposition)
    return exposition


@pytest.mark.parametrize(("name", "engine"), BODIES.items())
def test_an_engine_is_recognised_by_its_body(name: str, engine: EngineName) -> None:
    """And says everything about itself with the target's name and the time the scrape was sent."""
    outcome = finished(TARGET, WHEN, body(name), {})
    assert outcome.ok
    assert (outcome.target, outcome.at, outcome.wall, outcome.duration) == ("t", 7.0, 1_700_000_000.0, 0.25)
    assert {(s.target, s.engine, s.at) for s in outcome.states} == {("t", engine, 7.0)}
    assert outcome.body_bytes == len(body(name))
    assert outcome.malformed_lines == 0


def test_what_in_process_lmcache_exports_belongs_to_the_engine() -> None:
    """Its series in the engine's body are the engine's host tier, no owner of their own."""
    outcome = finished(TARGET, WHEN, body("lmcache/workers-0.5.6-pinned.prom"), {})
    assert outcome.ok
    assert all(s.engine == "vllm" or s.pool("l1", "full") is None for s in outcome.states)


def test_a_configured_engine_is_not_guessed() -> None:
    """A body of another one is none of it."""
    assert engine_of(replace(TARGET, engine="sglang"), parsed("vllm/0.6.prom")) is not engine_of(TARGET, parsed("vllm/0.6.prom"))
    outcome = finished(replace(TARGET, engine="sglang"), WHEN, body("vllm/0.6.prom"), {})
    assert outcome.error is not None
    assert outcome.error.reason == "unknown_engine"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "empty"),
        (b"<!DOCTYPE html><html><body>Not Found</body></html>", "not_exposition"),
        (b'{"detail": "Not Found"}', "not_exposition"),
        (b"go_goroutines 12\nprocess_open_fds 9\n", "unknown_engine"),
    ],
)
def test_what_is_no_engine_is_named(content: bytes, reason: str) -> None:
    """By a closed reason and a sentence."""
    outcome = finished(TARGET, WHEN, content, {})
    assert outcome.error is not None
    assert outcome.error.reason == reason
    assert outcome.error.detail
    assert (outcome.states, outcome.at, outcome.duration) == ((), 7.0, 0.25)


def test_one_bad_line_costs_only_itself() -> None:
    """It is counted; the rest of the scrape stands."""
    whole = finished(TARGET, WHEN, body("vllm/0.6.prom"), {})
    broken = finished(TARGET, WHEN, body("vllm/0.6.prom") + b"this is no sample at all {\n", {})
    assert broken.malformed_lines == 1
    assert broken.states[0].pools == whole.states[0].pools


def test_a_turn_that_brought_nothing() -> None:
    """Keeps when it was and how long it took."""
    outcome = failed(TARGET, WHEN, ScrapeError("refused", "nobody listens"))
    assert not outcome.ok
    assert (outcome.target, outcome.at, outcome.wall, outcome.duration) == ("t", 7.0, 1_700_000_000.0, 0.25)


def test_the_models_file_says_what_a_token_takes() -> None:
    """Of the data type the engine uses; what the engine says itself stands, and a data type the file leaves open stays unknown."""
    sized = replace(TARGET, kv_bytes_per_token={"auto": 1024.0, "fp8": 512.0})
    (state,) = finished(sized, WHEN, body("vllm/0.6.prom"), {}).states
    assert state.gauges["kv_bytes_per_token"] == exactly({"auto": 1024.0, "fp8": 512.0}[state.facts.get("kv_dtype", "auto")])
    other = replace(TARGET, kv_bytes_per_token={"int8": 1.0})
    assert "kv_bytes_per_token" not in finished(other, WHEN, body("vllm/0.6.prom"), {}).states[0].gauges
    server = finished(sized, WHEN, body("lmcache/server-0.5.6.prom"), {})
    assert all("kv_bytes_per_token" not in s.gauges for s in server.states)


def test_side_pages_are_those_of_the_engine_that_are_not_turned_off() -> None:
    """Nothing is asked of a body that is no engine's."""
    pages = {page.name for page in side_pages(TARGET, parsed("sglang/0.5.23-hicache.prom"))}
    assert {"loads", "server_info"} <= pages
    quiet = replace(TARGET, side=Side(loads=False, server_info=False, events=False))
    assert side_pages(quiet, parsed("sglang/0.5.23-hicache.prom")) == ()
    alone = replace(TARGET, side=Side(loads=True, server_info=False))
    assert {page.name for page in side_pages(alone, parsed("sglang/0.5.23-hicache.prom"))} == {"loads"}
    foreign = take_in(b"go_goroutines 12\n")
    assert isinstance(foreign, Exposition)
    assert side_pages(TARGET, foreign) == ()


def test_series_that_no_engine_file_reads_are_left_out() -> None:
    """So that a large body costs what is read in it."""
    assert select("vllm:num_requests_running") is not None
    assert select("sglang:num_running_reqs") is not None
    assert select("python_gc_objects_collected_total") is None
