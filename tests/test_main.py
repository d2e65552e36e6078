"""The command line: exit codes that scripts rely on, errors in one line, and the same answer to the same question."""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

import pytest

from kvwatch import __version__
from kvwatch.command_line import main
from kvwatch.rules import RULES
from tests.loopback import kept_port, server
from tests.pages import Pages, vllm
from tests.terminal import on_a_terminal

DATA = Path(__file__).parent / "data"
CALM, FULL = (str(DATA / "vllm" / name) for name in ("0.9.prom", "0.32-dp2.prom"))
SILENT = b'vllm:num_requests_running{engine="0"} 1\n'
"""A body in which most of an engine's series are missing."""


@pytest.fixture(scope="module")
def incident() -> Iterator[str]:
    """A recorded incident of vLLM: calm, then a full pool for half a minute."""
    with as_file(files("kvwatch.demo") / "recordings" / "vllm") as folder:
        yield str(folder)


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings of whoever runs the tests are not meant."""
    for name in [n for n in os.environ if n.startswith("KVWATCH_")]:
        monkeypatch.delenv(name)


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int | str | None, str]:
    """Run what must fail: the exit code and the one line on stderr; nothing on stdout."""
    try:
        code: int | str | None = main(words)
    except SystemExit as stop:
        code = stop.code
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1, said.err
    assert said.err.startswith("kvwatch")
    return code, said.err


# ---- exit codes


def test_0_when_nothing_is_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    """A calm engine."""
    assert main(["diagnose", CALM]) == 0
    assert capsys.readouterr().out.startswith("OK  Nothing fires: ")


def test_1_when_a_warning_fires(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Here series that should be there are missing."""
    (tmp_path / "t.prom").write_bytes(SILENT)
    assert main(["diagnose", str(tmp_path / "t.prom")]) == 1
    assert capsys.readouterr().out.startswith("WARNING  t.prom: ")


def test_2_when_a_critical_finding_fires(incident: str, capsys: pytest.CaptureFixture[str]) -> None:
    """And only then."""
    assert main(["diagnose", incident]) == 2
    out = capsys.readouterr().out
    assert out.startswith("CRITICAL  vllm: Requests queue: the KV pool in HBM (L1) admits no more. Do first: ")
    assert not out.endswith("\n\n")


