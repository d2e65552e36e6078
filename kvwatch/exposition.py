"""Bytes of a /metrics answer into the samples somebody wants. (Interface; the parser is being built.)"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

Select = Callable[[str], str | None]
"""Sample or family name as written -> the canonical name to keep it under, or None when nobody wants it."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One line of an exposition: canonical name, labels with escapes undone, value (NaN and infinities included)."""

    name: str
    labels: Mapping[str, str]
    value: float


@dataclass(frozen=True, slots=True)
class Exposition:
    """The wanted samples of one body by canonical sample name, in the order of their lines.

    ``types`` maps canonical family names (as on the ``# TYPE`` line, wanted ones only) to their type: a family with a type and
    no sample is configured and never used. ``sample_lines`` counts all valid sample lines, wanted or not; ``malformed`` are the
    1-based numbers of lines that could not be read (at most 20 are kept, ``malformed_count`` counts all).
    """

    samples: Mapping[str, tuple[Sample, ...]]
    types: Mapping[str, str]
    sample_lines: int
    malformed: tuple[int, ...]
    malformed_count: int

    def get(self, name: str) -> tuple[Sample, ...]:
        """All samples of that canonical name, () when there are none."""
        return self.samples.get(name, ())


class Memo:
    """What one target's last body looked like, so that the next one needs no parsing. Bounded; one per target."""


def parse(body: bytes, select: Select, memo: Memo | None = None) -> Exposition:
    """Read Prometheus text or OpenMetrics; a line that cannot be read is counted and costs nothing else."""
    raise NotImplementedError
