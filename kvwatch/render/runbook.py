"""The runbook: every rule's page, its terms and what to do, under an anchor that is its id."""

from __future__ import annotations

from collections.abc import Mapping

from kvwatch.catalogue import term_text
from kvwatch.render import Site
from kvwatch.rules.kinds import ActiveRule, Do
from kvwatch.wording import duration, without_places

PATH = "alerts/runbook.md"


def render(site: Site) -> Mapping[str, str]:
    """One page of Markdown."""
    parts = ["# Runbook", "", "Rendered by `kvwatch render runbook` from the rules themselves. `kvwatch explain RULE` prints one.", ""]
    for r in site.rules:
        parts += _section(r)
    return {PATH: "\n".join(parts).rstrip("\n") + "\n"}


def _section(r: ActiveRule) -> list[str]:
    rule = r.rule
    holds = ", ".join(
        [duration(r.hold_for(None)) if r.hold_for(None) else "at once", *(f"{e} {duration(s)}" for e, s in rule.holds.items())]
    )
    lines = [f"## {rule.id}", "", f"{rule.severity}; fires after: {holds}", "", rule.page.strip(), "", "It rests on:", ""]
    lines += [f"- `{term_text(term, term.limit_in(r.limits)).replace(': ', '`: ', 1)}" for term in dict.fromkeys(rule.terms())]
    if rule.causes:
        lines += ["", "Causes: " + ", ".join(f"[{c}](#{c})" for c in rule.causes)]
    lines += ["", "What to do:", ""]
    lines += dict.fromkeys(f"- {without_places(do.do)}{_only(do)}: {without_places(do.because)}" for do in rule.remedy)
    return [*lines, ""]


def _only(do: Do) -> str:
    """Where the advice applies."""
    return f" ({', '.join(do.only)})" if do.only else ""
