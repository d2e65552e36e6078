"""Sources that are no sources: one clear line on stderr, the exit code that the manual promises, and never a traceback."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from kvwatch.command_line import main

BODY = 'vllm:num_requests_running{engine="0"} 1\nvllm:num_requests_waiting{engine="0"} 0\n'
JUDGED = 1
"""The code of a verdict on such a body: most series of an engine are missing in it."""
DEEP = '{"a":' + "[" * 100_000 + "]" * 100_000 + "}"


def recorded(folder: Path, *lines: str, name: str = "metrics.jsonl.gz") -> str:
    """A recording of these lines; gives its path."""
    file = folder / name
    file.write_bytes(gzip.compress("\n".join(lines).encode()))
    return str(file)


def line(t: str, body: str = BODY) -> str:
    """One scrape, its time as it is written."""
    return f'{{"t": {t}, "body": {json.dumps(body)}}}'


def only_line(capsys: pytest.CaptureFixture[str]) -> str:
    """What was said on stderr, which must be one line without control characters."""
    said = capsys.readouterr().err
    assert said.endswith("\n")
    assert said[:-1].isprintable()
    return said


@pytest.mark.parametrize(
    "text",
    [*(line(t) for t in ("NaN", "Infinity", "1e300", "253402300800", "-1", "true", '"1"', "1" + "0" * 5000)), DEEP, "["],
    ids=["nan", "infinite", "huge", "year 10000", "negative", "truth", "text", "digits", "deep", "cut"],
)
def test_a_line_that_is_none_is_named(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A recording with a broken line is refused with the number of that line."""
    assert main(["diagnose", recorded(tmp_path, line("1"), text)]) == 3
    assert "metrics.jsonl.gz:2: " in only_line(capsys)


@pytest.mark.parametrize("t1", ["NaN", "Infinity", "1" + "0" * 400, "true", "1e300"])
def test_an_end_that_is_no_time_is_left_out(t1: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """When a scrape ended matters less than what it said."""
    assert main(["diagnose", recorded(tmp_path, line("1")[:-1] + f', "t1": {t1}}}'), "--output", "json"]) == JUDGED
    assert json.loads(capsys.readouterr().out)["engines"][0]["requests"]["running"] == 1


@pytest.mark.parametrize("answer", [DEEP, "1" * 5000, "[" * 100_000, '{"loads": [{"num_running_reqs": 1' + "0" * 400 + "}]}"])
def test_a_recorded_page_beside_the_scrapes_costs_nothing_else(answer: str, tmp_path: Path) -> None:
    """A load report that cannot be read leaves the scrapes as they are."""
    recorded(tmp_path, line("1", answer), name="loads.jsonl.gz")
    sglang = 'sglang:num_running_reqs{engine_type="unified"} 1\nsglang:num_queue_reqs{engine_type="unified"} 0\n'
    assert main(["diagnose", recorded(tmp_path, line("1", sglang), line("2", sglang))]) == JUDGED


def test_half_a_character_is_read_as_a_question_mark(tmp_path: Path) -> None:
    """JSON can hold a lone surrogate, UTF-8 cannot."""
    assert main(["diagnose", recorded(tmp_path, '{"t": 1, "body": ' + json.dumps(BODY + "a \ud800\n") + "}")]) == JUDGED


def test_bytes_that_are_no_text_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An unpacked recording of another encoding."""
    file = tmp_path / "metrics.jsonl"
    file.write_bytes(b'{"t": 1, "body"\xff: ""}\n')
    assert main(["diagnose", str(file)]) == 3
    assert ":1: not JSON" in only_line(capsys)


def test_a_failure_that_was_recorded_cannot_drive_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Neither stderr nor the text shows foreign control characters."""
    assert main(["diagnose", recorded(tmp_path, json.dumps({"t": 1, "error": "\x1b[2J\nOK \ud800\u202e"}))]) == 3
    said = capsys.readouterr()
    assert r"\x1b[2J\nOK \ud800\u202e" in said.err
    assert all(row.isprintable() for row in (said.out + said.err).split("\n"))


@pytest.mark.parametrize(
    "packed", [b"\x1f\x8b", b"\x1f\x8b\x01" + b"a" * 50, gzip.compress(BODY.encode())[:-9], gzip.compress(BODY.encode()) + b"junk"]
)
def test_a_damaged_gzip_file_is_called_so(packed: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Not merely "cannot be read": the file can be fetched again."""
    file = tmp_path / "t.prom"
    file.write_bytes(packed)
    assert main(["diagnose", str(file)]) == 3
    assert "compressed data" in only_line(capsys)


@pytest.mark.parametrize("path", ["a" * 300, "a/" * 3000, "a" * 300 + ":80", "loop"])
def test_a_path_that_leads_nowhere_is_named(path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Too long, or a link to itself."""
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    assert main(["diagnose", str(tmp_path / path)]) == 3
    assert "name exposition files or a recording" in only_line(capsys)


def test_a_pipe_is_as_good_as_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """So that ``curl | kvwatch diagnose /dev/stdin`` works."""
    pipe = tmp_path / "pipe.prom"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_text, args=(BODY,))
    writer.start()
    code = main(["diagnose", str(pipe), "--output", "json"])
    writer.join()
    assert code == JUDGED
    assert json.loads(capsys.readouterr().out)["engines"][0]["requests"]["running"] == 1


def test_a_name_that_is_no_text_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The JSON stays ASCII whatever a file is called."""
    file = tmp_path / os.fsdecode(b"\xff.prom")
    file.write_text(BODY)
    assert main(["diagnose", str(file), "--output", "json"]) == JUDGED
    out = capsys.readouterr().out
    assert out.isascii()
    assert json.loads(out)["targets"][0]["name"] == os.fsdecode(b"\xff.prom")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no full device")
@pytest.mark.parametrize("command", [["rules", "--output", "json"], ["explain", "l1-saturated"], ["diagnose"]])
def test_a_full_disk_is_said_in_one_line(command: list[str], tmp_path: Path) -> None:
    """Whether the output is long or waits in the buffer until the end; the exit code is no verdict."""
    command = [*command, recorded(tmp_path, line("1"))] if command == ["diagnose"] else command
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run([sys.executable, "-m", "kvwatch", *command], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 74
    assert done.stderr == f"kvwatch {command[0]}: cannot write (No space left on device): make room, or write elsewhere\n"
