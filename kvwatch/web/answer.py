"""One answer to one request: what the client accepts, the body in that form, and the headers every page carries."""

from __future__ import annotations

import gzip
from collections.abc import Mapping

from fastapi import Request, Response

TEXT = "text/plain; charset=utf-8"

SECURITY: Mapping[str, str] = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}

WORTH_COMPRESSING = 1024
"""Bytes; a smaller body fits one packet either way."""


def _ranges(header: str) -> dict[str, float]:
    """The values of an Accept-like header with their weights, 1 unless said; parameters are dropped, the best weight of a value counts."""
    ranges: dict[str, float] = {}
    for part in header.lower().split(","):
        value, *parameters = (piece.strip() for piece in part.split(";"))
        if not value:
            continue
        weight = 1.0
        for name, _, text in (parameter.partition("=") for parameter in parameters):
            if name.strip() == "q":
                try:
                    weight = float(text)
                except ValueError:
                    weight = 0.0
        ranges[value] = max(weight, ranges.get(value, 0.0))
    return ranges


def _weight(header: str, media_type: str) -> float:
    """How much a client wants a media type: the weight of the most specific range that covers it; 1 when it does not say."""
    ranges = _ranges(header) or {"*/*": 1.0}
    family = media_type.partition("/")[0]
    return next((ranges[r] for r in (media_type, f"{family}/*", "*/*") if r in ranges), 0.0)


def _accept(request: Request) -> str:
    return ",".join(request.headers.getlist("accept"))


def wants_openmetrics(request: Request) -> bool:
    """Whether OpenMetrics is asked for by name and not less than Prometheus text."""
    accept = _accept(request)
    asked = _ranges(accept).get("application/openmetrics-text", 0.0)
    return asked > 0 and asked >= _weight(accept, "text/plain")


def wants_text(request: Request) -> bool:
    """Whether text for people is preferred over JSON: by ``?format=text``, else by Accept; a tie is JSON."""
    chosen = request.query_params.get("format")
    if chosen in ("text", "json"):
        return chosen == "text"
    accept = _accept(request)
    return _weight(accept, "text/plain") > _weight(accept, "application/json")


def takes_gzip(request: Request) -> bool:
    """Whether the client says that it can unpack gzip; silence is no."""
    ranges = _ranges(",".join(request.headers.getlist("accept-encoding")))
    return ranges.get("gzip", ranges.get("*", 0.0)) > 0


def answer(request: Request, body: bytes, content_type: str, status: int = 200) -> Response:
    """A page whose content is of this moment: never stored, compressed when that pays and the client can unpack it."""
    headers = {**SECURITY, "Cache-Control": "no-store", "Content-Type": content_type, "Vary": "Accept, Accept-Encoding"}
    if len(body) >= WORTH_COMPRESSING and takes_gzip(request):
        body = gzip.compress(body, compresslevel=1, mtime=0)
        headers["Content-Encoding"] = "gzip"
    return Response(body, status, headers)
