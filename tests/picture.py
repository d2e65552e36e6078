"""Take the README's pictures: ``python -m tests.picture docs`` runs the demo for two minutes before Chromium and a Prometheus."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from matplotlib.figure import Figure
from playwright.sync_api import Browser, ViewportSize, expect, sync_playwright

from tests.daemon_child import eventually
from tests.panels import Json, filled, series, sheet
from tests.servers import Server, over_time, prometheus
from tests.test_page import CHROMIUM

SIZE = ViewportSize(width=1280, height=860)
DASHBOARD = Path(__file__).parents[1] / "dashboards" / "overview.json"
TARGET = "sglang-hicache"
SHOWN = ("Findings over time", "L1: KV pool in HBM", "L2: host tier", "Ceiling against demand", "Requests",
         "First token against calm time", "Preemptions")  # fmt: skip
"""The panels of the dashboard that are drawn, in this order."""
GIVEN = {"__rate_interval": "20s", "target": TARGET, "model": ".*", "rank": ".*"}
"""What the variables are: one target chosen, and four scrapes of the 5 s that Grafana is told by its provisioning."""


def take(folder: Path) -> None:
    """Photograph the verdict and the engine some seconds after the incident fires, and the dashboard's panels when it is over."""
    command = [sys.executable, "-m", "kvwatch", "demo", "--listen", "127.0.0.1:0"]
    with (
        tempfile.TemporaryDirectory() as scratch,
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as demo,
        sync_playwright() as driver,
    ):
        assert demo.stdout is not None
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        address = re.sub(r".*http://(.*)/\n", r"\1", _told(demo.stdout, "  page "))
        with prometheus(Path(scratch), address) as server:
            eventually(lambda: bool(over_time(server, "up", time.time(), time.time())), lambda: "a first scrape")
            began = time.time()
            _told(demo.stdout, f"CRITICAL   {TARGET}")
            _verdict(browser, f"http://{address}/", folder)
            _told(demo.stdout, " ok ")
            overview(server, began, time.time(), GIVEN).savefig(folder / "dashboard.png", dpi=130)
        demo.terminate()


def _told(demo: Iterator[str], words: str) -> str:
    """The demo's next line with these words."""
    return next(line for line in demo if words in line)


def _verdict(browser: Browser, url: str, folder: Path) -> None:
    page = browser.new_page(viewport=SIZE, color_scheme="light")
    page.goto(url)
    expect(page.locator("#summary")).to_contain_text("critical")
    page.wait_for_timeout(15_000)
    page.screenshot(path=folder / "verdict.png")
    page.locator(".engine").filter(has_text=TARGET).screenshot(path=folder / "engine.png")


def shown(board: Json) -> list[Json]:
    """The panels for the picture. KeyError for one that the dashboard has not."""
    panels = {panel["title"]: panel for panel in board["panels"]}
    return [panels[title] for title in SHOWN]


def overview(prometheus: Server, began: float, ended: float, given: Mapping[str, str]) -> Figure:
    """The panels with what Prometheus answers to their queries for that time (Unix seconds)."""
    board = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    steps = [float(second) for second in range(math.floor(ended - began) + 1)]
    drawn = [
        (
            panel,
            [
                one
                for t in panel["targets"]
                for one in series(t["legendFormat"], over_time(prometheus, filled(t["expr"], given), began, ended), began, steps)
            ],
        )
        for panel in shown(board)
    ]
    return sheet(board["title"], drawn, steps)


if __name__ == "__main__":
    take(Path(sys.argv[1]))
