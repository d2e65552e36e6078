"""One event message: both encodings read alike, unknown things counted, and garbage is one exception and never another."""

from __future__ import annotations

import contextlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvwatch.events.batch import Batch, Cleared, Removed, Stored
from kvwatch.events.decode import END, GarbledBatch, decode, parse
from kvwatch.events.sequence import Lost, Message, Restarted, Sequence

encode = msgspec.msgpack.encode
MAP = {"type": "BlockStored", "block_hashes": [1, 2], "parent_block_hash": None, "token_ids": [5] * 32, "block_size": 16, "medium": "GPU"}
ARRAY = ["BlockStored", [1, 2], None, [5] * 32, 16, None, "GPU"]


def test_both_encodings_say_the_same() -> None:
    """Maps with a type, and the tagged arrays of older releases with the fields they had."""
    newer = [MAP, {"type": "BlockRemoved", "block_hashes": [1], "medium": "GPU", "group_idx": 0}, {"type": "AllBlocksCleared"}]
    older = [ARRAY, ["BlockRemoved", [1], "GPU"], ["AllBlocksCleared"]]
    expected = (Stored("GPU", 0, (1, 2), 16), Removed("GPU", 0, (1,)), Cleared())
    assert decode(encode([2.5, newer, 0])) == Batch(2.5, expected, rank=0)
    assert decode(encode([2.5, older])) == Batch(2.5, expected)
    assert decode(encode([2.5, [["BlockStored", [1], None, [], 16, None], ["BlockRemoved", [1]]]])).events[1] == Removed(None, 0, (1,))


def test_a_digest_is_the_number_it_ends_in() -> None:
    """Whole digests and their low 64 bits are one hash."""
    digest = bytes(range(32))
    events = [MAP | {"block_hashes": [digest]}, MAP | {"block_hashes": [int.from_bytes(digest[-8:], "big")]}]
    first, second = decode(encode([1.0, events])).events
    assert first == second


def test_a_window_group_says_how_many_tokens_it_left_unhashed() -> None:
    """An event without hashes still tells of the block that was filled."""
    event = MAP | {"block_hashes": [], "group_idx": 1, "kv_cache_spec_kind": "sliding_window", "kv_cache_spec_sliding_window": 128}
    assert decode(encode([1.0, [event]])).events == (Stored("GPU", 1, (), 16, 128, 32),)


def test_unknown_events_and_fields_are_left_out() -> None:
    """A newer engine may say more; what is known is still read."""
    batch = decode(encode([1.0, [MAP | {"novel": {"deep": [1]}}, {"type": "BlockPinned", "x": 1}, ["Novel", 1]], 0, "more"]))
    assert batch == Batch(1.0, (Stored("GPU", 0, (1, 2), 16),), 2, 0)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xc1",
        b"\xdd\xff\xff\xff\xff",
        b"\x92\x01\xdd\xff\xff\xff\xff",
        b"\x92\x01" + b"\x91" * 100_000,
        encode("text"),
        encode([1.0]),
        encode(["now", []]),
        encode([float("nan"), []]),
        encode([1.0, [7]]),
        encode([1.0, [[]]]),
        encode([1.0, [{"no": "type"}]]),
        encode([1.0, [{"type": 5}]]),
        encode([1.0, [MAP | {"block_hashes": [1.5]}]]),
        encode([1.0, [MAP | {"block_hashes": None}]]),
        encode([1.0, [["BlockStored"]]]),
        encode([1.0, [MAP]]) + b"rest",
        encode([1.0, [MAP]])[:-3],
    ],
)
def test_garbage_is_one_exception(payload: bytes) -> None:
    """Truncated, wrong types, arrays that claim to be huge, nesting without end."""
    with pytest.raises(GarbledBatch):
        decode(payload)


