"""The catalogue for people: the table of rules, and one rule's page."""

from __future__ import annotations

from collections.abc import Sequence

from kvwatch.report import Json, plain
from kvwatch.rules import RULES
from kvwatch.rules.kinds import ActiveRule, Do, Rule
from kvwatch.signals.kinds import Condition, Node, Term, leaves
from kvwatch.wording import duration, number, without_places


def page_of(rule_id: str) -> str | None:
    """A rule's page as text: what it means, when it fires, what it causes; None when there is no such rule."""
    rule = RULES.get(rule_id)
    if rule is None:
        return None
    page = rule.page.strip().replace("**", "").replace("`", "")
    lines = [f"{rule.id}  ({rule.severity}, holds {_hold(rule)})", "", page, "", "It rests on:"]
    lines += [f"  {term_text(term, term.limit)}" for term in dict.fromkeys(rule.terms())]
    if rule.reasons:
        lines.append(f"Reasons: {', '.join(r.name for r in rule.reasons)}")
    if rule.causes:
        lines.append(f"Causes: {', '.join(rule.causes)}")
    if rule.supersedes:
        lines.append(f"Stands for: {', '.join(rule.supersedes)}")
    lines += ["", "What to do:", *dict.fromkeys(_advice(do) for do in rule.remedy)]
    return "\n".join(lines) + "\n"


def _advice(do: Do) -> str:
    """One line of advice, without the numbers it would carry in a finding."""
    only = ", ".join(do.only)
    return f"  - {without_places(do.do)}{f' [{only}]' if only else ''}: {without_places(do.because)}"


def _hold(rule: Rule) -> str:
    return ", ".join([duration(rule.hold), *(f"{e} {duration(s)}" for e, s in rule.holds.items())])


def term_text(term: Term, limit: float) -> str:
    """One comparison with what its signal means."""
    return f"{term.signal.name} {term.op} {number(limit, term.signal.unit)}: {term.signal.help}"


def table(rules: Sequence[ActiveRule]) -> str:
    """All rules with severity, hold and present limits."""
    width = max(len(r.rule.id) for r in rules)
    lines = []
    for r in rules:
        lines.append(
            f"{r.rule.id:{width}}  {r.rule.severity:8}  {duration(r.hold_for(None)):>6}  " + " and ".join(_node(n, r) for n in r.rule.when)
        )
        inner = [t for n in r.rule.when if isinstance(n, Condition) for t in leaves(n) if t.signal.unit != "condition"]
        if inner:
            limits = ", ".join(f"{t.signal.name} {t.op} {_limit(t, r)}" for t in dict.fromkeys(inner))
            lines.append(f"{'':{width}}  {'':8}  {'':>6}  limits: {limits}")
    return "\n".join(lines) + "\n"


def _node(node: Node, r: ActiveRule) -> str:
    """A condition by its name, a comparison with its present limit."""
    return node.name if isinstance(node, Condition) else f"{node.signal.name} {node.op} {_limit(node, r)}"


def _limit(term: Term, r: ActiveRule) -> str:
    return number(term.limit_in(r.limits), term.signal.unit)


def as_json(rules: Sequence[ActiveRule]) -> list[Json]:
    """The same for programs."""
    rows: list[Json] = []
    for r in rules:
        limits: dict[str, Json] = {t.signal.name: plain(t.limit_in(r.limits)) for t in r.rule.terms()}
        rows.append({"rule": r.rule.id, "severity": r.rule.severity, "hold_seconds": plain(r.hold_for(None)), "thresholds": limits,
                     "reasons": [x.name for x in r.rule.reasons], "causes": list(r.rule.causes),
                     "supersedes": list(r.rule.supersedes)})  # fmt: skip
    return rows
