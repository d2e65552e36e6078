"""The files of the page: read once, kept in both encodings, told apart by their content."""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files

from fastapi import Request, Response

from kvwatch.web.answer import SECURITY, takes_gzip

CONTENT_TYPES: Mapping[str, str] = {
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "svg": "image/svg+xml",
}


@dataclass(frozen=True, slots=True)
class Asset:
    """One file as it travels; ``etag`` is weak because both encodings share it."""

    plain: bytes
    gzipped: bytes
    content_type: str
    etag: str

    def answer(self, request: Request) -> Response:
        """The file, or 304 when the client has it; always asked again, so that an upgrade is seen at once."""
        headers = {**SECURITY, "Cache-Control": "no-cache", "ETag": self.etag, "Vary": "Accept-Encoding"}
        known = {tag.strip() for tag in request.headers.get("if-none-match", "").split(",")}
        if known & {self.etag, self.etag.removeprefix("W/"), "*"}:
            return Response(status_code=304, headers=headers)
        headers["Content-Type"] = self.content_type
        if takes_gzip(request):
            return Response(self.gzipped, headers={**headers, "Content-Encoding": "gzip"})
        return Response(self.plain, headers=headers)


def load_assets() -> Mapping[str, Asset]:
    """Every file of the page by name, from the installed package."""
    assets: dict[str, Asset] = {}
    for file in (files(__package__) / "static").iterdir():
        content_type = CONTENT_TYPES.get(file.name.rpartition(".")[2])
        if content_type is None:
            continue
        plain = file.read_bytes()
        etag = f'W/"{hashlib.sha256(plain).hexdigest()[:20]}"'
        assets[file.name] = Asset(plain, gzip.compress(plain, mtime=0), content_type, etag)
    return assets
