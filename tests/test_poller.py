"""Who is scraped when: never twice at once, the slow and the lost at nobody else's cost, and an end in time."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import pytest

from kvwatch.gpu import GpuWatcher
from kvwatch.gpu.library import Library
from kvwatch.model import Outcome
from kvwatch.poller import GpuPoller, Poller, Scraper, _Slot
from kvwatch.rules import active
from kvwatch.scrape import Client
from kvwatch.store import Store
from kvwatch.target import Side, Target
from kvwatch.view import Watch
from tests.daemon_child import PATIENCE_SECONDS, eventually
from tests.loopback import Handler, server
from tests.pages import Pages, sglang, vllm
from tests.stubs.nvml import Card, FakeNvml

LOADS, INFO = "/v1/loads?include=all", "/server_info"
QUICK = 0.02
"""Seconds between scrapes, where only their order matters."""


@dataclass
class Clock:
    """What the poller takes for ``time``."""

    now: float = 1000.0

    def monotonic(self) -> float:
        """Seconds since some moment."""
        return self.now

    def time(self) -> float:
        """Unix seconds."""
        return 1_700_000_000.0 + self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Time that stands still until the test moves it."""
    made = Clock()
    monkeypatch.setattr("kvwatch.poller.time", made)
    return made


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    """Servers and clients that end with the test, clients first."""
    with ExitStack() as made:
        yield made


Serve = Callable[..., Scraper]


@pytest.fixture
def serve(stack: ExitStack) -> Serve:
    """Make a scraper of a handler on loopback."""

    def make(handler: Handler, name: str = "t", *, side: Side | None = None, engine: str = "auto", candidate: bool = False) -> Scraper:
        port = stack.enter_context(server(handler))
        target = Target(name, f"http://127.0.0.1:{port}/metrics", engine=engine, side=side or Side(events=False), candidate=candidate)  # type: ignore[arg-type]
        client = Client(target, limit_bytes=1 << 20)
        stack.callback(client.close)
        return Scraper(target, client, timeout=5.0)

    return make


def running(outcome: Outcome) -> float | None:
    """Requests that run, by the only owner."""
    (state,) = outcome.states
    return state.running.exact


def test_a_turn_is_a_body_and_the_pages_beside_it(serve: Serve, clock: Clock) -> None:
    """Stamped with the moment it was sent; what a page says is in the state."""
    report = {"loads": [{"dp_rank": 0, "timestamp": clock.time(), "num_running_reqs": 7, "num_waiting_reqs": 0, "max_running_requests": 8}]}
    pages = Pages({"/metrics": sglang(3), LOADS: json.dumps(report).encode(), INFO: b"{}"})
    outcome = serve(pages).turn()
    assert pages.asked == ["/metrics", LOADS, INFO]
    assert (outcome.at, outcome.wall, outcome.duration) == (1000.0, clock.time(), 0.0)
    assert outcome.states[0].gauges["running_cap"].exact == 8


def test_what_stays_is_asked_rarely(serve: Serve, clock: Clock) -> None:
    """The load report with every scrape, the configuration every five minutes; in between its answer holds."""
    pages = Pages({"/metrics": sglang(), LOADS: b"{}", INFO: b"{}"})
    scraper = serve(pages)
    for seconds in (0, 15, 284, 1):
        clock.now += seconds
        scraper.turn()
    assert (pages.count("/metrics"), pages.count(LOADS), pages.count(INFO)) == (4, 4, 2)


def test_one_slow_page_in_a_turn(serve: Serve, clock: Clock) -> None:
    """So that a fleet's first round is no burst; the next turn asks for the next."""
    pages = Pages({"/metrics": vllm(), "/version": b'{"version": "0.32.0"}', "/kv_event_sources": b"{}"})
    scraper = serve(pages, side=Side(events=True))
    scraper.turn()
    assert len(pages.asked) == 2
    clock.now += 15
    scraper.turn()
    assert sorted(pages.asked) == ["/kv_event_sources", "/metrics", "/metrics", "/version"]


