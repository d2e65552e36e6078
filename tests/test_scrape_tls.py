"""https: who is trusted, by which name, and what a refusal tells."""

from __future__ import annotations

import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from kvwatch.model import ScrapeError
from kvwatch.scrape import Client, ScrapeFailure
from kvwatch.target import Target, Tls
from tests.loopback import always, response, server, silent

BODY = b"vllm:num_requests_running 1\n"
pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificates")

Certificate = Callable[[str], Path]


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    """Give a self-signed certificate for a subjectAltName; key and certificate are in one file."""
    folder = tmp_path_factory.mktemp("certificates")

    def make(name: str) -> Path:
        file = folder / f"{name.replace(':', '-')}.pem"
        if not file.exists():
            key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", "-", "-out", "-"]
            command = ["openssl", "req", "-x509", "-days", "2", "-subj", "/CN=test", "-addext", f"subjectAltName={name}", *key]
            file.write_bytes(subprocess.run(command, check=True, capture_output=True).stdout)
        return file

    return make


def _serving(file: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file)
    return context


def scrape(port: int, tls: Tls, timeout: float = 5) -> bytes | ScrapeError:
    """The body, or why there is none."""
    with closing(Client(Target("a", f"https://127.0.0.1:{port}/metrics", tls=tls), limit_bytes=1 << 20)) as client:
        try:
            return client.get("/metrics", timeout=timeout)
        except ScrapeFailure as failure:
            return failure.error


@pytest.mark.parametrize(
    ("name", "tls", "words"),
    [
        ("IP:127.0.0.1", Tls(), "not trusted (self-signed certificate): set tls.ca_file"),
        ("IP:127.0.0.1", Tls(ca_file="CERTIFICATE"), None),
        ("IP:127.0.0.1", Tls(ca_file="CERTIFICATE", server_name="engine.example"), "set tls.server_name"),
        ("DNS:engine.example", Tls(ca_file="CERTIFICATE", server_name="engine.example"), None),
        ("DNS:engine.example", Tls(ca_file="CERTIFICATE"), "set tls.server_name"),
        ("DNS:engine.example", Tls(insecure_skip_verify=True), None),
        ("DNS:engine.example", Tls(ca_file="/not/there.pem"), "/not/there.pem (No such file or directory)"),
        ("DNS:engine.example", Tls(ca_file=__file__), "no certificate in it"),
    ],
)
def test_whom_to_trust_is_the_targets_choice(certificate: Certificate, name: str, tls: Tls, words: str | None) -> None:
    """A certificate must be signed by the CA of the target and be for its name; else the option to set is named."""
    file = certificate(name)
    if tls.ca_file == "CERTIFICATE":
        tls = Tls(str(file), tls.server_name)
    with server(always(response(BODY)), context=_serving(file)) as port:
        answer = scrape(port, tls)
    if words is None:
        assert answer == BODY
    else:
        assert isinstance(answer, ScrapeError)
        assert answer.reason == "tls"
        assert words in answer.detail
        assert "tls.ca_file" in answer.detail


def test_the_server_is_asked_for_the_configured_name(certificate: Certificate) -> None:
    """``server_name`` is what the handshake names (SNI), although the URL holds an address."""
    file = certificate("DNS:engine.example")
    names: list[str | None] = []
    context = _serving(file)
    context.sni_callback = lambda _socket, name, _context: names.append(name)
    with server(always(response(BODY)), context=context) as port:
        assert scrape(port, Tls(str(file), "engine.example")) == BODY
    assert names == ["engine.example"]


def test_a_replaced_ca_file_works_after_one_refusal(certificate: Certificate, tmp_path: Path) -> None:
    """A rotated CA needs no restart: the file is read again after it failed."""
    ca_file = tmp_path / "ca.pem"
    ca_file.write_bytes(certificate("DNS:other.example").read_bytes())
    with server(always(response(BODY)), context=_serving(certificate("IP:127.0.0.1"))) as port:
        target = Target("a", f"https://127.0.0.1:{port}/metrics", tls=Tls(str(ca_file)))
        with closing(Client(target, limit_bytes=1 << 20)) as client:
            with pytest.raises(ScrapeFailure, match="not trusted"):
                client.get("/metrics", timeout=5)
            ca_file.write_bytes(certificate("IP:127.0.0.1").read_bytes())
            assert client.get("/metrics", timeout=5) == BODY


def test_what_speaks_no_tls() -> None:
    """Plain HTTP behind an https URL is a TLS failure; silence in the handshake is a timeout."""

    def plain(connection: socket.socket, _stop: threading.Event) -> None:
        connection.recv(4096)
        connection.sendall(response(b"", status="400 Bad Request"))

    with server(plain) as port:
        answer = scrape(port, Tls(insecure_skip_verify=True))
    assert isinstance(answer, ScrapeError)
    assert answer.reason == "tls"
    with server(silent) as port:
        answer = scrape(port, Tls(insecure_skip_verify=True), timeout=0.3)
    assert isinstance(answer, ScrapeError)
    assert answer.reason == "timeout"
