"""Listening to one target's KV events as its scrapes find them: who publishes, and what that says of the scrape at hand.

Without the extra ``events`` nobody listens, and everything else goes on.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kvwatch.events.ledger import LedgerView
from kvwatch.events.sources import RankSource, configured, discovered
from kvwatch.model import EngineState, EventStats, Note, Outcome
from kvwatch.refine import Refiner
from kvwatch.target import Target

if TYPE_CHECKING:
    from kvwatch.events.subscribe import Subscriber

LOG = logging.getLogger("kvwatch")
SILENT = (
    "no KV event has arrived although the engine publishes them: its endpoint names a host, so the engine connects; "
    "set side.events with subscribe and bind: true, or let the engine bind with tcp://*:PORT"
)


@dataclass(slots=True)
class Listener:
    """One target's subscriber, begun when a scrape says who publishes, and the memory that makes use of it. One turn at a time."""

    target: Target
    refiner: Refiner
    subscriber: Subscriber | None = None
    tried: Mapping[str, RankSource] | None = None

    def hear(self, outcome: Outcome, side: Mapping[str, object]) -> Outcome:
        """The outcome with what the events tell beside it."""
        if not outcome.ok or not any(s.engine == "vllm" for s in outcome.states):
            return outcome
        self._follow(side)
        stats = {} if self.subscriber is None else self.subscriber.stats()
        refined = self.refiner.refine(outcome, self._view)
        states = tuple(self._noted(s, stats.get(s.rank)) for s in refined.states)
        return replace(refined, states=states, events=stats)

    def close(self) -> None:
        """Stop listening."""
        if self.subscriber is not None:
            self.subscriber.close()
            self.subscriber = None

    def _view(self, rank: str, at: float) -> LedgerView | None:
        return None if self.subscriber is None else self.subscriber.view(rank, at)

    def _follow(self, side: Mapping[str, object]) -> None:
        """Listen where the configuration or the engine says; keep on when the engine says nothing new."""
        if not self.target.side.events:
            return
        sources = configured(self.target)
        if sources is None:
            sources = discovered(side.get("kv_event_sources"), self.target)
        if not sources or sources == self.tried:
            return
        self.close()
        self.tried = sources
        try:
            from kvwatch.events.subscribe import Subscriber  # noqa: PLC0415  needs the extra "events"
        except ModuleNotFoundError:
            LOG.info("target %s publishes KV events; install kvwatch[events] to make use of them", self.target.name)
            return
        try:
            self.subscriber = Subscriber(sources)
        except ValueError as error:
            LOG.warning("target %s: cannot listen to its KV events (%s): correct side.events", self.target.name, error)

    def _noted(self, state: EngineState, stats: EventStats | None) -> EngineState:
        source = None if self.subscriber is None else self.subscriber.sources.get(state.rank)
        busy = state.running.lo > 0
        if stats is None or source is None or not source.unclear or stats.state != "silent" or not busy:
            return state
        return replace(state, notes=(*state.notes, Note("events-silent", SILENT)))
