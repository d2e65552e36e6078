"""Whose a sample is: SGLang's five label worlds, split by pool owner.

The scheduler labels its series by rank, the request side by model only, the radix cache and the storage tier by rank without a model,
the HTTP server by none of them (sglang/srt/observability/metrics_collector.py). TP, PP, CP and EP ranks of an owner repeat the same
logical numbers, so one of them is read; data-parallel ranks own a pool each.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from zlib import crc32

from kvwatch.engines.samples import merge_histogram
from kvwatch.engines.sglang_families import FREE, PREFIX, RANKS, RATIOS, World, world_of
from kvwatch.exposition import Exposition, Sample
from kvwatch.model import Histogram, Note

SHARED = (World.REQUEST, World.HTTP)
"""Written for all ranks together."""


@dataclass(frozen=True, slots=True)
class Owner:
    """A pool owner inside one target: model and data-parallel rank."""

    model: str | None
    rank: str


@dataclass(frozen=True, slots=True)
class Series:
    """The samples that are about one owner, by name without prefix; a value no engine can mean is NaN here.

    ``implausible`` lists the finite ones of those as they were reported, ``notes`` what had to be decided.
    ``alone`` is true when the target has no other owner, so that what the request side counts is this owner's.
    ``copies`` is how many ranks' counts are summed in a cache series that names no rank, 1 where each rank has its own; ``merged`` is
    true when cache and storage counters were left out because they are several owners' together.
    """

    samples: Mapping[str, tuple[Sample, ...]]
    alone: bool = True
    copies: int = 1
    merged: bool = False
    implausible: tuple[tuple[str, float], ...] = ()
    notes: tuple[Note, ...] = ()

    def has(self, name: str) -> bool:
        """Whether the family was born, whatever its value."""
        return bool(self.samples.get(name))

    def gauge(self, name: str) -> float | None:
        """The gauge's value; where several series claim to be it, the one nearer to a full pool."""
        values = [s.value for s in self.samples.get(name, ()) if not math.isnan(s.value)]
        if not values:
            return None
        return min(values) if name.endswith(FREE) else max(values)

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
        written = sorted((name, [s.value for s in samples]) for name, samples in self.samples.items() if world_of(name) not in SHARED)
        return crc32(repr(written).encode())

    def label(self, name: str, key: str) -> str | None:
        """The label's value on the first series of a family."""
        return next((s.labels[key] for s in self.samples.get(name, ()) if key in s.labels), None)

    def histogram(self, name: str) -> Histogram | None:
        """The family's buckets with every label but ``le`` summed away; None when nothing was observed."""
        buckets, sums, counts = (self.samples.get(name + suffix, ()) for suffix in ("_bucket", "_sum", "_count"))
        return merge_histogram((s for s in buckets if "le" in s.labels), sums, counts)


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
    everyone = _owners(exposition)
    ranks = _scheduler_ranks(exposition)
    # Several ranks that begin with tensor-parallel rank 0 are plain replicas: under DP attention only one does.
    replicas = len({dp for dp, tp, _ in ranks if tp == "0"} & {o.rank for o in everyone}) > 1 or len({o.model for o in everyone}) > 1
    shares = {owner: _Share() for owner in everyone}
    merged = False
    for name, samples in exposition.samples.items():
        world = world_of(name)
        cache = world in (World.CACHE, World.STORAGE)
        if cache and len(everyone) > 1 and (replicas or any("dp_rank" not in s.labels for s in samples)):
            merged = True
            continue
        for owners, part in _parts(world, samples, everyone):
            known, odd, twice = _judged(name, part if name.endswith("_bytes_total") or world in SHARED else _lead(part))
            for owner in owners:
                share = shares[owner]
                share.samples[name.removeprefix(PREFIX)] = known
                share.odd += odd
                share.repeated += [name] if twice else []
    return {owner: _series(share, len(everyone), len(ranks), merged=merged) for owner, share in shares.items()}


def _series(share: _Share, owners: int, ranks: int, *, merged: bool) -> Series:
    """One owner's series. Cache counters without rank labels (before 0.5.21) are the sum of all ranks of the server.

    Every rank's scheduler exports at least its request timings, so the ranks show once there was a request.
    """
    cache = [s for name, samples in share.samples.items() if world_of(name) is World.CACHE for s in samples]
    copies = max(1, ranks) if cache and not any("tp_rank" in s.labels for s in cache) else 1
    return Series(share.samples, owners == 1, copies, merged, tuple(share.odd), _notes(share.odd, share.repeated, copies, merged=merged))


