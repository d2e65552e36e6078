"""One snapshot as Prometheus families: what /metrics gives. Pure; nothing lives longer than the answer.

A series that is unknown is absent. Ratios and states are gauges of the moment; counters and histograms are the engine's own, under one
name for all engines.
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import Metric

from kvwatch.metrics import owners, targets
from kvwatch.report import Verdict


def families(said: Verdict, *, gpu_processes: bool = False, config_refused: bool = False) -> Iterator[Metric]:
    """All families of one verdict; those of GPU processes only when asked for."""
    fresh = [o for o in said.snapshot.owners if not o.stale]
    yield from owners.pools(fresh)
    yield from owners.requests(fresh)
    yield from owners.counters(fresh)
    yield from owners.histograms(fresh)
    yield from owners.signals(fresh)
    yield from owners.infos(fresh)
    yield from targets.targets(said)
    yield from targets.events(said)
    yield from targets.signals(said)
    yield from targets.gpus(said, processes=gpu_processes)
    yield from targets.findings(said)
    yield from targets.infos(said)
    yield targets.config(refused=config_refused)
