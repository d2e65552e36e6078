"""The kinds of panels the dashboards are made of, each with what all of its kind have in common."""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, Self, TypeVar

from grafana_foundation_sdk.builders import (
    bargauge,
    common,
    heatmap,
    prometheus,
    stat,
    statetimeline,
    statushistory,
    table,
    text,
    timeseries,
)
from grafana_foundation_sdk.builders import dashboard as build
from grafana_foundation_sdk.cog import variants
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models import common as shape
from grafana_foundation_sdk.models import dashboard
from grafana_foundation_sdk.models.heatmap import HeatmapColorMode
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from kvwatch.render.dashboards.fields import COLORS, Texts, colored, dashed, mapping, on_right

DATASOURCE = dashboard.DataSourceRef(type_val="prometheus", uid="${datasource}")
Steps = Sequence[dashboard.Threshold]
NOTHING = 1e-9
"""Cells of a heat map with no more than this are left empty."""
CELLS = 120
"""Moments in a row of cells; Grafana draws none where they would be too small."""


@dataclass(frozen=True, slots=True)
class About:
    """What a panel is called, how it is read (two sentences at most), Grafana's name of its unit, and its size on the grid."""

    title: str
    text: str
    unit: str = ""
    width: int = 8
    height: int = 8


@dataclass(frozen=True, slots=True)
class Query:
    """An expression over time, as buckets over time, or of this moment; the legend may name labels in double braces."""

    expr: str
    legend: str = ""
    form: Literal["series", "buckets", "now", "table"] = "series"


class _Panel(Protocol):
    """What all builders of panels have."""

    def title(self, title: str, /) -> Self: ...
    def description(self, description: str, /) -> Self: ...
    def datasource(self, datasource: dashboard.DataSourceRef, /) -> Self: ...
    def height(self, h: int, /) -> Self: ...
    def span(self, w: int, /) -> Self: ...
    def targets(self, targets: list[Builder[variants.Dataquery]], /) -> Self: ...


class _Numbers(_Panel, Protocol):
    """What builders of panels with numbers have beside that."""

    def unit(self, unit: str, /) -> Self: ...
    def thresholds(self, thresholds: Builder[dashboard.ThresholdsConfig], /) -> Self: ...
    def color_scheme(self, color: Builder[dashboard.FieldColor], /) -> Self: ...


P = TypeVar("P", bound=_Panel)
N = TypeVar("N", bound=_Numbers)


def graph(about: About, *queries: Query, steps: Steps = ()) -> timeseries.Panel:
    """Lines over time, with a dashed line at each limit."""
    panel = _described(timeseries.Panel(), about, queries).unit(about.unit)
    panel.line_width(1).fill_opacity(8).show_points(shape.VisibilityMode.NEVER).axis_soft_min(0)
    panel.legend(_legend()).tooltip(_tooltip(shape.SortOrder.DESCENDING))
    if steps:
        panel.thresholds(_thresholds(steps))
        panel.thresholds_style(common.GraphThresholdsStyleConfig().mode(shape.GraphThresholdsStyleMode.DASHED))
    return panel


def stack(about: About, *queries: Query) -> timeseries.Panel:
    """States on top of each other.

    A series whose legend ends in ``limit`` is a dashed line; one that ends in ``bytes`` has its axis and its stack on the right.
    """
    panel = graph(about, *queries).fill_opacity(60).line_width(0).tooltip(_tooltip(shape.SortOrder.NONE))
    panel.stacking(common.StackingConfig().mode(shape.StackingMode.NORMAL).group(about.unit))
    for state, color in COLORS.items():
        panel.override_by_regexp(f"/^{state}/", colored(color))
    return panel.override_by_regexp("/bytes$/", on_right("bytes")).override_by_regexp("/limit$/", dashed("red"))


def heat(about: About, expr: str) -> heatmap.Panel:
    """A histogram over time: the engine's own buckets upwards, the more observations the darker."""
    panel = _described(heatmap.Panel(), about, [Query(expr, "{{le}}", "buckets")])
    panel.calculate(False).unit("short").cell_values(heatmap.CellValues().unit("short"))  # noqa: FBT003  the SDK has no name for it
    panel.y_axis(heatmap.YAxisConfig().unit(about.unit).axis_placement(shape.AxisPlacement.LEFT))
    panel.filter_values(heatmap.FilterValueRange().le(NOTHING))
    return panel.color(heatmap.HeatmapColorOptions().mode(HeatmapColorMode.SCHEME).scheme("Oranges").steps(64))