def _owners(exposition: Exposition) -> tuple[Owner, ...]:
    """Who owns pools here, by the labels of the scheduler's series; by the request side's alone before those are born."""
    for world in (World.SCHEDULER, World.REQUEST):
        found = {_owner(s) for name, samples in exposition.samples.items() if world_of(name) is world for s in samples}
        if found:
            return tuple(sorted(found, key=lambda o: (o.model or "", _number(o.rank), o.rank)))
    return ()


def _owner(sample: Sample) -> Owner:
    return Owner(sample.labels.get("model_name"), sample.labels.get("dp_rank", "0"))


def _parts(
    world: World | None, samples: Sequence[Sample], everyone: tuple[Owner, ...]
) -> Iterator[tuple[tuple[Owner, ...], Sequence[Sample]]]:
    """Which samples of a family are whose."""
    groups: defaultdict[tuple[Owner, ...], list[Sample]] = defaultdict(list)
    models = {o.model: tuple(p for p in everyone if p.model == o.model) for o in everyone}
    if world is World.SCHEDULER:
        for sample in samples:
            groups[(_owner(sample),)].append(sample)
        yield from ((owners, _total(group)) for owners, group in groups.items())
    elif world is World.REQUEST and len(models) > 1:
        for sample in samples:
            groups[models.get(sample.labels.get("model_name"), ())].append(sample)
        yield from groups.items()
    elif world in (World.CACHE, World.STORAGE) and len(everyone) > 1:
        yield from (((o,), [s for s in samples if s.labels.get("dp_rank") == o.rank]) for o in everyone)
    else:
        yield everyone, samples


def _notes(odd: list[tuple[str, float]], repeated: list[str], copies: int, *, merged: bool) -> tuple[Note, ...]:
    notes = []
    if odd:
        quoted = ", ".join(f"{name} = {value:g}" for name, value in odd[:3])
        notes.append(Note("implausible-value", f"{quoted}: no engine can mean that; it counts as unknown"))
    if repeated:
        names = ", ".join(repeated[:3])
        notes.append(Note("duplicate-series", f"{names} came more than once with different values; the fuller reading was taken"))
    if merged:
        notes.append(Note("merged-ranks", "SGLang adds up the cache counters of its replicas; they say nothing about one of them"))
    elif copies > 1:
        notes.append(Note("merged-ranks", f"SGLang adds up the cache counters of {copies} ranks that repeat each other; they were divided"))
    return tuple(notes)


def _judged(name: str, samples: Iterable[Sample]) -> tuple[tuple[Sample, ...], list[tuple[str, float]], bool]:
    """One sample for each label set, the fuller of two; values no engine can mean made NaN and listed; whether any label set repeated."""
    bare = name.removeprefix(PREFIX)
    free = bare.endswith(FREE)
    kept: dict[frozenset[tuple[str, str]], Sample] = {}
    odd: list[tuple[str, float]] = []
    twice = False
    for sample in samples:
        value = sample.value
        if not math.isfinite(value) or value < 0 or (bare in RATIOS and value > 1):
            odd.append((name, value))
            value = math.nan
        key = frozenset(sample.labels.items())
        other = kept.get(key)
        if other is not None and other.value != value and not (math.isnan(other.value) and math.isnan(value)):
            twice = True
            if math.isnan(value) or (not math.isnan(other.value) and (other.value < value if free else other.value > value)):
                continue
        kept[key] = Sample(sample.name, sample.labels, value)
    return tuple(kept.values()), odd, twice


def _total(samples: Iterable[Sample]) -> tuple[Sample, ...]:
    """With priority scheduling the empty priority is the total of the others; without, nothing changes."""
    found = tuple(samples)
    totals = tuple(s for s in found if not s.labels.get("priority"))
    return totals or found


def _lead(samples: Iterable[Sample]) -> tuple[Sample, ...]:
    """Of copies that TP, PP, CP and EP ranks repeat, those of the least rank."""
    found = tuple(samples)
    if len(found) < 2:  # noqa: PLR2004  one is the least
        return found
    least = min(_rank(s) for s in found)
    return tuple(s for s in found if _rank(s) == least)


def _rank(sample: Sample) -> tuple[int, ...]:
    return tuple(_number(sample.labels.get(label, "0")) for label in RANKS)


def _number(text: str) -> int:
    return int(text) if text.isdecimal() else 0


def _scheduler_ranks(exposition: Exposition) -> set[tuple[str, str, str]]:
    """Data-parallel, tensor-parallel and pipeline rank of every scheduler that exports anything."""
    return {
        (s.labels.get("dp_rank", "0"), s.labels.get("tp_rank", "0"), s.labels.get("pp_rank", "0"))
        for name, samples in exposition.samples.items()
        if world_of(name) is World.SCHEDULER
        for s in samples
    }
