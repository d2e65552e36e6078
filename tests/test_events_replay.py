"""A recording's events: the count of a real engine's cache, the same each time, and what broken files leave of it.

``data/events/reset`` is the beginning of a recording of vLLM 0.32 with the true state of its block pool beside it: cold, filled, emptied
while idle, one request.
"""

from __future__ import annotations

import base64
import gzip
import json
import math
from pathlib import Path

import msgspec
import pytest

from kvwatch.events.ledger import LedgerView
from kvwatch.events.replay import open_recording
from kvwatch.quantity import exactly

RECORDING = Path(__file__).parent / "data/events/reset"
EVENTS = "events.5557.raw.jsonl.gz"


def rows(path: Path) -> list[dict[str, float]]:
    """The lines of a file."""
    with gzip.open(path, "rt") as lines:
        return [json.loads(line) for line in lines]


def views(folder: Path) -> list[LedgerView]:
    """The ledger at every look at the truth."""
    rank = open_recording(folder)["0"]
    return [rank.view(look["t"]) for look in rows(RECORDING / "gt.jsonl.gz")]


def test_the_count_is_the_engines() -> None:
    """Where the engine stood still, between two looks with the same messages published, the cached blocks are counted exactly."""
    truth, told = rows(RECORDING / "gt.jsonl.gz"), views(RECORDING)
    checked, cleared = 0, 0
    for before, look, view in zip(truth, truth[1:], told[1:], strict=False):
        if look["pub"] == view.batches and before | {"t": 0} == look | {"t": 0}:
            cached = look["evict"] + look["used_hashed"]
            checked += view.gpu == exactly(cached)
            cleared += view.gpu != exactly(cached)
    assert checked > 300
    assert 0 < cleared < 170  # the idle reset, about which the engine says nothing before its next step
    assert told[-1].clears == 1


def test_the_same_files_give_the_same_views() -> None:
    """No clock but the recording's."""
    assert views(RECORDING) == views(RECORDING)


def test_what_the_subscription_missed_is_taken_from_the_replay(tmp_path: Path) -> None:
    """A late recording with the replay of its end knows everything; without it, only what came since."""
    with gzip.open(RECORDING / EVENTS, "rt") as lines:
        messages = lines.readlines()
    with gzip.open(tmp_path / EVENTS, "wt") as late:
        late.writelines(messages[100:300] + messages[350:])
    assert views(tmp_path)[200].gpu.hi == float("inf")
    with gzip.open(tmp_path / "replay.raw.jsonl.gz", "wt") as replay:
        for message in messages:
            replay.write(json.dumps(["", *json.loads(message)["frames"]]) + "\n")
        replay.write(json.dumps(["", "", base64.b64encode(b"\xff" * 8).decode(), ""]) + "\n")
    assert [v.gpu for v in views(tmp_path)[-100:]] == [v.gpu for v in views(RECORDING)[-100:]]


def test_a_recording_whose_publisher_never_spoke_has_an_empty_cache(tmp_path: Path) -> None:
    """The replay held nothing but its end."""
    with gzip.open(tmp_path / EVENTS, "wt"):
        pass
    assert open_recording(tmp_path)["0"].view(1.0).open
    with gzip.open(tmp_path / "replay.raw.jsonl.gz", "wt") as replay:
        replay.write(json.dumps(["", "", base64.b64encode(b"\xff" * 8).decode(), ""]))
    assert open_recording(tmp_path)["0"].view(1.0).gpu == exactly(0)