def test_a_page_that_fails_is_left_alone_for_a_minute(serve: Serve, clock: Clock) -> None:
    """And costs the scrape nothing."""
    pages = Pages({"/metrics": sglang(3), INFO: b"{}"})
    scraper = serve(pages)
    for seconds in (0, 30, 29, 1):
        clock.now += seconds
        assert running(scraper.turn()) == 3
    assert pages.count(LOADS) == 2


@pytest.mark.parametrize("answer", [b"<html>", b"[" * 100_000, b""])
def test_a_page_that_is_no_json_is_one_that_fails(answer: bytes, serve: Serve, clock: Clock) -> None:
    """Whatever a gateway puts there."""
    pages = Pages({"/metrics": sglang(3), LOADS: answer})
    scraper = serve(pages)
    assert running(scraper.turn()) == 3
    clock.now += 15
    scraper.turn()
    assert pages.count(LOADS) == 1


@pytest.mark.usefixtures("clock")
def test_an_older_release_has_the_page_elsewhere(serve: Serve) -> None:
    """Where the path does not exist its old name is tried."""
    pages = Pages({"/metrics": sglang(), "/get_server_info": b'{"max_running_requests": 12}'})
    outcome = serve(pages, side=Side(loads=False, events=False)).turn()
    assert pages.asked == ["/metrics", INFO, "/get_server_info"]
    assert outcome.states[0].gauges["running_cap"].exact == 12


@pytest.mark.usefixtures("clock")
def test_what_is_turned_off_is_not_asked(serve: Serve) -> None:
    """Nor is anything beside a body that is no engine's."""
    pages = Pages({"/metrics": sglang(), LOADS: b"{}", INFO: b"{}"})
    serve(pages, side=Side(loads=False, server_info=False, events=False)).turn()
    foreign = Pages({"/metrics": b"go_goroutines 1\n"})
    outcome = serve(foreign).turn()
    assert pages.asked == foreign.asked == ["/metrics"]
    assert outcome.error is not None
    assert outcome.error.reason == "unknown_engine"


def test_what_does_not_answer_is_an_outcome(serve: Serve, clock: Clock) -> None:
    """By its reason; a body that is none as well."""
    pages = Pages({})
    outcome = serve(pages).turn()
    assert outcome.error is not None
    assert (outcome.error.reason, outcome.at) == ("http_status", clock.now)
    pages.answers["/metrics"] = b"<!DOCTYPE html>"
    refused = serve(pages).turn()
    assert refused.error is not None
    assert refused.error.reason == "not_exposition"


# ---- when


def slots(clock: Clock, count: int, interval: float) -> tuple[Poller, list[_Slot]]:
    """A poller that began now, and the slots of so many targets; nobody is scraped."""
    poller = Poller(Store([], Watch(), active()))
    poller._interval, poller._origin = interval, clock.now
    targets = [Target(f"t{i}", f"http://t{i}/metrics") for i in range(count)]
    return poller, [_Slot(Scraper(t, Client(t, limit_bytes=1), 1.0), i * interval / count) for i, t in enumerate(targets)]


def test_targets_are_spread_over_the_interval(clock: Clock) -> None:
    """Each has a moment of its own in it, whenever its first turn was, and keeps it."""
    poller, made = slots(clock, 4, 8.0)
    first = [poller._next(clock.now + 0.1 * i, slot) for i, slot in enumerate(made)]
    assert sorted(at % 8 for at in first) == [0, 2, 4, 6]
    assert all(4 <= at - clock.now <= 12 + 0.3 for at in first), "between half an interval and one and a half"
    assert [poller._next(at, slot) - at for at, slot in zip(first, made, strict=True)] == [8.0] * 4


def test_a_failing_target_is_tried_after_one_two_and_then_every_four_intervals(clock: Clock) -> None:
    """And every interval again once it answers."""
    poller, (slot,) = slots(clock, 1, 10.0)
    waits = []
    for failures in (0, 1, 2, 3, 4, 50, 0):
        slot.failures = failures
        waits.append(poller._next(clock.now, slot) - clock.now)
    assert waits == [10, 10, 20, 40, 40, 40, 10]


def test_a_guess_is_tried_every_interval(clock: Clock) -> None:
    """An engine that is started later is found at once."""
    poller, (slot,) = slots(clock, 1, 10.0)
    target = Target("t", "http://t/metrics", candidate=True)
    guess = _Slot(Scraper(target, Client(target, limit_bytes=1), 1.0), 0.0, failures=9)
    assert poller._next(clock.now, guess) - clock.now == 10
    assert poller._next(clock.now, slot) - clock.now == 10


