"""What one layer of a model keeps for a sequence."""

from __future__ import annotations

from dataclasses import dataclass


class UnknownShape(ValueError):
    """A fact about the model's KV cache that nobody told; the message is one line that names it."""


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer's share of the KV cache.

    ``heads`` KV heads keep ``values`` numbers of each token, key and value together; a latent (MLA) is one head, because every rank
    holds all of it. ``window`` is how many tokens it keeps at most, None for all. ``index_bytes`` of each token are of fixed width
    (a sparse-attention index). ``state_bytes`` are kept per sequence whatever its length, as by state-space layers: None when unknown.
    """

    heads: int = 0
    values: int = 0
    window: int | None = None
    index_bytes: int = 0
    state_bytes: int | None = 0

    def tokens_of(self, length: int) -> int:
        """How many tokens of a sequence of that length it keeps."""
        return length if self.window is None else min(length, self.window)
