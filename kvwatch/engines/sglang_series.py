"""Whose a sample is: SGLang's five label worlds, split by pool owner.

The scheduler labels its series by rank, the request side by model only, the radix cache and the storage tier by rank without a model,
the HTTP server by none of them (sglang/srt/observability/metrics_collector.py). TP, PP, CP and EP ranks of an owner repeat the same
logical numbers, so one of them is read; data-parallel ranks own a pool each.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple
from zlib import crc32

from kvwatch.engines.samples import MOST, meant, merge_histogram
from kvwatch.engines.sglang_families import FREE, PREFIX, RANKS, RATIOS, WORLDS, World, world_of
from kvwatch.exposition import Exposition, Sample
from kvwatch.model import Histogram, Note, rank_number

SHARED = (World.REQUEST, World.HTTP)
"""Written for all ranks together."""
BY_RANK = (World.CACHE, World.STORAGE)
"""Written by each rank without a model."""
TOKENS = "_tokens_total"
IMPLAUSIBLE = "implausible-value"


class Owner(NamedTuple):
    """A pool owner inside one target: model and data-parallel rank."""

    model: str | None
    rank: str


@dataclass(frozen=True, slots=True)
class Series:
    """The samples that are about one owner, by name without prefix; a value no engine can mean is NaN here.

    ``implausible`` lists the finite ones of those as they were reported, ``notes`` what had to be decided.
    ``alone`` is true when the target has no other owner, so that what the request side counts is this owner's.
    ``copies`` is how many ranks' counts are summed in a cache series that names no rank, 1 where each rank has its own; ``merged`` are
    the cache and storage counters that were left out because they are several owners' together.
    """

    samples: Mapping[str, tuple[Sample, ...]]
    alone: bool = True
    copies: int = 1
    merged: frozenset[str] = frozenset()
    implausible: tuple[tuple[str, float], ...] = ()
    notes: tuple[Note, ...] = ()

    def has(self, name: str) -> bool:
        """Whether the family was born, whatever its value."""
        return bool(self.samples.get(name))

    def gauge(self, name: str) -> float | None:
        """The gauge's value; where several series claim to be it, the one nearer to a full pool."""
        found = self.samples.get(name)
        value = _fuller(name, found).value if found else math.nan
        return None if math.isnan(value) else value

    def count(self, name: str, **among: tuple[str, ...]) -> float | None:
        """The sum of a counter's series, of those whose labels have one of the values in ``among``.

        0 where the family was born and the label value was not: labelled series appear with their first increment. None without the
        family, or when one of the values is not to be trusted.
        """
        found = self.samples.get(name)
        if not found:
            return None
        total = math.fsum(s.value for s in found if all(s.labels.get(label, "") in values for label, values in among.items()))
        return None if math.isnan(total) else total

    def fingerprint(self) -> int:
        """A checksum of all that the scheduler itself writes: it stays when the scheduler hangs, whatever the request side does."""
        written = sorted((name, [s.value for s in samples]) for name, samples in self.samples.items() if WORLDS[name] not in SHARED)
        return crc32(repr(written).encode())

    def label(self, name: str, key: str) -> str | None:
        """The label's value on the first series of a family."""
        return next((s.labels[key] for s in self.samples.get(name, ()) if key in s.labels), None)

    def histogram(self, name: str, stages: Collection[str] = ()) -> Histogram | None:
        """The family's buckets, of these stages if any are named, every label but ``le`` summed away; None when nothing was observed."""
        buckets, sums, counts = (
            [s for s in self.samples.get(name + suffix, ()) if not stages or s.labels.get("stage") in stages]
            for suffix in ("_bucket", "_sum", "_count")
        )
        return merge_histogram((s for s in buckets if "le" in s.labels), sums, counts)


class _Place(NamedTuple):
    """What the labels of a sample say: whose it is, and which of the ranks that repeat each other wrote it."""

    owner: Owner
    rank: tuple[int, ...]