def test_slots_that_passed_meanwhile_are_skipped(clock: Clock) -> None:
    """A scrape that took three intervals is not made up for."""
    poller, (slot,) = slots(clock, 1, 10.0)
    due = clock.now
    clock.now += 34
    assert poller._next(due, slot) == due + 40


# ---- threads


def stored(store: Store, name: str) -> Outcome | None:
    """A target's newest turn."""
    return next((t.last for t in store.snapshot(0.0).targets if t.target.name == name), None)


@pytest.fixture
def start(stack: ExitStack) -> Callable[..., tuple[Poller, Store]]:
    """Start a poller over some scrapers; it is stopped with the test, before its servers are."""

    def begin(scrapers: Sequence[Scraper], interval: float = QUICK) -> tuple[Poller, Store]:
        store = Store([s.target for s in scrapers], Watch(interval=interval), active())
        poller = Poller(store)
        poller.start(scrapers, interval)

        def end() -> None:
            poller.stop()
            for thread in poller._threads:
                thread.join(10)

        stack.callback(end)
        return poller, store

    return begin


Start = Callable[..., tuple[Poller, Store]]


def test_every_target_is_scraped_again_and_again(serve: Serve, start: Start) -> None:
    """Into the store, from the first moment on."""
    pages = [Pages({"/metrics": vllm(n)}) for n in range(1, 4)]
    _, store = start([serve(p, f"t{i}") for i, p in enumerate(pages)])
    eventually(lambda: all(p.count("/metrics") >= 3 for p in pages), lambda: f"three scrapes of each: {[p.asked for p in pages]}")
    assert store.ready()
    assert [running(o) for i in range(3) if (o := stored(store, f"t{i}"))] == [1, 2, 3]


def test_one_that_hangs_is_asked_once_and_costs_nobody_else(serve: Serve, start: Start) -> None:
    """The others keep their pace; it is asked again when it answered."""
    stuck, healthy = Pages({"/metrics": vllm(1)}), Pages({"/metrics": vllm(2)})
    stuck.held.set()
    start([serve(stuck, "stuck"), serve(healthy, "healthy")])
    eventually(lambda: healthy.count("/metrics") >= 10, lambda: f"ten scrapes of the healthy one: {healthy.asked}")
    assert stuck.count("/metrics") == 1
    stuck.held.clear()
    eventually(lambda: stuck.count("/metrics") >= 3, lambda: f"it goes on: {stuck.asked}")
    assert (stuck.most, healthy.most) == (1, 1)


def test_stop_ends_all_threads_whatever_hangs(serve: Serve, start: Start) -> None:
    """Those that wait end at once; the one with a scrape under way when that ends, and begins no other."""
    stuck, healthy = Pages({"/metrics": vllm()}), Pages({"/metrics": vllm()})
    stuck.held.set()
    poller, _ = start([serve(stuck, "stuck"), serve(healthy, "healthy")], 3600.0)
    eventually(lambda: bool(stuck.asked and healthy.asked), lambda: "both are asked")
    eventually(lambda: len([t for t in poller._threads if t.is_alive()]) == 2, lambda: "two threads")
    poller.stop()
    eventually(lambda: len([t for t in poller._threads if t.is_alive()]) == 1, lambda: "the waiting thread ends")
    stuck.held.clear()
    eventually(lambda: not any(t.is_alive() for t in poller._threads), lambda: "the other one ends, too")
    assert stuck.count("/metrics") == 1


def test_other_targets_take_the_place_of_the_old_ones(serve: Serve, start: Start) -> None:
    """They need not wait for a turn under way; it is the old one's last, and what it brings is not kept."""
    old, new = Pages({"/metrics": vllm(1)}), Pages({"/metrics": vllm(2)})
    old.held.set()
    stuck, replacement = serve(old, "old"), serve(new, "new")
    stuck.timeout = 10 * PATIENCE_SECONDS
    poller, store = start([stuck])
    eventually(lambda: bool(old.asked), lambda: "the old one is asked")
    store.reconfigure([replacement.target], Watch(interval=QUICK), active())
    poller.start([replacement], QUICK)
    eventually(lambda: new.count("/metrics") >= 1, lambda: f"the new one is asked: {new.asked}")
    old.held.clear()
    eventually(lambda: new.count("/metrics") >= 5, lambda: f"the new one is asked: {new.asked}")
    assert old.count("/metrics") == 1
    assert stored(store, "old") is None


