"""Files as a source: expositions in order, recordings with what was recorded beside them, and whatever is cut off."""

from __future__ import annotations

import errno
import gzip
import json
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from kvwatch.model import Outcome
from kvwatch.quantity import exactly
from kvwatch.recording import UnreadableError, expositions, is_recording, lines, recorded_events, recording, spacing
from kvwatch.refine import no_events
from kvwatch.target import Target

TARGET = Target("t", "http://t:8000/metrics")
LIMIT = 1 << 20


def vllm(running: int) -> str:
    """A body of vLLM."""
    return f'vllm:num_requests_running{{engine="0"}} {running}\nvllm:num_requests_waiting{{engine="0"}} 0\n'


def sglang(running: int) -> str:
    """A body of SGLang."""
    return f'sglang:num_running_reqs{{engine_type="unified"}} {running}\nsglang:num_queue_reqs{{engine_type="unified"}} 0\n'


def line(t: float, body: str | None = None, **others: object) -> dict[str, object]:
    """One line of a recording."""
    return {"t": t, **({} if body is None else {"body": body}), **others}


def write(folder: Path, told: Sequence[object], name: str = "metrics.jsonl.gz") -> Path:
    """A recording of these lines."""
    text = "".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in told)
    file = folder / name
    file.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return file


def running(outcomes: Sequence[Outcome]) -> list[float | None]:
    """Requests that run, by outcome; None where it failed."""
    return [o.states[0].running.exact if o.ok else None for o in outcomes]


def test_files_are_samples_in_their_order(tmp_path: Path) -> None:
    """So many seconds apart, without a wall time."""
    files = []
    for n in (3, 1, 2):
        files.append(tmp_path / f"{n}.prom")
        files[-1].write_text(vllm(n))
    outcomes = list(expositions(files, TARGET, 15.0, LIMIT))
    assert running(outcomes) == [3, 1, 2]
    assert [(o.at, o.wall) for o in outcomes] == [(0, None), (15, None), (30, None)]


def test_a_packed_file_is_unpacked_whatever_its_name(tmp_path: Path) -> None:
    """By its first bytes."""
    file = tmp_path / "t.prom"
    file.write_bytes(gzip.compress(vllm(4).encode()))
    assert running(list(expositions([file], TARGET, 15.0, LIMIT))) == [4]


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_a_file_beyond_the_limit_is_too_large(pack: type[bytes], tmp_path: Path) -> None:
    """The limit counts plain bytes."""
    file = tmp_path / "t.prom"
    file.write_bytes(pack(vllm(4).encode() + b"#" * LIMIT))
    (outcome,) = expositions([file], TARGET, 15.0, LIMIT)
    assert outcome.error is not None
    assert outcome.error.reason == "too_large"


def test_a_damaged_file_costs_its_own_turn(tmp_path: Path) -> None:
    """The ones around it are judged."""
    good, bad = tmp_path / "good.prom", tmp_path / "bad.prom"
    good.write_text(vllm(1))
    bad.write_bytes(gzip.compress(vllm(2).encode())[:-4])
    outcomes = list(expositions([good, bad, good], TARGET, 15.0, LIMIT))
    assert running(outcomes) == [1, None, 1]
    assert outcomes[1].error is not None
    assert outcomes[1].error.reason == "malformed"


def test_a_file_that_is_not_there_ends_it(tmp_path: Path) -> None:
    """In one line with its name."""
    with pytest.raises(UnreadableError, match=r"nowhere\.prom: No such file or directory; name an exposition file or a recording"):
        list(expositions([tmp_path / "nowhere.prom"], TARGET, 15.0, LIMIT))


def test_a_recording_is_known_by_its_name_or_is_a_folder(tmp_path: Path) -> None:
    """Everything else is an exposition."""
    names = {"metrics.jsonl.gz": True, "a.jsonl": True, "t.prom": False, "metrics.txt.gz": False}
    assert {name: is_recording(tmp_path / name) for name in names} == names
    assert is_recording(tmp_path)


def test_a_recording_has_its_own_times(tmp_path: Path) -> None:
    """When a scrape was sent, in Unix seconds, and how long it took where that was recorded."""
    file = write(tmp_path, [line(1000.0, vllm(1), t1=1000.5), line(1007.0, vllm(2)), line(1009.0, vllm(3), t1=1008.0)])
    outcomes = list(recording(file, TARGET))
    assert running(outcomes) == [1, 2, 3]
    assert [(o.at, o.wall, o.duration) for o in outcomes] == [(1000.0, 1000.0, 0.5), (1007.0, 1007.0, 0.0), (1009.0, 1009.0, 0.0)]
    assert list(recording(tmp_path, TARGET)) == outcomes, "its folder is as good"


def test_an_unpacked_recording_is_as_good(tmp_path: Path) -> None:
    """Lines of JSON, empty ones between them."""
    assert running(list(recording(write(tmp_path, [line(1.0, vllm(7)), "", line(2.0, vllm(8))], "a.jsonl"), TARGET))) == [7, 8]