def test_pending_findings_do_not_change_the_code(capsys: pytest.CaptureFixture[str]) -> None:
    """A full pool with a queue in one scrape: it may be over in the next."""
    assert main(["diagnose", FULL, "--output", "json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["status"] == "ok"
    assert {(f["rule"], f["status"]) for f in told["findings"]} >= {("l1-saturated", "pending")}


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("<html>", "t.prom: "),
        ("go_goroutines 1\n", "without any series of vLLM, SGLang or LMCache"),
        ("", "empty"),
    ],
)
def test_3_when_nothing_could_be_judged(content: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The verdict says unknown, stderr says why in one line."""
    (tmp_path / "t.prom").write_text(content)
    assert main(["diagnose", str(tmp_path / "t.prom"), "--output", "json"]) == 3
    said = capsys.readouterr()
    assert json.loads(said.out)["status"] == "unknown"
    assert said.err.count("\n") == 1
    assert says in said.err


def test_3_when_nobody_answers(capsys: pytest.CaptureFixture[str]) -> None:
    """One-shot on an unreachable URL is no outage: nothing was ever seen there."""
    with kept_port() as port:
        assert main(["diagnose", f"127.0.0.1:{port}", "--for", "0", "--output", "json"]) == 3
    said = capsys.readouterr()
    told = json.loads(said.out)
    assert (told["status"], told["findings"], told["engines"]) == ("unknown", [], [])
    assert told["targets"][0]["reason"] == "refused"
    assert re.fullmatch(rf"kvwatch diagnose: 127\.0\.0\.1:{port}: cannot connect to .*\n", said.err)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("diagnose", "nowhere.prom"), "nowhere.prom: No such file or directory"),
        (("diagnose", CALM, "nowhere.prom"), "nowhere.prom: No such file or directory"),
        (("diagnose", str(DATA / "vllm" / "nowhere.jsonl.gz")), "nowhere.jsonl.gz: No such file or directory"),
    ],
)
def test_3_when_a_source_cannot_be_read(words: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    """One line, and no verdict at all."""
    code, line = refused(capsys, *words)
    assert code == 3
    assert says in line


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((), "COMMAND"),
        (("diagnos",), "invalid choice"),
        (("diagnose",), "SOURCE"),
        (("diagnose", CALM, "--interval", "0"), "'0' is not more than 0"),
        (("diagnose", CALM, "--interval", "soon"), "'soon' is no duration"),
        (("diagnose", CALM, "--for", "-5"), "argument"),
        (("diagnose", CALM, "--output", "yaml"), "invalid choice"),
        (("diagnose", CALM, "http://127.0.0.1:1"), "URLs and files cannot be judged together"),
        (("diagnose", "ftp://127.0.0.1/x"), "neither http nor https"),
        (("serve", "--listen", "nine"), "no address to listen on"),
        (("serve", "--target", "http://:80"), "is no URL to scrape"),
        (("explain", "l1-saturatd"), "no rule is called 'l1-saturatd'; there are "),
        (("render", "alertz"), "cannot be rendered"),
        (("rules", "--bogus"), "unrecognized arguments"),
    ],
)
def test_64_for_wrong_usage(words: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    """So that 2 always means critical."""
    code, line = refused(capsys, *words)
    assert code == 64
    assert says in line


@pytest.mark.parametrize("words", [("diagnose", CALM, "--config"), ("serve", "--config"), ("rules", "--config"), ("check-config",)])
def test_64_for_a_configuration_that_is_none(words: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With the file, and the nearest valid name of a key that is unknown."""
    file = tmp_path / "kvwatch.yaml"
    file.write_text("intervall: 15s\ntargets:\n  - {url: 'http://t:8000'}\n")
    assert main([*words, str(file)]) == 64
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(str(file))
    assert "interval" in line


@contextmanager
def child(*words: str, **variables: str) -> Iterator[subprocess.Popen[str]]:
    """Run it as a process of its own, with these environment variables."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("KVWATCH_")} | variables
    command = [sys.executable, "-m", "kvwatch", *words]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize(("order", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_130_when_interrupted_and_143_when_terminated(order: signal.Signals, code: int) -> None:
    """Ctrl-C, or a container's end, while a live engine is watched: no traceback, and an end of its own, as a first process needs."""
    pages = Pages({"/metrics": vllm()})
    with server(pages) as port, child("diagnose", f"http://127.0.0.1:{port}", "--timeline", "--for", "1h", "--interval", "1") as process:
        assert process.stdout is not None
        process.stdout.readline()  # it is at work
        process.send_signal(order)
        _, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (code, "")


def test_130_when_interrupted_while_it_loads(tmp_path: Path) -> None:
    """Ctrl-C in the first moment, before there is a command: no traceback either."""
    (tmp_path / "yaml.py").write_text("raise KeyboardInterrupt")
    with child("rules", PYTHONPATH=os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])) as process:
        assert process.communicate(timeout=30) == ("", "")
    assert process.returncode == 130


@pytest.mark.parametrize("words", [("rules",), ("diagnose", CALM), ("explain", "l1-saturated")])
def test_a_reader_that_leaves_early_is_no_error(words: tuple[str, ...]) -> None:
    """``kvwatch rules | head -1`` ends without a complaint."""
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as out:
        done = subprocess.run(
            [sys.executable, "-m", "kvwatch", *words], stdout=out, stderr=subprocess.PIPE, check=False, text=True, timeout=30
        )
    assert done.stderr == ""
    assert done.returncode == 0


# ---- files


