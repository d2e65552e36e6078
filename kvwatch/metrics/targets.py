"""What kvwatch says of its work: how targets are scraped, what the GPUs hold, and what fires. Unknown is absent."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from kvwatch import __version__
from kvwatch.metrics.owners import OWNER, short
from kvwatch.quantity import UNKNOWN
from kvwatch.report import Verdict
from kvwatch.signals import TARGET_CONDITIONS, TARGET_SIGNALS


def targets(said: Verdict) -> Iterator[Metric]:
    """How scraping goes."""
    up = GaugeMetricFamily("kvwatch_target_up", "whether the last scrape of a target succeeded", labels=("target",))
    took = GaugeMetricFamily("kvwatch_scrape_duration_seconds", "time the last scrape took", labels=("target",))
    body = GaugeMetricFamily("kvwatch_scrape_body_bytes", "size of the last body", labels=("target",))
    last = GaugeMetricFamily("kvwatch_last_scrape_timestamp_seconds", "when the last good scrape was taken, Unix time", labels=("target",))
    failures = CounterMetricFamily("kvwatch_scrape_failures", "failed scrapes by reason", labels=("target", "reason"))
    malformed = GaugeMetricFamily("kvwatch_scrape_malformed_lines", "lines of the last body that could not be read", labels=("target",))
    for t in said.snapshot.targets:
        at = (t.target.name,)
        if t.last is not None:
            up.add_metric(at, 1.0 if t.last.ok else 0.0)
            took.add_metric(at, t.last.duration)
        if t.last_good is not None:
            body.add_metric(at, t.last_good.body_bytes)
            malformed.add_metric(at, t.last_good.malformed_lines)
            if t.last_good.wall is not None:
                last.add_metric(at, t.last_good.wall)
        for reason, count in t.failures.items():
            failures.add_metric((*at, reason), count)
    yield from (up, took, body, last, failures, malformed)


EVENT_COUNTERS = (("batches", "batches of KV events taken"), ("gaps", "gaps in the KV events that were given up"),
                  ("lost", "messages of KV events lost"),
                  ("replays", "replays of KV events asked for"), ("garbled", "messages that were no KV events"))  # fmt: skip


def events(said: Verdict) -> Iterator[Metric]:
    """How listening to KV events goes, by target and rank."""
    heard = [
        (t.target.name, rank, stats) for t in said.snapshot.targets if t.last_good is not None for rank, stats in t.last_good.events.items()
    ]
    for name, help_text in EVENT_COUNTERS:
        family = CounterMetricFamily(f"kvwatch_event_{name}", help_text, labels=("target", "rank"))
        for target, rank, stats in heard:
            family.add_metric((target, rank), getattr(stats, name))
        yield family
    lag = GaugeMetricFamily("kvwatch_event_lag_seconds", "age of the newest KV event when it was taken", labels=("target", "rank"))
    for target, rank, stats in heard:
        if stats.lag_seconds is not None:
            lag.add_metric((target, rank), max(0.0, stats.lag_seconds))
    yield lag


def gpus(said: Verdict, *, processes: bool) -> Iterator[Metric]:
    """Whose memory HBM is, by process only when asked for."""
    reading = said.snapshot.gpus
    if reading is None:
        return
    yield GaugeMetricFamily("kvwatch_nvml_up", "whether NVML answers", value=1.0 if reading.nvml.state == "ok" else 0.0)
    memory = GaugeMetricFamily("kvwatch_hbm_bytes", "GPU memory by state; the states sum to the total", labels=("gpu", "uuid", "state"))
    by_process = GaugeMetricFamily("kvwatch_hbm_process_bytes", "GPU memory by process", labels=("gpu", "uuid", "pid"))
    for g in reading.gpus:
        for state, value in (("used", g.used), ("free", g.free), ("reserved", g.reserved)):
            if value is not None:
                memory.add_metric((str(g.index), g.uuid, state), value)
        for p in g.processes or ():
            if p.used is not None:
                by_process.add_metric((str(g.index), g.uuid, str(p.pid)), p.used)
    yield memory
    if processes:
        yield by_process


def findings(said: Verdict) -> Iterator[Metric]:
    """What fires, whether it may be ending, and how much of it there is."""
    labels = ("rule", "severity", "reason", *OWNER)
    family = GaugeMetricFamily("kvwatch_finding", "a finding that fires", labels=labels)
    quiet = GaugeMetricFamily("kvwatch_finding_quiet_seconds", "since the terms of a finding that fires were last true", labels=labels)
    firing = [f for f in said.findings if f.status == "firing"]
    for f in firing:
        s = f.subject
        of = (f.rule, f.severity, f.reason or "", s.target, s.engine or "", short(s.model or ""), short(s.rank or ""))
        family.add_metric(of, 1.0)
        quiet.add_metric(of, f.quiet_seconds)
    yield family
    yield quiet
    yield GaugeMetricFamily("kvwatch_findings_firing", "findings that fire", value=len(firing))


def signals(said: Verdict) -> Iterator[Metric]:
    """What is derived of targets."""
    judged = [(t.target.name, t.judged.values) for t in said.snapshot.targets if t.judged is not None]
    named = [(s.name, s.help) for s in TARGET_SIGNALS] + [(c.name, f"{c.help} (0 or 1)") for c in TARGET_CONDITIONS]
    for name, help_text in named:
        family = GaugeMetricFamily(f"kvwatch_{name}", help_text, labels=("target",))
        for target, values in judged:
            value = values.get(name, UNKNOWN)
            if value.exact is not None:
                family.add_metric((target,), value.exact)
        yield family


def infos(said: Verdict) -> Iterator[Metric]:
    """The targets' labels, and the version."""
    keys = sorted({key for t in said.snapshot.targets for key in t.target.labels})
    info = GaugeMetricFamily("kvwatch_target_info", "where a target is", labels=("target", "url", *keys))
    for t in said.snapshot.targets:
        info.add_metric((t.target.name, short(t.target.url), *(short(t.target.labels.get(k, "")) for k in keys)), 1.0)
    yield info
    build = GaugeMetricFamily("kvwatch_build_info", "the version that runs", labels=("version",))
    build.add_metric((__version__,), 1.0)
    yield build


def config(*, refused: bool) -> Metric:
    """Whether the configuration in force is the newest one."""
    taken = "whether the configuration was taken when it was last read"
    return GaugeMetricFamily("kvwatch_config_last_reload_successful", taken, value=0.0 if refused else 1.0)
