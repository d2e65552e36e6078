"""Whose a vLLM series is, and how odd ones are read: spellings, copies, duplicates, values no engine can mean.

A body may hold several engines: data-parallel ranks differ in the label ``engine``, replicas behind one Ray endpoint in ``ReplicaId``
(vllm/v1/metrics/ray_wrappers.py). Names are without the prefix ``vllm:`` here, and a counter is named without ``_total``.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from kvwatch.engines.samples import MOST, meant, merge_histogram
from kvwatch.exposition import Exposition, Sample
from kvwatch.model import Histogram, Note, rank_number
from kvwatch.quantity import UNKNOWN, Interval, exactly

PREFIX = "vllm:"
FLOAT_NOISE = 1e-9
"""How far a computed ratio may leave 0 to 1."""

FRONT_END = frozenset({"admission_rejections", "admission_rejections_total"})
"""Counted by the API server before an engine is chosen (vllm/v1/engine/async_llm.py): no rank's own, so the first one speaks for all."""
CONFIG = frozenset({"cache_config_info"})
"""Says ``engine`` but never ``model_name``, and without either it is everybody's."""


class Origin(NamedTuple):
    """What the labels of a series say about who exported it; None where they say nothing. A tuple, since each sample makes one."""

    model: str | None
    engine: str | None
    replica: str | None

    @classmethod
    def of(cls, labels: Mapping[str, str]) -> Origin:
        """Read the labels; an empty value is an absent label to Prometheus."""
        replica = labels.get("ReplicaId") or labels.get("WorkerId")
        return cls(labels.get("model_name") or None, labels.get("engine") or None, replica or None)

    @property
    def order(self) -> tuple[str, int, str, str]:
        """Model, then rank by number, then replica."""
        engine = self.engine or "0"
        return self.model or "", rank_number(engine), engine, self.replica or ""

    def fits(self, other: Origin) -> bool:
        """Whether both may speak of one engine: nothing said by both differs."""
        return all(a is None or b is None or a == b for a, b in zip(self, other, strict=True))

    def vaguer(self, other: Origin) -> bool:
        """Whether this says less of what may be the same engine: nothing beside what the other says, or not the model."""
        if self == other or not self.fits(other):
            return False
        return all(a is None or a == b for a, b in zip(self, other, strict=True)) or (self.model is None and other.model is not None)


