"""The ``serve`` command: scrape for ever, answer from memory, read the configuration again on demand, end in time."""

from __future__ import annotations

import logging
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.openmetrics import exposition as openmetrics_text
from prometheus_client.registry import Collector

from kvwatch.address import Address
from kvwatch.catalogue import plain_page
from kvwatch.config import Config, ConfigError, target_from_url
from kvwatch.diagnosing import GPU_TIMEOUT, watch_of
from kvwatch.gpu import GpuMapper, GpuWatcher
from kvwatch.history import KEEP_SECONDS
from kvwatch.metrics import families
from kvwatch.poller import GpuPoller, Poller, Scraper
from kvwatch.quantity import UNKNOWN
from kvwatch.report import Json, Verdict, plain, to_json, verdict
from kvwatch.rules import active
from kvwatch.rules.kinds import ActiveRule
from kvwatch.scrape import Client
from kvwatch.store import Store
from kvwatch.target import Target
from kvwatch.text import to_text
from kvwatch.web.app import build_app
from kvwatch.web.server import listen, serve

LOG = logging.getLogger("kvwatch")
DEFAULT_URLS = ("http://127.0.0.1:8000/metrics", "http://127.0.0.1:30000/metrics")
"""Where vLLM and SGLang listen unless told otherwise; looked at when nothing is configured."""
HISTORY_SERIES = ("l1_used_ratio", "requests_running", "requests_waiting", "ttft_p99_seconds", "preemption_rate", "token_rate")
HISTORY_BOUNDS = ("l1_resident_ratio", "l2_resident_ratio")

Load = Callable[[], Config]
"""Reads the configuration from where it was given; raises ConfigError."""


def targets_of(config: Config) -> tuple[Target, ...]:
    """The configured targets, or the guesses when there are none."""
    return config.targets or tuple(replace(target_from_url(url), candidate=True) for url in DEFAULT_URLS)


