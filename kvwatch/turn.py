"""One turn of one target: a body and what came beside it, into an outcome. Pure; the poller and the recordings share it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from kvwatch.engines import Scrape
from kvwatch.exposition import Exposition, Memo
from kvwatch.model import EngineState, Outcome, ScrapeError
from kvwatch.quantity import exactly
from kvwatch.reading import take_in, understand
from kvwatch.target import Target


@dataclass(frozen=True, slots=True)
class Clocked:
    """When a scrape was sent: monotonic seconds, Unix seconds (None for files without a time), and how long it took."""

    at: float
    wall: float | None
    seconds: float = 0.0


def failed(target: Target, when: Clocked, error: ScrapeError) -> Outcome:
    """A turn that brought nothing."""
    return Outcome(target.name, when.at, when.wall, when.seconds, error=error)


def finished(target: Target, when: Clocked, body: bytes, side: Mapping[str, object], memo: Memo | None = None) -> Outcome:
    """A turn that brought a body, understood or not."""
    exposition = take_in(body, memo)
    return failed(target, when, exposition) if isinstance(exposition, ScrapeError) else judged(target, when, exposition, side, len(body))


def judged(target: Target, when: Clocked, exposition: Exposition, side: Mapping[str, object], body_bytes: int) -> Outcome:
    """A turn whose body was parsed already (to know which side pages to ask for)."""
    reading = understand(Scrape(target, when.at, when.wall, exposition, side))
    if isinstance(reading, ScrapeError):
        return failed(target, when, reading)
    return Outcome(
        target.name,
        when.at,
        when.wall,
        when.seconds,
        states=tuple(_sized(s, target) for s in reading.states),
        missing=reading.missing,
        body_bytes=body_bytes,
        malformed_lines=exposition.malformed_count,
    )


def _sized(state: EngineState, target: Target) -> EngineState:
    """Add what the model's configuration says about the size of a token."""
    size = target.kv_bytes_per_token.get(state.facts.get("kv_dtype", "auto"))
    if size is None or "kv_bytes_per_token" in state.gauges or not state.serves:
        return state
    return replace(state, gauges={**state.gauges, "kv_bytes_per_token": exactly(size)})