def test_a_recorded_failure_is_a_failed_turn(tmp_path: Path) -> None:
    """A timeout, or else a refusal, with what was recorded of it."""
    file = write(tmp_path, [line(1.0, error="ReadTimeout: too slow"), line(2.0, error="Connection refused"), line(3.0)])
    errors = [o.error for o in recording(file, TARGET)]
    assert [e.reason for e in errors if e] == ["timeout", "refused", "refused"]
    assert [e.detail for e in errors if e] == [
        "the recording says: ReadTimeout: too slow", "the recording says: Connection refused", "the recording says: the scrape failed",
    ]  # fmt: skip


def test_time_does_not_run_backwards(tmp_path: Path) -> None:
    """A line that is not newer than the one before it is passed over."""
    file = write(tmp_path, [line(5.0, vllm(1)), line(5.0, vllm(2)), line(4.0, vllm(3)), line(6.0, vllm(4))])
    assert running(list(recording(file, TARGET))) == [1, 4]


def test_what_was_cut_off_while_it_was_written_counts_up_to_there(tmp_path: Path) -> None:
    """A recorder that was killed leaves a gzip file without its end."""
    file = write(tmp_path, [line(float(i), vllm(i)) for i in range(50)])
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) * 2 // 3])
    found = running(list(recording(file, TARGET)))
    assert found == list(range(len(found)))
    assert found


@pytest.mark.parametrize(
    ("told", "says"),
    [
        ([line(1.0, vllm(1)), "[1]"], ":2: not an object"),
        ([line(1.0, vllm(1)), "{no json"], ":2: not JSON"),
        ([{"body": vllm(1)}], ":1: no time 't'"),
        ([line(1.0, vllm(1)), {"t": "now", "body": vllm(1)}], ":2: no time 't'"),
    ],
)
def test_a_line_that_is_none_is_named(told: Sequence[object], says: str, tmp_path: Path) -> None:
    """With the file and the number of the line."""
    with pytest.raises(UnreadableError) as error:
        list(recording(write(tmp_path, told), TARGET))
    assert str(error.value).startswith(f"{tmp_path / 'metrics.jsonl.gz'}{says}")


def test_a_folder_without_a_recording_is_named(tmp_path: Path) -> None:
    """With what a recording is called."""
    with pytest.raises(UnreadableError, match=r"metrics\.jsonl\.gz: No such file or directory; a recording is a metrics\.jsonl\.gz"):
        list(recording(tmp_path, TARGET))


LOADS = {"loads": [{"dp_rank": 0, "timestamp": 99.0, "num_running_reqs": 9, "num_waiting_reqs": 0, "max_running_requests": 32}]}


@pytest.mark.parametrize(
    ("at", "seen"),
    [(100.0, True), (100.4, True), (95.6, True), (94.0, False), (100.6, False)],
    ids=["with the scrape", "while it ran", "lately", "long ago", "later"],
)
def test_a_load_report_counts_as_it_was_then(at: float, seen: bool, tmp_path: Path) -> None:  # noqa: FBT001  a table's column
    """The newest one that was there when the scrape ended, not older than five seconds."""
    write(tmp_path, [line(at, json.dumps(LOADS))], "loads.jsonl.gz")
    (outcome,) = recording(write(tmp_path, [line(100.0, sglang(4), t1=100.5)]), TARGET)
    assert ("running_cap" in outcome.states[0].gauges) is seen
    if seen:
        assert outcome.states[0].gauges["running_cap"] == exactly(32)


def test_reports_that_cannot_be_read_are_passed_over(tmp_path: Path) -> None:
    """The scrapes are judged without them."""
    write(tmp_path, [line(99.0, "{no json"), {"body": "{}"}, {"t": 100.0, "error": "refused"}], "loads.jsonl.gz")
    (outcome,) = recording(write(tmp_path, [line(100.0, sglang(4))]), TARGET)
    assert running([outcome]) == [4]


def test_the_spacing_is_the_median(tmp_path: Path) -> None:
    """One long gap is not the interval; a single scrape has a second."""
    assert spacing(write(tmp_path, [line(t, vllm(1)) for t in (0.0, 5.0, 10.0, 60.0, 65.0)])) == 5
    assert spacing(write(tmp_path, [line(1.0, vllm(1))])) == 1.0
    assert spacing(tmp_path) == 1.0


def test_lines_come_in_the_order_of_the_file(tmp_path: Path) -> None:
    """With what they say, whatever that is."""
    found = list(lines(write(tmp_path, [line(2.0, "b"), line(1.0, error="e")])))
    assert [(row.t, row.body, row.error) for row in found] == [(2.0, "b", None), (1.0, None, "e")]


def test_without_recorded_events_nobody_listened(tmp_path: Path) -> None:
    """And nothing is claimed about them."""
    assert recorded_events(tmp_path) is no_events
    assert no_events("0", 1.0) is None


def test_events_that_may_not_be_read_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one line, with the file and why."""
    file = write(tmp_path, [], "events.5557.raw.jsonl.gz")

    def refuse(path: Path, *_mode: str) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(gzip, "open", refuse)
    with pytest.raises(UnreadableError, match=f"^{file}: Permission denied; "):
        recorded_events(tmp_path)
