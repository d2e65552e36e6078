"""The catalogue for people: the table of rules, and one rule's page."""

from __future__ import annotations

import re
from collections.abc import Sequence

from kvwatch.report import Json, plain
from kvwatch.rules.kinds import ActiveRule, Do
from kvwatch.signals.kinds import Condition, Node, Term, leaves
from kvwatch.wording import duration, number, without_places


def page(r: ActiveRule) -> str:
    """A rule's page in Markdown: what it means, when it fires with its present limits, what it causes, what to do."""
    rule = r.rule
    lines = [f"## {rule.id}", "", f"{rule.severity}, fires {_hold(r)}", "", rule.page.strip(), "", "It rests on:", ""]
    lines += [f"- `{t.signal.name} {t.op} {_limit(t, r)}`: {t.signal.help}" for t in dict.fromkeys(rule.terms())]
    for title, names in (
        ("Reasons", [x.name for x in rule.reasons]),
        ("Causes", _links(rule.causes)),
        ("Stands for", _links(rule.supersedes)),
    ):
        if names:
            lines += ["", f"{title}: {', '.join(names)}"]
    return "\n".join([*lines, "", "What to do:", "", *dict.fromkeys(_advice(do) for do in rule.remedy)]) + "\n"


def plain_page(r: ActiveRule) -> str:
    """The same without markup."""
    return re.sub(r"\[(.*?)\]\(#.*?\)", r"\1", re.sub(r"^## |\*\*|`", "", page(r)))


def _links(rules: Sequence[str]) -> list[str]:
    return [f"[{name}](#{name})" for name in rules]


def _advice(do: Do) -> str:
    """One line of advice, without the numbers it would carry in a finding."""
    only = f" ({', '.join(do.only)})" if do.only else ""
    return f"- {without_places(do.do)}{only}: {without_places(do.because)}"


def _hold(r: ActiveRule) -> str:
    """After how long, and for which engines otherwise."""
    engines = {} if r.hold is not None else r.rule.holds
    usual = r.hold_for(None)
    return ", ".join([f"after {duration(usual)}" if usual else "at once", *(f"for {e} {duration(s)}" for e, s in engines.items())])


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
