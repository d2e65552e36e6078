"""Bodies as they come in: chunks into plain bytes, never more of them than allowed, and JSON whatever is in it."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Iterator
from itertools import chain

_GZIP, _ZLIB, _RAW = 31, 15, -15  # zlib's window bits
_GZIP_MAGIC = b"\x1f\x8b"
_LONGEST_WHOLE = 18  # digits; more are a float, which may be infinite but never too large for arithmetic
_LATEST = 1e11  # Unix seconds: what is beyond is in no calendar
_STEP = 1 << 20  # a bomb of any size inflates to this much before it is counted


class TooLargeError(Exception):
    """The plain body is larger than allowed."""


class CorruptError(Exception):
    """The body is not what its coding says, or it is cut short; the text says which, as the end of a sentence."""


def decode(chunks: Iterable[bytes], coding: str, most: int) -> bytes:
    """The plain body of ``chunks``, at most ``most`` bytes of it.

    ``coding`` is the Content-Encoding header ("" without one). A gzip body that does not say so is unpacked as well: no exposition
    begins with gzip's magic number. Raises TooLargeError and CorruptError.
    """
    parts: list[bytes] = []
    size = 0
    for part in _plain(chunks, coding.strip().lower()):
        size += len(part)
        if size > most:
            raise TooLargeError
        parts.append(part)
    return b"".join(parts)


def read_json(text: str | bytes) -> object:
    """The value of a JSON text. Raises ValueError for everything else, nesting too deep to be read too."""
    try:
        value: object = json.loads(text, parse_int=_whole)
    except RecursionError:
        msg = "nested too deeply"
        raise ValueError(msg) from None
    return value


def unix_seconds(value: object) -> float | None:
    """Unix seconds in JSON, or None for what is no time."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < _LATEST:
        return None
    return float(value)


def _whole(digits: str) -> float:
    return int(digits) if len(digits) <= _LONGEST_WHOLE else float(digits)


def _plain(chunks: Iterable[bytes], coding: str) -> Iterator[bytes]:
    """The plain body piece by piece, no piece much larger than the step."""
    rest = iter(chunks)
    head = b""
    while len(head) < len(_GZIP_MAGIC) and (chunk := next(rest, None)) is not None:
        head += chunk
    window = _window(coding, head)
    if not head:
        return
    body = chain((head,), rest)
    if window is None:
        yield from body
    else:
        yield from _inflated(body, window)


def _window(coding: str, head: bytes) -> int | None:
    """How zlib must read a body that begins with ``head``; None when it is plain."""
    if coding in ("", "identity"):
        return _GZIP if head.startswith(_GZIP_MAGIC) else None
    if coding in ("gzip", "x-gzip"):
        return _GZIP
    if coding == "deflate":  # servers disagree whether this means zlib (RFC 9110) or raw deflate; zlib's header has a checksum
        return _ZLIB if len(head) > 1 and head[0] & 0x0F == zlib.DEFLATED and int.from_bytes(head[:2]) % 31 == 0 else _RAW
    msg = f"packed as '{coding[:20]}', which was not asked for"
    raise CorruptError(msg)


def _inflated(chunks: Iterable[bytes], window: int) -> Iterator[bytes]:
    """Inflate all members of a gzip file, or the one stream of a deflate body."""
    stream = zlib.decompressobj(window)
    try:
        for chunk in chunks:
            data = chunk
            while data:
                if stream.eof:
                    data = data.lstrip(b"\0")  # padding after the last member
                    if not data:
                        break
                    stream = zlib.decompressobj(window)
                yield stream.decompress(data, _STEP)
                data = stream.unused_data if stream.eof else stream.unconsumed_tail
        yield stream.flush()
    except zlib.error:
        raise CorruptError("not valid compressed data") from None
    if not stream.eof:
        raise CorruptError("compressed data that are cut short")
