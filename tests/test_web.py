"""The pages as a client sees them: a real server on loopback, asked over HTTP."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from kvwatch.address import ListenError
from kvwatch.web.server import listen
from tests.web_server import serving
from tests.web_source import FakeSource, load

PROMETHEUS = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,application/openmetrics-text;version=0.0.1;q=0.4,"
    "text/plain;version=1.0.0;escaping=allow-utf-8;q=0.3,text/plain;version=0.0.4;q=0.2,*/*;q=0.1"
)
BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,*/*;q=0.8"
LIVE = ("/metrics", "/diagnose", "/history", "/healthz", "/readyz", "/runbook/ttft-degraded")


@pytest.fixture(scope="module")
def daemon() -> Iterator[tuple[FakeSource, httpx.Client]]:
    """One daemon for all tests, with the reload page on, and a client of it."""
    source = FakeSource(load("flagship"))
    with serving(source, reload_endpoint=True) as url, httpx.Client(base_url=url, trust_env=False) as client:
        yield source, client


@pytest.fixture
def source(daemon: tuple[FakeSource, httpx.Client]) -> FakeSource:
    """What the daemon shows: the flagship incident, unless the test changes it."""
    daemon[0].start_over(load("flagship"))
    return daemon[0]


@pytest.fixture
def client(daemon: tuple[FakeSource, httpx.Client], source: FakeSource) -> httpx.Client:  # noqa: ARG001  started over
    """The client of the daemon that shows ``source``."""
    return daemon[1]


@pytest.mark.parametrize(
    ("accept", "kind"),
    [
        (PROMETHEUS, "application/openmetrics-text"),
        ("application/openmetrics-text; version=1.0.0", "application/openmetrics-text"),
        ("text/plain, application/openmetrics-text;q=0.5", "text/plain"),
        ("application/openmetrics-text;q=0", "text/plain"),
        ("application/openmetrics-text;q=nonsense", "text/plain"),
        ("*/*", "text/plain"),
        (BROWSER, "text/plain"),
    ],
)
def test_metrics_come_as_openmetrics_only_to_those_who_ask_for_it(client: httpx.Client, accept: str, kind: str) -> None:
    """OpenMetrics is given when it is named and not wanted less than text; everybody else gets the text format."""
    answer = client.get("/metrics", headers={"Accept": accept})
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith(kind)
    assert answer.text.endswith("# EOF\n") == (kind != "text/plain")


@pytest.mark.parametrize(
    ("accepted", "packed"), [("gzip", True), ("br, gzip;q=0.5", True), ("*", True), ("gzip;q=0", False), ("identity", False)]
)
def test_large_pages_are_compressed_for_those_who_can_unpack(client: httpx.Client, *, accepted: str, packed: bool) -> None:
    """Gzip follows Accept-Encoding, and the content is the same either way."""
    plain = client.get("/metrics", headers={"Accept-Encoding": "identity"})
    answer = client.get("/metrics", headers={"Accept-Encoding": accepted})
    assert ("content-encoding" in answer.headers) == packed
    assert answer.content == plain.content
    assert (int(answer.headers["content-length"]) < len(plain.content) / 3) == packed


@pytest.mark.parametrize(
    ("path", "accept", "kind"),
    [
        ("/diagnose", "*/*", "application/json"),
        ("/diagnose", BROWSER, "application/json"),
        ("/diagnose", "text/plain", "text/plain"),
        ("/diagnose", "text/*", "text/plain"),
        ("/diagnose", "text/plain, application/json", "application/json"),
        ("/diagnose", "application/json;q=0.1, text/plain", "text/plain"),
        ("/diagnose?format=text", "application/json", "text/plain"),
        ("/diagnose?format=json", "text/plain", "application/json"),
        ("/diagnose?format=xml", "*/*", "application/json"),
    ],
)
def test_the_verdict_is_json_unless_text_is_preferred(client: httpx.Client, path: str, accept: str, kind: str) -> None:
    """JSON is the default and wins a tie; ``?format`` has the last word; it is 200 whatever the verdict says."""
    answer = client.get(path, headers={"Accept": accept})
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith(kind)
    assert answer.text.startswith("{") == (kind == "application/json")


def test_the_verdict_is_the_sources_own(client: httpx.Client, source: FakeSource) -> None:
    """Nothing is added, dropped or renamed on the way."""
    assert client.get("/diagnose").json() == source.shown
    assert client.get("/history").json() == source.history()


def test_a_target_narrows_the_verdict(client: httpx.Client) -> None:
    """``?target`` reaches the source in both formats; an unknown one is no error of the client's."""
    assert [engine["rank"] for engine in client.get("/diagnose?target=chat-1").json()["engines"]] == ["0", "1"]
    assert client.get("/diagnose?target=chat-1&format=text").text == "critical: chat-1\n"
    unknown = client.get("/diagnose?target=nobody")
    assert unknown.status_code == 200
    assert unknown.json()["targets"] == []
    assert unknown.json()["status"] == "unknown"


