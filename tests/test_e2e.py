"""A recorded incident through the real programs: an engine, kvwatch, Prometheus and Alertmanager, and the notification somebody gets."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from kvwatch.demo.replay import Tape, read_incident, replaying
from kvwatch.rules import RULES
from tests.daemon_child import Child, serving
from tests.servers import alertmanager, prometheus

ROOT = Path(__file__).parents[1]
ALERTMANAGER = next((name for name in ("prometheus-alertmanager", "alertmanager") if shutil.which(name)), None)
SERIES = re.compile(r"\bkvwatch_[a-z0-9_]+")
PATIENCE_SECONDS = 75.0
BEGIN_SECONDS, SPEED = 16.0, 2.0
"""Calm time is skipped and the rest is replayed at double speed: saturated from 36 s to 87 s of the recording, idle at its end."""
ROOT_RULE, EFFECTS = "l1-saturated-l2-idle", {"ttft-degraded", "preemption-storm"}
CONFIG = """
interval: 1s
window: 10s
nvml: off
slo: {{ttft_p99: 2s}}
thresholds:
  l1-saturated-l2-idle: {{hold: 6s}}
  ttft-degraded: {{hold: 10s}}
  preemption-storm: {{hold: 5s}}
  scrape-slow: {{scrape_share: 9}}
targets:
- {{name: chat-0, url: "http://127.0.0.1:{port}/metrics"}}
"""
"""Holds are a fraction of the usual ones, the root's the shortest as it is by default; a slow test machine is no finding."""
pytestmark = [
    pytest.mark.skipif(shutil.which("prometheus") is None, reason="prometheus is not installed (Debian: prometheus)"),
    pytest.mark.skipif(ALERTMANAGER is None, reason="Alertmanager is not installed (Debian: prometheus-alertmanager)"),
]


@dataclass(frozen=True, slots=True)
class Faster(Tape):
    """The tape at a multiple of its pace, once; at the end the last answers stand."""

    def second(self, now: float) -> float:
        """Seconds into the recording."""
        return min(self.skip + SPEED * (now - self.started), self.period)


@dataclass(frozen=True, slots=True)
class Site:
    """Everything that runs, and what the receivers of notifications got, as (receiver, notification)."""

    kvwatch: Child
    prometheus: httpx.Client
    alertmanager: httpx.Client
    received: list[tuple[str, Mapping[str, Any]]] = field(default_factory=list)

    def notified(self, status: str) -> list[tuple[str, str]]:
        """Which receiver was told of which rule with this status, in order."""
        return [
            (receiver, alert["labels"].get("rule", alert["labels"]["alertname"]))
            for receiver, told in self.received
            for alert in told["alerts"]
            if alert["status"] == status
        ]

    def ask(self, path: str, **parameters: str) -> Any:  # noqa: ANN401  JSON
        """An answer of Prometheus' API."""
        answer = self.prometheus.get(path, params=parameters)
        assert answer.is_success, f"{parameters}: {answer.text}"
        return answer.json()["data"]

    def until(self, what: str, holds: Callable[[], object]) -> None:
        """Wait until it holds; AssertionError with what everybody says when that takes too long."""
        last = time.monotonic() + PATIENCE_SECONDS
        while not holds():
            assert time.monotonic() < last, (
                f"{what}: not within {PATIENCE_SECONDS:g} s\n{json.dumps(self.received, indent=1)}\n{self._says()}"
            )
            time.sleep(0.1)

    def _says(self) -> str:
        return f"{self.kvwatch.page('/diagnose?format=text')}\n{self.alertmanager.get('/api/v2/alerts').text}\n{self.kvwatch.log}"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """All of it while the tests of this file run; the engine comes last, so that nobody misses the beginning."""
    folder = tmp_path_factory.mktemp("site")
    incident = read_incident(Path(str(files("kvwatch.demo"))) / "recordings" / "sglang-hicache")
    received: list[tuple[str, Mapping[str, Any]]] = []
    with ExitStack() as stack:
        webhook = stack.enter_context(receiving(received))
        with socket.create_server(("127.0.0.1", 0)) as free:
            engine = free.getsockname()
        config = folder / "kvwatch.yaml"
        config.write_text(CONFIG.format(port=engine[1]))
        kvwatch = stack.enter_context(serving(folder, "--config", str(config)))
        render = [sys.executable, "-m", "kvwatch", "render", "--config", str(config), "--output", str(folder)]
        for what in ("alerts", "alertmanager"):
            subprocess.run([*render, what, "--runbook-url", f"{kvwatch.pages.base_url}/runbook/"], check=True)
        servers = stack.enter_context(_alerting(folder, kvwatch, webhook))
        stack.enter_context(replaying(incident, Faster(time.monotonic(), BEGIN_SECONDS, incident.seconds), engine))
        yield Site(kvwatch, *servers, received)


