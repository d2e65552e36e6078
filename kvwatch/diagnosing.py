"""The ``diagnose`` command: sources in, one verdict out, or one after each sample."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from kvwatch.config import Config
from kvwatch.gpu import GpuMapper, GpuWatcher
from kvwatch.model import Outcome
from kvwatch.poller import Poller, Scraper
from kvwatch.recording import RECORDING, UnreadableError, expositions, is_recording, recording, spacing
from kvwatch.report import Verdict, to_json, verdict
from kvwatch.rules import active
from kvwatch.rules.kinds import ActiveRule
from kvwatch.scrape import Client
from kvwatch.store import Store
from kvwatch.summary import place_of
from kvwatch.target import Target
from kvwatch.text import to_text
from kvwatch.view import Watch
from kvwatch.wording import printable

EXIT = {"ok": 0, "warning": 1, "critical": 2, "unknown": 3}
FILE_INTERVAL = 15.0
LIVE_INTERVAL = 5.0
LIVE_SECONDS = 75.0
"""Long enough for a hold of a minute to pass."""
GPU_TIMEOUT = 5.0
GRACE_SECONDS = 15.0
"""How long a target may take beyond the time wanted until it was tried once."""
LOOK_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Printing:
    """How verdicts are printed; in text with lines folded to the ``columns`` of a terminal, or whole for other programs."""

    as_json: bool
    timeline: bool
    out: TextIO
    columns: int | None = None


def watch_of(config: Config, interval: float) -> Watch:
    """The settings that signals read."""
    return Watch(interval, config.window, config.startup_grace, config.slo_ttft_p99)


def from_files(paths: Sequence[Path], config: Config, interval: float | None, printing: Printing) -> int:
    """Judge single expositions or one recording; the first target's settings are theirs. Raises UnreadableError."""
    for path in paths:
        try:
            path.stat()
        except OSError as error:
            raise UnreadableError(f"{path}: {error.strerror}; name exposition files or a recording") from None
    if len(paths) > 1 and any(is_recording(p) for p in paths):
        raise UnreadableError("several sources with a recording among them: name one recording, or expositions in time order")
    first = paths[0]
    target = config.targets[0] if config.targets else Target(name=_name(first), url=str(first))
    if is_recording(first):
        step = interval or spacing(first)
        outcomes = recording(first, target)
    else:
        step = interval or FILE_INTERVAL
        outcomes = expositions(paths, target, step, config.limit_bytes)
    rules = active(config.thresholds)
    store = Store([target], watch_of(config, step), rules)
    return _print(_verdicts(store, rules, outcomes), printing)


def _name(path: Path) -> str:
    """A recording is known by its folder, a single exposition by its file."""
    whole = path.absolute()
    return whole.parent.name if path.name == RECORDING else whole.name


def _verdicts(store: Store, rules: Sequence[ActiveRule], outcomes: Iterable[Outcome]) -> Iterator[Verdict]:
    for outcome in outcomes:
        store.add(outcome)
        yield verdict(store.snapshot(outcome.at), rules)


def from_urls(config: Config, interval: float | None, seconds: float | None, printing: Printing) -> int:
    """Scrape live targets for a while and judge them."""
    targets = config.targets
    step = interval or LIVE_INTERVAL
    span = LIVE_SECONDS if seconds is None else seconds
    rules = active(config.thresholds)
    store = Store(targets, watch_of(config, step), rules, GpuMapper(clock=time.monotonic))
    watcher = GpuWatcher(timeout=GPU_TIMEOUT, clock=time.monotonic) if config.nvml else None
    scrapers = [Scraper(t, Client(t, limit_bytes=config.limit_bytes), config.timeout) for t in targets]
    if watcher is not None:
        store.set_gpus(watcher.read(time.monotonic()))
    logging.getLogger("kvwatch").addHandler(logging.NullHandler())  # the verdict tells what a log would
    poller = Poller(store)
    poller.start(scrapers, step)
    end = time.monotonic() + span
    try:
        return _print(_live(store, rules, watcher, step, end), printing)
    finally:
        poller.stop()


def _live(store: Store, rules: Sequence[ActiveRule], watcher: GpuWatcher | None, step: float, end: float) -> Iterator[Verdict]:
    """A verdict after each new sample once every target was tried; the last one when the time is over."""
    grace, gpus_due, shown = end + GRACE_SECONDS, time.monotonic() + step, None
    while True:
        now = time.monotonic()
        if watcher is not None and now >= gpus_due:
            store.set_gpus(watcher.read(now))
            gpus_due += step
        over = now >= end and (store.ready() or now >= grace)
        snapshot = store.snapshot(now)
        news = ([t.last.at for t in snapshot.targets if t.last is not None], [o.stale for o in snapshot.owners])
        if news != shown and (over or store.ready()):
            shown = news
            yield verdict(snapshot, rules)
        if over:
            return
        time.sleep(LOOK_SECONDS)


def _print(verdicts: Iterable[Verdict], printing: Printing) -> int:
    last: Verdict | None = None
    shown: str | None = None
    for said in verdicts:
        if printing.timeline:
            line = json.dumps(to_json(said), allow_nan=False) if printing.as_json else row(said)
            if printing.as_json or line.split("  ", 1)[-1] != shown:
                print(line, file=printing.out, flush=True)
                shown = line.split("  ", 1)[-1]
        last = said
    if last is None:
        print("kvwatch diagnose: the source holds no scrape; give it a body or a recording with lines", file=sys.stderr)
        return EXIT["unknown"]
    if not printing.timeline:
        print(json.dumps(to_json(last), indent=1, allow_nan=False) if printing.as_json else to_text(last, printing.columns).rstrip("\n"),
              file=printing.out)  # fmt: skip
    for target in last.snapshot.targets:
        if last.status == "unknown" and target.last is not None and target.last.error is not None:
            print(f"kvwatch diagnose: {printable(f'{target.target.name}: {target.last.error.detail}')}", file=sys.stderr)
    return EXIT[last.status]


def row(said: Verdict) -> str:
    """One line of a timeline: when, how bad, and what is open."""
    when = f"{said.snapshot.now:.0f} s" if said.at is None else f"{time.strftime('%H:%M:%S', time.gmtime(said.at))}"
    open_ones = ", ".join(
        f"{f.rule}{' (' + f.reason + ')' if f.reason else ''} {f.status} on {place_of(f.subject, said.ranks)}"
        for f in said.findings
        if f.status != "unknown"
    )
    return printable(f"{when}  {said.status:8} {open_ones or '-'}")
