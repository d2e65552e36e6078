"""The dashboards: what Grafana needs is there, limits and links are the site's, and every panel has data on a real Prometheus."""

from __future__ import annotations

import itertools
import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from grafana_foundation_sdk.cog import plugins
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common, dashboard

from kvwatch.metrics import families
from kvwatch.model import GpuReading, NvmlState
from kvwatch.render import Site, drifted, render
from kvwatch.render.dashboards import queries
from kvwatch.report import Verdict
from kvwatch.rules import RULES, active
from kvwatch.store import Snapshot
from kvwatch.view import Watch
from tests.daemon_child import eventually
from tests.panels import PLACE, VARIABLE, Json, filled
from tests.picture import overview
from tests.watched import Prometheus, watched_site

ROOT = Path(__file__).parents[1]
GRID_WIDTH = 24
LONGEST_WAIT_SECONDS = 50.0
LOOK_SECONDS = 0.5
SERIES = re.compile(r"\bkvwatch_[a-z0-9_]+")
KEPT = re.compile(r"\bby \(([^()]*)\)")
MADE = re.compile(r'\), "(\w+)", "[^"]*", "\w+", ')
SENTENCE = re.compile(r"[.!?](?:\s|$)")
GIVEN = {"__rate_interval": "5s", "target": ".*", "model": ".*", "rank": ".*"}
"""What the variables are while the tests ask: everything."""


def site(folder: Path = ROOT, **thresholds: dict[str, float]) -> Site:
    """A site with some thresholds."""
    return Site(active({name.replace("_", "-"): limits for name, limits in thresholds.items()}), folder)


def boards(of: Site) -> dict[str, Json]:
    """The dashboards by their lasting identifiers."""
    return {board["uid"]: board for text in render(["dashboards"], of).values() for board in [json.loads(text)]}


BOARDS = boards(site())
PANELS = [(uid, panel) for uid, board in BOARDS.items() for panel in board["panels"] if panel["type"] != "row"]
each_panel = pytest.mark.parametrize("panel", [p for _, p in PANELS], ids=[f"{uid} {p['title']}" for uid, p in PANELS])


@dataclass(frozen=True, slots=True)
class Asked:
    """One expression, the labels that its legend speaks of, and the columns of its table."""

    where: str
    expr: str
    legend: frozenset[str]
    columns: frozenset[str] = frozenset()


def asked() -> Iterator[Asked]:
    """Every expression of every dashboard, with all variables set."""
    for uid, panel in PANELS:
        orders = [t["options"]["indexByName"] for t in panel.get("transformations", []) if t["id"] == "organize"]
        columns = frozenset(name for order in orders for name in order)
        for target in panel.get("targets", []):
            legend = frozenset(PLACE.findall(target.get("legendFormat", "")))
            yield Asked(f"{uid}, {panel['title']}, {target['refId']}", _given(target["expr"]), legend, columns)
    for uid, board in BOARDS.items():
        for mark in board["annotations"]["list"]:
            yield Asked(f"{uid}, {mark['name']}", _given(mark["expr"]), frozenset(PLACE.findall(mark["titleFormat"] + mark["textFormat"])))


def _given(expr: str) -> str:
    return filled(expr, GIVEN)


def exported() -> dict[str, set[str]]:
    """Every series /metrics may have, with its labels."""
    nothing = Verdict(Snapshot(0.0, Watch(), (), (), GpuReading(0.0, NvmlState("ok"))), (), "ok", "", None)
    series: dict[str, set[str]] = {}
    for family in families(nothing):
        labels = {*getattr(family, "_labelnames", ())}
        match family.type:
            case "counter":
                series[f"{family.name}_total"] = labels
            case "histogram":
                series |= {f"{family.name}_bucket": {*labels, "le"}, f"{family.name}_sum": labels, f"{family.name}_count": labels}
            case _:
                series[family.name] = labels
    return series


