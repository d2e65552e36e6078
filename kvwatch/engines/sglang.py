"""SGLang: one state per data-parallel rank from its /metrics, its load reports and its configuration.

Releases 0.4.3 to 0.5.23 are known. The scheduler pushes its gauges after a prefill, after every 40th decode step and every 30 s when idle
(sglang/srt/managers/scheduler_components/metrics_reporter.py), so they do not exist before the first batch and may be old; whether they
are is for those to judge who see more than one scrape, by the counter ``heartbeat``, the fingerprint and ``loads_age_seconds``.
``/health`` must never be asked: an idle server answers it with a generation.
"""

from __future__ import annotations

from dataclasses import replace

from kvwatch.engines import Reading, Scrape, SidePage
from kvwatch.engines.sglang_counters import oldest_release, read_counters, read_histograms
from kvwatch.engines.sglang_families import PREFIX, canonical
from kvwatch.engines.sglang_owner import Report
from kvwatch.engines.sglang_pools import limits, read_pools
from kvwatch.engines.sglang_series import Owner, Series, bounded, split
from kvwatch.engines.sglang_side import Loads, ServerInfo, read_loads, read_server_info, read_version
from kvwatch.exposition import Exposition
from kvwatch.model import EngineState, Missing, Note
from kvwatch.schema import EngineName

NAME: EngineName = "sglang"
SIDE = (
    SidePage("loads", "/v1/loads?include=all", 0.0),
    SidePage("server_info", "/server_info", 300.0, fallback="/get_server_info"),
)


def select(name: str) -> str | None:
    """Canonical name of a sample or family that is read, or None."""
    return canonical(name)


def recognise(exposition: Exposition) -> bool:
    """Whether the body is SGLang's: nothing else begins a name with ``sglang:``."""
    return any(name.startswith(PREFIX) for names in (exposition.samples, exposition.types) for name in names)


def read(scrape: Scrape) -> Reading:
    """The states in the scrape, by model and rank; none while the server says nothing about a scheduler."""
    loads, info, notes = _side(scrape)
    version = next((said.version for said in (info, loads) if said is not None and said.version is not None), None)
    series_of = dict(split(scrape.exposition))
    if not series_of and loads is not None:
        series_of = {Owner(info.model if info else None, rank): Series({}, alone=len(loads.ranks) == 1) for rank in loads.ranks}
    states: list[EngineState] = []
    missing: dict[str, Missing] = {}
    for owner, series in series_of.items():
        load = loads.ranks.get(owner.rank) if loads is not None else None
        report = Report(owner.rank, series, load, info, version, oldest_release(series, read_version(version)))
        report = replace(report, series=bounded(series, limits(series, report.capacity)))
        states.append(_state(scrape, owner, report, notes, first=not states))
        missing |= {m.series: m for m in report.missing(states[-1].pool("l1", "full"))}
    return Reading(tuple(states), tuple(missing.values()))


def _side(scrape: Scrape) -> tuple[Loads | None, ServerInfo | None, tuple[Note, ...]]:
    loads, info = read_loads(scrape.side.get("loads"), scrape.wall), read_server_info(scrape.side.get("server_info"))
    odd = [page for page, found in (("loads", loads), ("server_info", info)) if page in scrape.side and found is None]
    notes = [Note("side-page-unreadable", f"the answer of {' and '.join(odd)} has an unknown shape and is ignored")] if odd else []
    return loads, info, tuple(notes)


def _state(scrape: Scrape, owner: Owner, report: Report, notes: tuple[Note, ...], *, first: bool) -> EngineState:
    """One owner's state; ``first`` when it stands for what only the whole target counts."""
    series, role = report.series, report.role
    pools, pool_notes = read_pools(series, report.capacity, report.load)
    histograms, renamed = read_histograms(series)
    joined = Note("joined-by-target", "SGLang measures first tokens and ends of requests for all its ranks together")
    return EngineState(
        target=scrape.target.name,
        engine=NAME,
        model=owner.model,
        rank=owner.rank,
        at=scrape.at,
        pools=pools,
        running=report.running,
        waiting=report.waiting,
        waiting_deferred=report.deferred,
        counters=read_counters(series, report.release, role=role, hicache=report.hicache, first=first),
        gauges=report.gauges(),
        histograms=histograms,
        facts=report.facts(),
        notes=(*notes, *series.notes, *pool_notes, *renamed, *report.renamed(), *(() if series.alone else (joined,))),
        identity=report.identity,
        joined=not series.alone,
        implausible=series.implausible,
        fingerprint=series.fingerprint(),
    )
