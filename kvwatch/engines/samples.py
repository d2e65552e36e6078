"""Values over the samples of one family, for engine files: what no size or counter can be is left out, never counted as 0."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable

from kvwatch.exposition import Exposition, Sample
from kvwatch.model import Histogram


def plausible(samples: Iterable[Sample]) -> tuple[Sample, ...]:
    """The samples whose value a size or a counter can have: finite and not negative."""
    return tuple(s for s in samples if math.isfinite(s.value) and s.value >= 0)


def total(samples: Iterable[Sample]) -> float | None:
    """Sum of the plausible values, or None when there is none."""
    values = [s.value for s in plausible(samples)]
    return sum(values) if values else None


def greatest(samples: Iterable[Sample]) -> float | None:
    """Largest plausible value, or None when there is none: for what every rank counts in full."""
    return max((s.value for s in plausible(samples)), default=None)


def merge_histogram(buckets: Iterable[Sample], sums: Iterable[Sample], counts: Iterable[Sample]) -> Histogram | None:
    """One histogram of all label sets together, from the ``_bucket``, ``_sum`` and ``_count`` samples; None without an observation."""
    edges: defaultdict[float, float] = defaultdict(float)
    for sample in plausible(buckets):
        edges[float(sample.labels["le"])] += sample.value
    count, amount = total(counts), total(sums)
    if count is None or amount is None:
        return None
    return Histogram(tuple(sorted(edges.items())), amount, count)


def refused(exposition: Exposition, names: Iterable[str]) -> tuple[tuple[str, float], ...]:
    """Name and value of the samples of these names that are left out, in the order of the names."""
    return tuple((s.name, s.value) for name in sorted(names) for s in exposition.get(name) if not (math.isfinite(s.value) and s.value >= 0))
