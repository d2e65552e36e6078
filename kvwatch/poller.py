"""Due times, threads and back-off: who is scraped when, and never twice at once.

Each target has a slot in the interval, so that a fleet is spread evenly; a failing one is tried again after one, two, then every four
intervals. The workers share one heap of due times; each takes the earliest, waits for it, and puts the next one back.
"""

from __future__ import annotations

import contextlib
import heapq
import logging
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kvwatch.content import read_json
from kvwatch.engines import SidePage
from kvwatch.exposition import Memo
from kvwatch.gpu import GpuWatcher
from kvwatch.listening import Listener
from kvwatch.model import Outcome, ScrapeError
from kvwatch.reading import side_pages, take_in
from kvwatch.refine import Refiner
from kvwatch.scrape import Client, ScrapeFailure
from kvwatch.store import Store
from kvwatch.target import Target
from kvwatch.turn import Clocked, failed, judged

LOG = logging.getLogger("kvwatch")
MOST_WORKERS = 256
FIRST_ROUND_GAP = 0.1
"""Seconds between the first scrapes of neighbours: a few targets answer at once, many are spread as they will stay."""
BACK_OFF = (1, 2, 4)
SIDE_TIMEOUT = 2.0
SIDE_RETRY_SECONDS = 60.0


@dataclass(slots=True)
class _Side:
    """What one optional page last said, and when it may be asked again."""

    due: float = 0.0
    answer: object | None = None


@dataclass(slots=True)
class Scraper:
    """One target's connection, parser memory and side pages. One turn at a time."""

    target: Target
    client: Client
    timeout: float
    memo: Memo = field(default_factory=Memo)
    side: dict[str, _Side] = field(default_factory=dict)
    listener: Listener = field(init=False)

    def __post_init__(self) -> None:
        """Listen to nobody yet."""
        self.listener = Listener(self.target, Refiner())

    def close(self) -> None:
        """Stop listening to events; the connection ends with the last turn."""
        self.listener.close()

    def turn(self) -> Outcome:
        """Scrape once; every expected failure is an outcome."""
        at, wall = time.monotonic(), time.time()
        try:
            body = self.client.get(self.target.url, timeout=self.timeout)
        except ScrapeFailure as failure:
            return failed(self.target, Clocked(at, wall, time.monotonic() - at), failure.error)
        seconds = time.monotonic() - at
        exposition = take_in(body, self.memo)
        if isinstance(exposition, ScrapeError):
            return failed(self.target, Clocked(at, wall, seconds), exposition)
        side = self._ask_beside(side_pages(self.target, exposition))
        return self.listener.hear(judged(self.target, Clocked(at, time.time(), seconds), exposition, side, len(body)), side)

    def _ask_beside(self, pages: Sequence[SidePage]) -> Mapping[str, object]:
        """Ask the optional pages that are due; one that fails is left alone for a while and costs nothing else.

        Of the pages that hold for a while only one is asked in a turn, so that a fleet's first round is not a burst.
        """
        now = time.monotonic()
        due = [page for page in pages if now >= self.side.setdefault(page.name, _Side()).due]
        slow = sorted((page for page in due if page.every_seconds), key=lambda page: self.side[page.name].due)
        for page in (*(page for page in due if not page.every_seconds), *slow[:1]):
            state = self.side[page.name]
            try:
                state.answer = self._json(page)
                state.due = now + page.every_seconds
            except (ScrapeFailure, ValueError):
                state.answer = None
                state.due = now + SIDE_RETRY_SECONDS
        return {name: state.answer for name, state in self.side.items() if state.answer is not None}

    def _json(self, page: SidePage) -> object:
        timeout = min(self.timeout, SIDE_TIMEOUT)
        try:
            body = self.client.get(page.path, timeout=timeout)
        except ScrapeFailure as failure:
            if page.fallback is None or failure.error.reason != "http_status":
                raise
            body = self.client.get(page.fallback, timeout=timeout)
        return read_json(body)


@dataclass(slots=True, eq=False)
class _Slot:
    """A scraper's place in the interval. While its turn is under way (``busy``) it is in nobody's heap; ``over`` after its last turn."""

    scraper: Scraper
    offset: float
    failures: int = 0
    down: bool | None = None
    busy: bool = False
    over: bool = False


