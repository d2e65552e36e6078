"""What one KV event message says, whatever encoding it came in."""

from __future__ import annotations

from dataclasses import dataclass

GPU = "GPU"
CPU = "CPU"
"""Media as vLLM spells them (vllm/distributed/kv_events.py); other connectors name their own stores."""


@dataclass(frozen=True, slots=True)
class Stored:
    """Hashes that entered the prefix cache, one per block; the same hash may be there several times.

    ``medium`` is None in releases that knew only HBM, ``group`` the KV cache group (0 where not said), ``block_size`` tokens per hash
    (0 where not said). In a group with a sliding ``window`` (tokens) only some of the blocks with the ``tokens`` of the event are
    hashed; in others ``tokens`` is not read.
    """

    medium: str | None
    group: int
    hashes: tuple[int, ...]
    block_size: int = 0
    window: int | None = None
    tokens: int = 0


@dataclass(frozen=True, slots=True)
class Removed:
    """Hashes that left the prefix cache, one event for each copy."""

    medium: str | None
    group: int
    hashes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Cleared:
    """A prefix cache was emptied. Sent with the next engine step after it, which may be long after."""


Event = Stored | Removed | Cleared


@dataclass(frozen=True, slots=True)
class Batch:
    """The events of one engine step: ``ts`` Unix seconds of the engine's clock, ``ignored`` events of unknown types left out.

    ``rank`` is the data-parallel rank of the publisher, None where it is not said.
    """

    ts: float
    events: tuple[Event, ...]
    ignored: int = 0
    rank: int | None = None
