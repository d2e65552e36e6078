"""One GET over real sockets: the whole body in time and within the limit, or the reason why not."""

from __future__ import annotations

import gzip
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvwatch.model import Reason, ScrapeError
from kvwatch.scrape import Client, ScrapeFailure
from kvwatch.target import Target
from tests import loopback
from tests.loopback import Handler, always, in_turn, once, response, trickle

BODY = b"vllm:num_requests_running 1\n"
SECRET = "EXAMPLE-TOKEN-1"  # noqa: S105  no secret


@pytest.fixture
def serve() -> Iterator[Callable[..., int]]:
    """Start loopback servers that end with the test."""
    with ExitStack() as stack:
        yield lambda handler, **options: stack.enter_context(loopback.server(handler, **options))


@pytest.fixture
def clients(serve: object) -> Iterator[Callable[..., Client]]:  # noqa: ARG001  they close before the servers wait for them
    """Make clients that are closed with the test."""
    made: list[Client] = []

    def make(url: str, *, limit_bytes: int = 1 << 20, **settings: object) -> Client:
        made.append(Client(Target("a", url, **settings), limit_bytes=limit_bytes))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for client in made:
        client.close()


def failure(client: Client, path: str = "/metrics", timeout: float = 5.0) -> ScrapeError:
    """Scrape what must fail and give the error, which is one line."""
    with pytest.raises(ScrapeFailure) as caught:
        client.get(path, timeout=timeout)
    assert "\n" not in caught.value.error.detail
    assert SECRET not in caught.value.error.detail
    return caught.value.error


def test_the_body_comes_over_one_connection_with_the_headers_of_a_scraper(
    serve: Callable[..., int], clients: Callable[..., Client]
) -> None:
    """Text is preferred, gzip welcome, the agent named, and a second page is asked on the same connection."""
    heads: list[bytes] = []
    connections: list[int] = []

    def handle(connection: socket.socket, stop: threading.Event) -> None:
        connections.append(1)
        always(response(gzip.compress(BODY), "Content-Encoding: gzip"), heads=heads)(connection, stop)

    client = clients(f"http://127.0.0.1:{serve(handle)}/metrics")
    assert client.get("/metrics", timeout=5) == BODY
    assert client.get("/v1/loads?include=core", timeout=5) == BODY
    assert len(connections) == 1
    first, second = (head.decode().lower().split("\r\n") for head in heads)
    assert first[0] == "get /metrics http/1.1"
    assert second[0] == "get /v1/loads?include=core http/1.1"
    assert any(line.startswith("user-agent: kvwatch/") for line in first)
    assert any(line.startswith("accept: text/plain;version=0.0.4,") for line in first)
    assert "accept-encoding: gzip" in first


def test_pages_beside_metrics_stay_behind_the_gateway_prefix(serve: Callable[..., int], clients: Callable[..., Client]) -> None:
    """An engine at http://gateway/chat-0/metrics has its other pages under /chat-0 too."""
    heads: list[bytes] = []
    client = clients(f"http://127.0.0.1:{serve(always(response(BODY), heads=heads))}/chat-0/metrics")
    client.get("/v1/loads", timeout=5)
    assert heads[0].startswith(b"GET /chat-0/v1/loads ")


def test_a_connection_that_the_server_closes_between_scrapes_is_no_failure(
    serve: Callable[..., int], clients: Callable[..., Client]
) -> None:
    """Uvicorn closes idle connections after 5 s, maybe just as we ask: then we ask again on a new one."""
    client = clients(f"http://127.0.0.1:{serve(_one_answer_then_hang_up)}/metrics")
    assert [client.get("/metrics", timeout=5) for _ in range(3)] == [BODY] * 3


def _one_answer_then_hang_up(connection: socket.socket, stop: threading.Event) -> None:
    once(response(BODY))(connection, stop)
    loopback.request(connection)