def test_committed_files_are_what_is_rendered() -> None:
    """The dashboards have not drifted from the catalogues, and rendering them again changes nothing."""
    assert drifted(render(["dashboards"], site()), ROOT) == []
    assert render(["dashboards"], site()) == render(["dashboards"], site())


def test_what_was_written_can_be_read() -> None:
    """Grafana's own model of a dashboard, read from the file, keeps every field of it: no name is misspelt, no value of the wrong kind."""
    plugins.register_default_plugins()
    for board in BOARDS.values():
        read = json.loads(json.dumps(dashboard.Dashboard.from_json(dict(board)), cls=JSONEncoder))
        for name, value in board.items():
            if name != "annotations":  # their model has no place for titles
                assert_kept(value, read[name], name)


def assert_kept(written: object, read: object, where: str) -> None:
    """All of what was written is there, whatever defaults were added."""
    if isinstance(written, dict) and isinstance(read, dict):
        for key, value in written.items():
            assert key in read, f"{where}: {key}"
            assert_kept(value, read[key], f"{where}.{key}")
    elif isinstance(written, list) and isinstance(read, list):
        for i, (value, again) in enumerate(zip(written, read, strict=True)):
            assert_kept(value, again, f"{where}[{i}]")
    else:
        assert written == read, where


@each_panel
def test_overrides_name_real_properties(panel: Json) -> None:
    """Properties of single series, which are only strings, are fields of Grafana's models."""
    models: dict[str, type] = {"timeseries": common.GraphFieldConfig, "table": common.TableFieldOptions}
    custom = {_camel(name) for name in models[panel["type"]].__annotations__} if panel["type"] in models else set()
    known = {_camel(name) for name in dashboard.FieldConfig.__annotations__} | {f"custom.{name}" for name in custom}
    used = {p["id"] for override in panel.get("fieldConfig", {}).get("overrides", []) for p in override["properties"]}
    assert used <= known


def _camel(name: str) -> str:
    first, *rest = name.removesuffix("_val").split("_")
    return first + "".join(part.capitalize() for part in rest)


@each_panel
def test_a_panel_says_how_it_is_read(panel: Json) -> None:
    """Each has a description of at most two sentences, a unit where it shows numbers, and the chosen data source everywhere."""
    assert 1 <= len(SENTENCE.findall(panel["description"])) <= 2
    assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
    assert all(target["datasource"] == panel["datasource"] for target in panel.get("targets", []))
    if panel["type"] == "heatmap":
        assert panel["options"]["yAxis"]["unit"]
    if panel["type"] != "text":
        assert panel["targets"]
        assert panel["fieldConfig"]["defaults"]["unit"]


@pytest.mark.parametrize("board", BOARDS.values(), ids=BOARDS)
def test_panels_have_their_own_place_and_number(board: Json) -> None:
    """No two share a number or a cell of the grid, none stands out of it, and every line is full."""
    numbers = [panel["id"] for panel in board["panels"]]
    assert len(set(numbers)) == len(numbers)
    taken = [
        (x, y)
        for at in (panel["gridPos"] for panel in board["panels"])
        for x, y in itertools.product(range(at["x"], at["x"] + at["w"]), range(at["y"], at["y"] + at["h"]))
    ]
    height = max(y for _, y in taken) + 1
    assert sorted(taken) == [*itertools.product(range(GRID_WIDTH), range(height))]


@pytest.mark.parametrize("board", BOARDS.values(), ids=BOARDS)
def test_every_variable_is_defined(board: Json) -> None:
    """Expressions and links use variables of the dashboard or of Grafana; each choice comes from the chosen data source."""
    variables = {variable["name"]: variable for variable in board["templating"]["list"]}
    used = set(VARIABLE.findall(json.dumps([board["panels"], board["annotations"], board["links"]])))
    assert {name for name in used if not name.startswith("__")} <= {*variables}
    assert {*variables} >= {"datasource", "target", "model", "rank", "kvwatch"}
    for variable in variables.values():
        if variable["type"] == "query":
            assert variable["datasource"]["uid"] == "${datasource}"
            assert variable["multi"]


