"""Sockets and the loop around the app: where it listens, and how it ends."""

from __future__ import annotations

import errno
import logging
import os
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import uvicorn
from fastapi import FastAPI

from kvwatch.address import ListenError

HIGHEST_PORT = 65535
GRACE_SECONDS = 2
"""How long open requests may go on after the order to stop; a supervisor waits at least 5 s."""


def listen(host: str, port: int) -> tuple[socket.socket, ...]:
    """Open sockets on every address the host has; an empty host or ``::`` is all of IPv6 and IPv4.

    Raises ListenError. Port 0 takes a free one.
    """
    where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    if not 0 <= port <= HIGHEST_PORT:
        raise ListenError(_refusal(where, f"a port is at most {HIGHEST_PORT}"))
    sockets: list[socket.socket] = []
    try:
        if host in ("", "::"):
            return (_open_all(port),)
        for family, _, _, _, address in dict.fromkeys(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)):
            sockets.append(socket.create_server(address[:2], family=family))
    except OSError as error:
        for opened in sockets:
            opened.close()
        system = os.strerror(error.errno) if error.errno and error.errno > 0 else None  # a resolver's numbers are below 0
        raise ListenError(_refusal(where, system or error.strerror or str(error))) from error
    except UnicodeError as error:
        raise ListenError(_refusal(where, "no such host name")) from error
    return tuple(sockets)


def _refusal(where: str, reason: str) -> str:
    return f"cannot listen on {where}: {reason}; choose another address with --listen HOST:PORT"


def _open_all(port: int) -> socket.socket:
    """One socket for both families, or IPv4 alone on a machine without IPv6."""
    try:
        return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
    except (OSError, ValueError) as error:  # ValueError: no dual-stack sockets here
        if getattr(error, "errno", None) == errno.EADDRINUSE:
            raise
        return socket.create_server(("", port))


def build_server(app: FastAPI) -> uvicorn.Server:
    """The server of these pages, not yet running: it logs problems only and sets up no logging of its own."""
    config = uvicorn.Config(
        app,
        http="h11",
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=75,  # longer than a scrape interval, so that Prometheus and the page keep their connections
        timeout_graceful_shutdown=GRACE_SECONDS,
    )
    return uvicorn.Server(config)


def serve(app: FastAPI, sockets: tuple[socket.socket, ...]) -> None:
    """Answer requests until SIGTERM or SIGINT, then return within 5 s; for the main thread."""
    logging.getLogger("uvicorn.error").addFilter(_is_news)
    server = build_server(app)
    with _ended_by_signals(server):
        server.run(sockets=list(sockets))


def _is_news(record: logging.LogRecord) -> bool:
    """Whether a line of uvicorn's is worth printing: not that a client which stopped reading was cut off at the end."""
    return not record.getMessage().startswith("Cancel ")


@contextmanager
def _ended_by_signals(server: uvicorn.Server) -> Iterator[None]:
    """The order to stop, outside of the time in which uvicorn takes it: before, the server must end as soon as it has begun.

    After, uvicorn raises the signal that ended it once more, which has done its work and must not kill the process.
    """

    def end(_number: int, _frame: FrameType | None) -> None:
        server.should_exit = True

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