class _Family(NamedTuple):
    """The samples of one name, without prefix, each with its place."""

    name: str
    world: World
    samples: tuple[Sample, ...]
    places: tuple[_Place, ...]


@dataclass(slots=True)
class _Share:
    """What one owner has got so far."""

    samples: dict[str, tuple[Sample, ...]] = field(default_factory=dict)
    odd: list[tuple[str, float]] = field(default_factory=list)
    repeated: list[str] = field(default_factory=list)


def split(exposition: Exposition) -> Mapping[Owner, Series]:
    """The body by pool owner, in the order of model and rank.

    Series of the request side and the HTTP server name no rank: every owner sees them, and ``alone`` says whether they may be counted.
    Cache and storage counters go to their rank. Plain data-parallel replicas all call themselves rank 0 there and SGLang's registry adds
    them up; what cannot be told apart is left out.
    """
    families = tuple(_families(exposition))
    schedulers = {place for family in families if family.world is World.SCHEDULER for place in family.places}
    found = {place.owner for place in schedulers} or {p.owner for f in families if f.world is World.REQUEST for p in f.places}
    everyone = tuple(sorted(found, key=lambda o: (o.model or "", rank_number(o.rank), o.rank)))
    # Several ranks that begin with tensor-parallel rank 0 are plain replicas: under DP attention only one does.
    replicas = len({place.owner for place in schedulers if place.rank[0] == 0}) > 1
    shares = {owner: _Share() for owner in everyone}
    merged: set[str] = set()
    for family in families:
        if family.world in BY_RANK and len(everyone) > 1 and (replicas or any("dp_rank" not in s.labels for s in family.samples)):
            merged.add(family.name)
            continue
        for owners, samples in _parts(family, everyone):
            known, odd, twice = _judged(family.name, samples)
            for owner in owners:
                share = shares[owner]
                share.samples[family.name] = known
                share.odd += odd
                share.repeated += [PREFIX + family.name] if twice else []
    return {owner: _series(share, len(everyone), len(schedulers), frozenset(merged)) for owner, share in shares.items()}


def bounded(series: Series, limits: Mapping[str, float | None]) -> Series:
    """The series without the gauges that exceed what they are a part of: no engine can mean those either."""
    told = {name: series.gauge(name) for name in limits}
    over = {n: v for n, v in told.items() if v is not None and (most := limits[n]) is not None and v > most}
    if not over:
        return series
    hidden = {n: tuple(Sample(s.name, s.labels, math.nan) for s in series.samples[n]) for n in over}
    odd = (*series.implausible, *((PREFIX + n, v) for n, v in over.items()))
    others = tuple(note for note in series.notes if note.code != IMPLAUSIBLE)
    return replace(series, samples={**series.samples, **hidden}, implausible=odd, notes=(_implausible(odd), *others))


def _implausible(odd: Sequence[tuple[str, float]]) -> Note:
    quoted = ", ".join(f"{name} = {value:g}" for name, value in odd[:3])
    return Note(IMPLAUSIBLE, f"{quoted}: no engine can mean that; it counts as unknown")


def _families(exposition: Exposition) -> Iterator[_Family]:
    places: dict[int, _Place] = {}  # by identity of the labels, which the parser shares between samples
    for name, samples in exposition.samples.items():
        world = world_of(name)
        if world is not None:
            for sample in samples:
                if id(sample.labels) not in places:
                    places[id(sample.labels)] = _place(sample.labels)
            yield _Family(name.removeprefix(PREFIX), world, samples, tuple(places[id(s.labels)] for s in samples))


def _place(labels: Mapping[str, str]) -> _Place:
    return _Place(
        Owner(labels.get("model_name"), labels.get("dp_rank", "0")), tuple(rank_number(labels.get(label, "0")) for label in RANKS)
    )


