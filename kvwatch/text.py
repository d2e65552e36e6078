"""The verdict for someone at 3 a.m.: first what is wrong and what to do, then the tiers, then the evidence. Pure."""

from __future__ import annotations

import math
import re
import textwrap

from kvwatch.diagnose import Incident, incidents
from kvwatch.finding import Evidence, Finding, Subject
from kvwatch.pool import Pool
from kvwatch.quantity import UNKNOWN, Interval
from kvwatch.report import Verdict, notes_of, state_of
from kvwatch.signals import HELP, UNITS
from kvwatch.store import OwnerSnapshot, Snapshot
from kvwatch.summary import place_of
from kvwatch.wording import duration, number, printable, show

BAR = 40
FEW = 4
"""Up to so many pool owners, all are told whole."""
USED, EVICTABLE, AVAILABLE, HELD, UNSURE = "█", "▒", "·", "▚", "?"
TIERS = {"l1": "L1 HBM", "l2": "L2 host", "l3": "L3 storage"}
WIDEST = 120
"""Columns beyond which a line is folded on the widest terminal: longer ones are hard to read."""
NARROWEST = 48
_BESIDE_BAR = 60
"""Columns that a pool's line takes beside its bar."""
_TOGETHER = re.compile(r"(?<=\d) (?=(?:%|s|min|h|[KMGT]?i?B)(?![\w-]))|(?<=\S) (?=\d)")
"""Before a number and before its unit: those stay on the line of what they belong to."""
_HANGING = 4
FIGURES = {
    "ttft_p99_seconds": "TTFT p99 {}",
    "ttft_baseline_p99_seconds": "calm p99 {}",
    "preemption_rate": "preemptions {}",
    "token_rate": "made {}",
    "prefix_hit_ratio": "L1 hits {}",
    "concurrency_ceiling_requests": "room for {} of this length",
}
"""What is told of an engine beside its queue, where it is known."""
MARKS = {"critical": "CRITICAL", "warning": "WARNING", "ok": "OK", "unknown": "UNKNOWN"}


def to_text(said: Verdict, columns: int | None = None) -> str:
    """Lay out a verdict, a line for each thing that is said, folded to the ``columns`` of a terminal; None keeps lines whole."""
    width = None if columns is None else max(NARROWEST, min(columns, WIDEST))
    lines = [f"{MARKS[said.status]}  {said.summary}", ""]
    lines += _owners(said, _bar_width(width))
    for incident in incidents(said.findings):
        lines += _incident(incident, said.ranks)
    lines += _not_known(said)
    lines += [f"Target {t.target.name}: {t.last.error.reason}: {t.last.error.detail}"
              for t in said.snapshot.targets if t.last is not None and t.last.error is not None]  # fmt: skip
    lines += _gpus(said)
    while lines and not lines[-1]:
        lines.pop()
    shown = [printable(line) for line in lines]
    return "\n".join(shown if width is None else (part for line in shown for part in folded(line, width))) + "\n"


def folded(line: str, width: int) -> list[str]:
    """A line in pieces of at most ``width`` columns, the later ones hanging; no flag, path or number with its unit is broken."""
    if len(line) <= width:
        return [line]
    hanging = " " * (len(line) - len(line.lstrip(" ")) + _HANGING)
    pieces = textwrap.wrap(_TOGETHER.sub("\u00a0", line), width, subsequent_indent=hanging, break_long_words=False, break_on_hyphens=False)
    return [piece.replace("\u00a0", " ") for piece in pieces]


