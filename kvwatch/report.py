"""The verdict: one snapshot and its findings, as values and as JSON. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypeAlias

from kvwatch.diagnose import Case, Incident, findings, incidents, status_of
from kvwatch.finding import Finding, Subject
from kvwatch.model import GpuReading, Note
from kvwatch.pool import Pool
from kvwatch.quantity import UNKNOWN, Interval
from kvwatch.rules import RULES
from kvwatch.rules.kinds import ActiveRule
from kvwatch.store import OwnerSnapshot, Snapshot, TargetSnapshot
from kvwatch.summary import ranked, summary, where_of

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"
QUEUES = ("prefill_bootstrap_queue", "prefill_inflight_queue", "decode_prealloc_queue", "decode_transfer_queue", "decode_retracted_queue",
          "waiting_grammar")  # fmt: skip
"""Work that stands outside the main queue; an engine with any is not idle."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What kvwatch says at one moment."""

    snapshot: Snapshot
    findings: tuple[Finding, ...]
    status: str
    summary: str
    at: float | None

    @property
    def ranks(self) -> frozenset[str]:
        """The targets with several pool owners."""
        return ranked(self.snapshot)


def verdict(snapshot: Snapshot, rules: Sequence[ActiveRule], target: str | None = None) -> Verdict:
    """Judge a snapshot, of one target if its name is given."""
    targets = tuple(t for t in snapshot.targets if target in {None, t.target.name})
    owners = tuple(o for o in snapshot.owners if target in {None, o.state.target})
    narrowed = Snapshot(snapshot.now, snapshot.watch, targets, owners, snapshot.gpus)
    cases = [Case(Subject(o.state.target, o.state.engine, o.state.model, o.state.rank), o.judged) for o in owners if not o.stale]
    cases += [Case(Subject(t.target.name), t.judged) for t in targets if t.judged is not None]
    found = findings(cases, rules)
    fresh = [o for o in owners if not o.stale]
    status = status_of(found, judged_any=bool(fresh))
    times = [t.last_good.wall for t in targets if t.last_good is not None and t.last_good.wall is not None]
    sentence = summary(narrowed, found, fresh) if target is None or targets else "No target has the name that was asked for."
    return Verdict(narrowed, found, status, sentence, max(times, default=None))


def state_of(owner: OwnerSnapshot) -> str:
    """serving, idle, stalled, asleep, starting or unknown."""
    state = owner.state
    if owner.stale:
        return "unknown"
    if state.asleep:
        return "asleep"
    if any(RULES[rule].stalled and episode.last_true == owner.judged.at for rule, episode in owner.judged.episodes.items()):
        return "stalled"
    if not state.running.known and not state.waiting.known:
        return "starting" if not any(p.measured for p in state.pools if p.tier == "l1") and state.serves else "serving"
    busy = state.running.hi > 0 or state.waiting.hi > 0 or any(state.gauges[q].hi > 0 for q in QUEUES if q in state.gauges)
    return "serving" if busy else "idle"


def notes_of(owner: OwnerSnapshot, snapshot: Snapshot) -> tuple[Note, ...]:
    """What was decided about odd data, in the scrape, over time and between the engine and the GPUs."""
    notes = list(owner.state.notes)
    if owner.restarted_at is not None and owner.judged.at - owner.restarted_at <= snapshot.watch.window:
        notes.append(Note("restarted", "the engine restarted; rates and baselines do not reach across it"))
    still = owner.judged.values.get("tokenless_seconds", UNKNOWN)
    if owner.state.engine == "sglang" and owner.state.running.lo > 0 and still.lo > 0 and owner.state.waiting.hi == 0:
        notes.append(Note("stale-suspected", "running requests without a new token: SGLang's gauges may be up to 30 s old when it is idle"))
    if snapshot.gpus is not None and snapshot.gpus.gpus and not owner.judged.mapped and owner.state.serves:
        notes.append(Note("gpu-mapping-unknown", "which GPUs are this engine's is not proven, so their memory is not judged: set gpus"))
    return tuple(notes)


def to_json(said: Verdict) -> dict[str, Json]:
    """The verdict as strict JSON; unknown is null."""
    snapshot = said.snapshot
    return {
        "schema": 1,
        "at": None if said.at is None else iso(said.at),
        "status": said.status,
        "summary": said.summary,
        "targets": [_target(t, snapshot) for t in snapshot.targets],
        "engines": [_owner(o, snapshot) for o in snapshot.owners],
        "nvml": _nvml(snapshot.gpus),
        "gpus": _gpus(snapshot.gpus),
        "findings": [_finding(f) for f in said.findings],
        "incidents": [_incident(i, said.ranks) for i in incidents(said.findings)],
    }