def cells(about: About, *queries: Query, steps: Steps) -> statushistory.Panel:
    """A row for each series, a cell for each moment, coloured by the limits."""
    panel = _judged(_described(statushistory.Panel(), about, queries), about, steps).max_data_points(CELLS)
    return panel.show_value(shape.VisibilityMode.NEVER).row_height(0.9).legend(_legend()).tooltip(_tooltip(shape.SortOrder.NONE))


def timeline(about: About, *queries: Query, texts: Texts) -> statetimeline.Panel:
    """A row for each series, a bar for as long as a state lasts."""
    panel = _described(statetimeline.Panel(), about, queries).unit(about.unit).mappings([mapping(texts)])
    panel.merge_values(True).show_value(shape.VisibilityMode.NEVER)  # noqa: FBT003  the SDK has no name for it
    return panel.row_height(0.8).line_width(0).legend(_legend()).tooltip(_tooltip(shape.SortOrder.NONE))


def stats(about: About, *queries: Query, steps: Steps = ()) -> stat.Panel:
    """Numbers of this moment, large."""
    panel = _judged(_described(stat.Panel(), about, queries), about, steps)
    return panel.graph_mode(shape.BigValueGraphMode.NONE).text_mode(shape.BigValueTextMode.VALUE_AND_NAME).reduce_options(_last())


def ranking(about: About, query: Query, steps: Steps = ()) -> bargauge.Panel:
    """Bars of this moment."""
    panel = _judged(_described(bargauge.Panel(), about, [query]), about, steps)
    panel.orientation(shape.VizOrientation.HORIZONTAL).display_mode(shape.BarGaugeDisplayMode.BASIC).min(0)
    return panel.reduce_options(_last())


def listing(about: About, expr: str, columns: Mapping[str, str]) -> table.Panel:
    """Labels as columns, in this order and under these names; what is not named is left out."""
    chosen = dashboard.DataTransformerConfig(id_val="filterFieldsByName", options={"include": {"names": [*columns]}})
    ordered = dashboard.DataTransformerConfig(
        id_val="organize", options={"indexByName": {label: i for i, label in enumerate(columns)}, "renameByName": columns}
    )
    return _described(table.Panel(), about, [Query(expr, form="table")]).unit(about.unit).transformations([chosen, ordered])


def note(about: About, content: str) -> text.Panel:
    """A few sentences in Markdown."""
    return _described(text.Panel(), about, ()).content(content)


def _described(panel: P, about: About, queries: Sequence[Query]) -> P:
    targets = [_target(letter, query) for letter, query in zip(string.ascii_uppercase, queries, strict=False)]
    panel.title(about.title).description(about.text).datasource(DATASOURCE).span(about.width).height(about.height)
    return panel.targets(targets)


def _target(letter: str, query: Query) -> Builder[variants.Dataquery]:
    target = prometheus.Dataquery().ref_id(letter).datasource(DATASOURCE).expr(query.expr)
    if query.legend:
        target.legend_format(query.legend)
    if query.form == "table":
        return target.instant().format(PromQueryFormat.TABLE)
    if query.form == "now":
        return target.instant()
    return target.range().format(PromQueryFormat.HEATMAP if query.form == "buckets" else PromQueryFormat.TIME_SERIES)


def _judged(panel: N, about: About, steps: Steps) -> N:
    """Values in the colours of the limits, or in that of text where there are none."""
    panel.unit(about.unit).thresholds(_thresholds(steps or [dashboard.Threshold(value=None, color="text")]))
    return panel.color_scheme(build.FieldColor().mode(dashboard.FieldColorModeId.THRESHOLDS))


def _thresholds(steps: Steps) -> build.ThresholdsConfig:
    return build.ThresholdsConfig().mode(dashboard.ThresholdsMode.ABSOLUTE).steps(list(steps))


def _last() -> common.ReduceDataOptions:
    return common.ReduceDataOptions().calcs(["lastNotNull"])


def _legend() -> common.VizLegendOptions:
    return common.VizLegendOptions().show_legend(True).display_mode(shape.LegendDisplayMode.LIST).placement(shape.LegendPlacement.BOTTOM)  # noqa: FBT003


def _tooltip(order: shape.SortOrder) -> common.VizTooltipOptions:
    return common.VizTooltipOptions().mode(shape.TooltipDisplayMode.MULTI).sort(order)
