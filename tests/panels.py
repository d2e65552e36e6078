"""Panels of the dashboards drawn with Matplotlib, where there is no Grafana: what each says of itself, and what Prometheus answered."""

from __future__ import annotations

import itertools
import math
import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

VARIABLE = re.compile(r"\$\{?([a-zA-Z_]\w*)")
PLACE = re.compile(r"\{\{(\w+)\}\}")
COLORS = {"blue": "#3871dc", "green": "#56a64b", "light-green": "#96d98d", "yellow": "#f2cc0c", "orange": "#ff780a", "red": "#e02f44",
          "purple": "#a352cc"}  # fmt: skip
"""What Grafana's names of colours are here."""
PALETTE = ("#3871dc", "#d9730d", "#2f8f4e", "#a352cc", "#8a5a2b")
"""For series without a colour of their own, in turn."""
UNITS = {"short": "", "s": " s", "cps": " /s"}
"""Grafana's units as they stand behind a number."""
ROW_INCHES, ROW_OF_BARS_INCHES = 2.75, 2.0
COLUMNS, WIDTH_INCHES = 2, 10.0
LETTERS = 74
"""Of a description on a line of one column."""
Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Series:
    """An entry of a legend and a value for each step since the picture begins: NaN where there is none, or no finite one."""

    legend: str
    values: tuple[float, ...]


def filled(expr: str, given: Mapping[str, str]) -> str:
    """An expression with its variables substituted. KeyError for one that is not given."""
    return VARIABLE.sub(lambda m: given[m[1]], expr)


def series(legend: str, answer: Sequence[Json], began: float, steps: Sequence[float]) -> list[Series]:
    """What ``/api/v1/query_range`` gave for one expression, with its values at those seconds since ``began``."""
    return [Series(_legend(legend, found["metric"]), _values(found["values"], began, steps)) for found in answer]


def _legend(legend: str, labels: Mapping[str, str]) -> str:
    return PLACE.sub(lambda m: labels.get(m[1], ""), legend)


def _values(answered: Sequence[tuple[float, str]], began: float, steps: Sequence[float]) -> tuple[float, ...]:
    known = {round(at - began): float(text) for at, text in answered if math.isfinite(float(text))}
    return tuple(known.get(round(second), math.nan) for second in steps)


def sheet(title: str, drawn: Sequence[tuple[Json, Sequence[Series]]], steps: Sequence[float]) -> Figure:
    """The panels in two columns, a timeline as wide as both. KeyError for a kind, a unit or a colour that nobody draws yet."""
    rows: list[list[tuple[Json, Sequence[Series]]]] = [[]]
    for panel, found in drawn:
        if rows[-1] and (len(rows[-1]) == COLUMNS or "state-timeline" in {panel["type"], rows[-1][0][0]["type"]}):
            rows.append([])
        rows[-1].append((panel, found))
    heights = [ROW_OF_BARS_INCHES if row[0][0]["type"] == "state-timeline" else ROW_INCHES for row in rows]
    figure = Figure(figsize=(WIDTH_INCHES, sum(heights)), layout="constrained")
    figure.suptitle(title, x=0.01, ha="left", weight="bold")
    for row, band in zip(rows, figure.subfigures(len(rows), 1, height_ratios=heights, squeeze=False)[:, 0], strict=True):
        for (panel, found), place in zip(row, band.subfigures(1, len(row), squeeze=False)[0], strict=True):
            place.suptitle(panel["title"], x=0.01, ha="left", weight="bold", size="medium")
            axes = place.subplots()
            draw(axes, panel, found, steps)
            words = textwrap.fill(panel["description"], LETTERS * COLUMNS // len(row))
            axes.set_title(words, loc="left", size="x-small", color="#57606a")
            place.legend(*axes.get_legend_handles_labels(), loc="outside lower left", ncols=6, frameon=False, fontsize="x-small")
    return figure


def draw(axes: Axes, panel: Json, found: Sequence[Series], steps: Sequence[float]) -> None:
    """One panel."""
    some = [one for one in found if not all(map(math.isnan, one.values))]
    kinds = {"timeseries": _graph, "state-timeline": _timeline}
    kinds[panel["type"]](axes, panel, some, steps)
    axes.set_xlim(steps[0], steps[-1])
    axes.xaxis.set_major_formatter("{x:g} s")
    axes.grid(color="#e6e9ec")
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize="x-small")
    if not some:
        words = panel["fieldConfig"]["defaults"].get("noValue", "No data")
        axes.text(0.5, 0.5, words, ha="center", transform=axes.transAxes, color="#57606a")


def _graph(axes: Axes, panel: Json, found: Sequence[Series], steps: Sequence[float]) -> None:
    """Lines and areas; those on a stack begin where the one before ends."""
    defaults = panel["fieldConfig"]["defaults"]
    turn = itertools.cycle(PALETTE)
    stack = [0.0 for _ in steps]
    for one in found:
        look = _look(panel, one.legend)
        assert look.get("unit", defaults["unit"]) == defaults["unit"], f"{panel['title']}: there is one axis"
        color = COLORS[look["color"]["fixedColor"]] if "color" in look else next(turn)
        stacked = look.get("custom.stacking", {}).get("mode") == "normal"
        low = stack if stacked else [0.0 for _ in steps]
        high = [floor + value for floor, value in zip(low, one.values, strict=True)]
        shown = look["custom.lineWidth"] > 0
        axes.fill_between(
            steps, low, high, color=color, alpha=look["custom.fillOpacity"] / 100, linewidth=0, label=None if shown else one.legend
        )
        if shown:
            axes.plot(steps, high, "--" if "custom.lineStyle" in look else "-", color=color, linewidth=1.5, label=one.legend)
        if stacked:
            stack = [floor if math.isnan(top) else top for floor, top in zip(low, high, strict=True)]
    axes.set_ylim(0)
    axes.yaxis.set_major_formatter(f"{{x:,g}}{UNITS[defaults['unit']]}")
    axes.set_ylabel(defaults["custom"].get("axisLabel", ""), size="x-small")


def _look(panel: Json, legend: str) -> dict[str, Any]:
    """The properties of one series: the panel's own, and what its overrides say."""
    look = {f"custom.{name}": value for name, value in panel["fieldConfig"]["defaults"]["custom"].items()}
    for override in panel["fieldConfig"]["overrides"]:
        wanted = override["matcher"]["options"]
        pattern = f"^{re.escape(wanted)}$" if override["matcher"]["id"] == "byName" else wanted.strip("/")
        if re.search(pattern, legend):
            look |= {found["id"]: found["value"] for found in override["properties"]}
    return look


def _timeline(axes: Axes, panel: Json, found: Sequence[Series], steps: Sequence[float]) -> None:
    """A row for each series, a bar for as long as a value lasts."""
    (texts,) = (mapping["options"] for mapping in panel["fieldConfig"]["defaults"]["mappings"])
    width = steps[1] - steps[0]
    for value, text in texts.items():
        bars = [(row, second) for row, one in enumerate(found) for second, at in zip(steps, one.values, strict=True) if f"{at:g}" == value]
        if bars:
            rows, begins = zip(*bars, strict=True)
            axes.barh(rows, width, left=begins, height=0.7, color=COLORS[text["color"]], alpha=0.8, label=text["text"])
    axes.set_yticks(range(len(found)), [one.legend for one in found])
    axes.invert_yaxis()