def test_who_stays_is_not_asked_twice_at_once(serve: Serve, start: Start) -> None:
    """A turn under way when others join goes on, what it brings is kept, and the next one comes after it."""
    stays, joins = Pages({"/metrics": vllm(1)}), Pages({"/metrics": vllm(2)})
    stays.held.set()
    kept, added = serve(stays, "stays"), serve(joins, "joins")
    poller, store = start([kept])
    eventually(lambda: bool(stays.asked), lambda: "it is asked")
    store.reconfigure([kept.target, added.target], Watch(interval=QUICK), active())
    poller.start([kept, added], QUICK)
    eventually(lambda: joins.count("/metrics") >= 5, lambda: f"the other one is asked: {joins.asked}")
    assert stays.count("/metrics") == 1
    stays.held.clear()
    eventually(lambda: stays.count("/metrics") >= 3, lambda: f"it goes on: {stays.asked}")
    assert stays.most == 1
    assert stored(store, "stays") is not None


def test_a_defect_costs_one_target_alone(serve: Serve, start: Start, caplog: pytest.LogCaptureFixture) -> None:
    """It is counted and logged with its trace, and the target is tried again; the others never notice."""
    caplog.set_level(logging.CRITICAL, "kvwatch")
    broken, healthy = Pages({"/metrics": vllm()}), Pages({"/metrics": vllm(2)})
    _, store = start([serve(broken, "broken", engine="no engine at all"), serve(healthy, "healthy")])
    eventually(lambda: broken.count("/metrics") >= 3 and healthy.count("/metrics") >= 3, lambda: "both are tried again")
    failed = stored(store, "broken")
    assert failed is not None
    assert failed.error is not None
    assert failed.error.reason == "bug"
    assert failed.error.detail == "StopIteration in kvwatch"


def test_transitions_are_logged_not_states(serve: Serve, start: Start, caplog: pytest.LogCaptureFixture) -> None:
    """Once when a target is lost, once when it answers again; a guess that is wrong says nothing."""
    caplog.set_level(logging.INFO, "kvwatch")
    pages, guess = Pages({}), Pages({})
    start([serve(pages, "t"), serve(guess, "guess", candidate=True)])
    eventually(lambda: pages.count("/metrics") >= 3 and guess.count("/metrics") >= 3, lambda: "both are tried three times")
    pages.answers["/metrics"] = vllm()
    before = pages.count("/metrics")
    eventually(lambda: pages.count("/metrics") >= before + 3, lambda: "it answers three times")
    told = [r.getMessage() for r in caplog.records if r.name == "kvwatch"]
    assert [line.split(":")[0] for line in told] == ["target t", "target t answers"]
    assert told[0].startswith("target t: http_status: ")
    assert told[1] == "target t answers: 1 pool owner(s)"


def test_gpus_are_read_at_once_and_again() -> None:
    """In a thread of their own, until it is stopped."""
    rounds: list[float] = []
    store = Store([], Watch(), active())
    nvml = FakeNvml(Card("GPU-0", memory=(100, 60, 30, 10)))

    def now() -> float:
        rounds.append(0.0)
        return 0.0

    poller = GpuPoller(store, GpuWatcher(timeout=5.0, clock=now, load=lambda: Library(nvml), sees_all=True), QUICK)
    before = threading.active_count()
    poller.start()
    eventually(lambda: (reading := store.snapshot(0.0).gpus) is not None and reading.gpus[0].used == 60, lambda: "a reading")
    seen = store.snapshot(0.0).gpus
    eventually(lambda: store.snapshot(0.0).gpus is not seen, lambda: "another round")
    poller.stop()
    poller._thread.join(10)
    assert not poller._thread.is_alive()
    assert threading.active_count() <= before + 1, "the watcher's own thread is a daemon and waits"
