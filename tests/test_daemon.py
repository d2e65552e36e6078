"""The daemon's memory in one process: what its pages answer from, and what a reload changes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from threading import Thread
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from kvwatch.config import Config, ConfigError, load
from kvwatch.daemon import DEFAULT_URLS, HISTORY_BOUNDS, HISTORY_SERIES, Daemon, targets_of
from kvwatch.rules import names
from kvwatch.signals import SIGNALS
from kvwatch.target import Target
from tests.daemon_child import eventually
from tests.loopback import server
from tests.pages import Pages, vllm


def config(port: int, *more: str) -> Config:
    """A configuration with one target on loopback, and further lines."""
    return load(
        "\n".join(("interval: 1s", "nvml: off", *more, "targets:", f"  - {{name: chat-0, url: 'http://127.0.0.1:{port}'}}")),
        "test",
        names(),
    )


@contextmanager
def running(first: Config, again: Callable[[], Config] | None = None) -> Iterator[Daemon]:
    """A daemon that scrapes while the test runs; it has tried every target once."""
    daemon = Daemon(first, again or (lambda: first))
    daemon.start()
    try:
        eventually(daemon.ready, lambda: "every target was tried")
        yield daemon
    finally:
        daemon.stop()
        for thread in daemon._poller._threads:
            thread.join(10)


@pytest.fixture
def engine() -> Iterator[tuple[Pages, int]]:
    """An engine on loopback and its port."""
    pages = Pages({"/metrics": vllm(running=3, usage=0.5)})
    with server(pages) as port:
        yield pages, port


def test_nothing_runs_before_it_is_started(engine: tuple[Pages, int]) -> None:
    """It is not ready, and says that nothing was scraped."""
    pages, port = engine
    daemon = Daemon(config(port), lambda: config(port))
    assert not daemon.ready()
    assert daemon.verdict(None)["status"] == "unknown"
    assert pages.asked == []


def test_every_page_tells_the_same_moment(engine: tuple[Pages, int]) -> None:
    """JSON, text and metrics are three ways to say it."""
    _, port = engine
    with running(config(port)) as daemon:
        told: Any = daemon.verdict(None)
        assert told["engines"][0]["requests"]["running"] == 3
        assert "chat-0  vllm  m  [serving]" in daemon.text(None)
        body, kind = daemon.metrics(openmetrics=False)
        assert kind.startswith("text/plain")
        families = {f.name: f for f in text_string_to_metric_families(body.decode())}
        assert {s.labels["target"]: s.value for s in families["kvwatch_target_up"].samples} == {"chat-0": 1.0}
        assert "process_resident_memory_bytes" in families, "the daemon's own cost"
        body, kind = daemon.metrics(openmetrics=True)
        assert kind.startswith("application/openmetrics-text")
        assert body.endswith(b"# EOF\n")


def test_one_target_alone(engine: tuple[Pages, int]) -> None:
    """Of one that is not there nothing is known."""
    _, port = engine
    with running(config(port)) as daemon:
        alone: Any = daemon.verdict("chat-0")
        assert [t["name"] for t in alone["targets"]] == ["chat-0"]
        nobody: Any = daemon.verdict("chat-9")
        assert (nobody["status"], nobody["targets"]) == ("unknown", [])


def test_history_is_what_the_page_draws(engine: tuple[Pages, int]) -> None:
    """Every series as long as its ages, newest last, null where unknown; bounds for what is only bounded."""
    pages, port = engine
    with running(config(port)) as daemon:
        eventually(lambda: len(samples(daemon)) >= 2, lambda: f"two samples: {pages.asked}")
        told: Any = daemon.history()
        assert told["window_seconds"] == 900
        (row,) = told["engines"]
        assert (row["target"], row["engine"], row["model"], row["rank"]) == ("chat-0", "vllm", "m", "0")
        wanted = {n.removesuffix("_seconds") for n in HISTORY_SERIES} | {f"{n}_{end}" for n in HISTORY_BOUNDS for end in ("min", "max")}
        assert set(row["series"]) == wanted
        assert {len(values) for values in row["series"].values()} == {len(row["age_seconds"])}
        assert row["age_seconds"] == sorted(row["age_seconds"], reverse=True)
        assert row["series"]["l1_used_ratio"][-1] == 0.5
        assert row["series"]["ttft_p99"][-1] is None
        assert (row["series"]["l1_resident_ratio_min"][-1], row["series"]["l1_resident_ratio_max"][-1]) == (0.5, 1.0)


def samples(daemon: Daemon) -> list[float]:
    """Ages of what is remembered of the first owner."""
    told: Any = daemon.history()
    ages: list[float] = told["engines"][0]["age_seconds"] if told["engines"] else []
    return ages


def test_what_is_drawn_is_kept() -> None:
    """The series of the page are the signals that stay in the history, and no others take room there."""
    kept = {s.name for s in SIGNALS if s.kept}
    assert {*HISTORY_SERIES, *HISTORY_BOUNDS} == kept


def test_a_rules_page() -> None:
    """As the command line prints it; None for no rule."""
    daemon = Daemon(config(1), lambda: config(1))
    assert (daemon.runbook("l1-saturated") or "").startswith("l1-saturated\n\ncritical, fires after 30 s\n")
    assert daemon.runbook("nothing") is None


def test_without_targets_it_looks_where_engines_listen() -> None:
    """As guesses, which say nothing until they answer."""
    guesses = targets_of(load("", "test", names()))
    assert tuple(t.url for t in guesses) == DEFAULT_URLS
    assert all(t.candidate for t in guesses)
    assert targets_of(config(1))[0].candidate is False


def test_a_reload_takes_new_thresholds_at_once(engine: tuple[Pages, int]) -> None:
    """With the history of a target that did not change."""
    pages, port = engine
    pages.answers["/metrics"] = vllm(running=3, waiting=4, usage=0.99)
    wanted = [config(port)]
    with running(wanted[0], lambda: wanted[0]) as daemon:
        assert daemon.verdict(None)["status"] == "ok"
        before = len(samples(daemon))
        wanted[0] = config(port, "thresholds:", "  l1-saturated: {hold: 0s}")
        assert daemon.reload() is None
        assert len(samples(daemon)) >= before
        eventually(lambda: daemon.verdict(None)["status"] == "critical", lambda: f"it fires: {daemon.text(None)}")


def test_a_reload_while_it_starts_comes_after_the_start() -> None:
    """SIGHUP may come at any moment: the two configurations do not mix, and the new one is what is scraped."""
    old, new = config(1), config(1, "timeout: 900ms")
    daemon = Daemon(old, lambda: new)
    reload = Thread(target=daemon.reload)

    class Interrupting(tuple[Target, ...]):
        """Targets whose first reading is interrupted by the signal."""

        __slots__ = ()

        def __iter__(self) -> Iterator[Target]:
            if reload.ident is None:
                reload.start()
                reload.join(0.3)
            return super().__iter__()

    daemon._config = replace(old, targets=Interrupting(old.targets))
    try:
        daemon.start()
        reload.join(10)
        assert [slot.scraper.timeout for slot in daemon._poller._slots] == [0.9]
    finally:
        daemon.stop()


def test_a_reload_without_a_change_disturbs_nobody(engine: tuple[Pages, int], caplog: pytest.LogCaptureFixture) -> None:
    """No scrape is begun anew."""
    caplog.set_level(logging.INFO, "kvwatch")
    pages, port = engine
    with running(replace(config(port), interval=3600.0)) as daemon:
        assert daemon.reload() is None
        assert pages.count("/metrics") == 1
    assert "configuration read again: nothing changed" in caplog.text


def test_a_bad_configuration_is_refused_and_says_why(engine: tuple[Pages, int], caplog: pytest.LogCaptureFixture) -> None:
    """Each of its lines in the log, all of them in the answer; the old one stays."""
    _, port = engine

    def bad() -> Config:
        raise ConfigError(["kvwatch.yaml:1: one", "kvwatch.yaml:2: two"])

    with running(config(port), bad) as daemon:
        assert daemon.reload() == "kvwatch.yaml:1: one; kvwatch.yaml:2: two"
        assert [t.name for t in targets_of(daemon._config)] == ["chat-0"]
    assert len([r for r in caplog.records if r.levelno == logging.ERROR]) == 2


def test_what_only_a_restart_brings_is_named(engine: tuple[Pages, int], caplog: pytest.LogCaptureFixture) -> None:
    """The address, GPU watching and the reload page."""
    caplog.set_level(logging.INFO, "kvwatch")
    _, port = engine
    with running(config(port), lambda: config(port, "listen: '127.0.0.1:9'")) as daemon:
        assert daemon.reload() is None
    assert "only a restart brings the new listen" in caplog.text
