"""Terms and conditions as PromQL over what kvwatch exports.

A term reads its signal; of one that is often known only as an interval, the end that proves the comparison. A condition is its own
exported series, except where a rule's configuration replaces a limit inside it: then it is written out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import zip_longest

from kvwatch.rules.kinds import Rule
from kvwatch.signals import CONDITIONS, TARGET_CONDITIONS
from kvwatch.signals.kinds import Node, Term, leaves

OWNER_LABELS = ("instance", "target", "engine", "model", "rank")
TARGET_LABELS = ("instance", "target")
MODEL_LABELS = ("engine", "model")
"""Whom a series is about: with the daemon that says it, because daemons beside their engines may all call them the same."""
OWNER = f"on ({', '.join(OWNER_LABELS)})"
TARGET = f"on ({', '.join(TARGET_LABELS)})"
MODEL = f"on ({', '.join(MODEL_LABELS)})"
EXPORTED = frozenset(c.name for c in (*CONDITIONS, *TARGET_CONDITIONS))
"""Conditions that are series; the parts of others are always written out."""


def series_of(term: Term) -> str:
    """The series a comparison reads."""
    name = f"kvwatch_{term.signal.name}"
    return name if not term.signal.bounded else f"{name}_{'min' if term.op in {'>', '>='} else 'max'}"


def expression(node: Node, limits: Mapping[str, float], on: str, everybody: str = "") -> str:
    """A vector with the subjects for which the node is proven.

    What is true by one series now and by another later has to be one thing over time, so alternatives lose the names of their series.
    Below a condition that none of its parts may hold in, ``everybody`` has all subjects, and what is only not known counts as held.
    """
    if isinstance(node, Term):
        if everybody and node.signal.unit == "condition":
            return f"{everybody} unless {on} ({series_of(node)} != {node.limit_in(limits):.12g})"
        return f"{series_of(node)} {node.op} {node.limit_in(limits):.12g}"
    if node.name in EXPORTED and not any(leaf.signal.name in limits for leaf in leaves(node)):
        series = f"max without (reason) (kvwatch_{node.name})" if node.labels else f"kvwatch_{node.name}"
        return f"{series} == 1"
    if node.how == "none":
        everybody = f"(kvwatch_{node.name} >= 0)"  # of whom it is decided either way
        return " unless ".join([everybody, *(f"{on} ({expression(part, limits, on, everybody)})" for part in node.parts)])
    parts = [f"({expression(part, limits, on, everybody)})" for part in node.parts]
    joined = f" and {on} ".join(parts) if node.how == "all" else f"max without () ({f' or {on} '.join(parts)})"
    also = [f"({expression(part, limits, on, everybody)})" for part in node.also]
    return f" and {on} ".join([f"({joined})", *also]) if also else joined


def terms(rule: Rule, limits: Mapping[str, float]) -> str:
    """All terms of a rule together."""
    on = TARGET if rule.scope == "target" else OWNER
    parts = [expression(node, limits, on) for node in rule.when]
    if rule.engines is not None:
        parts.append(f'kvwatch_engine_info{{engine=~"{"|".join(rule.engines)}"}}')
    return f" and {on} ".join(f"({part})" for part in parts)


def shown(rule: Rule) -> Iterator[Term]:
    """The comparisons whose values tell most of a finding, a series once: the first of each condition, then the seconds."""
    measured = [[term for term in leaves(node) if term.signal.unit != "condition"] for node in rule.when]
    in_turn = (term for turn in zip_longest(*measured) for term in turn if term is not None)
    first: dict[str, Term] = {}
    for term in in_turn:
        first.setdefault(series_of(term), term)
    yield from first.values()
