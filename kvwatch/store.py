"""The only mutable shared state, behind the only lock: what every target and owner said, and what was judged of it.

An outcome goes in, is judged at once, and snapshots come out. A failed scrape is no sample: it leaves what was judged before standing until
three intervals have passed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from kvwatch.baseline import Baseline
from kvwatch.history import Track
from kvwatch.judge import Judged, judge, judge_target
from kvwatch.model import EngineState, GpuReading, GpuState, Outcome, OwnerKey, Reason, rank_number
from kvwatch.rules.kinds import ActiveRule
from kvwatch.signals import SIGNALS
from kvwatch.span import Frame
from kvwatch.target import Target
from kvwatch.view import TargetView, View, Watch

KEPT = tuple(s.name for s in SIGNALS if s.kept)

GpuMapping = Callable[[Target, GpuReading | None, int], tuple[GpuState, ...] | None]
"""Which GPUs are proven to be a target's engine's, given how many engines there are; None when unknown."""


@dataclass(slots=True)
class _TargetRecord:
    target: Target
    tracks: dict[OwnerKey, Track] = field(default_factory=dict)
    judged: dict[OwnerKey, Judged] = field(default_factory=dict)
    last: Outcome | None = None
    failed_in_row: int = 0
    last_good: Outcome | None = None
    first_tried: float | None = None
    self_judged: Judged | None = None
    failures: dict[Reason, int] = field(default_factory=dict)
    gpus: tuple[GpuState, ...] = ()


@dataclass(frozen=True, slots=True)
class OwnerSnapshot:
    """One pool owner as it was last seen; ``stale`` when that is too long ago to be believed."""

    state: EngineState
    judged: Judged
    baseline: Baseline
    restarted_at: float | None
    stale: bool
    frames: tuple[Frame, ...] = ()


@dataclass(frozen=True, slots=True)
class TargetSnapshot:
    """One target: its newest turn, its newest good one, and how often each failure happened."""

    target: Target
    last: Outcome | None
    last_good: Outcome | None
    judged: Judged | None
    failures: Mapping[Reason, int]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything known at ``now`` (monotonic seconds)."""

    now: float
    watch: Watch
    targets: tuple[TargetSnapshot, ...]
    owners: tuple[OwnerSnapshot, ...]
    gpus: GpuReading | None


def no_mapping(_target: Target, _gpus: GpuReading | None, _engines: int) -> tuple[GpuState, ...] | None:
    """Attribute no GPU to anyone."""
    return None


