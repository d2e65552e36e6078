"""Which engine a body is from, and the one way to read it.

An engine file states facts about one engine: what it is recognised by, which families it wants, and how its samples become
``EngineState``s. It has no opinion and no memory: the same scrape gives the same states.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from kvwatch.exposition import Exposition
from kvwatch.model import EngineState, Missing
from kvwatch.target import Target


@dataclass(frozen=True, slots=True)
class SidePage:
    """An optional JSON page beside /metrics: ``name`` keys the answer in ``Scrape.side``; ``every_seconds`` 0 means with each scrape.

    ``fallback`` is the path to try where ``path`` does not exist: what older releases called it.
    """

    name: str
    path: str
    every_seconds: float
    fallback: str | None = None


@dataclass(frozen=True, slots=True)
class Scrape:
    """Everything one turn brought from one target.

    ``at`` is monotonic seconds, ``wall`` Unix seconds or None. ``side`` holds parsed JSON by page name; a page that was not asked
    or did not answer is absent.
    """

    target: Target
    at: float
    wall: float | None
    exposition: Exposition
    side: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Reading:
    """One scrape, understood: a state per pool owner, and what should have been there."""

    states: tuple[EngineState, ...]
    missing: tuple[Missing, ...] = ()


class Engine(Protocol):
    """What an engine file offers (as module attributes)."""

    @property
    def NAME(self) -> str:  # noqa: N802  a constant of the module
        """What the configuration and the output call it."""

    @property
    def SIDE(self) -> tuple[SidePage, ...]:  # noqa: N802  a constant of the module
        """The optional pages it can make use of."""

    def select(self, name: str) -> str | None:
        """Canonical name of a sample or family this engine file reads (``vllm:x`` for ``ray_vllm_x``), or None."""

    def recognise(self, exposition: Exposition) -> bool:
        """Whether the body is this engine's."""

    def read(self, scrape: Scrape) -> Reading:
        """The states in the scrape; an owner of which nothing is known is left out."""