def test_the_same_input_is_the_same_verdict_byte_for_byte(incident: str) -> None:
    """In another process, with another order of every set."""

    def run(seed: str) -> bytes:
        command = [sys.executable, "-m", "kvwatch", "diagnose", incident, "--timeline", "--output", "json"]
        return subprocess.run(command, env={**os.environ, "PYTHONHASHSEED": seed}, stdout=subprocess.PIPE, check=False, timeout=60).stdout

    first = run("1")
    assert first.count(b"\n") == 73
    assert run("2") == first


def test_in_a_pipe_each_thing_is_one_line_whatever_the_terminal(incident: str) -> None:
    """For grep, and for the same bytes everywhere; on the terminal itself it is folded."""
    command = [sys.executable, "-m", "kvwatch", "diagnose", incident]
    narrow = {**os.environ, "COLUMNS": "60"}
    whole = subprocess.run(command, env=narrow, stdout=subprocess.PIPE, check=False, timeout=60, text=True).stdout.splitlines()
    (why,) = (line for line in whole if line.startswith("  Why: "))
    assert len(why) > 120
    _, shown = on_a_terminal(command, Path.cwd(), 60)
    assert max(map(len, shown.splitlines())) <= 60


def lines(capsys: pytest.CaptureFixture[str], *words: str) -> list[str]:
    """What a diagnosis prints, by line."""
    main(["diagnose", *words])
    return capsys.readouterr().out.splitlines()