def test_no_label_can_break_the_json(client: httpx.Client, source: FakeSource) -> None:
    """A lone surrogate, a quote or a tag in a label arrives as it is; NaN is never sent."""
    source.shown = load("hostile") | {"summary": "\ud800"}
    assert json.loads(client.get("/diagnose").content) == source.shown
    source.shown = {"summary": float("nan")}
    assert client.get("/diagnose").status_code == 500


def test_readiness_is_not_health(client: httpx.Client, source: FakeSource) -> None:
    """Before every target was tried the daemon is healthy and not ready."""
    source.tried = False
    assert client.get("/healthz").status_code == 200
    assert client.get("/readyz").status_code == 503
    source.tried = True
    assert client.get("/readyz").status_code == 200


def test_a_reload_tells_how_it_went(client: httpx.Client, source: FakeSource) -> None:
    """200 when the new configuration is in force, 400 with the reason when the old one stays; never by GET."""
    assert client.post("/-/reload").status_code == 200
    source.refusal = "kvwatch.yaml line 3: unknown key 'intervall'; did you mean 'interval'?"
    refused = client.post("/-/reload")
    assert refused.status_code == 400
    assert refused.text == f"{source.refusal}\n"
    assert refused.headers["content-type"].startswith("text/plain")
    assert client.get("/-/reload").status_code == 405
    assert source.reloads == 2


def test_there_is_no_reload_unless_it_was_enabled(source: FakeSource) -> None:
    """Disabled, the page does not exist and nothing is reloaded."""
    with serving(source, reload_endpoint=False) as url:
        assert httpx.post(f"{url}/-/reload", trust_env=False).status_code == 404
    assert source.reloads == 0


@pytest.mark.parametrize(
    "path", ["/nonsense", "/metrics/", "/docs", "/redoc", "/openapi.json", "/static/nothing.js", "/static/..%2fapp.py", "/runbook/nothing"]
)
def test_other_pages_are_not_there(client: httpx.Client, path: str) -> None:
    """404 with one line of text: no generated documentation, no redirects, nothing of the file system."""
    answer = client.get(path)
    assert answer.status_code == 404
    assert answer.headers["content-type"].startswith("text/plain")
    assert len(answer.text.splitlines()) == 1


def test_whoever_mistypes_is_told_every_page_of_the_manual(client: httpx.Client) -> None:
    """The line of a 404 names what the README's table names: also where a finding's page is, and what a reload takes."""
    manual = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")
    pages = re.findall(r"^\| `(?:GET|POST) (\S+)` \|", manual, re.MULTILINE)
    told = re.split(r"[\s,]+", client.get("/nonsense").text)
    assert pages
    assert [page for page in pages if page not in told] == []


@pytest.mark.parametrize("path", [*LIVE, "/", "/static/page.js", "/nonsense"])
def test_every_answer_is_guarded(client: httpx.Client, path: str) -> None:
    """A strict policy on every page, errors included; what is of this moment is never stored."""
    headers = client.get(path).headers
    policy = dict(part.strip().split(" ", 1) for part in headers["content-security-policy"].split(";"))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert policy["frame-ancestors"] == policy["base-uri"] == policy["form-action"] == "'none'"
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["cache-control"] == ("no-store" if path in (*LIVE, "/nonsense") else "no-cache")
    assert "server" not in headers