@dataclass(slots=True)
class Series:
    """The samples of one engine by bare name, and what had to be decided about odd ones while they were read.

    ``rank`` is its name in the verdict, ``engines`` how many data-parallel engines share its front end, ``registered`` every family
    of the body, with a sample or only a type; empty where several front ends share the body, since it cannot be said whose they are.
    """

    origin: Origin
    rank: str
    engines: int
    registered: frozenset[str]
    samples: dict[str, list[Sample]] = field(default_factory=lambda: defaultdict(list))
    notes: list[Note] = field(default_factory=list)
    implausible: list[tuple[str, float]] = field(default_factory=list)

    def has(self, *names: str) -> bool:
        """Whether any of these gauges has a sample, whatever its value."""
        return any(self.samples.get(name) for name in names)

    def configured(self, *names: str) -> bool:
        """Whether any of these families is registered: a family with a type and no sample is configured and was never used."""
        spelled = [spelling for name in names for spelling in (name, name + "_total")]
        return any(name in self.registered or self.samples.get(name) for name in spelled)

    def gauge(self, *names: str, most: float = MOST, **where: str) -> Interval:
        """The value of the first of these gauges that exists; the interval of all copies when they differ, unknown without any."""
        good = self._plausible(self._first(names, where), most)
        values = sorted({value for _, value in good})
        if not values:
            return UNKNOWN
        if len(values) == 1:
            return exactly(values[0])
        name = good[0][0].name
        if len({_identity(s) for s, _ in good}) < len({(_identity(s), v) for s, v in good}):
            self.note("duplicate-series", f"{name} comes more than once with different values; the truth is taken to lie between them")
        elif all("pid" in s.labels for s, _ in good) and len([v for v in values if v > 0]) == 1:
            self.note("pid-split-gauge", f"{name} is exported by {len(good)} processes, and only one of them has the engine's value")
            return exactly(values[-1])
        else:
            self.note("ambiguous-gauge", f"{name} has {len(values)} values for one engine; the truth is taken to lie between them")
        return Interval(values[0], values[-1])

    def counter(self, *names: str, **where: str) -> float | None:
        """Sum over the label sets of the first of these counters that exists; copies and the two spellings count once."""
        spelled = [spelling for name in names for spelling in (name + "_total", name)]
        parts: dict[frozenset[tuple[str, str]], float] = {}
        for sample, value in self._plausible(self._first(spelled, where)):
            key = _identity(sample, "pid")
            if parts.get(key, value) != value:
                self.note("duplicate-series", f"{sample.name} comes more than once with different values; the greatest is taken")
            parts[key] = max(value, parts.get(key, value))
        return math.fsum(parts.values()) if parts else None

    def histogram(self, *names: str) -> Histogram | None:
        """The first of these histograms that exists, all labels but ``le`` summed away; None where a part of it is missing."""
        for name in names:
            buckets = self._distinct(name + "_bucket")
            if buckets:
                return merge_histogram(buckets, self._distinct(name + "_sum"), self._distinct(name + "_count"))
        return None

    def info(self, name: str) -> Mapping[str, str]:
        """The labels of an info series; of several only what they agree on."""
        first, *others = [s.labels for s in self.samples.get(name, ())] or [{}]
        return {key: value for key, value in first.items() if all(o.get(key) == value for o in others)}

    def note(self, code: str, text: str) -> None:
        """Remember a decision, once."""
        note = Note(code, text)
        if note not in self.notes:
            self.notes.append(note)

    def _first(self, names: Iterable[str], where: Mapping[str, str]) -> list[Sample]:
        for name in names:
            found = [s for s in self.samples.get(name, ()) if all(s.labels.get(k) == v for k, v in where.items())]
            if found:
                return found
        return []

    def _plausible(self, samples: list[Sample], most: float = MOST) -> list[tuple[Sample, float]]:
        """Samples with a value that can be meant, computed ratios brought back to 0 and 1; the others are remembered as dropped."""
        good = []
        for sample in samples:
            if meant(max(sample.value, 0.0) if sample.value >= -FLOAT_NOISE else sample.value, most + FLOAT_NOISE):
                good.append((sample, min(max(sample.value, 0.0), most)))
            else:
                self._drop(sample)
        return good

    def _drop(self, sample: Sample) -> None:
        dropped = (sample.name, sample.value)
        if dropped not in self.implausible:
            self.implausible.append(dropped)
        self.note("implausible-value", f"{sample.name} is {sample.value:g}, which no engine can mean; it counts as unknown")

    def _distinct(self, name: str) -> list[Sample]:
        """One sample of each label set, the greater of two."""
        kept: dict[frozenset[tuple[str, str]], Sample] = {}
        for sample, _ in self._plausible(self.samples.get(name, [])):
            other = kept.setdefault(_identity(sample, "pid"), sample)
            if sample.value > other.value:
                kept[_identity(sample, "pid")] = sample
        return list(kept.values())


def split(exposition: Exposition, telling: Iterable[str]) -> tuple[Series, ...]:
    """The series of each engine in the body, by model, rank and replica.

    Engines are told apart by the families ``telling``: their labels are vLLM's own, and one that has not stepped yet may have its
    counters only. A series that fits several engines belongs to none of them and is left out, but for ``FRONT_END`` and ``CONFIG``.
    """
    ours = {name.removeprefix(PREFIX): samples for name, samples in exposition.samples.items() if name.startswith(PREFIX)}
    origins = {Origin.of(s.labels) for name in telling for s in ours.get(name, ())}
    owners = sorted((o for o in origins if not any(o.vaguer(p) for p in origins)), key=lambda o: o.order)
    repeated = Counter((o.model, o.engine or "0") for o in owners)
    front_ends = Counter((o.model, o.replica) for o in owners)
    registered = {name.removeprefix(PREFIX) for name in exposition.types} | ours.keys()
    series = [
        Series(
            origin=o,
            rank=(o.engine or "0") + (f"/{o.replica}" if o.replica and repeated[o.model, o.engine or "0"] > 1 else ""),
            engines=front_ends[o.model, o.replica],
            registered=frozenset(registered) if len(front_ends) == 1 else frozenset(),
        )
        for o in owners
    ]
    fitting: dict[Origin, list[Series]] = {}
    for name, samples in ours.items():
        for sample in samples:
            origin = Origin.of(sample.labels)
            if origin not in fitting:
                fitting[origin] = [s for s in series if origin.fits(s.origin)]
            mine = fitting[origin]
            if len(mine) > 1 and name not in CONFIG:
                mine = mine[:1] if name in FRONT_END else []
            for owner in mine:
                owner.samples[name].append(sample)
    return tuple(series)


def _identity(sample: Sample, *ignoring: str) -> frozenset[tuple[str, str]]:
    return frozenset(item for item in sample.labels.items() if item[0] not in ignoring)
