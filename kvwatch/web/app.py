"""Which path gives what. Nothing here scrapes, judges or remembers: a ``Source`` answers from memory, this file only speaks HTTP."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol
from urllib.parse import quote

from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Receive, Scope, Send

from kvwatch.web.answer import SECURITY, TEXT, answer, wants_openmetrics, wants_text
from kvwatch.web.assets import Asset, load_assets

JSON = "application/json"
REFUSALS = {
    404: "no such page; there are /, /metrics, /diagnose, /runbook/RULE, /healthz, /readyz, and with reload_endpoint: true POST /-/reload",
    405: "this page does not take that method",
}
"""What is said for a status."""


class Source(Protocol):
    """What the pages show. Every method answers from memory, at once, and may be called from several threads."""

    def verdict(self, target: str | None) -> Mapping[str, object]:
        """The verdict, ready for JSON: of everything, or of one target; of an unknown one an empty verdict with status ``unknown``."""

    def text(self, target: str | None) -> str:
        """The same verdict for people."""

    def metrics(self, *, openmetrics: bool) -> tuple[bytes, str]:
        """The exposition and its content type."""

    def history(self) -> Mapping[str, object]:
        """The last minutes of every pool owner, ready for JSON; what the page draws is in ``static/chart.js``."""

    def runbook(self, rule: str) -> str | None:
        """What to know about one rule, as text, or None when there is no such rule."""

    def ready(self) -> bool:
        """Whether every target has been tried once."""

    def reload(self) -> str | None:
        """Read the configuration again; None when that went well, else why the old one stays."""


def build_app(source: Source, *, reload_endpoint: bool) -> FastAPI:
    """The pages of one daemon."""
    app = FastAPI(title="kvwatch", docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False)
    app.add_middleware(ForwardedPrefix)
    app.add_exception_handler(HTTPException, _refuse)
    pages = _Pages(source, load_assets())
    for path, page in (
        ("/", pages.page),
        ("/static/{name}", pages.static),
        ("/metrics", pages.metrics),
        ("/diagnose", pages.diagnose),
        ("/history", pages.history),
        ("/runbook/{rule}", pages.runbook),
        ("/healthz", pages.healthz),
        ("/readyz", pages.readyz),
    ):
        app.add_api_route(path, page, methods=["GET", "HEAD"])
    if reload_endpoint:
        app.add_api_route("/-/reload", pages.reload, methods=["POST"])
    return app


@dataclass(frozen=True, slots=True)
class _Pages:
    """One method per page.

    Plain functions run in worker threads; what only reads a flag stays on the loop and answers even while all threads are busy. Large
    pages are laid out one after the other: all together none would be ready sooner, and the loop would hardly get its turn.
    """

    source: Source
    assets: Mapping[str, Asset]
    laying_out: threading.Lock = field(default_factory=threading.Lock)

    def metrics(self, request: Request) -> Response:
        with self.laying_out:
            return answer(request, *self.source.metrics(openmetrics=wants_openmetrics(request)))

    def diagnose(self, request: Request) -> Response:
        target = request.query_params.get("target")
        with self.laying_out:
            if wants_text(request):
                return answer(request, _text(self.source.text(target)), TEXT)
            return answer(request, _json(self.source.verdict(target)), JSON)

    def history(self, request: Request) -> Response:
        with self.laying_out:
            return answer(request, _json(self.source.history()), JSON)

    def runbook(self, request: Request, rule: str) -> Response:
        text = self.source.runbook(rule)
        if text is None:
            raise HTTPException(404)
        return answer(request, _text(text), TEXT)

    async def healthz(self, request: Request) -> Response:
        return answer(request, b"ok\n", TEXT)

    async def readyz(self, request: Request) -> Response:
        if self.source.ready():
            return answer(request, b"ready\n", TEXT)
        return answer(request, b"not ready: not every target has been tried yet\n", TEXT, 503)

    async def page(self, request: Request) -> Response:
        return self.assets["index.html"].answer(request)

    async def static(self, request: Request, name: str) -> Response:
        if name not in self.assets:
            raise HTTPException(404)
        return self.assets[name].answer(request)

    def reload(self, request: Request) -> Response:
        refusal = self.source.reload()
        if refusal is None:
            return answer(request, b"reloaded\n", TEXT)
        return answer(request, _text(f"{refusal}\n"), TEXT, 400)


def _json(value: Mapping[str, object]) -> bytes:
    """Strict JSON in ASCII: NaN is refused, and what a label may hold (a lone surrogate) cannot break the encoding."""
    return json.dumps(value, allow_nan=False, separators=(",", ":")).encode("ascii") + b"\n"


def _text(value: str) -> bytes:
    """UTF-8; what cannot be encoded is spelled out."""
    return value.encode("utf-8", "backslashreplace")


def _refuse(request: Request, error: Exception) -> Response:
    """One line of text instead of a page that is not there."""
    status = error.status_code if isinstance(error, HTTPException) else 500
    response = answer(request, f"{status}: {REFUSALS.get(status, 'refused')}\n".encode(), TEXT, status)
    if isinstance(error, HTTPException):
        response.headers.update(error.headers or {})
    return response


class ForwardedPrefix:
    """Lets the daemon live under a path of a proxy that keeps the path and names it in ``X-Forwarded-Prefix``.

    A proxy that strips the path needs nothing: the page speaks in relative URLs.
    """

    def __init__(self, app: ASGIApp) -> None:
        """Wrap the pages."""
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Take the prefix off the path where it is on it."""
        if scope["type"] == "http":
            header = next((value for name, value in scope["headers"] if name == b"x-forwarded-prefix"), b"")
            prefix = header.decode("latin-1").rstrip("/")
            if prefix and scope["path"] == prefix:
                # without the last slash the page's relative URLs would leave the prefix; a relative answer leads nowhere else
                name = quote(prefix.rpartition("/")[2], safe="")
                await Response(status_code=307, headers={**SECURITY, "Location": f"./{name}/"})(scope, receive, send)
                return
            if prefix and scope["path"].startswith(f"{prefix}/"):
                scope = {**scope, "path": scope["path"].removeprefix(prefix)}
        await self.app(scope, receive, send)