def _series(share: _Share, owners: int, schedulers: int, merged: frozenset[str]) -> Series:
    """One owner's series. Cache counters without rank labels (before 0.5.21) are the sum of all ranks of the server.

    Every rank's scheduler exports at least its request timings, so the ranks show once there was a request.
    """
    cache = [s for name, samples in share.samples.items() if name.endswith(TOKENS) and WORLDS[name] is World.CACHE for s in samples]
    copies = max(1, schedulers) if cache and not any("tp_rank" in s.labels for s in cache) else 1
    return Series(
        share.samples, owners == 1, copies, merged, tuple(share.odd), _notes(share.odd, share.repeated, copies, merged=bool(merged))
    )


def _parts(family: _Family, everyone: tuple[Owner, ...]) -> Iterator[tuple[tuple[Owner, ...], Sequence[Sample]]]:
    """Which samples of a family are whose, and of those that ranks repeat only one rank's."""
    models = {owner.model for owner in everyone}
    if family.world in SHARED and (family.world is World.HTTP or len(models) == 1):
        yield everyone, family.samples
    elif family.world in SHARED:
        for model in models:
            yield tuple(o for o in everyone if o.model == model), [s for s in family.samples if s.labels.get("model_name") == model]
    elif family.world in BY_RANK and len(everyone) == 1:
        yield everyone, _lead(family, list(zip(family.samples, family.places, strict=True)))
    else:
        groups: defaultdict[str | Owner, list[tuple[Sample, _Place]]] = defaultdict(list)
        for sample, place in zip(family.samples, family.places, strict=True):
            groups[place.owner.rank if family.world in BY_RANK else place.owner].append((sample, place))
        for owner in everyone:
            mine = groups.get(owner.rank if family.world in BY_RANK else owner)
            if mine:
                yield (owner,), _lead(family, mine)


def _lead(family: _Family, placed: list[tuple[Sample, _Place]]) -> list[Sample]:
    """Of copies that TP, PP, CP and EP ranks repeat, those of the least rank; bytes are each rank's own share and all stay.

    With priority scheduling the empty priority is the total of the others (sglang/srt/observability/metrics_collector.py).
    """
    totals = [(s, p) for s, p in placed if not s.labels.get("priority")] or placed
    least = min(place.rank for _, place in totals)
    return [s for s, place in totals if place.rank == least or family.name.endswith("_bytes_total")]


def _notes(odd: list[tuple[str, float]], repeated: list[str], copies: int, *, merged: bool) -> tuple[Note, ...]:
    notes = []
    if odd:
        notes.append(_implausible(odd))
    if repeated:
        names = ", ".join(repeated[:3])
        notes.append(Note("duplicate-series", f"{names} came more than once with different values; the fuller reading was taken"))
    if merged:
        notes.append(Note("merged-ranks", "SGLang adds up the cache counters of its data-parallel ranks; they say nothing about one"))
    elif copies > 1:
        notes.append(Note("merged-ranks", f"SGLang adds up the cache counters of {copies} ranks that repeat each other; they were divided"))
    return tuple(notes)


def _judged(name: str, samples: Sequence[Sample]) -> tuple[tuple[Sample, ...], list[tuple[str, float]], bool]:
    """One sample for each label set, the fuller of two; values no engine can mean made NaN and listed; whether any label set repeated."""
    most = 1.0 if name in RATIOS else MOST
    odd = [(PREFIX + name, s.value) for s in samples if not meant(s.value, most)]
    known = [s if meant(s.value, most) else Sample(s.name, s.labels, math.nan) for s in samples] if odd else samples
    groups: defaultdict[frozenset[tuple[str, str]], list[Sample]] = defaultdict(list)
    for sample in known if len(known) > 1 else ():
        groups[frozenset(sample.labels.items())].append(sample)
    if len(known) == 1 or len(groups) == len(known):
        return tuple(known), odd, False
    repeated = any(len({s.value for s in group}) > 1 for group in groups.values())
    return tuple(_fuller(name, group) for group in groups.values()), odd, repeated


def _fuller(name: str, samples: Sequence[Sample]) -> Sample:
    """Of readings of one thing the one nearer to a full pool."""
    readable = [s for s in samples if not math.isnan(s.value)]
    choose = min if name.endswith(FREE) else max
    return choose(readable, key=lambda s: s.value) if readable else samples[0]