def test_only_the_engine_in_depth_shows_one_target() -> None:
    """Elsewhere everything is shown until something is chosen."""
    first = {uid: board["templating"]["list"][1] for uid, board in BOARDS.items()}
    assert {uid for uid, target in first.items() if not target["includeAll"]} == {"kvwatch-engine"}
    assert all(target["current"]["value"] == "$__all" for target in first.values() if target["includeAll"])


def test_no_expression_names_a_series_or_label_that_is_not_exported() -> None:
    """A panel on a series nobody exports would be empty for ever, a legend with a label nobody exports would have a hole."""
    series = exported()
    for a in asked():
        named = set(SERIES.findall(a.expr))
        assert named, a.where
        assert named <= {*series}, a.where
        kept = {label for labels in KEPT.findall(a.expr) for label in labels.split(", ")}
        made = set(MADE.findall(a.expr))
        assert kept <= {label for name in named for label in series[name]}, a.where
        assert a.legend <= kept, a.where
        assert a.columns <= kept | made | {"Value"}, a.where
    for board in BOARDS.values():
        for variable in board["templating"]["list"]:
            if variable["type"] == "query":
                (name,) = SERIES.findall(variable["query"])
                assert variable["name"] in series[name]


def test_a_sites_threshold_moves_its_lines() -> None:
    """A limit that a site replaces is where the line is drawn, in expressions and in colours."""
    before, after = json.dumps(BOARDS), json.dumps(boards(site(l1_saturated={"l1_used_ratio": 0.8125})))
    assert "0.8125" not in before
    assert after.count("0.8125 * sum(") == 2
    assert re.search(r'\{"color": "red", "value": 0\.8125\}', after)


def test_a_rule_that_is_gone_is_drawn_nowhere() -> None:
    """Without its rules the dashboards can still be rendered, and none of their ids is left."""
    bare = boards(Site((), ROOT))
    named = {rule for rule in RULES if f'"{rule}"' in json.dumps(BOARDS)}
    assert named == {*RULES}
    assert {rule for rule in RULES if f'"{rule}"' in json.dumps(bare)} == set()
    assert [legend for legend in _legends(bare) if re.search("limit$|times", legend)] == []
    assert [legend for legend in _legends(BOARDS) if re.search("limit$|times", legend)] != []


def _legends(of: Mapping[str, Json]) -> Iterator[str]:
    """Legends of all series."""
    for board in of.values():
        for panel in board["panels"]:
            yield from (target["legendFormat"] for target in panel.get("targets", []) if "legendFormat" in target)


@pytest.mark.parametrize(
    ("runbook_url", "page", "address"),
    [
        (None, "${kvwatch:raw}/runbook/", "http://127.0.0.1:9477"),
        ("https://kv.example.org/runbook/", "${kvwatch:raw}/runbook/", "https://kv.example.org"),
        ("https://docs.example.org/kv.md#", "https://docs.example.org/kv.md#", "http://127.0.0.1:9477"),
    ],
)
def test_links_lead_to_the_sites_runbook(runbook_url: str | None, page: str, address: str) -> None:
    """A finding leads to its page: on kvwatch, whose address can be typed in, or where the site has its runbook."""
    of = site() if runbook_url is None else Site(active(), ROOT, runbook_url)
    board = boards(of)["kvwatch-overview"]
    where = next(v for v in board["templating"]["list"] if v["name"] == "kvwatch")
    assert (where["type"], where["query"], where["current"]["value"]) == ("textbox", address, address)
    links = [link["url"] for link in _links(board)]
    assert f"{page}${{__data.fields.rule:percentencode}}" in links
    assert "${kvwatch:raw}/diagnose?format=text&target=${__data.fields.target:percentencode}" in links