class Store:
    """What is known of all targets."""

    def __init__(self, targets: Sequence[Target], watch: Watch, rules: Sequence[ActiveRule], gpus_of: GpuMapping = no_mapping) -> None:
        """Begin with nothing known of the targets."""
        self._lock = threading.Lock()
        self._watch = watch
        self._rules = tuple(rules)
        self._gpus_of = gpus_of
        self._gpus: GpuReading | None = None
        self._records = {t.name: _TargetRecord(t) for t in targets}

    def reconfigure(self, targets: Sequence[Target], watch: Watch, rules: Sequence[ActiveRule]) -> None:
        """Take new settings: unchanged targets keep their history, rules with other limits begin anew."""
        with self._lock:
            old = {r.rule.id: r for r in self._rules}
            same = {r.rule.id for r in rules if (before := old.get(r.rule.id)) is not None and before.limits == r.limits}
            records = {}
            for target in targets:
                record = self._records.get(target.name)
                if record is None or record.target != target:
                    record = _TargetRecord(target)
                record.judged = {key: _keep_episodes(j, same) for key, j in record.judged.items()}
                records[target.name] = record
            self._records, self._watch, self._rules = records, watch, tuple(rules)

    def set_gpus(self, reading: GpuReading) -> None:
        """Take a round over the GPUs."""
        with self._lock:
            self._gpus = reading

    def add(self, outcome: Outcome, scraped: Target | None = None) -> None:
        """Take one turn of a target in and judge it; nothing is kept where that target was removed or became another meanwhile."""
        with self._lock:
            record = self._records.get(outcome.target)
            if record is None or (scraped is not None and scraped != record.target):
                return
            if record.first_tried is None:
                record.first_tried = outcome.at
            record.last = outcome
            record.failed_in_row = 0 if outcome.ok else record.failed_in_row + 1
            if outcome.ok:
                record.last_good = outcome
                self._take_states(record, outcome)
            elif outcome.error is not None:
                record.failures[outcome.error.reason] = record.failures.get(outcome.error.reason, 0) + 1
            view = TargetView(record.target, outcome, record.failed_in_row, record.last_good is not None, record.first_tried, self._watch)
            record.self_judged = judge_target(view, self._rules, record.self_judged)

    def _take_states(self, record: _TargetRecord, outcome: Outcome) -> None:
        seen = set()
        for state in outcome.states:
            track = record.tracks.setdefault(state.owner, Track(state.owner))
            track.append(state, self._watch.window)
            seen.add(state.owner)
        for key in [k for k, t in record.tracks.items() if k not in seen and self._old(t.frames[-1].at, outcome.at)]:
            del record.tracks[key]
            record.judged.pop(key, None)
        gpus = self._gpus_for(record)
        record.gpus = () if gpus is None else gpus
        for state in outcome.states:
            key, track = state.owner, record.tracks[state.owner]
            view = View(track, record.target, self._watch, self._peers(state, outcome.at), self._server(record, state, outcome.at), gpus)
            record.judged[key] = judged = judge(view, self._rules, record.judged.get(key))
            track.keep({name: judged.values[name] for name in KEPT})
            if judged.calm:
                track.learn()

    def _old(self, then: float, now: float) -> bool:
        return now - then > self._watch.stale_seconds

    def _tracks(self) -> list[Track]:
        return [t for r in self._records.values() for t in r.tracks.values()]

    def _peers(self, state: EngineState, now: float) -> tuple[Track, ...]:
        """Fresh histories of others that do the same for the same model; without a model name only ranks of the same target are peers.

        Prefill and decode engines do not: no request could go to the one instead of the other.
        """
        key, role = state.owner, state.facts.get("role")
        return tuple(
            t
            for t in self._tracks()
            if t.key != key
            and t.key.engine == key.engine
            and t.key.model == key.model
            and (key.model is not None or t.key.target == key.target)
            and t.frames[-1].state.facts.get("role") == role
            and not self._old(t.frames[-1].at, now)
        )

    def _server(self, record: _TargetRecord, state: EngineState, now: float) -> Track | None:
        """The LMCache owner whose pool is an engine's L2: of the target the configuration names, or one that engines of a port share."""
        if not state.serves:
            return None
        if record.target.l2.source is not None:
            tied = self._records.get(record.target.l2.source)
        else:
            tied = record if state.pool("l2", "kv") is None else None
        if tied is None:
            return None
        return next((t for t in tied.tracks.values() if not t.key.serves and not self._old(t.frames[-1].at, now)), None)

    def _gpus_for(self, record: _TargetRecord) -> tuple[GpuState, ...] | None:
        engines = sum(1 for t in self._tracks() if t.key.serves)
        return self._gpus_of(record.target, self._gpus, engines)

    def ready(self) -> bool:
        """Whether every target has been tried once."""
        with self._lock:
            return all(r.first_tried is not None for r in self._records.values())

    def snapshot(self, now: float, *, with_frames: bool = False) -> Snapshot:
        """Everything known at this moment."""
        with self._lock:
            targets, owners = [], []
            for record in self._records.values():
                if record.target.candidate and record.last_good is None:
                    continue
                targets.append(TargetSnapshot(record.target, record.last, record.last_good, record.self_judged, dict(record.failures)))
                for key, judged in sorted(record.judged.items(), key=lambda item: _by_rank(item[0])):
                    track = record.tracks[key]
                    owners.append(
                        OwnerSnapshot(
                            state=track.frames[-1].state,
                            judged=judged,
                            baseline=track.baseline,
                            restarted_at=track.restarted_at,
                            stale=self._old(track.frames[-1].at, now),
                            frames=tuple(track.frames) if with_frames else (),
                        )
                    )
            mapped = [gpu for record in self._records.values() for gpu in record.gpus]
            gpus = None if self._gpus is None else _told_apart(self._gpus, mapped)
            return Snapshot(now, self._watch, tuple(targets), tuple(owners), gpus)


def _told_apart(reading: GpuReading, mapped: list[GpuState]) -> GpuReading:
    """The reading with the processes that are proven to be an engine's, or to be no engine's; what one calls foreign may be another's."""
    told: dict[tuple[str, int], bool] = {}
    for gpu in mapped:
        for process in gpu.processes or ():
            if process.mine is not None:
                told[gpu.uuid, process.pid] = process.mine or told.get((gpu.uuid, process.pid), False)
    return replace(reading, gpus=tuple(_with_owners(gpu, told) for gpu in reading.gpus))


def _with_owners(gpu: GpuState, told: Mapping[tuple[str, int], bool]) -> GpuState:
    if gpu.processes is None:
        return gpu
    return replace(gpu, processes=tuple(replace(p, mine=told.get((gpu.uuid, p.pid))) for p in gpu.processes))


def _by_rank(key: OwnerKey) -> tuple[str, str, int, str]:
    return (key.engine, key.model or "", rank_number(key.rank), key.rank)


def _keep_episodes(judged: Judged, rules: set[str]) -> Judged:
    return replace(judged, episodes={name: e for name, e in judged.episodes.items() if name in rules})
