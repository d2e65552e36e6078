"""Loopback servers for tests: each connection is handed to a function that does what it likes with the socket."""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator

Handler = Callable[[socket.socket, threading.Event], None]
"""Serves one connection until it returns; the event says that the test is over."""


@contextlib.contextmanager
def server(handler: Handler, *, host: str = "127.0.0.1", context: ssl.SSLContext | None = None) -> Iterator[int]:
    """Run a server while the test runs; gives its port. With ``context`` it speaks TLS."""
    stop = threading.Event()
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    threads: list[threading.Thread] = []

    def serve(connection: socket.socket) -> None:
        connection.settimeout(10)
        with contextlib.suppress(OSError), connection:
            if context is None:
                handler(connection, stop)
            else:
                with context.wrap_socket(connection, server_side=True) as secure:
                    handler(secure, stop)

    def accept(listener: socket.socket) -> None:
        while not stop.is_set():
            with contextlib.suppress(TimeoutError):
                threads.append(threading.Thread(target=serve, args=(listener.accept()[0],)))
                threads[-1].start()

    with socket.create_server((host, 0), family=family) as listener:
        listener.settimeout(0.05)
        threads.append(threading.Thread(target=accept, args=(listener,)))
        threads[0].start()
        try:
            yield listener.getsockname()[1]
        finally:
            stop.set()
            for thread in threads:
                thread.join()


@contextlib.contextmanager
def kept_port() -> Iterator[int]:
    """A port of loopback on which nobody listens, which the system gives to nobody else meanwhile."""
    with socket.socket() as kept:
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        kept.bind(("127.0.0.1", 0))
        yield kept.getsockname()[1]


def request(connection: socket.socket) -> bytes:
    """Read one request's head; b"" when the client hung up."""
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        received = connection.recv(65536)
        if not received:
            return b""
        head += received
    return head


def response(body: bytes, *headers: str, status: str = "200 OK") -> bytes:
    """A whole answer with its Content-Length."""
    lines = (f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers, "", "")
    return "\r\n".join(lines).encode() + body


def always(*answers: bytes, heads: list[bytes] | None = None) -> Handler:
    """Answer the requests of each connection with these, the last one for ever; ``heads`` collects the requests."""

    def handle(connection: socket.socket, _stop: threading.Event) -> None:
        turn = 0
        while head := request(connection):
            if heads is not None:
                heads.append(head)
            connection.sendall(answers[min(turn, len(answers) - 1)])
            turn += 1

    return handle


def once(answer: bytes) -> Handler:
    """Send these bytes after the first request, then close."""

    def handle(connection: socket.socket, _stop: threading.Event) -> None:
        request(connection)
        connection.sendall(answer)

    return handle


def trickle(answer: bytes, step: bytes) -> Handler:
    """Send the beginning of an answer, then ``step`` again and again, slowly, until the client hangs up."""

    def handle(connection: socket.socket, stop: threading.Event) -> None:
        request(connection)
        connection.sendall(answer)
        while not stop.wait(0.02):
            connection.sendall(step)

    return handle


def silent(_connection: socket.socket, stop: threading.Event) -> None:
    """Accept and say nothing."""
    stop.wait()


def reset(connection: socket.socket, _stop: threading.Event) -> None:
    """Read the request and reset the connection."""
    request(connection)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def in_turn(*handlers: Handler) -> Handler:
    """Hand the first connection to the first handler, the second to the second."""
    rest = iter(handlers)

    def handle(connection: socket.socket, stop: threading.Event) -> None:
        next(rest)(connection, stop)

    return handle