@pytest.mark.parametrize(
    ("handler", "reason", "words"),
    [
        (once(b""), "refused", "without an answer"),
        (loopback.reset, "refused", "without an answer"),
        (loopback.silent, "timeout", "0.3 s for an answer"),
        (trickle(b"", b"H"), "timeout", "bytes had come"),
        (trickle(b"HTTP/1.1 200 OK\r\n", b"X: y\r\n"), "timeout", "bytes had come"),
        (trickle(b"HTTP/1.1 100 Continue\r\n", b"\r\nHTTP/1.1 100 Continue\r\n"), "timeout", "bytes had come"),
        (trickle(b"HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\n", b"#"), "timeout", "the rest of its answer"),
        (trickle(b"HTTP/1.1 200 OK\r\n\r\n", b"#"), "timeout", "the rest of its answer"),
        (trickle(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"0"), "timeout", "the rest of its answer"),
        (trickle(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\n#\r\n"), "timeout", "the rest of its answer"),
        (once(response(BODY)[:-1]), "malformed", "broke off"),
        (once(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1c\r\nvllm:"), "malformed", "broke off"),
        (once(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n"), "malformed", "broke off"),
        (once(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\nvllm:\r\n"), "malformed", "breaks the rules"),
        (once(response(b"x", *(f"H{i}: 1" for i in range(300)))), "malformed", "breaks the rules"),
        (once(b"SSH-2.0-OpenSSH_9.6\r\n"), "malformed", "does not answer in HTTP"),
        (once(response(gzip.compress(BODY)[:-9], "Content-Encoding: gzip")), "malformed", "cut short"),
        (once(response(BODY, "Content-Encoding: gzip")), "malformed", "not valid compressed data"),
        (once(response(bytes(2 << 20))), "too_large", "limits.body"),
        (once(response(gzip.compress(bytes(2 << 20)))), "too_large", "more than 1 MiB"),
        (once(b"HTTP/1.1 100 Continue\r\n\r\n" * 200_000), "too_large", "more than 1 MiB"),
        (once(response(b"")), "empty", "empty body"),
        (once(response(b"\n\n")), "empty", "empty body"),
        (once(response(gzip.compress(b""), "Content-Encoding: gzip")), "empty", "empty body"),
        (once(response(b"", status="204 No Content")), "http_status", "204 No Content"),
        (once(response(BODY, status="206 Partial Content")), "http_status", "206"),
        (once(response(b"", status="401 Unauthorized")), "http_status", "set bearer_token_file"),
        (once(response(b"", status="403 Forbidden")), "http_status", "set bearer_token_file"),
        (once(response(b"", status="404 Not Found")), "http_status", "--enable-metrics"),
        (once(response(b"", status="503 Service Unavailable")), "http_status", "see its log"),
        (once(response(b"", status="799 Strange")), "http_status", "answered 799"),
        (once(b"\x15\x03\x03\x00\x02\x02\x16"), "tls", "https://"),
    ],
)
def test_what_goes_wrong_has_its_reason(
    serve: Callable[..., int], clients: Callable[..., Client], handler: Handler, reason: Reason, words: str
) -> None:
    """Each failure out there has one of the closed reasons, and a sentence with the place in it."""
    port = serve(handler)
    error = failure(clients(f"http://127.0.0.1:{port}/metrics"), timeout=0.3 if reason == "timeout" else 5)
    assert error.reason == reason
    assert words in error.detail
    assert f"http://127.0.0.1:{port}/metrics" in error.detail


def test_nobody_listens(clients: Callable[..., Client]) -> None:
    """A port without a server is refused and named."""
    with loopback.kept_port() as port:
        error = failure(clients(f"http://127.0.0.1:{port}/metrics"))
    assert error.reason == "refused"
    assert f"127.0.0.1 port {port} (Connection refused)" in error.detail


def test_a_failed_scrape_does_not_spoil_the_next(serve: Callable[..., int], clients: Callable[..., Client]) -> None:
    """After a failure the same client reads the next answer from its beginning."""
    port = serve(in_turn(once(response(BODY)[:-1]), loopback.silent, always(response(BODY))))
    client = clients(f"http://127.0.0.1:{port}/metrics")
    assert failure(client).reason == "malformed"
    assert failure(client, timeout=0.2).reason == "timeout"
    assert client.get("/metrics", timeout=5) == BODY


def test_a_name_that_does_not_resolve(clients: Callable[..., Client], monkeypatch: pytest.MonkeyPatch) -> None:
    """The failure names the host and what the resolver said."""

    def look_up(*_: object, **options: int) -> list[object]:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known" if "flags" not in options else "numeric")

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    error = failure(clients("http://engine.example:8000"))
    assert error == ScrapeError("dns", "cannot resolve 'engine.example' (Name or service not known): correct the host of the url")


def test_a_resolver_that_hangs_is_given_up(clients: Callable[..., Client], monkeypatch: pytest.MonkeyPatch) -> None:
    """The deadline counts name lookups, which nothing can interrupt."""
    over = threading.Event()

    def look_up(*_: object, **options: int) -> list[object]:
        if "flags" not in options:
            over.wait()
        raise socket.gaierror(socket.EAI_NONAME, "not known")

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    try:
        assert failure(clients("http://engine.example:8000"), timeout=0.2).reason == "dns"
    finally:
        over.set()


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_localhost_is_found_on_whichever_family_the_engine_listens(
    serve: Callable[..., int], clients: Callable[..., Client], monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    """A name with two addresses works with an engine on one of them; so does a literal."""
    try:
        port = serve(always(response(BODY)), host=host)
    except OSError:
        pytest.skip("no IPv6 here")
    look_up = socket.getaddrinfo

    def both(name: str, *arguments: object, **options: int) -> list[object]:
        if name == "localhost" and "flags" not in options:
            return [*look_up("::1", *arguments, **options), *look_up("127.0.0.1", *arguments, **options)]  # type: ignore[arg-type]
        return [*look_up(name, *arguments, **options)]  # type: ignore[arg-type]

    monkeypatch.setattr(socket, "getaddrinfo", both)
    assert clients(f"localhost:{port}").get("/metrics", timeout=5) == BODY
    assert clients(f"http://{f'[{host}]' if ':' in host else host}:{port}").get("/metrics", timeout=5) == BODY


def test_proxy_variables_do_not_count(serve: Callable[..., int], clients: Callable[..., Client], monkeypatch: pytest.MonkeyPatch) -> None:
    """HTTP_PROXY in a container must not send scrapes of loopback away."""
    heads: list[bytes] = []
    monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{serve(always(response(b'via proxy'), heads=heads))}")
    for name in ("http_proxy", "NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    url = f"http://127.0.0.1:{serve(always(response(BODY)))}/metrics"
    assert clients(url).get("/metrics", timeout=5) == BODY
    assert not heads


def test_one_redirect_on_the_same_server_is_followed(serve: Callable[..., int], clients: Callable[..., Client]) -> None:
    """/metrics often moves to /metrics/ by 307; the empty body of the 307 is never the answer."""
    heads: list[bytes] = []
    moved = response(b"", "Location: /metrics/", status="307 Temporary Redirect")
    client = clients(f"http://127.0.0.1:{serve(always(moved, response(BODY), heads=heads))}/metrics", userinfo="u:p")
    assert client.get("/metrics", timeout=5) == BODY
    assert [head.split()[1] for head in heads] == [b"/metrics", b"/metrics/"]
    assert all(b"Authorization: Basic dTpw" in head for head in heads)


@pytest.mark.parametrize(
    ("location", "words"),
    [
        ("https://elsewhere.example/metrics?key=EXAMPLE-TOKEN-1", "redirects to https://elsewhere.example:443:"),
        ("//127.0.0.1:1/metrics", "redirects to http://127.0.0.1:1:"),
        ("/metrics/again", "more than once"),
        ("http://[::1", "what is no URL"),
        ("ftp://127.0.0.1/", "what is no URL"),
        ("", "to nowhere"),
    ],
)
def test_other_redirects_are_not_followed(serve: Callable[..., int], clients: Callable[..., Client], location: str, words: str) -> None:
    """A redirect elsewhere, a second one and one without a destination fail, and name the destination's host only."""
    answer = response(b"moved", f"Location: {location}", status="302 Found")
    error = failure(clients(f"http://127.0.0.1:{serve(always(answer))}/metrics"))
    assert error.reason == "redirect"
    assert words in error.detail


def test_the_body_of_a_redirect_costs_nothing(serve: Callable[..., int], clients: Callable[..., Client]) -> None:
    """A redirect with an endless body is followed at once: its body is not read."""
    port = serve(in_turn(trickle(b"HTTP/1.1 307 Moved\r\nLocation: /metrics/\r\n\r\n", b"#"), always(response(BODY))))
    assert clients(f"http://127.0.0.1:{port}/metrics").get("/metrics", timeout=5) == BODY


def test_the_token_is_read_at_each_scrape_and_goes_nowhere_else(
    serve: Callable[..., int], clients: Callable[..., Client], tmp_path: Path
) -> None:
    """A rotated token works at once; another port on the same host does not get it."""
    heads: list[bytes] = []
    file = tmp_path / "token"
    client = clients(f"http://127.0.0.1:{serve(always(response(BODY), heads=heads))}/metrics", bearer_token_file=str(file))
    for token in ("first", "second"):
        file.write_text(f"{token}\n")
        client.get("/metrics", timeout=5)
    client.get(f"http://127.0.0.1:{serve(always(response(BODY), heads=heads))}/metrics", timeout=5)
    assert b"Authorization: Bearer first\r\n" in heads[0]
    assert b"Authorization: Bearer second\r\n" in heads[1]
    assert b"Authorization" not in heads[2]


def test_a_token_that_is_not_accepted_is_not_shown(serve: Callable[..., int], clients: Callable[..., Client], tmp_path: Path) -> None:
    """With a token a 401 points at the file that holds it."""
    file = tmp_path / "token"
    file.write_text(SECRET)
    port = serve(once(response(SECRET.encode(), status="401 Unauthorized")))
    error = failure(clients(f"http://127.0.0.1:{port}/metrics", bearer_token_file=str(file)))
    assert error.reason == "http_status"
    assert f"the token in {file} was not accepted" in error.detail


@pytest.mark.parametrize("content", [None, b"", b" \n", b"EXAMPLE-TOKEN-1\nsecond line", b"EXAMPLE-TOKEN-1\xff", b"x" * 70000])
def test_a_file_without_a_token_is_named_and_nothing_is_asked(
    serve: Callable[..., int], clients: Callable[..., Client], tmp_path: Path, content: bytes | None
) -> None:
    """A missing, empty or wrong token file fails before anything is sent; its content is not shown."""
    heads: list[bytes] = []
    file = tmp_path / "token"
    if content is not None:
        file.write_bytes(content)
    port = serve(always(response(BODY), heads=heads))
    error = failure(clients(f"http://127.0.0.1:{port}/metrics", bearer_token_file=str(file)))
    assert error.reason == "refused"
    assert f"bearer_token_file {file}" in error.detail
    assert heads == []


def test_no_answer_whatsoever_escapes_the_reasons(serve: Callable[..., int], clients: Callable[..., Client]) -> None:
    """Whatever bytes come, there is a body or a reason, never another exception, and the client stays usable."""
    answer = [b""]

    def handle(connection: socket.socket, stop: threading.Event) -> None:
        once(answer[0])(connection, stop)

    client = clients(f"http://127.0.0.1:{serve(handle)}/metrics")
    heads = st.sampled_from([b"", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n"])

    @settings(max_examples=60, deadline=None)
    @given(head=heads, tail=st.binary(max_size=80))
    def check(head: bytes, tail: bytes) -> None:
        answer[0] = head + tail
        try:
            assert client.get("/metrics", timeout=5)
        except ScrapeFailure as caught:
            assert caught.error.reason in {"refused", "malformed", "empty", "http_status", "tls"}  # noqa: PT017  either will do

    check()