def _links(board: Json) -> Iterator[Json]:
    """Links on values of single columns."""
    for panel in board["panels"]:
        for override in panel.get("fieldConfig", {}).get("overrides", []):
            for found in override["properties"]:
                if found["id"] == "links":
                    yield from found["value"]


def test_without_the_extra_one_line_says_what_to_install() -> None:
    """Whoever renders dashboards without the SDK is told how to get it."""
    without = "import sys; sys.modules['grafana_foundation_sdk'] = None; from kvwatch.command_line import main; sys.exit(main())"
    done = subprocess.run([sys.executable, "-c", without, "render", "dashboards", "--check"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (64, "")
    assert done.stderr.count("\n") == 1
    assert "pip install 'kvwatch[render]'" in done.stderr


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """A Prometheus that scrapes a kvwatch that watches engines in trouble."""
    if shutil.which("prometheus") is None:
        pytest.skip("prometheus is not installed (Debian: prometheus)")
    with watched_site(tmp_path_factory.mktemp("site")) as server:
        yield server


def test_every_panel_has_data(prometheus: Prometheus) -> None:
    """Every expression is accepted by Prometheus, gives data while engines collapse, and has the labels its legend names."""
    pending = [*asked()]
    last = time.monotonic() + LONGEST_WAIT_SECONDS
    while pending:
        pending = [a for a in pending if not any(a.legend <= series.keys() for series in prometheus.series(a.expr))]
        assert not pending or time.monotonic() < last, "\n".join(f"{a.where}: {a.expr}" for a in pending)
        with suppress(subprocess.TimeoutExpired):
            assert not pending or prometheus.server.process.wait(LOOK_SECONDS) is None


def test_a_stack_ends_at_the_capacity(prometheus: Prometheus) -> None:
    """A pool's states come with those that hold data first and the empty ones last, and together they are the pool."""
    pool = {"tier": "l1", "pool": "full"}
    stack = _given(queries.stacked(queries.each("kvwatch_pool_tokens", "state", **pool)))
    capacity = _given(queries.total(queries.each("kvwatch_pool_capacity_tokens", **pool)))
    eventually(lambda: len(prometheus.series(stack)) == 5, lambda: f"five states: {prometheus.series(stack)}")
    assert [series["state"] for series in prometheus.series(stack)] == ["used", "evictable", "reclaimable", "available", "held"]
    assert prometheus.series(f"sum({stack}) == {capacity}")
    assert not prometheus.series(f"sum({stack}) != {capacity}")


def test_the_worst_comes_first(prometheus: Prometheus) -> None:
    """The flagship is listed as critical, which is the largest number, with its reason and whom it is about."""
    found = _given(queries.findings("rule", "reason", *queries.OWNER))
    worst = max(queries.WEIGHTS.values())
    critical = f"{found} == {worst}"
    eventually(lambda: "l1-saturated-l2-idle" in {series["rule"] for series in prometheus.series(critical)}, lambda: critical)
    flagship = next(series for series in prometheus.series(critical) if series["rule"] == "l1-saturated-l2-idle")
    assert (flagship["target"], flagship["engine"], flagship["reason"]) == ("sglang", "sglang", "write-starved")
    assert queries.WEIGHTS["critical"] == worst
    assert "critical" not in {RULES[series["rule"]].severity for series in prometheus.series(f"{found} < {worst}")}


def test_a_picture_is_made_of_the_answers(prometheus: Prometheus) -> None:
    """The README's picture of the dashboard comes of what Prometheus answers: every panel of it shows something of the collapse."""
    given = {**GIVEN, "target": "sglang"}

    def empty() -> list[str]:
        places = [place for band in overview(prometheus.server, prometheus.began, time.time(), given).subfigs for place in band.subfigs]
        return [place.get_suptitle() for place in places for axes in place.axes if not axes.get_legend_handles_labels()[1]]

    eventually(lambda: not empty(), lambda: f"without a shape: {empty()}")
