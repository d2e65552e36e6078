"""Connections that keep a deadline and a byte limit over the whole exchange.

A socket timeout is per recv, so a server that trickles would never meet it: here every read first shrinks the timeout to what is
left, in headers and chunk sizes too. A name lookup cannot be interrupted; it is waited for, no longer than the deadline.
"""

from __future__ import annotations

import http.client
import io
import queue
import socket
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from urllib3.connection import HTTPConnection, HTTPSConnection

from kvwatch.failure import ScrapeFailure
from kvwatch.wording import number

_OVERHEAD_BYTES = 1 << 20  # headers, chunk sizes and trailers, beside twice the body's own limit
AddressInfo = tuple[socket.AddressFamily, socket.SocketKind, int, str, tuple[Any, ...]]


class Exchange:
    """What one request may still use, shared by the client and the connection that carries it.

    ``place`` is what error messages call the target, ``phase`` what is being waited for. ``fresh`` tells whether a new connection was
    made, ``received`` how many bytes came.
    """

    def __init__(self) -> None:
        """Nothing is allowed before ``begin``."""
        self.place = ""
        self.phase = ""
        self.fresh = False
        self.received = 0
        self._most = 0
        self._timeout = 0.0
        self._until = 0.0

    def begin(self, place: str, *, timeout: float, most: int) -> None:
        """Start the clock: ``timeout`` seconds for everything, answers of ``most`` bytes."""
        self.place, self._timeout, self._most = place, timeout, most
        self._until = time.monotonic() + timeout

    def ask(self) -> None:
        """A request is about to be sent, on whatever connection there is."""
        self.phase, self.fresh, self.received = "for an answer", False, 0

    def left(self) -> float:
        """Seconds left, always positive; raises ScrapeFailure when there are none."""
        left = self._until - time.monotonic()
        if left <= 0:
            raise self.expired()
        return left

    def expired(self) -> ScrapeFailure:
        """The deadline has passed."""
        waited = f"waited {self._timeout:g} s {self.phase}" + (f", {self.received} bytes had come" if self.received else "")
        return ScrapeFailure("timeout", f"{self.place} is too slow ({waited}): see what keeps it busy, or raise timeout")

    def count(self, received: int) -> None:
        """Bytes came; raises ScrapeFailure when they are more than any allowed body can need."""
        self.received += received
        if self.received > 2 * self._most + _OVERHEAD_BYTES:
            raise self.too_large()

    def too_large(self) -> ScrapeFailure:
        """The answer is larger than allowed."""
        limit = number(self._most, "bytes")
        return ScrapeFailure("too_large", f"{self.place} sends more than {limit}: raise limits.body if that really is an engine")


class _Reader(io.RawIOBase):
    """The socket's stream, each read bounded by the exchange."""

    def __init__(self, raw: io.RawIOBase, sock: socket.socket, exchange: Exchange) -> None:
        self._raw, self._sock, self._exchange = raw, sock, exchange

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:  # noqa: ANN401  a writable buffer: collections.abc.Buffer is Python 3.12
        self._sock.settimeout(self._exchange.left())
        try:
            count: int | None = self._raw.readinto(buffer)
        except TimeoutError:
            raise self._exchange.expired() from None
        self._exchange.count(count or 0)
        return count

    def close(self) -> None:
        self._raw.close()
        super().close()


class _Response(http.client.HTTPResponse):
    """An answer that is read through the exchange from its first byte."""

    def __init__(self, sock: socket.socket, method: str | None, exchange: Exchange) -> None:
        super().__init__(sock, method=method)
        self.fp = io.BufferedReader(_Reader(self.fp.detach(), sock, exchange), 1 << 16)


class BoundedConnection(HTTPConnection):
    """http, bounded by an exchange."""

    def __init__(self, exchange: Exchange, **options: Any) -> None:  # noqa: ANN401  urllib3's own options, passed through
        """``options`` are urllib3's."""
        super().__init__(**options)
        self._exchange = exchange

    def _new_conn(self) -> socket.socket:
        sock = _connected(self._dns_host.strip("[]"), self.port, self._exchange)
        try:
            sock.settimeout(self._exchange.left())  # for the TLS handshake, which Python bounds as a whole
        except ScrapeFailure:
            sock.close()
            raise
        self._exchange.phase = "for an answer"
        return sock

    def response_class(self, sock: socket.socket, method: str | None = None) -> _Response:  # type: ignore[override]
        """Make the answer's reader; http.client calls this like the class it has in this place."""
        return _Response(sock, method, self._exchange)


class BoundedTlsConnection(BoundedConnection, HTTPSConnection):
    """https, bounded by an exchange."""

    def connect(self) -> None:
        """Connect and shake hands; whether to verify was decided with the options, so urllib3 has nothing to warn about."""
        super().connect()
        self.is_verified = True


def _connected(host: str, port: int, exchange: Exchange) -> socket.socket:
    """A socket connected to the first address of the host that accepts.

    ``localhost`` has two addresses and an engine often listens on one of them. An address that swallows packets may take only its
    share of the time.
    """
    exchange.fresh = True
    addresses = _resolved(host, port, exchange)
    exchange.phase = f"to connect to {host} port {port}"
    why, late = "no address", False
    for index, (family, kind, protocol, _, address) in enumerate(addresses):
        share = exchange.left() / (len(addresses) - index)
        try:
            return _opened(family, kind, protocol, address, share)
        except OSError as error:
            why, late = error.strerror or str(error), isinstance(error, TimeoutError)
    if late:
        raise exchange.expired()
    raise ScrapeFailure("refused", f"cannot connect to {host} port {port} ({why}): start the engine there, or correct the url")


def _opened(family: int, kind: int, protocol: int, address: tuple[Any, ...], timeout: float) -> socket.socket:
    sock = socket.socket(family, kind, protocol)
    try:
        sock.settimeout(timeout)
        sock.connect(address)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except OSError:
        sock.close()
        raise
    return sock


def _resolved(host: str, port: int, exchange: Exchange) -> Sequence[AddressInfo]:
    """The addresses of a host; raises ScrapeFailure when the name has none or the resolver does not answer in time."""
    with suppress(socket.gaierror):  # a name
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    answers: queue.SimpleQueue[Sequence[AddressInfo] | OSError] = queue.SimpleQueue()

    def look_up() -> None:
        try:
            answers.put(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
        except OSError as error:
            answers.put(error)

    threading.Thread(target=look_up, name=f"look up {host}", daemon=True).start()
    try:
        answer = answers.get(timeout=exchange.left())
    except queue.Empty:
        raise ScrapeFailure("dns", f"the resolver does not answer for '{host}': correct the host of the url or the resolver") from None
    if isinstance(answer, OSError):
        raise ScrapeFailure("dns", f"cannot resolve '{host}' ({answer.strerror}): correct the host of the url")
    return answer
