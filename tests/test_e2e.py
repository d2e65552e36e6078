"""Recorded incidents through the real programs: two engines, kvwatch, Prometheus and Alertmanager, and the notifications somebody gets."""

from __future__ import annotations

import json
import re
import shutil
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

from kvwatch.demo.replay import Incident, Tape, read_incident, replaying
from kvwatch.rules import RULES
from tests.daemon_child import Child, serving
from tests.loopback import kept_port
from tests.servers import alertmanager, prometheus

ROOT = Path(__file__).parents[1]
RECORDINGS = Path(str(files("kvwatch.demo"))) / "recordings"
ALERTMANAGER = next((name for name in ("prometheus-alertmanager", "alertmanager") if shutil.which(name)), None)
SERIES = re.compile(r"\bkvwatch_[a-z0-9_]+")
PATIENCE_SECONDS = 75.0
SPEED = 2.0
CONFIG = """
interval: 1s
window: 10s
nvml: off
slo: {ttft_p99: 2s}
thresholds:
  l1-saturated: {hold: 6s}
  l1-saturated-l2-idle: {hold: 6s}
  ttft-degraded: {hold: 10s}
  preemption-storm: {hold: 6s}
  scrape-slow: {scrape_share: 9}
"""
"""Holds are a fraction of the usual ones, the roots' the shortest as they are by default; a slow test machine is no finding."""


EFFECTS = {"ttft-degraded", "preemption-storm"}


@dataclass(frozen=True, slots=True)
class Trouble:
    """A recording, how many of its calm seconds are left out, whose it is, and the root that is to be told."""

    recording: str
    begin: float
    engine: str
    root: str


TROUBLES = {
    "chat-0": Trouble("sglang-hicache", 16.0, "sglang", "l1-saturated-l2-idle"),
    "chat-1": Trouble("vllm", 10.0, "vllm", "l1-saturated"),
}
"""What happens to each target, at once and at double speed; both are idle at the end."""
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


class Sped(Incident):
    """One whose engine started when it did: at another pace nothing else would stay the same from scrape to scrape."""

    def metrics_at(self, second: float, wall: float) -> str:  # noqa: ARG002  not moved to today
        """The exposition as it was recorded."""
        return super().metrics_at(second, self.metrics[0].t1 + second)