def test_a_timeline_in_json_is_one_verdict_a_sample(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In the order of the files, the given seconds apart."""
    paths = []
    for n in range(3):
        paths.append(str(tmp_path / f"t{n}.prom"))
        Path(paths[-1]).write_bytes(vllm(running=n))
    told: list[dict[str, Any]] = [json.loads(line) for line in lines(capsys, *paths, "--timeline", "--output", "json", "--interval", "30s")]
    assert [t["engines"][0]["requests"]["running"] for t in told] == [0, 1, 2]
    assert [t["engines"][0]["ttft"]["window_seconds"] for t in told] == [None, 30, 60]
    assert {t["at"] for t in told} == {None}


def test_a_timeline_in_text_is_a_row_for_each_change(incident: str, capsys: pytest.CaptureFixture[str]) -> None:
    """When, how bad, and what is open; a row is never repeated."""
    rows = lines(capsys, incident, "--timeline")
    assert all(re.fullmatch(r"\d\d:\d\d:\d\d  (ok|warning|critical|unknown) +\S.*", row) for row in rows)
    said = [row.split("  ", 1)[1] for row in rows]
    assert all(a != b for a, b in itertools.pairwise(said))
    assert said[0].split() == ["ok", "-"]
    assert any("l1-saturated (saturated) firing on vllm" in row for row in said)


def test_without_a_time_a_row_counts_seconds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """From the first file on."""
    paths = [tmp_path / "a.prom", tmp_path / "b.prom"]
    paths[0].write_bytes(SILENT)
    paths[1].write_text("<html>")
    rows = lines(capsys, *map(str, paths), "--timeline")
    assert rows[0].startswith("0 s  warning  metrics-missing firing on a.prom")


def test_files_are_a_quarter_of_a_minute_apart(capsys: pytest.CaptureFixture[str]) -> None:
    """Unless said."""
    told = json.loads("\n".join(lines(capsys, CALM, CALM, "--output", "json")))
    assert told["engines"][0]["ttft"]["window_seconds"] == 15


def test_a_recording_among_several_sources_is_refused(incident: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Its samples have times of their own."""
    code, line = refused(capsys, "diagnose", CALM, incident)
    assert code == 3
    assert "name one recording, or expositions in time order" in line


def test_a_source_without_a_scrape_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An empty recording is no healthy engine."""
    (tmp_path / "metrics.jsonl").write_text("\n")
    code, line = refused(capsys, "diagnose", str(tmp_path / "metrics.jsonl"))
    assert code == 3
    assert "holds no scrape" in line


def test_a_recording_is_named_by_its_folder_and_a_file_by_itself(incident: str, capsys: pytest.CaptureFixture[str]) -> None:
    """With the path as it was given."""
    told = json.loads("\n".join(lines(capsys, f"{incident}/metrics.jsonl.gz", "--output", "json")))
    assert (told["targets"][0]["name"], told["targets"][0]["url"]) == ("vllm", f"{incident}/metrics.jsonl.gz")
    assert json.loads("\n".join(lines(capsys, CALM, "--output", "json")))["targets"][0]["name"] == "0.9.prom"


def test_files_take_the_first_targets_settings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its name, its engine, and thresholds of the configuration."""
    config = tmp_path / "kvwatch.yaml"
    config.write_text("targets:\n  - {name: chat-0, url: 'http://t:8000'}\nthresholds:\n  l2-unobservable: {l2_uncertainty_ratio: 0.99}\n")
    offload = str(DATA / "vllm" / "0.32-offload.prom")
    told = json.loads("\n".join(lines(capsys, offload, "--config", str(config), "--output", "json")))
    assert {e["target"] for e in told["engines"]} == {"chat-0"}


# ---- URLs


@pytest.fixture
def live() -> Iterator[tuple[Pages, str]]:
    """An engine on loopback and its URL."""
    pages = Pages({"/metrics": Path(CALM).read_bytes()})
    with server(pages) as port:
        yield pages, f"http://127.0.0.1:{port}"


def test_for_0_is_one_scrape(live: tuple[Pages, str], capsys: pytest.CaptureFixture[str]) -> None:
    """And one verdict, in a timeline, too."""
    pages, url = live
    told = [json.loads(line) for line in lines(capsys, url, "--for", "0", "--timeline", "--output", "json")]
    assert pages.count("/metrics") == 1
    assert len(told) == 1
    assert told[0]["targets"][0]["ok"] is True
    assert told[0]["at"] is not None


def test_a_live_engine_is_watched_for_a_while(live: tuple[Pages, str], capsys: pytest.CaptureFixture[str]) -> None:
    """A verdict after each scrape."""
    pages, url = live
    told = [json.loads(line) for line in lines(capsys, url, "--for", "1.2s", "--interval", "0.4s", "--timeline", "--output", "json")]
    assert 2 <= len(told) <= pages.count("/metrics")
    assert told[-1]["engines"][0]["ttft"]["window_seconds"] > 0


def test_several_urls_are_one_verdict(live: tuple[Pages, str], capsys: pytest.CaptureFixture[str]) -> None:
    """By the names of their hosts; one that does not answer is told beside the others and decides nothing."""
    _, url = live
    with kept_port() as port:
        assert main(["diagnose", url, f"127.0.0.1:{port}", "--for", "0", "--output", "json"]) == 0
    said = capsys.readouterr()
    told = json.loads(said.out)
    assert [t["ok"] for t in told["targets"]] == [True, False]
    assert {e["target"] for e in told["engines"]} == {url.removeprefix("http://")}
    assert said.err == ""


# ---- the rest


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    """On stdout."""
    with pytest.raises(SystemExit) as stop:
        main(["--version"])
    assert stop.value.code == 0
    assert capsys.readouterr().out == f"kvwatch {__version__}\n"


def test_all_rules_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    """For people and for programs."""
    assert main(["rules"]) == 0
    assert {line.split()[0] for line in capsys.readouterr().out.splitlines() if not line.startswith(" ")} == set(RULES)
    assert main(["rules", "--output", "json"]) == 0
    assert {row["rule"] for row in json.loads(capsys.readouterr().out)} == set(RULES)


def test_a_rule_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    """By its page."""
    assert main(["explain", "l1-saturated"]) == 0
    assert capsys.readouterr().out.startswith("l1-saturated\n\ncritical, fires after 30 s\n")


def test_an_address_that_is_taken_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """With the address; exit 1."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        place = f"127.0.0.1:{taken.getsockname()[1]}"
        code, line = refused(capsys, "serve", "--listen", place, "--target", "http://127.0.0.1:1")
    assert code == 1
    assert place in line
