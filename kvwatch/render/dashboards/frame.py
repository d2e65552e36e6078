"""What every dashboard has around its panels: variables, links, marks of findings, time, and places on the grid."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from grafana_foundation_sdk.builders import dashboard as build
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models import dashboard

from kvwatch.render import LOCAL_URL, SERVED, Site
from kvwatch.render.dashboards import queries
from kvwatch.render.dashboards.panels import DATASOURCE

TAG = "kvwatch"
REFRESH = "15s"
ADDRESS = "${kvwatch:raw}"
EVERYTHING = dashboard.VariableOption(selected=True, text="All", value="$__all")


@dataclass(frozen=True, slots=True)
class Row:
    """A headline and the panels below it, from left to right in lines that are 24 wide."""

    title: str
    panels: Iterable[Builder[dashboard.Panel]]


@dataclass(frozen=True, slots=True)
class Board:
    """A dashboard: its lasting identifier, what it is called and for, and its rows.

    Without ``every_target`` it begins with the first target alone.
    """

    uid: str
    title: str
    text: str
    rows: Sequence[Row]
    every_target: bool = True


class _Mark(dashboard.AnnotationQuery):
    """A finding on the time axis; the SDK's annotations know no titles."""

    def to_json(self) -> dict[str, object]:
        """Add what Prometheus annotations have."""
        shown = {"titleFormat": "{{rule}}", "textFormat": "{{severity}}: {{target}} {{rank}} {{reason}}", "tagKeys": "severity"}
        return {**super().to_json(), **shown, "step": REFRESH}


class _Findings(Builder[dashboard.AnnotationQuery]):
    """The marks of all chosen findings."""

    def build(self) -> dashboard.AnnotationQuery:
        """Build them."""
        expr = f"max by (rule, severity, reason, target, rank) (kvwatch_finding{{{queries.FOUND}}})"
        return _Mark(name="findings", datasource=DATASOURCE, enable=True, icon_color="red", expr=expr)


def board(site: Site, wanted: Board) -> dashboard.Dashboard:
    """The whole dashboard, every panel in its place."""
    made = build.Dashboard(wanted.title).uid(wanted.uid).description(wanted.text).tags([TAG, "llm", "kv-cache"]).editable()
    made.time("now-1h", "now").refresh(REFRESH).timezone("browser").tooltip(dashboard.DashboardCursorSync.CROSSHAIR)
    made.variables(_variables(site, every_target=wanted.every_target)).annotation(_Findings())
    made.link(build.DashboardLink("kvwatch").type(dashboard.DashboardLinkType.DASHBOARDS).tags([TAG]).include_vars(True).keep_time(True))  # noqa: FBT003  the SDK's names
    made.link(_page("Verdict", "/diagnose?format=text", "What is wrong now, why, and what to do"))
    made.link(_page("Live page", "/", "The last minutes of every engine, from kvwatch itself"))
    for row in wanted.rows:
        made.with_row(build.Row(row.title))
        for panel in row.panels:
            made.with_panel(panel)
    whole = made.build()
    for number, placed in enumerate(whole.panels or (), 1):
        placed.id_val = number
    return whole


def link(title: str, url: str) -> build.DashboardLink:
    """Where a click on a value leads."""
    return build.DashboardLink(title).url(url)


def runbook(site: Site, rule: str) -> str:
    """The page about a rule, for a link; kvwatch's own unless the site has its runbook elsewhere."""
    return f"{ADDRESS}{SERVED}{rule}" if site.runbook_url.endswith(SERVED) else f"{site.runbook_url}{rule}"


def verdict(target: str) -> str:
    """The verdict about one target, for a link."""
    return f"{ADDRESS}/diagnose?format=text&target={target}"


def engine(target: str) -> str:
    """The dashboard of one target, for a link."""
    return (
        f"/d/kvwatch-engine?var-datasource=${{datasource}}&var-kvwatch=${{kvwatch:percentencode}}&var-target={target}&${{__url_time_range}}"
    )


def _page(title: str, path: str, tooltip: str) -> build.DashboardLink:
    shown = build.DashboardLink(title).type(dashboard.DashboardLinkType.LINK).icon("external link").url(f"{ADDRESS}{path}")
    return shown.tooltip(tooltip).target_blank(True)  # noqa: FBT003  the SDK's name


def _variables(site: Site, *, every_target: bool) -> list[Builder[dashboard.VariableModel]]:
    source = build.DatasourceVariable("datasource").label("Data source").type("prometheus")
    target = _choice("target", "label_values(kvwatch_target_info, target)", every=every_target)
    model = _choice("model", f"label_values(kvwatch_engine_info{{{queries.TARGET}}}, model)")
    rank = _choice("rank", f'label_values(kvwatch_engine_info{{{queries.TARGET}, model=~"$model"}}, rank)')
    address = site.runbook_url.removesuffix(SERVED) if site.runbook_url.endswith(SERVED) else LOCAL_URL
    where = build.TextBoxVariable("kvwatch").label("kvwatch at").description("Where your browser reaches kvwatch; only links use it.")
    where.default_value(address).current(dashboard.VariableOption(selected=True, text=address, value=address))
    return [source, target, model, rank, where]


def _choice(name: str, query: str, *, every: bool = True) -> build.QueryVariable:
    choice = build.QueryVariable(name).label(name.capitalize()).datasource(DATASOURCE).query(query).multi(True)  # noqa: FBT003  the SDK's name
    choice.refresh(dashboard.VariableRefresh.ON_TIME_RANGE_CHANGED).sort(dashboard.VariableSort.NATURAL_ASC)
    return choice.include_all(True).all_value(".*").current(EVERYTHING) if every else choice.include_all(False)  # noqa: FBT003