@dataclass(frozen=True, slots=True)
class Site:
    """Everything that runs, and what came of it so far.

    ``received`` are the notifications as (receiver, notification); ``silenced`` has the rules that Alertmanager was seen to hold an alert
    back for, by the alert's target and rule.
    """

    kvwatch: Child
    prometheus: httpx.Client
    alertmanager: httpx.Client
    received: list[tuple[str, Mapping[str, Any]]]
    silenced: dict[tuple[str, str], set[str]] = field(default_factory=dict)

    def notified(self, target: str, status: str) -> list[tuple[str, str]]:
        """Which receiver was told of which rule with this status, in order: about a target, or about none."""
        return [
            (receiver, alert["labels"].get("rule", alert["labels"]["alertname"]))
            for receiver, told in self.received
            for alert in told["alerts"]
            if alert["status"] == status and alert["labels"].get("target") in {target, None}
        ]

    def ask(self, path: str, **parameters: str) -> Any:  # noqa: ANN401  JSON
        """An answer of Prometheus' API."""
        answer = self.prometheus.get(path, params=parameters)
        assert answer.is_success, f"{parameters}: {answer.text}"
        return answer.json()["data"]

    def until(self, what: str, holds: Callable[[], object]) -> None:
        """Wait until it holds; AssertionError with what everybody says when that takes too long."""
        last = time.monotonic() + PATIENCE_SECONDS
        while True:
            self._look()
            if holds():
                return
            assert time.monotonic() < last, (
                f"{what}: not within {PATIENCE_SECONDS:g} s\n{json.dumps(self.received, indent=1)}\n{self._says()}"
            )
            time.sleep(0.1)

    def _look(self) -> None:
        """See what is held back now, of every target: the other incident goes on while one is waited for."""
        alerts = self.alertmanager.get("/api/v2/alerts").raise_for_status().json()
        rule_of = {alert["fingerprint"]: alert["labels"].get("rule", "") for alert in alerts}
        for alert in alerts:
            for root in alert["status"]["inhibitedBy"]:
                self.silenced.setdefault((alert["labels"].get("target", ""), alert["labels"].get("rule", "")), set()).add(rule_of[root])

    def _says(self) -> str:
        return f"{self.kvwatch.page('/diagnose?format=text')}\n{self.alertmanager.get('/api/v2/alerts').text}\n{self.kvwatch.log}"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """All of it while the tests of this file run; the engines come last, so that nobody misses the beginning."""
    folder = tmp_path_factory.mktemp("site")
    received: list[tuple[str, Mapping[str, Any]]] = []
    with ExitStack() as stack:
        webhook = stack.enter_context(receiving(received))
        engines = dict(zip(TROUBLES, [stack.enter_context(kept_port()) for _ in TROUBLES], strict=True))
        targets = [{"name": name, "url": f"http://127.0.0.1:{port}/metrics"} for name, port in engines.items()]
        config = folder / "kvwatch.yaml"
        config.write_text(CONFIG + yaml.safe_dump({"targets": targets}))
        kvwatch = stack.enter_context(serving(folder, "--config", str(config)))
        render = [sys.executable, "-m", "kvwatch", "render", "--config", str(config), "--output", str(folder)]
        for what in ("alerts", "alertmanager"):
            subprocess.run([*render, what, "--runbook-url", f"{kvwatch.pages.base_url}/runbook/"], check=True)
        servers = stack.enter_context(_alerting(folder, kvwatch, webhook))
        for name, trouble in TROUBLES.items():
            told = read_incident(RECORDINGS / trouble.recording)
            incident = Sped(told.metrics, told.loads)
            stack.enter_context(
                replaying(incident, Faster(time.monotonic(), trouble.begin, incident.seconds), ("127.0.0.1", engines[name]))
            )
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
    site.until("a whole scrape", lambda: site.ask("/api/v1/query", query='up{job="kvwatch"} == 1')["result"])  # families come one by one
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


@pytest.mark.parametrize("target", TROUBLES)
def test_an_incident_is_one_notification_with_a_runbook_and_an_end(site: Site, target: str) -> None:
    """Somebody is told once of the root and once that it is over; its effects fire too, but are silenced by it, and the runbook answers."""
    trouble = TROUBLES[target]
    site.until("a notification", lambda: site.notified(target, "firing"))
    site.until("the end of it", lambda: ("page", trouble.root) in site.notified(target, "resolved"))
    site.until("nothing left of it", lambda: not found(site, target))
    silenced = {rule: roots for (where, rule), roots in site.silenced.items() if where == target}
    assert silenced.keys() >= EFFECTS
    assert set().union(*silenced.values()) == {trouble.root}
    assert site.notified(target, "firing") == [("page", trouble.root)]
    assert site.notified(target, "resolved") == [("page", trouble.root)]
    (alert,) = next(told["alerts"] for _, told in site.received if told["commonLabels"]["target"] == target)
    assert (alert["labels"]["engine"], alert["labels"]["severity"]) == (trouble.engine, "critical")
    said = alert["annotations"]
    assert said["summary"].startswith(RULES[trouble.root].short)
    assert re.search(r"requests_waiting \d", said["description"])
    assert re.search(r"l1_used_ratio [\d.]+%", said["description"])
    assert "error" not in said["description"]
    runbook = httpx.get(said["runbook_url"], trust_env=False)
    assert runbook.is_success
    assert runbook.text.startswith(trouble.root)


def found(site: Site, target: str) -> list[str]:
    """Rules with a finding about a target, now."""
    verdict = json.loads(site.kvwatch.page("/diagnose?format=json"))
    return [f["rule"] for f in verdict["findings"] if f["status"] != "unknown" and f["subject"]["target"] == target]