def _bar_width(width: int | None) -> int:
    """Bars are shorter where the numbers beside them would not fit."""
    return BAR if width is None else max(BAR // 4, min(BAR, width - _BESIDE_BAR))


def _owners(said: Verdict, cells: int) -> list[str]:
    """Those in trouble first, in the order of their findings; of many, the others in a line each."""
    owners, lines = said.snapshot.owners, list[str]()
    live = [f.subject for f in said.findings if f.status != "unknown" and f.severity != "info"]
    order = {place: n for n, place in enumerate(dict.fromkeys((s.target, s.rank) for s in live))}

    def trouble(o: OwnerSnapshot) -> int:
        return min(order.get((o.state.target, rank), len(order)) for rank in (o.state.rank, None))

    for o in sorted(owners, key=trouble):
        state = o.state
        name = f"{place_of(Subject(state.target, state.engine, state.model, state.rank), said.ranks)}  {state.engine}"
        head = f"{name}{f'  {state.model}' if state.model else ''}  [{state_of(o)}]"
        if o.stale:
            lines += [f"{head}  no fresh values", ""]
        elif trouble(o) < len(order) or len(owners) <= FEW:
            lines += [head, *_owner(o, said.snapshot, cells), ""]
        else:
            used = o.judged.values.get("l1_used_ratio", UNKNOWN)
            lines.append("  ".join([head, *_queue(o), *([f"L1 {show(used, 'ratio')} used"] if used.known else [])]))
    return [*lines, ""] if lines and lines[-1] else lines


def _queue(o: OwnerSnapshot) -> list[str]:
    """Who runs and who waits; an LMCache server has no requests."""
    state = o.state
    if not state.serves:
        return []
    counts = f"running {show(state.running, 'requests')}, waiting {show(state.waiting, 'requests')}"
    deferred = state.waiting_deferred
    return [f"{counts} ({show(deferred, 'requests')} of them deferred)" if deferred.known and deferred.hi > 0 else counts]


def _owner(o: OwnerSnapshot, snapshot: Snapshot, cells: int) -> list[str]:
    state, values = o.state, o.judged.values
    figures = [text.format(show(values[name], UNITS[name])) for name, text in FIGURES.items() if values.get(name, UNKNOWN).known]
    lines = ["  " + ", ".join(_queue(o) + figures)] if state.serves else []
    lines += [line for pool in state.pools for line in _pool(pool, cells)]
    lines += [f"  note {n.code}: {n.text}" for n in notes_of(o, snapshot)]
    return lines


def _pool(p: Pool, cells: int) -> list[str]:
    label, unit = f"  {TIERS[p.tier]:10} {p.pool:5}", "" if p.unit == "bytes" else f" {p.unit}"
    if not p.measured:
        return [f"{label} unknown{f' ({show(p.capacity, p.unit)}{unit} in all)' if p.capacity.known else ''}"]
    ratio, word = (p.used_ratio, "used") if p.tier == "l1" else (p.resident_ratio, "resident")
    share = f"{show(ratio, 'ratio')} {word}" if ratio.known else f"{word} share unknown"
    whole = f" of {show(p.capacity, p.unit)}{unit}" if p.capacity.known else ", size unknown"
    lines = [f"{label} {bar(p, cells)} {share}{whole}"]
    parts = (("used", p.used), ("evictable", p.evictable), ("available", p.available), ("held", p.held))
    if any(q.known for name, q in parts if name != "held"):
        numbers = ", ".join(f"{name} {show(q, p.unit)}" for name, q in parts if not (name == "held" and q.hi == 0))
        if p.guess is not None and p.evictable.exact is None:
            numbers += f" (about {number(p.guess.evictable, p.unit)} evictable, by {p.guess.source})"
        lines.append(f"{'':18} {numbers}")
    return lines


def bar(p: Pool, width: int = BAR) -> str:
    """Draw used, evictable, available and held as a bar; where the border is not known it is drawn as such."""
    used = p.used_ratio
    held = _share(p.held, p)
    evictable, available = _share(p.evictable, p), _share(p.available, p)
    cells = {USED: _cells(used.lo if used.known else 0.0, width), EVICTABLE: _cells(evictable.lo, width), HELD: _cells(held.lo, width),
             AVAILABLE: _cells(available.lo, width)}  # fmt: skip
    unsure = max(0, width - sum(cells.values()))
    if used.exact is not None and evictable.exact is not None and available.exact is not None:
        cells[AVAILABLE] += unsure
        unsure = 0
    drawn = USED * cells[USED] + EVICTABLE * cells[EVICTABLE] + UNSURE * unsure + HELD * cells[HELD] + AVAILABLE * cells[AVAILABLE]
    return f"[{drawn[:width]:{AVAILABLE}<{width}}]"


def _share(q: Interval, p: Pool) -> Interval:
    return (q / p.capacity).capped(1.0) if q.known and p.capacity.known and p.capacity.lo > 0 else Interval(0.0, 1.0)


def _cells(share: float, width: int) -> int:
    return math.floor(share * width + 0.5) if 0 < share < math.inf else 0


def _incident(incident: Incident, ranks: frozenset[str]) -> list[str]:
    """The first root whole, where else it shows, and its effects below it."""
    first, *others = incident.roots
    lines = _finding(first, ranks)
    if others:
        lines.append(f"  The same on {len(others)} more: {', '.join(place_of(f.subject, ranks) for f in others)}")
    lines.append("")
    shown: dict[str, list[Finding]] = {}
    for effect in incident.effects:
        shown.setdefault(effect.rule, []).append(effect)
    for same in shown.values():
        lines += _finding(same[0], ranks)
        if len(same) > 1:
            lines.append(f"      The same on {len(same) - 1} more: {', '.join(place_of(f.subject, ranks) for f in same[1:])}")
        lines.append("")
    return lines


def _finding(f: Finding, ranks: frozenset[str]) -> list[str]:
    indent = "    " if f.caused_by else ""
    times = "" if f.since_seconds is None else f", for {duration(f.since_seconds)}"
    passed = f", last seen {duration(f.quiet_seconds)} ago" if f.quiet_seconds else ""
    reason = f", reason {f.reason}" if f.reason else ""
    place = place_of(f.subject, ranks) + (f"  {f.subject.engine}" if f.subject.engine else "")
    lines = [f"{indent}{f.severity.upper()} {f.rule} ({f.status}{times}{passed}{reason})  {place}", f"{indent}  {f.title}"]
    if f.caused_by:
        return [lines[0], f"{lines[1]}  (caused by {f.caused_by})"]
    if f.explanation:
        lines.append(f"{indent}  Why: {f.explanation}")
    lines += [f"{indent}  Seen: {_seen(e)}" for e in f.evidence]
    lines += [f"{indent}  Do {i}: {a.do} ({a.because})" for i, a in enumerate(f.remedy, 1)]
    lines.append(f"{indent}  More: kvwatch explain {f.rule}")
    return lines


def _seen(e: Evidence) -> str:
    """One comparison, or in words what a condition means."""
    if e.unit == "condition":
        return f"{'' if e.limit else 'ruled out: '}{HELP[e.signal]}"
    value = show(e.value, e.unit)
    return f"{e.signal} {value if value.startswith('>=') else f'= {value}'} ({e.op} {number(e.limit, e.unit)})"


def _not_known(said: Verdict) -> list[str]:
    """What undecided findings would have needed, and where, once each."""
    lacking: dict[str, dict[str, None]] = {}
    for f in said.findings:
        if f.status == "unknown":
            for name in f.missing:
                lacking.setdefault(name, {})[place_of(f.subject, said.ranks)] = None
    if not lacking:
        return []
    several = len(said.snapshot.targets) > 1 or bool(said.ranks)
    told = [f"  {HELP.get(name, name)}" + (f"  ({', '.join(places)})" if several else "") for name, places in lacking.items()]
    return ["Not known, so what rests on it is neither said nor ruled out:", *told, ""]


def _gpus(said: Verdict) -> list[str]:
    reading = said.snapshot.gpus
    if reading is None:
        return []
    if reading.nvml.state != "ok":
        return [f"GPU memory is not watched ({reading.nvml.state}){': ' + reading.nvml.detail if reading.nvml.detail else ''}"]
    lines = []
    for g in reading.gpus:
        if g.used is None or g.total is None:
            lines.append(f"GPU {g.index} {g.name} {g.uuid}: {g.state}{': ' + g.detail if g.detail else ''}")
        else:
            used, total = show(Interval(g.used, g.used), "bytes"), show(Interval(g.total, g.total), "bytes")
            lines.append(
                f"GPU {g.index} {g.name} {g.uuid}: {used} of {total} HBM used (engines reserve it at start; no sign of KV pressure)"
            )
    return lines
