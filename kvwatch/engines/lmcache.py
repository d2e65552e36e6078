"""LMCache: a host tier inside the engine's workers (``lmcache:*``) or a server of its own (``lmcache_mp_*``); a port shows one of them.

The worker's series usually come with the engine's own in one body. Then they are joined by that: LMCache's ``model_name`` is the path given
to the engine, not the name it serves.
"""

from __future__ import annotations

from dataclasses import replace

from kvwatch.engines import Reading, Scrape, SidePage
from kvwatch.engines.lmcache_server import NO_OCCUPANCY, old_spelling, server_state
from kvwatch.engines.lmcache_server import WANTED as SERVER_SERIES
from kvwatch.engines.lmcache_workers import WANTED as WORKER_SERIES
from kvwatch.engines.lmcache_workers import model_names, workers_state
from kvwatch.exposition import Exposition
from kvwatch.model import EngineState, Missing, Note

NAME = "lmcache"
SIDE: tuple[SidePage, ...] = ()

WANTED = SERVER_SERIES | WORKER_SERIES | {"process_start_time_seconds"}


def select(name: str) -> str | None:
    """The name itself when it is read here."""
    return name if name in WANTED else None


def recognise(exposition: Exposition) -> bool:
    """Whether the body is a server's, or a worker's own port: LMCache series and no engine's."""
    names = exposition.samples
    return any(n.startswith("lmcache") for n in names) and not any(n.startswith(("vllm:", "sglang:")) for n in names)


def read(scrape: Scrape) -> Reading:
    """The one state of a server, or of a worker's own port."""
    state = _own(scrape, owners=1)
    return Reading(() if state is None else (state,), _missing(scrape.exposition))


def attach(states: tuple[EngineState, ...], scrape: Scrape) -> Reading:
    """Complete an engine's states by what LMCache says in the same body.

    One engine gets the pools, counters and histograms. Of several data-parallel engines none can be told from the others, so the tier
    stays an owner of its own beside them (engine "lmcache", rank "0" of this target), and the engines only know that it exists.
    """
    if not states:
        return Reading(())
    own = _own(scrape, owners=len(states))
    if own is None:
        tied = {"l2_kind": "lmcache-server", "l2_configured": "true"} if scrape.target.l2.source is not None else {}
        return Reading(tuple(replace(s, facts={**s.facts, **tied}) for s in states) if tied else states)
    missing = _missing(scrape.exposition)
    first = states[0].pool("l2", "kv")
    if len(states) > 1 or (first is not None and first.measured):
        return Reading((*(replace(s, facts={**s.facts, **own.facts}) for s in states), own), missing)
    return Reading((_joined(states[0], own, scrape.exposition),), missing)


def _own(scrape: Scrape, owners: int) -> EngineState | None:
    return server_state(scrape) or workers_state(scrape, owners)


def _missing(exposition: Exposition) -> tuple[Missing, ...]:
    return (NO_OCCUPANCY,) if old_spelling(exposition) else ()


def _joined(engine: EngineState, own: EngineState, exposition: Exposition) -> EngineState:
    """The engine's state with the tier in it; where both counted the same the engine's own count stays, which is never 10 s old."""
    taken = {(p.tier, p.pool) for p in own.pools}
    notes = own.notes
    names = model_names(exposition)
    if names and engine.model is not None and engine.model not in names:
        notes = (
            *notes,
            Note("joined-by-target", f"LMCache calls the model {', '.join(sorted(names))}; joined because one port serves both"),
        )
    return replace(
        engine,
        pools=(*(p for p in engine.pools if (p.tier, p.pool) not in taken), *own.pools),
        counters={**own.counters, **engine.counters},
        gauges={**own.gauges, **engine.gauges},
        histograms={**own.histograms, **engine.histograms},
        facts={**engine.facts, **own.facts},
        notes=(*engine.notes, *notes),
        implausible=(*engine.implausible, *own.implausible),
    )