@pytest.mark.parametrize("path", [*LIVE, "/", "/static/page.css"])
def test_head_is_get_without_the_body(client: httpx.Client, path: str) -> None:
    """Every page that can be read can be asked for its headers."""
    got, head = client.get(path), client.head(path)
    assert head.status_code == got.status_code == 200
    assert head.content == b""
    assert {**head.headers, "date": ""} == {**got.headers, "date": ""}


def test_unchanged_files_are_not_sent_again(client: httpx.Client) -> None:
    """The tag of a file is the same in both encodings, tells it apart from every other file, and saves the second transfer."""
    first = client.get("/static/page.js", headers={"Accept-Encoding": "identity"})
    assert client.get("/static/page.js").headers["etag"] == first.headers["etag"] != client.get("/").headers["etag"]
    again = client.get("/static/page.js", headers={"If-None-Match": f'"other", {first.headers["etag"]}'})
    assert again.status_code == 304
    assert again.content == b""
    assert client.get("/static/page.js", headers={"If-None-Match": '"other"'}).status_code == 200


def test_the_page_needs_nothing_from_elsewhere(client: httpx.Client) -> None:
    """Whatever the page and its modules name is served here, by a relative URL, and no script or style stands in the markup."""
    html = client.get("/").text
    assert re.search(r"<script>|<script [^>]*>[^<]|<style|\sstyle=|\son\w+=", html) is None
    names = re.findall(r'(?:src|href)="([^"#]+)"', html)
    for name in names:
        assert not name.startswith(("/", "http"))
    pending, seen = [name for name in names if name.endswith((".js", ".css", ".svg"))], set[str]()
    while pending:
        name = pending.pop()
        file = client.get(f"/{name}")
        assert file.status_code == 200, name
        assert re.search(r"https?://(?!HOST|www\.w3\.org/2000/svg)|innerHTML|insertAdjacentHTML|document\.write", file.text) is None, name
        seen.add(name)
        pending += [found for module in re.findall(r'from "\./([^"]+)"', file.text) if (found := f"static/{module}") not in seen]
    assert len(seen) > 6


@pytest.mark.parametrize("path", ["/", "/metrics", "/static/page.js", "/diagnose?format=text"])
def test_a_proxy_may_keep_its_prefix(client: httpx.Client, path: str) -> None:
    """A proxy that names the prefix it keeps reaches the same pages; without its word the path is unknown."""
    there = client.get(path)
    under = client.get(f"/ops/kvwatch{path}", headers={"X-Forwarded-Prefix": "/ops/kvwatch"})
    assert (under.status_code, under.content) == (200, there.content)
    assert client.get(path, headers={"X-Forwarded-Prefix": "/ops/kvwatch"}).content == there.content
    assert client.get(f"/ops/kvwatch{path}").status_code == 404


def test_a_prefix_without_its_last_slash_leads_to_the_page(client: httpx.Client) -> None:
    """The page's relative URLs need the slash: whoever leaves it out is sent there, by a relative address that leads to no other host."""
    sent = client.get("/ops/kv%20watch", headers={"X-Forwarded-Prefix": "/ops/kv watch"})
    assert (sent.status_code, sent.headers["location"]) == (307, "./kv%20watch/")
    assert client.get("/ops/kv%20watch/", headers={"X-Forwarded-Prefix": "/ops/kv watch"}).content == client.get("/").content


def test_a_rule_has_its_page(client: httpx.Client) -> None:
    """The link of a finding leads to the rule's text."""
    answer = client.get("/runbook/ttft-degraded")
    assert answer.text == "# ttft-degraded\n"
    assert answer.headers["content-type"].startswith("text/plain")


