"""Panels about findings, which more than one dashboard has."""

from __future__ import annotations

from grafana_foundation_sdk.builders import common, statetimeline, table
from grafana_foundation_sdk.models import common as shape
from grafana_foundation_sdk.models import dashboard

from kvwatch.render import Site
from kvwatch.render.dashboards import frame, limits, queries
from kvwatch.render.dashboards.fields import Texts, look, mapping
from kvwatch.render.dashboards.panels import About, Query, listing, timeline
from kvwatch.render.dashboards.queries import WEIGHTS, findings

SEVERITIES: Texts = {weight: (severity, limits.COLORS[severity]) for severity, weight in reversed(WEIGHTS.items())}
OWNER = {label: label for label in queries.OWNER}
LABELS = {"rule": "rule", "reason": "reason", **OWNER}
COLUMNS = {"Value": "severity", "headline": "what is wrong", **LABELS}


def listed(site: Site, *, width: int) -> table.Panel:
    """What fires, the worst first."""
    about = About(
        "Findings",
        "Each line fires now. Click a rule for its runbook page, a target for its verdict, with the proof and what to do first.",
        "none",
        width,
    )
    panel = listing(about, f'label_replace({findings(*LABELS)}, "headline", "$1", "rule", "(.*)")', COLUMNS).no_value("Nothing is wrong.")
    panel.override_by_regexp("/./", look(noValue="-"))  # else an empty cell says the same as an empty table
    panel.sort_by([common.TableSortByFieldState().display_name("severity").desc(True)])  # noqa: FBT003  the SDK's name
    cell = shape.TableColoredBackgroundCellOptions(mode=shape.TableCellBackgroundDisplayMode.BASIC)
    panel.override_by_name("severity", look(mappings=[mapping(SEVERITIES)], custom__cellOptions=cell, custom__width=90))
    headlines = dashboard.ValueMap({r.rule.id: dashboard.ValueMappingResult(text=r.rule.short) for r in site.rules})
    panel.override_by_name("what is wrong", look(mappings=[headlines], custom__width=420))
    pages = [frame.link("Runbook", frame.runbook(site, "${__data.fields.rule:percentencode}"))]
    panel.override_by_name("rule", look(links=[page.build() for page in pages]))
    target = "${__data.fields.target:percentencode}"
    views = [frame.link("Verdict", frame.verdict(target)), frame.link("Engine in depth", frame.engine(target))]
    return panel.override_by_name("target", look(links=[view.build() for view in views]))


def over_time(*, width: int) -> statetimeline.Panel:
    """What fired when."""
    about = About(
        "Findings over time",
        "A bar while a rule fires anywhere in the selection, in its severity's colour. What began first is often the cause of the rest.",
        "none",
        width,
    )
    return timeline(about, Query(findings("rule"), "{{rule}}"), texts=SEVERITIES).no_value("Nothing was wrong.")