class Daemon:
    """What the pages answer from, and what scrapes."""

    def __init__(self, config: Config, load: Load) -> None:
        """Build everything; nothing runs before ``start``."""
        self._load = load
        self._config = config
        self._fixed = _fixed(config)
        self._reloading = threading.Lock()
        self._refused = False
        self._rules: tuple[ActiveRule, ...] = active(config.thresholds)
        self._store = Store(targets_of(config), watch_of(config, config.interval), self._rules, GpuMapper(clock=time.monotonic))
        self._poller = Poller(self._store)
        self._scrapers: dict[str, Scraper] = {}
        self._gpus = GpuPoller(self._store, GpuWatcher(timeout=GPU_TIMEOUT, clock=time.monotonic), config.interval) if config.nvml else None
        self._registry = CollectorRegistry()
        self._registry.register(_Families(self))
        ProcessCollector(registry=self._registry)

    def start(self) -> None:
        """Begin to scrape."""
        with self._reloading:  # a signal may have come already
            self._scrape()
        if self._gpus is not None:
            self._gpus.start()

    def stop(self) -> None:
        """Begin no further scrape."""
        self._poller.stop()
        if self._gpus is not None:
            self._gpus.stop()

    def _scrape(self) -> None:
        """Scrape what the configuration says from now on; a target that stays as it was keeps its scraper, with what that has learned."""
        config, before, self._scrapers = self._config, self._scrapers, {}
        for target in targets_of(config):
            scraper = before.get(target.name)
            if scraper is None or scraper.target != target:
                scraper = Scraper(target, Client(target, limit_bytes=config.limit_bytes), config.timeout)
            scraper.timeout = config.timeout
            self._scrapers[target.name] = scraper
        self._poller.start([*self._scrapers.values()], config.interval)

    def judge(self, target: str | None = None) -> Verdict:
        """The verdict of this moment, from one snapshot: of everything, or of one target."""
        return verdict(self._store.snapshot(time.monotonic()), self._rules, target)

    def collect(self) -> list[Metric]:
        """All families of this moment."""
        return list(families(self.judge(), gpu_processes=self._config.gpu_processes, config_refused=self._refused))

    def verdict(self, target: str | None) -> Mapping[str, object]:
        """The verdict as JSON values."""
        return to_json(self.judge(target))

    def text(self, target: str | None) -> str:
        """The verdict for people."""
        return to_text(self.judge(target))

    def metrics(self, *, openmetrics: bool) -> tuple[bytes, str]:
        """The exposition and its content type."""
        if openmetrics:
            return openmetrics_text.generate_latest(self._registry), openmetrics_text.CONTENT_TYPE_LATEST  # type: ignore[no-untyped-call]
        return generate_latest(self._registry), CONTENT_TYPE_PLAIN_0_0_4

    def history(self) -> Mapping[str, object]:
        """The last fifteen minutes of every owner, for the page."""
        now = time.monotonic()
        rows: list[Json] = []
        for owner in self._store.snapshot(now, with_frames=True).owners:
            series: dict[str, Json] = {}
            for name in HISTORY_SERIES:
                series[name.removesuffix("_seconds")] = [_number(f.values.get(name, UNKNOWN).exact) for f in owner.frames]
            for name in HISTORY_BOUNDS:
                known = [f.values.get(name, UNKNOWN) for f in owner.frames]
                series[f"{name}_min"] = [_number(v.lo) if v.known else None for v in known]
                series[f"{name}_max"] = [_number(min(v.hi, 1.0)) if v.known else None for v in known]
            s = owner.state
            rows.append({"target": s.target, "engine": s.engine, "model": s.model, "rank": s.rank,
                         "age_seconds": [round(now - f.at, 1) for f in owner.frames], "series": series})  # fmt: skip
        return {"window_seconds": KEEP_SECONDS, "engines": rows}

    def runbook(self, rule: str) -> str | None:
        """A rule's page, with the limits that are in force."""
        return next((plain_page(r) for r in self._rules if r.rule.id == rule), None)

    def ready(self) -> bool:
        """Whether every target has been tried once."""
        return self._store.ready()

    def reload(self) -> str | None:
        """Read the configuration again; a bad one is refused and the old one stays."""
        with self._reloading:
            try:
                config = self._load()
            except ConfigError as error:
                self._refused = True
                for line in error.lines:
                    LOG.error("configuration not reloaded, the old one stays: %s", line)  # noqa: TRY400  a user's mistake needs no traceback
                return "; ".join(error.lines)
            self._refused = False
            if config == self._config:
                LOG.info("configuration read again: nothing changed")
                return None
            if config.limit_bytes != self._config.limit_bytes:
                self._scrapers = {}  # a client is made with it
            self._config = config
            self._rules = active(config.thresholds)
            self._store.reconfigure(targets_of(config), watch_of(config, config.interval), self._rules)
            self._scrape()
            if self._gpus is not None:
                self._gpus.interval = config.interval
            changed = [key for key, value in _fixed(config).items() if value != self._fixed[key]]
            but = f"; only a restart brings the new {', '.join(changed)}" if changed else ""
            LOG.info("configuration reloaded: %d targets%s", len(config.targets), but)
            return None


def _fixed(config: Config) -> Mapping[str, object]:
    """The settings that a running process cannot change, by their key."""
    return {"listen": (config.listen_host, config.listen_port), "nvml": config.nvml, "reload_endpoint": config.reload_endpoint}


class _Families(Collector):
    """The daemon as a collector of prometheus_client."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon

    def collect(self) -> list[Metric]:
        return self._daemon.collect()

    def describe(self) -> list[Metric]:
        """Nothing: the names are known only with a snapshot."""
        return []


def _number(value: float | None) -> Json:
    return None if value is None else plain(round(value, 4))


def run(config: Config, load: Load) -> int:
    """Serve until SIGTERM or SIGINT. Raises ListenError when the address cannot be had."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    sockets = listen(config.listen_host, config.listen_port)
    daemon = Daemon(config, load)
    app = build_app(daemon, reload_endpoint=config.reload_endpoint)
    if hasattr(signal, "SIGHUP"):
        signal.signal(signal.SIGHUP, lambda _number, _frame: threading.Thread(target=daemon.reload, daemon=True).start())
    daemon.start()
    where = ", ".join(Address("http", host, port, "").origin for host, port, *_ in (s.getsockname() for s in sockets))
    LOG.info("listening on %s, %d targets", where, len(config.targets))
    if not config.targets:
        LOG.info("no target configured: looking for an engine at %s", " and ".join(DEFAULT_URLS))
    try:
        serve(app, sockets)
    finally:
        daemon.stop()
    return 0