class StuckSource(FakeSource):
    """A source whose exposition takes until it is told."""

    def __init__(self) -> None:
        """Not told yet."""
        super().__init__(load("calm"))
        self.go_on = threading.Event()
        self.entered = threading.Semaphore(0)

    def metrics(self, *, openmetrics: bool) -> tuple[bytes, str]:
        """Wait."""
        self.entered.release()
        self.go_on.wait()
        return super().metrics(openmetrics=openmetrics)


def test_health_is_told_while_every_worker_is_busy() -> None:
    """Requests that wait, more than there are worker threads, delay no probe, and only one of them computes."""
    source, requests = StuckSource(), 60
    with serving(source) as url, ThreadPoolExecutor(requests) as pool:
        answers = [pool.submit(httpx.get, f"{url}/metrics", trust_env=False, timeout=60) for _ in range(requests)]
        try:
            assert source.entered.acquire(timeout=30)
            assert httpx.get(f"{url}/healthz", trust_env=False).status_code == 200
            assert httpx.get(f"{url}/readyz", trust_env=False).status_code == 200
            assert not source.entered.acquire(blocking=False)
        finally:
            source.go_on.set()
        assert {answer.result().status_code for answer in answers} == {200}


def test_an_address_in_use_is_one_clear_line() -> None:
    """Who chose the address learns which one it was, what is wrong and what to do."""
    (taken,) = listen("127.0.0.1", 0)
    with taken, pytest.raises(ListenError) as caught:
        listen("127.0.0.1", taken.getsockname()[1])
    assert re.fullmatch(r"cannot listen on 127\.0\.0\.1:\d+: Address already in use; choose .*--listen.*", str(caught.value))


@pytest.mark.parametrize(("host", "port"), [("no.such.host.invalid", 9477), ("192.0.2.1", 0), ("127.0.0.1", 70000), ("x" * 70, 1)])
def test_an_impossible_address_is_refused(host: str, port: int) -> None:
    """A name that does not resolve, an address of another machine and a port out of range are the user's to correct."""
    with pytest.raises(ListenError, match="cannot listen on"):
        listen(host, port)


@pytest.mark.parametrize("host", ["", "::"])
def test_everywhere_means_both_families(host: str) -> None:
    """One socket takes IPv6 and IPv4."""
    (opened,) = listen(host, 0)
    with opened:
        port = opened.getsockname()[1]
        socket.create_connection(("127.0.0.1", port)).close()
        if opened.family == socket.AF_INET6:
            socket.create_connection(("::1", port)).close()


DAEMON = """
from tests.web_source import FakeSource, load
from kvwatch.web.app import build_app
from kvwatch.web.server import listen, serve

class Large(FakeSource):
    def metrics(self, *, openmetrics):
        return b"#" * 64_000_000, "text/plain"

sockets = listen("127.0.0.1", 0)
print(sockets[0].getsockname()[1], flush=True)
serve(build_app(Large(load("calm")), reload_endpoint=False), sockets)
print("served", flush=True)
"""


@pytest.mark.parametrize("order", [signal.SIGTERM, signal.SIGINT])
def test_the_order_to_stop_is_obeyed_with_connections_open(order: signal.Signals) -> None:
    """An idle connection, half a request and a client that stopped reading: serving ends in good time, quietly, and the caller goes on."""
    here = Path(__file__).parent
    command = [sys.executable, "-c", DAEMON]
    environment = {"PYTHONPATH": str(here.parent), "PATH": ""}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as daemon:
        assert daemon.stdout is not None
        assert daemon.stderr is not None
        address = ("127.0.0.1", int(daemon.stdout.readline()))
        with (
            socket.create_connection(address) as idle,
            socket.create_connection(address) as half,
            socket.create_connection(address) as slow,
        ):
            idle.sendall(b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n")
            assert idle.recv(15) == b"HTTP/1.1 200 OK"
            half.sendall(b"GET /heal")
            slow.sendall(b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n")
            assert slow.recv(15) == b"HTTP/1.1 200 OK"
            daemon.send_signal(order)
            assert daemon.wait(timeout=5) == 0
        assert daemon.stdout.read() == "served\n"
        assert daemon.stderr.read() == ""
