"""A daemon's pages on loopback for the time of a test."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from kvwatch.web.app import Source, build_app
from kvwatch.web.server import build_server, listen


@contextmanager
def serving(source: Source, *, reload_endpoint: bool = False) -> Iterator[str]:
    """Serve the source's pages from a thread; the value is their URL without a slash at the end."""
    (opened,) = listen("127.0.0.1", 0)
    url = f"http://127.0.0.1:{opened.getsockname()[1]}"
    server = build_server(build_app(source, reload_endpoint=reload_endpoint))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [opened]})
    thread.start()
    try:
        yield url
    finally:
        server.should_exit = True
        thread.join()
