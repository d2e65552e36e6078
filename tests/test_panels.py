"""The panels drawn for the README: the dashboard has them, and where Prometheus gave nothing, nothing is drawn."""

from __future__ import annotations

import json
from math import nan

import numpy as np
import pytest
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.patches import Rectangle
from numpy.testing import assert_array_equal

from tests.panels import COLORS, Json, filled, series, sheet
from tests.picture import DASHBOARD, GIVEN, shown

BEGAN = 1_700_000_000.25
STEPS = tuple(float(second) for second in range(6))
PANELS = {panel["title"]: panel for panel in shown(json.loads(DASHBOARD.read_text(encoding="utf-8")))}
each_panel = pytest.mark.parametrize("panel", PANELS.values(), ids=PANELS)


def drawn(panel: Json, *answers: dict[int, str]) -> Axes:
    """A panel with a series for each answer; an answer has values at some seconds, as Prometheus writes them."""
    found = [{"metric": {"state": f"of {i}"}, "values": [[BEGAN + at, text] for at, text in one.items()]} for i, one in enumerate(answers)]
    figure = sheet("all", [(panel, series("used {{state}}{{other}}", found, BEGAN, STEPS))], STEPS)
    (axes,) = (axes for band in figure.subfigs for place in band.subfigs for axes in place.axes)
    return axes


@each_panel
def test_the_dashboard_has_what_is_drawn(panel: Json) -> None:
    """Every panel of the picture is there under its title, its variables are known, its kind and unit can be drawn."""
    axes = drawn(panel, {0: "1", 1: "1"})
    assert " ".join(axes.get_title("left").split()) == panel["description"]
    assert not any("$" in filled(target["expr"], GIVEN) for target in panel["targets"])
    assert shapes(axes)


@each_panel
@pytest.mark.parametrize("answers", [(), ({},), ({3: "NaN", 4: "+Inf"},)], ids=["no series", "no values", "no finite values"])
def test_nothing_is_said_to_be_nothing(panel: Json, answers: tuple[dict[int, str], ...]) -> None:
    """Without a finite value there is the panel's own word for that, and no shape."""
    axes = drawn(panel, *answers)
    assert [text.get_text() for text in axes.texts] == [panel["fieldConfig"]["defaults"].get("noValue", "No data")]
    assert not shapes(axes)


def shapes(axes: Axes) -> list[Artist]:
    """Lines, areas and bars."""
    return [*axes.lines, *axes.collections, *axes.patches]


def test_a_gap_is_not_drawn_over() -> None:
    """Where a value is missing or is no number, a line and a row of bars have nothing either."""
    answer = {0: "3", 1: "3", 2: "NaN", 4: "1"}
    assert_array_equal(drawn(PANELS["Requests"], answer).lines[0].get_ydata(), [3, 3, nan, nan, 1, nan])
    bars = {
        (bar.get_x(), to_hex(bar.get_facecolor()))
        for bar in drawn(PANELS["Findings over time"], answer).patches
        if isinstance(bar, Rectangle)
    }
    assert bars == {(0, COLORS["red"]), (1, COLORS["red"]), (4, COLORS["blue"])}


def test_a_stack_stands_on_what_is_there() -> None:
    """Where a series has a gap, the next one on the stack stands on the one below."""
    axes = drawn(PANELS["L1: KV pool in HBM"], {0: "4", 1: "4"}, {0: "2"}, {0: "1", 1: "1"})
    tops = [np.asarray(area.get_paths()[0].vertices)[:, 1].max() for area in axes.collections]
    assert tops == [4, 6, 7]
    assert [1.0, 5.0] in np.asarray(axes.collections[2].get_paths()[0].vertices).tolist()


def test_a_legend_has_the_series_labels() -> None:
    """A label is put in its place, one that the series has not leaves nothing."""
    axes = drawn(PANELS["Requests"], {0: "1"}, {0: "2"})
    assert [line.get_label() for line in axes.lines] == ["used of 0", "used of 1"]
