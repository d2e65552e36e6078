"""From a body to states: whose body it is, and what the engine file reads in it. Pure."""

from __future__ import annotations

from kvwatch.engines import Engine, Reading, Scrape, SidePage, lmcache, sglang, vllm
from kvwatch.exposition import Exposition, Memo, fault, parse
from kvwatch.model import ScrapeError
from kvwatch.target import Target

_VLLM: Engine = vllm
_SGLANG: Engine = sglang
_LMCACHE: Engine = lmcache
ENGINES = (_VLLM, _SGLANG, _LMCACHE)


def select(name: str) -> str | None:
    """Canonical name of a sample or family any engine file reads."""
    return next((canonical for engine in ENGINES if (canonical := engine.select(name)) is not None), None)


def take_in(body: bytes, memo: Memo | None = None) -> Exposition | ScrapeError:
    """Parse a body, or say why it is none."""
    exposition = parse(body, select, memo)
    return fault(body, exposition) or exposition


def engine_of(target: Target, exposition: Exposition) -> Engine | None:
    """The engine file for a body: the configured one, or the first that recognises it."""
    if target.engine != "auto":
        return next(engine for engine in ENGINES if target.engine == engine.NAME)
    return next((engine for engine in ENGINES if engine.recognise(exposition)), None)


def side_pages(target: Target, exposition: Exposition) -> tuple[SidePage, ...]:
    """The optional pages worth asking this target for."""
    engine = engine_of(target, exposition)
    wanted = {"loads": target.side.loads, "server_info": target.side.server_info, "kv_event_sources": target.side.events}
    return () if engine is None else tuple(page for page in engine.SIDE if wanted.get(page.name, True))


def understand(scrape: Scrape) -> Reading | ScrapeError:
    """Read a scrape, or say why no engine is in it."""
    engine = engine_of(scrape.target, scrape.exposition)
    if engine is None or not engine.recognise(scrape.exposition):
        return ScrapeError(
            "unknown_engine",
            f"{scrape.target.url} is an exposition without any series of vLLM, SGLang or LMCache; is this the engine's port?",
        )
    reading = engine.read(scrape)
    if engine is lmcache:
        return reading
    attached = lmcache.attach(reading.states, scrape)
    return Reading(attached.states, (*reading.missing, *attached.missing))