class Poller:
    """Scrapes all targets into a store until it is stopped."""

    def __init__(self, store: Store) -> None:
        """Nothing is scraped before ``start``."""
        self._store = store
        self._interval = 1.0
        self._lock = threading.Condition()
        self._slots: list[_Slot] = []
        self._ending = 0
        self._heap: list[tuple[float, int, _Slot]] = []
        self._stopping = False
        self._threads: list[threading.Thread] = []
        self._origin = time.monotonic()

    def start(self, scrapers: Sequence[Scraper], interval: float) -> None:
        """Begin, or go on with other scrapers: one that was there keeps its turn, of any other the turn under way is the last."""
        with self._lock:
            before = {id(slot.scraper): slot for slot in self._slots}
            self._slots = [before.pop(id(scraper)) if id(scraper) in before else _Slot(scraper, 0.0) for scraper in scrapers]
            for slot in before.values():
                self._end(slot)
            self._interval = interval
            now = time.monotonic()
            self._origin = now
            step = interval / max(len(scrapers), 1)
            gap = min(step, FIRST_ROUND_GAP)
            for i, slot in enumerate(self._slots):
                slot.offset = i * step
            self._heap = [(now + i * gap, id(slot), slot) for i, slot in enumerate(self._slots) if not slot.busy]
            heapq.heapify(self._heap)
            self._lock.notify_all()
            workers = min(len(scrapers) + self._ending, MOST_WORKERS)
        for _ in range(workers - len(self._threads)):
            thread = threading.Thread(target=self._work, name="kvwatch-scrape", daemon=True)
            self._threads.append(thread)
            thread.start()

    def stop(self) -> None:
        """End as soon as the waits allow; a scrape under way is left to its deadline in a daemon thread."""
        with self._lock:
            self._stopping = True
            for slot in self._slots:
                self._end(slot)
            self._lock.notify_all()

    def _end(self, slot: _Slot) -> None:
        """No further turn; one that is under way keeps its worker until it is done, and closes then."""
        slot.over = True
        if slot.busy:
            self._ending += 1
        else:
            slot.scraper.close()

    def _work(self) -> None:
        while True:
            with self._lock:
                while not self._stopping:
                    wait = self._heap[0][0] - time.monotonic() if self._heap else None
                    if wait is not None and wait <= 0:
                        break
                    self._lock.wait(wait)
                if self._stopping:
                    return
                due, key, slot = heapq.heappop(self._heap)
                slot.busy = True
            self._turn(slot)
            with self._lock:
                slot.busy = False
                if slot.over:
                    self._ending -= 1
                    slot.scraper.close()
                else:
                    heapq.heappush(self._heap, (self._next(due, slot), key, slot))
                    self._lock.notify()

    def _turn(self, slot: _Slot) -> None:
        """One target's turn and what is judged of it; the one place where anything unexpected is caught: it costs this target alone."""
        at = time.monotonic()
        try:
            outcome = slot.scraper.turn()
            self._store.add(outcome, slot.scraper.target)
            self._note(slot, outcome)
        except Exception as error:
            LOG.exception("target %s: a defect of kvwatch; please report it", slot.scraper.target.name)
            when = Clocked(at, time.time(), time.monotonic() - at)
            outcome = failed(slot.scraper.target, when, ScrapeError("bug", f"{type(error).__name__} in kvwatch"))
            with contextlib.suppress(Exception):  # judging may meet the same defect again; the log has it
                self._store.add(outcome, slot.scraper.target)
            self._note(slot, outcome)

    def _note(self, slot: _Slot, outcome: Outcome) -> None:
        """Count failures, and log transitions only."""
        slot.failures = 0 if outcome.ok else slot.failures + 1
        down = not outcome.ok
        if down == slot.down or (slot.scraper.target.candidate and down):
            return
        slot.down = down
        if outcome.error is not None:
            LOG.warning("target %s: %s: %s", outcome.target, outcome.error.reason, outcome.error.detail)
        else:
            LOG.info("target %s answers: %d pool owner(s)", outcome.target, len(outcome.states))

    def _next(self, due: float, slot: _Slot) -> float:
        """The target's next slot: one interval on, or more after failures; slots that passed meanwhile are skipped."""
        skip = BACK_OFF[min(slot.failures, len(BACK_OFF)) - 1] if slot.failures else 1
        if slot.scraper.target.candidate and slot.failures:
            skip = 1
        earliest = max(due + (skip - 0.5) * self._interval, time.monotonic())
        phase = self._origin + slot.offset
        rounds = -(-(earliest - phase) // self._interval)
        return phase + rounds * self._interval


class GpuPoller:
    """Reads all GPUs every ``interval`` (seconds, may be changed) into a store, in a thread of its own."""

    def __init__(self, store: Store, watcher: GpuWatcher, interval: float) -> None:
        """Nothing is read before ``start``."""
        self._store, self._watcher = store, watcher
        self.interval = interval
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kvwatch-gpu", daemon=True)

    def start(self) -> None:
        """Begin with a first round at once."""
        self._thread.start()

    def stop(self) -> None:
        """End after the round under way."""
        self._stopped.set()

    def _run(self) -> None:
        while not self._stopped.is_set():
            self._store.set_gpus(self._watcher.read(time.monotonic()))
            self._stopped.wait(self.interval)
