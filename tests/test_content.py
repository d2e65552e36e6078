"""Compressed bodies become the bytes they were, and never more than allowed."""

from __future__ import annotations

import gzip
import math
import zlib
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvwatch.content import CorruptError, TooLargeError, decode, read_json


def _raw_deflate(body: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(body) + packer.flush()


def _two_members(body: bytes) -> bytes:
    return gzip.compress(body[:3]) + gzip.compress(body[3:]) + b"\0" * 5


CODINGS = [("", bytes), ("identity", bytes), ("", gzip.compress), ("GZIP", gzip.compress), ("x-gzip", _two_members)]
CODINGS += [("deflate", zlib.compress), ("deflate", _raw_deflate)]
Pack = Callable[[bytes], bytes]


@pytest.mark.parametrize(("coding", "pack"), CODINGS)
@given(body=st.binary(max_size=300), step=st.integers(1, 50))
def test_every_coding_gives_back_the_body_however_it_is_cut(coding: str, pack: Pack, body: bytes, step: int) -> None:
    """What a server packs is what we read, whatever the chunks on the wire; a body that only looks like gzip is left out."""
    if pack is bytes and body.startswith(b"\x1f\x8b"):
        return
    packed = pack(body)
    chunks = [packed[i : i + step] for i in range(0, len(packed), step)]
    assert decode(chunks, coding, 300) == body


@pytest.mark.parametrize(("coding", "pack"), CODINGS)
def test_the_limit_counts_plain_bytes(coding: str, pack: Pack) -> None:
    """Exactly the limit is allowed and one byte more is not, whatever it was on the wire."""
    body = b"a" * 5000
    assert decode([pack(body)], coding, 5000) == body
    with pytest.raises(TooLargeError):
        decode([pack(body)], coding, 4999)


def test_a_bomb_is_given_up_at_the_limit() -> None:
    """Nothing more is taken from the wire once the limit is passed: the bomb is not inflated."""
    bomb = gzip.compress(bytes(64 << 20), compresslevel=1)
    taken = []

    def wire() -> Iterator[bytes]:
        for i in range(0, len(bomb), 1024):
            taken.append(i)
            yield bomb[i : i + 1024]

    with pytest.raises(TooLargeError):
        decode(wire(), "gzip", 1 << 20)
    assert len(taken) * 1024 < len(bomb) / 8


@pytest.mark.parametrize("cut", [1, 5, 12, 20])
def test_half_a_packed_body_is_no_body(cut: int) -> None:
    """A gzip stream that ends before its checksum is corrupt, wherever it ends."""
    packed = gzip.compress(b"vllm:num_requests_running 1\n" * 3)
    with pytest.raises(CorruptError, match="cut short"):
        decode([packed[:-cut]], "gzip", 1000)


@pytest.mark.parametrize(
    ("body", "coding"),
    [
        (b"plain text", "gzip"),
        (b"plain text", "deflate"),
        (gzip.compress(b"a") + b"tail", "gzip"),
        (b"text", "br"),
        (b"text", "gzip, gzip"),
    ],
)
def test_what_is_not_as_declared_is_corrupt(body: bytes, coding: str) -> None:
    """A coding that does not fit, bytes after the end and codings nobody asked for are named, not guessed at."""
    with pytest.raises(CorruptError):
        decode([body], coding, 1000)


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 50_000, "{", "", b"\xff", "nope"])
def test_what_is_no_json_is_one_kind_of_error(text: str | bytes) -> None:
    """A page beside the metrics may hold anything, and a reader expects nothing but ValueError."""
    with pytest.raises(ValueError):  # noqa: PT011  whatever it says
        read_json(text)


@pytest.mark.parametrize("digits", ["9" * 400, "9" * 5000])
def test_a_number_of_any_length_can_be_compared(digits: str) -> None:
    """It is infinite rather than an error in whatever is computed with it."""
    assert read_json(f'{{"n": -{digits}, "m": {digits}, "k": 7}}') == {"n": -math.inf, "m": math.inf, "k": 7}
