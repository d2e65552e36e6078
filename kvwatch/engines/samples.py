"""Values over the samples of one family, for engine files: what no size or counter can be is left out, never counted as 0."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Iterable

from kvwatch.exposition import Exposition, Sample
from kvwatch.model import Histogram

MOST, LEAST = 1e24, 1e-24
"""No count of bytes or nanoseconds grows as far, no ratio is as small; sums, products and quotients of what lies between are finite."""


def meant(value: float, most: float = MOST) -> bool:
    """Whether a size, a ratio or a counter can have this value."""
    return value == 0 or LEAST <= value <= most


def plausible(samples: Iterable[Sample]) -> tuple[Sample, ...]:
    """The samples whose value can be meant."""
    return tuple(s for s in samples if meant(s.value))


def total(samples: Iterable[Sample]) -> float | None:
    """Sum of the plausible values, or None when there is none."""
    values = [s.value for s in plausible(samples)]
    return sum(values) if values else None


def greatest(samples: Iterable[Sample]) -> float | None:
    """Largest plausible value, or None when there is none: for what every rank counts in full."""
    return max((s.value for s in plausible(samples)), default=None)


def merge_histogram(buckets: Iterable[Sample], sums: Iterable[Sample], counts: Iterable[Sample]) -> Histogram | None:
    """One histogram of all label sets together, from the ``_bucket``, ``_sum`` and ``_count`` samples.

    None without a sum or a count, and where the buckets are no whole numbers that grow to the count: some are missing then.
    """
    edges: defaultdict[float, float] = defaultdict(float)
    for sample in plausible(buckets):
        edge = _edge(sample)
        if edge is not None:
            edges[edge] += sample.value
    count, amount = total(counts), total(sums)
    if count is None or amount is None:
        return None
    edges.setdefault(math.inf, count)
    ascending = tuple(sorted(edges.items()))
    whole = all(number.is_integer() for number in edges.values())
    if not whole or any(lower > upper for (_, lower), (_, upper) in itertools.pairwise(ascending)):
        return None
    return Histogram(ascending, amount, count)


def _edge(sample: Sample) -> float | None:
    """The upper edge of a bucket; None where it cannot be read."""
    try:
        edge = float(sample.labels.get("le", ""))
    except ValueError:
        return None
    return edge if edge == math.inf or meant(edge) else None


def refused(exposition: Exposition, names: Iterable[str]) -> tuple[tuple[str, float], ...]:
    """Name and value of the samples of these names that are left out, in the order of the names."""
    return tuple((s.name, s.value) for name in sorted(names) for s in exposition.get(name) if not meant(s.value))
