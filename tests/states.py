"""What tests look at in a state that was read: its pools, and the codes of its notes."""

from __future__ import annotations

from kvwatch.model import EngineState
from kvwatch.pool import Pool, PoolName


def hbm(state: EngineState, name: PoolName = "full") -> Pool:
    """A pool of its L1."""
    pool = state.pool("l1", name)
    assert pool is not None
    return pool


def host(state: EngineState) -> Pool:
    """Its L2 pool."""
    pool = state.pool("l2", "kv")
    assert pool is not None
    return pool


def codes(state: EngineState) -> set[str]:
    """The codes of its notes."""
    return {note.code for note in state.notes}