def iso(wall: float) -> str:
    """Unix seconds as an ISO 8601 time in UTC."""
    return datetime.fromtimestamp(wall, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def quantity(value: Interval) -> Json:
    """Write a number, [lo, hi], [lo, null] or null."""
    if not value.known:
        return None
    if value.exact is not None:
        return plain(value.exact)
    return [plain(value.lo), None if math.isinf(value.hi) else plain(value.hi)]


def plain(value: float) -> int | float:
    """Write a whole number as one."""
    return int(value) if value == int(value) and abs(value) < 1 << 53 else round(value, 9)


def _target(t: TargetSnapshot, snapshot: Snapshot) -> dict[str, Json]:
    last = t.last
    error = last.error if last is not None else None
    age = None if t.last_good is None else max(0.0, round(snapshot.now - t.last_good.at, 3))
    missing = t.last_good.missing if t.last_good is not None else ()
    return {
        "name": t.target.name,
        "url": t.target.url,
        "ok": last is not None and last.ok,
        "reason": None if error is None else error.reason,
        "detail": None if error is None else error.detail,
        "age_seconds": age,
        "missing": [{"series": m.series, "why": m.why, "enable": m.enable} for m in missing],
    }


def _owner(o: OwnerSnapshot, snapshot: Snapshot) -> dict[str, Json]:
    state, values = o.state, {} if o.stale else o.judged.values

    def value(name: str) -> Json:
        return quantity(values.get(name, UNKNOWN))

    def seen(q: Interval) -> Json:
        return None if o.stale else quantity(q)

    return {
        "target": state.target,
        "engine": state.engine,
        "model": state.model,
        "rank": state.rank,
        "state": state_of(o),
        "requests": {
            "running": seen(state.running),
            "waiting": seen(state.waiting),
            "waiting_capacity": seen(state.waiting_capacity),
            "waiting_deferred": seen(state.waiting_deferred),
        },
        "pools": [] if o.stale else [_pool(p) for p in state.pools],
        "prefix_cache": {"hit_ratio": value("prefix_hit_ratio"), "window_seconds": _window(o)},
        "ttft": {
            "p50": value("ttft_p50_seconds"),
            "p99": value("ttft_p99_seconds"),
            "window_seconds": _window(o),
            "baseline_p99": value("ttft_baseline_p99_seconds"),
        },
        "preemptions_per_second": value("preemption_rate"),
        "generation_tokens_per_second": value("token_rate"),
        "capacity": {
            "kv_bytes_per_token": seen(state.gauges.get("kv_bytes_per_token", UNKNOWN)),
            "mean_sequence_tokens": value("mean_sequence_tokens"),
            "concurrency_ceiling": value("concurrency_ceiling_requests"),
        },
        "notes": [{"code": n.code, "text": n.text} for n in notes_of(o, snapshot)],
    }


def _window(o: OwnerSnapshot) -> Json:
    return None if o.stale or o.judged.window is None else plain(round(o.judged.window, 3))


def _pool(p: Pool) -> dict[str, Json]:
    return {
        "tier": p.tier,
        "pool": p.pool,
        "unit": p.unit,
        "capacity": quantity(p.capacity),
        "used": quantity(p.used),
        "evictable": quantity(p.evictable),
        "available": quantity(p.available),
        "held": quantity(p.held),
        "reclaimable": quantity(p.reclaimable),
        "resident": quantity(p.resident),
        "used_ratio": quantity(p.used_ratio),
        "resident_ratio": quantity(p.resident_ratio),
        "estimate": None
        if p.guess is None
        else {"evictable": plain(p.guess.evictable), "available": plain(p.guess.available), "by": p.guess.source},
        "source": p.source,
    }


def _nvml(reading: GpuReading | None) -> dict[str, Json]:
    return {"state": "off", "detail": None} if reading is None else {"state": reading.nvml.state, "detail": reading.nvml.detail}


def _gpus(reading: GpuReading | None) -> list[Json]:
    rows: list[Json] = []
    for g in reading.gpus if reading is not None else ():
        processes: Json = None if g.processes is None else [{"pid": p.pid, "used": p.used, "mine": p.mine} for p in g.processes]
        row: dict[str, Json] = {
            "host": g.host, "index": g.index, "uuid": g.uuid, "name": g.name, "state": g.state, "detail": g.detail, "parent": g.parent,
            "profile": g.profile, "total": g.total, "used": g.used, "free": g.free, "reserved": g.reserved, "processes": processes,
            "notes": [{"code": n.code, "text": n.text} for n in g.notes],
        }  # fmt: skip
        rows.append(row)
    return rows


def _incident(i: Incident, ranks: frozenset[str]) -> dict[str, Json]:
    root = i.roots[0]
    effects: list[Json] = [*dict.fromkeys(e.rule for e in i.effects)]
    return {"rule": root.rule, "severity": root.severity, "count": len(i.roots), "where": where_of(i, ranks), "effects": effects}


def _finding(f: Finding) -> dict[str, Json]:
    subject: Mapping[str, Json] = {"target": f.subject.target, "engine": f.subject.engine, "model": f.subject.model, "rank": f.subject.rank}
    return {
        "rule": f.rule,
        "severity": f.severity,
        "status": f.status,
        "subject": dict(subject),
        "since_seconds": None if f.since_seconds is None else plain(round(f.since_seconds, 3)),
        "reason": f.reason,
        "title": f.title,
        "evidence": [
            {"signal": e.signal, "value": quantity(e.value), "op": e.op, "limit": plain(e.limit), "unit": e.unit} for e in f.evidence
        ],
        "missing": list(f.missing),
        "explanation": f.explanation,
        "remedy": [{"do": a.do, "because": a.because} for a in f.remedy],
        "causes": list(f.causes),
        "caused_by": f.caused_by,
        "runbook": f.runbook,
    }
