"""The verdict for someone at 3 a.m.: first what is wrong and what to do, then the tiers, then the evidence. Pure."""

from __future__ import annotations

import math
import re
import textwrap

from kvwatch.diagnose import Incident, incidents
from kvwatch.model import Evidence, Finding, Pool
from kvwatch.quantity import UNKNOWN, Interval
from kvwatch.report import Verdict, notes_of, state_of
from kvwatch.signals import HELP
from kvwatch.store import OwnerSnapshot, Snapshot
from kvwatch.wording import duration, number, printable, show

BAR = 40
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
MARKS = {"critical": "CRITICAL", "warning": "WARNING", "ok": "OK", "unknown": "UNKNOWN"}


def to_text(said: Verdict, columns: int | None = None) -> str:
    """Lay out a verdict, a line for each thing that is said, folded to the ``columns`` of a terminal; None keeps lines whole."""
    width = None if columns is None else max(NARROWEST, min(columns, WIDEST))
    lines = [f"{MARKS[said.status]}  {said.summary}", ""]
    for owner in said.snapshot.owners:
        lines += [*_owner(owner, said.snapshot, _bar_width(width)), ""]
    for incident in incidents(said.findings):
        lines += _incident(incident)
    lacking = dict.fromkeys((f.subject.target, name) for f in said.findings if f.status == "unknown" for name in f.missing)
    if lacking:
        lines += ["Not known, so nothing is said about it:", *(f"  {target}: {HELP.get(name, name)}" for target, name in lacking), ""]
    lines += _targets(said)
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


def _name(target: str, engine: str | None, model: str | None, rank: str | None) -> str:
    parts = [target, engine or "", model or "", f"rank {rank}" if rank not in {None, "0"} else ""]
    return "  ".join(p for p in parts if p)


def _owner(o: OwnerSnapshot, snapshot: Snapshot, cells: int) -> list[str]:
    state = o.state
    values = o.judged.values
    lines = [f"{_name(state.target, state.engine, state.model, state.rank)}  [{state_of(o)}]"]
    if o.stale:
        return [*lines, "  no fresh values"]
    counts = [f"running {show(state.running, 'requests')}", f"waiting {show(state.waiting, 'requests')}"]
    if state.waiting_deferred.known and state.waiting_deferred.hi > 0:
        counts.append(f"of these {show(state.waiting_deferred, 'requests')} deferred")
    extras = (("TTFT p99", "ttft_p99_seconds", "seconds"), ("calm p99", "ttft_baseline_p99_seconds", "seconds"),
              ("preemptions", "preemption_rate", "per second"), ("made", "token_rate", "tokens/s"),
              ("L1 hits", "prefix_hit_ratio", "ratio"),
              ("ceiling", "concurrency_ceiling_requests", "requests"))  # fmt: skip
    counts += [f"{label} {show(values[name], unit)}" for label, name, unit in extras if values.get(name, UNKNOWN).known]
    if state.engine != "lmcache":
        lines.append("  " + ", ".join(counts))
    lines += [line for pool in state.pools for line in _pool(pool, cells)]
    lines += [f"  note {n.code}: {n.text}" for n in notes_of(o, snapshot)]
    return lines


def _pool(p: Pool, cells: int) -> list[str]:
    label = f"  {TIERS[p.tier]:10} {p.pool:5}"
    if not p.measured:
        return [f"{label} unknown ({show(p.capacity, p.unit)} {p.unit} in all)" if p.capacity.known else f"{label} unknown"]
    numbers = ", ".join(
        f"{name} {show(q, p.unit)}"
        for name, q in (("used", p.used), ("evictable", p.evictable), ("available", p.available), ("held", p.held))
        if not (name == "held" and q.hi == 0)
    )  # fmt: skip
    if p.guess is not None and p.evictable.exact is None:
        numbers += f" (about {number(p.guess.evictable, p.unit)} evictable, by {p.guess.source})"
    unit = "" if p.unit == "bytes" else f" {p.unit}"
    whole = f" of {show(p.capacity, p.unit)}{unit}" if p.capacity.known else ""
    ratio = p.used_ratio if p.tier == "l1" else p.resident_ratio
    word = "used" if p.tier == "l1" else "resident"
    share = f"{show(ratio, 'ratio')} {word}" if ratio.known else f"{word} share unknown"
    return [f"{label} {bar(p, cells)} {share}{whole}", f"{'':18} {numbers}"]


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


def _incident(incident: Incident) -> list[str]:
    """The first root whole, where else it shows, and its effects below it."""
    lines = _finding(incident.roots[0])
    if len(incident.roots) > 1:
        lines.append(
            f"  The same on {len(incident.roots) - 1} more: "
            + ", ".join(_name(f.subject.target, None, None, f.subject.rank) for f in incident.roots[1:])
        )
    lines.append("")
    shown: dict[str, list[Finding]] = {}
    for effect in incident.effects:
        shown.setdefault(effect.rule, []).append(effect)
    for same in shown.values():
        lines += _finding(same[0])
        if len(same) > 1:
            lines.append(f"      on {len(same)} pool owners")
        lines.append("")
    return lines


def _finding(f: Finding) -> list[str]:
    indent = "    " if f.caused_by else ""
    since = "" if f.since_seconds is None else f", for {duration(f.since_seconds)}"
    reason = f", reason {f.reason}" if f.reason else ""
    head = f"{f.severity.upper()} {f.rule} ({f.status}{since}{reason})  {_name(f.subject.target, f.subject.engine, None, f.subject.rank)}"
    lines = [indent + head, f"{indent}  {f.title}"]
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
        return f"{HELP[e.signal]}{'' if e.limit else ': no'}"
    return f"{e.signal} = {show(e.value, e.unit)} ({e.op} {number(e.limit, e.unit)})"


def _targets(said: Verdict) -> list[str]:
    lines = []
    for t in said.snapshot.targets:
        if t.last is not None and t.last.error is not None:
            lines.append(f"Target {t.target.name}: {t.last.error.reason}: {t.last.error.detail}")
        missing = t.last_good.missing if t.last_good is not None else ()
        lines += [f"Target {t.target.name} lacks {m.series}: {m.why}. {m.enable}" for m in missing]
    return lines


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