@pytest.mark.parametrize("damage", [b"", b"no gzip", b"\x1f\x8b\x08\x00broken"])
def test_a_damaged_file_is_read_up_to_the_damage(tmp_path: Path, damage: bytes) -> None:
    """A recorder that was killed leaves half a file."""
    (tmp_path / EVENTS).write_bytes(damage)
    assert open_recording(tmp_path)["0"].view(2e9).open
    whole = (RECORDING / EVENTS).read_bytes()
    (tmp_path / EVENTS).write_bytes(whole[: len(whole) // 2])
    assert open_recording(tmp_path)["0"].view(2e9).batches > 100


def test_odd_lines_are_left_out(tmp_path: Path) -> None:
    """Lines of another shape, of no time, and frames that are no base64; a directory is no file."""
    (tmp_path / "events.5558.raw.jsonl.gz").mkdir()
    (tmp_path / "events.5559.raw.jsonl.gz").symlink_to(tmp_path / "nowhere")
    with gzip.open(tmp_path / EVENTS, "wb") as more, gzip.open(RECORDING / EVENTS, "rb") as good:
        messages = good.readlines()
        for message, at in zip(messages, (math.nan, math.inf, -1.0, 1e300, True, 10**400), strict=False):
            more.write(json.dumps(json.loads(message) | {"t": at}).encode() + b"\n")
        more.writelines(messages)
        for line in ({"t": 2e9}, {"t": "now", "frames": []}, [1], {"t": 2e9, "frames": ["?"]}, {"t": 2e9, "frames": [5]}):
            more.write(json.dumps(line).encode() + b"\n")
    assert open_recording(tmp_path)["0"].view(3e9) == open_recording(RECORDING)["0"].view(3e9)


def test_without_event_files_there_are_no_ranks(tmp_path: Path) -> None:
    """Metrics alone are a recording too."""
    assert open_recording(tmp_path) == {}


def test_what_came_where_a_file_breaks_off_is_unknown(tmp_path: Path) -> None:
    """The engine went on after the recorder was killed: its last known cache is not its cache now."""
    whole = (RECORDING / EVENTS).read_bytes()
    (tmp_path / EVENTS).write_bytes(whole[: len(whole) // 2])
    rank = open_recording(tmp_path)["0"]
    times = [look["t"] for look in rows(RECORDING / "gt.jsonl.gz")]
    found = [rank.view(t).open for t in times]
    assert not found[0]
    assert found[-1]
    assert found == sorted(found)


def test_a_line_that_cannot_be_read_hides_no_other(tmp_path: Path) -> None:
    """A line written by two at once is one message lost at most, and none where it is a stranger's."""
    with gzip.open(RECORDING / EVENTS, "rt") as lines:
        messages = lines.readlines()
    with gzip.open(tmp_path / EVENTS, "wt") as file:
        file.writelines([*messages[:50], "no json\n", *messages[50:]])
    assert views(tmp_path)[-1] == views(RECORDING)[-1]
    with gzip.open(tmp_path / EVENTS, "wt") as file:
        file.writelines([*messages[:50], "no json\n", *messages[51:]])
    assert views(tmp_path)[-1].stretch == views(RECORDING)[-1].stretch + 1


def ranked(path: Path, *ranks: object) -> None:
    """A file of one message for each of these ranks."""
    with gzip.open(path, "wt") as file:
        for number, rank in enumerate(ranks):
            frames = [b"", number.to_bytes(8, "big"), msgspec.msgpack.encode([1.0, [], rank])]
            file.write(json.dumps({"t": 1.0, "frames": [base64.b64encode(f).decode() for f in frames]}) + "\n")


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ((1,), (0,), {"1": 1, "0": 1}),
        ((1,), (), {"1": 1, "0": 0}),
        ((None, None), (None,), {"0": 2, "1": 1}),
        ((0, 0), (0,), {"0": 2, "1": 1}),
        ((-1, 3), ("x",), {"0": 2, "1": 1}),
    ],
)
def test_the_messages_say_whose_they_are(
    tmp_path: Path, first: tuple[object, ...], second: tuple[object, ...], expected: dict[str, int]
) -> None:
    """A rank is what its publisher calls itself, whatever its port; the ports' order where it does not say, or two say the same."""
    ranked(tmp_path / "events.5557.raw.jsonl.gz", *first)
    ranked(tmp_path / "events.5558.raw.jsonl.gz", *second)
    assert {rank: recorded.view(2.0).batches for rank, recorded in open_recording(tmp_path).items()} == expected


def test_a_rank_is_not_answered_by_anothers_replay(tmp_path: Path) -> None:
    """Only rank 1 was recorded, beside the replay of rank 0."""
    ranked(tmp_path / "events.5558.raw.jsonl.gz", 1)
    with gzip.open(tmp_path / "replay.raw.jsonl.gz", "wt") as replay:
        for frames in ([b"", bytes(8), msgspec.msgpack.encode([0.5, [], 0])], [b"", b"\xff" * 8, b""]):
            replay.write(json.dumps(["", *(base64.b64encode(f).decode() for f in frames)]) + "\n")
    (rank,) = open_recording(tmp_path).values()
    assert rank.spare == {}