@contextmanager
def _alerting(folder: Path, kvwatch: Child, webhook: str) -> Iterator[tuple[httpx.Client, httpx.Client]]:
    """Prometheus with the rendered alerts and Alertmanager with the rendered configuration, its notifications sent to us and soon."""
    routing = yaml.safe_load((folder / "alerts" / "alertmanager.yaml").read_text())
    routing["route"] |= {"group_wait": "1s", "group_interval": "1s"}
    for receiver in routing["receivers"]:
        receiver["webhook_configs"] = [{"url": f"{webhook}/{receiver['name']}", "send_resolved": True}]
    with alertmanager(folder, ALERTMANAGER or "", routing) as notifier:
        alerting = {
            "rule_files": [str(folder / "alerts" / "kvwatch.rules.yaml"), str(ROOT / "alerts" / "kvwatch-self.rules.yaml")],
            "alerting": {"alertmanagers": [{"static_configs": [{"targets": [notifier.address]}]}]},
        }
        with prometheus(folder, kvwatch.address, alerting) as server:
            yield server.pages, notifier.pages


@contextmanager
def receiving(received: list[tuple[str, Mapping[str, Any]]]) -> Iterator[str]:
    """A receiver of notifications; gives its URL, below which the path names who is told."""

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            received.append((self.path.removeprefix("/"), body))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Keep quiet."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Receiver) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def test_metrics_lint(site: Site) -> None:
    """The daemon's own exposition has no finding of promtool's."""
    site.kvwatch.shows("kvwatch_l1_used_ratio{")
    body = site.kvwatch.page("/metrics")
    done = subprocess.run(["promtool", "check", "metrics"], input=body, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_every_expression_evaluates_on_series_that_exist(site: Site) -> None:
    """Every alert, ours about kvwatch included, is healthy on a real Prometheus and asks for families that kvwatch exports."""
    site.until("rules evaluated", lambda: all(r["health"] != "unknown" for r in alerts(site)))
    assert [(r["name"], r["lastError"]) for r in alerts(site) if r["health"] != "ok"] == []
    assert {r["labels"]["rule"] for r in alerts(site) if "rule" in r["labels"]} == set(RULES)
    site.until("scraped", lambda: families(site))
    known = families(site)
    assert [
        (r["name"], name) for r in alerts(site) for name in SERIES.findall(r["query"]) if name.removesuffix("_total") not in known
    ] == []


def alerts(site: Site) -> list[Any]:
    """All alerting rules as Prometheus loaded them."""
    return [rule for group in site.ask("/api/v1/rules", type="alert")["groups"] for rule in group["rules"]]


def families(site: Site) -> set[str]:
    """Metric families that Prometheus scraped, those without a series included."""
    return {found["metric"].removesuffix("_total") for found in site.ask("/api/v1/targets/metadata", match_target='{job="kvwatch"}')}


def test_an_incident_is_one_notification_with_a_runbook_and_an_end(site: Site) -> None:
    """Somebody is told once of the root and once that it is over; its effects fire too, but are silenced by it, and the runbook answers."""
    site.until("a notification", lambda: site.notified("firing"))
    site.until("effects that are silenced", lambda: set(silenced(site)) >= EFFECTS)
    assert {root for roots in silenced(site).values() for root in roots} == {ROOT_RULE}
    site.until("the end of it", lambda: ("page", ROOT_RULE) in site.notified("resolved"))
    assert site.notified("firing") == [("page", ROOT_RULE)]
    assert site.notified("resolved") == [("page", ROOT_RULE)]
    (alert,) = site.received[0][1]["alerts"]
    assert (alert["labels"]["target"], alert["labels"]["engine"], alert["labels"]["severity"]) == ("chat-0", "sglang", "critical")
    said = alert["annotations"]
    assert said["summary"].startswith(RULES[ROOT_RULE].short)
    assert re.search(r"requests_waiting \d", said["description"])
    assert re.search(r"l1_used_ratio [\d.]+%", said["description"])
    assert "error" not in said["description"]
    runbook = httpx.get(said["runbook_url"], trust_env=False)
    assert runbook.is_success
    assert runbook.text.startswith(ROOT_RULE)


def silenced(site: Site) -> dict[str, set[str]]:
    """Rules whose alerts Alertmanager holds back, each with the rules that silence it."""
    found = site.alertmanager.get("/api/v2/alerts").raise_for_status().json()
    rule_of = {alert["fingerprint"]: alert["labels"].get("rule", "") for alert in found}
    return {rule_of[a["fingerprint"]]: {rule_of[by] for by in a["status"]["inhibitedBy"]} for a in found if a["status"]["inhibitedBy"]}
