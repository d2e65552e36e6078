"""The sentence on top of a verdict, and the names of the places it speaks of. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from kvwatch.diagnose import Incident, incidents
from kvwatch.finding import Finding, Subject
from kvwatch.quantity import UNKNOWN, ZERO
from kvwatch.store import OwnerSnapshot, Snapshot
from kvwatch.wording import number, prose


def summary(snapshot: Snapshot, found: Sequence[Finding], fresh: Sequence[OwnerSnapshot]) -> str:
    """What is wrong, where and what to do first; or what was looked at and found well; or why nothing could be."""
    open_ones = [i for i in incidents(found) if i.roots[0].severity != "info"]
    if open_ones:
        top = next((i for i in open_ones if any(f.status == "firing" for f in i.roots)), open_ones[0])
        root = top.roots[0]
        first = f" Do first: {root.remedy[0].do}." if root.remedy else ""
        begun = "" if any(f.status == "firing" for f in top.roots) else "Beginning: "
        more = f" {len(open_ones) - 1} more to look at." if len(open_ones) > 1 else ""
        return f"{begun}{where_of(top, ranked(snapshot))}: {root.title}.{first}{more}"
    if not fresh:
        failed = [t for t in snapshot.targets if t.last is not None and t.last.error is not None]
        if failed:
            first_failed = failed[0]
            detail = first_failed.last.error.detail if first_failed.last is not None and first_failed.last.error is not None else ""
            return f"Nothing could be judged. {first_failed.target.name}: {detail}"
        return "Nothing was scraped yet."
    used = [o.judged.values.get("l1_used_ratio", UNKNOWN) for o in fresh]
    fullest = max((u.hi for u in used if u.known), default=None)
    level = "" if fullest is None else f", L1 at most {number(min(fullest, 1.0), 'ratio')} used"
    return f"Nothing fires: {len(fresh)} pool owner{'s' if len(fresh) != 1 else ''} watched{level}{_queued(fresh)}."


def _queued(fresh: Sequence[OwnerSnapshot]) -> str:
    """How many requests wait at all engines; an LMCache server has no queue."""
    queues = [o.state.waiting for o in fresh if o.state.serves]
    queued = sum(queues, ZERO)
    if not queues or not queued.known:
        return ""
    return ", 1 request waits" if queued.exact == 1 else f", {prose(queued, 'requests')} requests wait"


def ranked(snapshot: Snapshot) -> frozenset[str]:
    """The targets with several pool owners, where even rank 0 has to be named."""
    counted = Counter(o.state.target for o in snapshot.owners)
    return frozenset(target for target, owners in counted.items() if owners > 1)


def place_of(subject: Subject, ranks: frozenset[str]) -> str:
    """A subject's target, and its rank where there are several."""
    named = subject.rank is not None and (subject.rank != "0" or subject.target in ranks)
    return f"{subject.target} rank {subject.rank}" if named else subject.target


def where_of(incident: Incident, ranks: frozenset[str]) -> str:
    """Where an incident shows: its target and rank, or the first of them and how many there are."""
    subjects = [f.subject for f in incident.roots]
    if len(subjects) == 1:
        return place_of(subjects[0], ranks)
    targets = dict.fromkeys(s.target for s in subjects)
    if len(targets) == 1:
        return f"{len(subjects)} ranks of {next(iter(targets))}"
    return f"{len(subjects)} pool owners ({', '.join(place_of(s, ranks) for s in subjects[:3])}{', ...' if len(subjects) > 3 else ''})"  # noqa: PLR2004