@given(st.binary(max_size=80))
def test_no_bytes_raise_anything_else(noise: bytes) -> None:
    """Neither noise nor a message with noise in it."""
    good = encode([1.0, [MAP]])
    for payload in (noise, good[:20] + noise, b"\x92\x01\x91" + noise):
        with contextlib.suppress(GarbledBatch):
            decode(payload)
    with contextlib.suppress(GarbledBatch):
        parse([noise, noise[:8], noise], "kv")


def test_frames_of_both_sockets() -> None:
    """Topic, number, payload; the replay socket's behind an empty frame, its end numbered -1."""
    number = (7).to_bytes(8, "big")
    assert parse([b"kv", number, b"p"], "kv") == Message(7, b"p") == parse([b"", b"kv", number, b"p"], "kv")
    assert parse([b"", b"", (-1).to_bytes(8, "big", signed=True), b""], "kv").number == END


@pytest.mark.parametrize(
    "frames",
    [
        [],
        [b"kv", b"1" * 8],
        [b"kv", b"short", b"p"],
        [b"other", bytes(8), b"p"],
        [b"kv", (-2).to_bytes(8, "big", signed=True), b"p"],
        [b"kv"] * 4,
    ],
)
def test_frames_that_are_no_message(frames: list[bytes]) -> None:
    """Wrong counts, sizes, numbers and topics."""
    with pytest.raises(GarbledBatch):
        parse(frames, "kv")


def message(number: int, run: str = "a") -> Message:
    """A message that is told apart from the same number's of another run."""
    return Message(number, f"{run}{number}".encode())


@given(st.permutations(range(6)), st.permutations(range(6)))
def test_messages_come_back_in_order_whatever_order_the_replay_has(first: list[int], second: list[int]) -> None:
    """Live ones in order, replayed ones in any, twice: each is given back once."""
    sequence, steps = Sequence(), []
    for number in (2, 5):
        steps += sequence.live(message(number))
    for number in (*first, *second):
        steps += sequence.replayed(message(number))
    assert steps == [message(n) for n in range(6)]
    assert not sequence.open


def test_a_number_that_does_not_grow_is_another_publisher() -> None:
    """Its messages begin at 0 with an empty cache."""
    sequence = Sequence()
    assert sequence.live(message(0)) == [message(0)]
    assert sequence.live(message(1)) == [message(1)]
    assert sequence.live(message(0, "b")) == [Restarted(), message(0, "b")]


def test_a_replay_with_another_content_is_another_publisher() -> None:
    """A restart behind a gap in the numbers shows in the last message that both have."""
    sequence = Sequence()
    sequence.live(message(0))
    sequence.live(message(5, "b"))
    assert sequence.wanted == 0
    assert sequence.replayed(message(0, "b")) == [Restarted(), message(0, "b")]


def test_what_is_given_up_is_counted_and_what_came_after_it_is_used() -> None:
    """Two gaps are two losses."""
    sequence = Sequence()
    for number in (0, 2, 3, 7):
        sequence.live(message(number))
    assert sequence.give_up() == [Lost(1), message(2), message(3)]
    assert sequence.give_up() == [Lost(3), message(7)]
    assert sequence.give_up() == []


def test_an_empty_answer_means_nothing_was_published_or_somebody_else_is_there() -> None:
    """The buffer always holds the last message."""
    sequence = Sequence()
    assert sequence.open
    assert sequence.ended(0, 0) == []
    assert not sequence.open
    sequence.replayed(message(0))
    assert sequence.ended(0, 1) == []
    sequence.live(message(1))
    assert sequence.ended(1, 0) == [Restarted()]


def test_what_waits_behind_a_gap_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream that nobody mends goes on with a loss."""
    monkeypatch.setattr("kvwatch.events.sequence.HELD_MESSAGES", 3)
    sequence, steps = Sequence(), []
    for number in range(1, 9):
        steps += sequence.live(message(number))
    assert steps[0] == Lost(1)
    assert steps[-1] == message(8)
    assert sequence.held_bytes == 0
