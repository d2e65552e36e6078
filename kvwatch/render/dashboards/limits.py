"""Limits as the rules have them, with the site's own where it has some: a line in a graph is where a finding begins."""

from __future__ import annotations

from collections.abc import Iterator

from grafana_foundation_sdk.models import dashboard

from kvwatch.render import Site
from kvwatch.rules.kinds import ActiveRule
from kvwatch.signals.kinds import Signal, TargetSignal, Term

COLORS = {"critical": "red", "warning": "orange", "info": "blue"}
CALM = "green"
NO_COLOR = "transparent"
Limit = tuple[str, Signal | TargetSignal]
"""A rule's id, and the signal that it compares."""


def terms(site: Site, *wanted: Limit) -> Iterator[tuple[ActiveRule, Term]]:
    """The comparisons of those rules; none where a rule is gone."""
    for rule_id, signal in wanted:
        for rule in site.rules:
            if rule.rule.id == rule_id:
                yield from ((rule, term) for term in dict.fromkeys(rule.rule.terms()) if term.signal is signal)


def value(site: Site, wanted: Limit) -> float | None:
    """The number that a rule compares a signal with."""
    return next((term.limit_in(rule.limits) for rule, term in terms(site, wanted)), None)


def lines(site: Site, *wanted: Limit) -> list[dashboard.Threshold]:
    """A line for each limit, in the colour of the rule's severity."""
    found = sorted((term.limit_in(rule.limits), COLORS[rule.rule.severity]) for rule, term in terms(site, *wanted))
    return [dashboard.Threshold(value=None, color=NO_COLOR), *(dashboard.Threshold(value=v, color=c) for v, c in found)]


def bands(site: Site, *wanted: Limit) -> list[dashboard.Threshold]:
    """Colours for values: calm up to the first limit, or, of one that must not be fallen short of, from it on."""
    below, steps = CALM, []
    for rule, term in terms(site, *wanted):
        color = COLORS[rule.rule.severity]
        if term.op in {"<", "<="}:
            below, color = color, CALM
        steps.append((term.limit_in(rule.limits), color))
    return [dashboard.Threshold(value=None, color=below), *(dashboard.Threshold(value=v, color=c) for v, c in sorted(steps))]
