"""A daemon's life: a configuration that changes under it, one that is wrong, and the order to end."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.daemon_child import Child, eventually, serving
from tests.loopback import always, response, server, silent

BODY = (Path(__file__).parent / "data/vllm/0.32-dp2.prom").read_bytes()
LONGEST_END_SECONDS = 5.0


@pytest.fixture(scope="module")
def engine() -> Iterator[int]:
    """The port of an engine that answers every scrape with the same body."""
    with server(always(response(BODY, "Content-Type: text/plain; version=0.0.4"))) as port:
        yield port


def config(folder: Path, *lines: str) -> Path:
    """A configuration file with these lines."""
    file = folder / "kvwatch.yaml"
    file.write_text("\n".join((*lines, "")), encoding="utf-8")
    return file


def targets(port: int, *names: str) -> tuple[str, ...]:
    """The lines that name targets, all of them the same engine; told apart by their path."""
    return ("interval: 1s", "nvml: off", "targets:", *(f"  - {{name: {name}, url: 'http://127.0.0.1:{port}/{name}'}}" for name in names))


def up(target: str, *, is_up: bool = True) -> str:
    """The sample that says whether a target answers."""
    return f'kvwatch_target_up{{target="{target}"}} {float(is_up)}'


def taken(number: int) -> str:
    """The sample that says whether the last configuration was taken."""
    return f"kvwatch_config_last_reload_successful {number:.1f}"


def frames(child: Child, target: str) -> int:
    """How many samples of a target's first owner the daemon remembers."""
    engines = child.pages.get("/history").json()["engines"]
    return max((len(e["age_seconds"]) for e in engines if e["target"] == target), default=0)


def test_the_log_names_an_address_that_a_browser_takes(tmp_path: Path) -> None:
    """Of IPv6 too: the host in brackets, and the pages answer there."""
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("no IPv6 on loopback")
    with serving(tmp_path, "--listen", "[::1]:0", "--config", str(config(tmp_path, "nvml: off"))) as child:
        assert child.pages.base_url.host == "::1"
        assert child.pages.get("/healthz").is_success


def test_a_changed_file_is_taken_on_sighup(tmp_path: Path, engine: int) -> None:
    """A new target is scraped, and one that was taken out disappears."""
    file = config(tmp_path, *targets(engine, "old"))
    with serving(tmp_path, "--config", str(file)) as child:
        child.shows(up("old"))
        config(tmp_path, *targets(engine, "new"))
        child.reload()
        child.shows(up("new"))
        assert 'target="old"' not in child.page("/metrics")
        child.logs("configuration reloaded: 1 target")


def test_what_did_not_change_keeps_its_history(tmp_path: Path, engine: int) -> None:
    """A reload that adds a target forgets nothing about the others: rates, baselines and holds go on."""
    file = config(tmp_path, *targets(engine, "kept"))
    with serving(tmp_path, "--config", str(file)) as child:
        child.shows(up("kept"))
        eventually(lambda: frames(child, "kept") > 1, lambda: "a second sample")
        config(tmp_path, *targets(engine, "kept", "new"))
        child.reload()
        child.shows(up("new"))
        assert frames(child, "kept") > 1


def test_what_did_not_change_keeps_its_connection(tmp_path: Path) -> None:
    """And all that hangs on it (what several scrapes tell together, KV events): a reload with other limits and targets begins none anew."""
    answers, connections = always(response(BODY, "Content-Type: text/plain; version=0.0.4")), []

    def counted(connection: socket.socket, stop: threading.Event) -> None:
        connections.append(connection.getpeername())
        answers(connection, stop)

    with server(counted) as port:
        file = config(tmp_path, *targets(port, "kept"))
        with serving(tmp_path, "--config", str(file)) as child:
            child.shows(up("kept"))
            config(tmp_path, "thresholds: {l1-saturated: {hold: 45s}}", "timeout: 900ms", *targets(port, "kept", "new"))
            before = frames(child, "kept")
            child.reload()
            child.shows(up("new"))
            eventually(lambda: frames(child, "kept") > before + 1, lambda: "it is scraped on")
        assert len(connections) == 2, "one for each target"


WRONG: dict[str, tuple[bytes | None, str]] = {
    "an unknown key": (b"interval: 1s\ntagets: []\n", "{file}:2: unknown key 'tagets'; did you mean 'targets'?"),
    "a bad value": (b"# mine\n\ninterval: soon\n", "{file}:3: interval: "),
    "no YAML": (b"targets: [\n", "{file}:2: "),
    "no text": (b"interval: \xff\n", "{file}:1: "),
    "gone": (None, "{file}: "),
}
"""What a configuration file may hold that cannot be used, None where it is not there at all; and how the line about it begins."""


def spoil(file: Path, content: bytes | None) -> None:
    """Leave this instead of a configuration."""
    if content is None:
        file.unlink()
    else:
        file.write_bytes(content)


@pytest.mark.parametrize(("content", "complaint"), WRONG.values(), ids=WRONG)
def test_check_config_says_what_is_wrong_and_where(tmp_path: Path, content: bytes | None, complaint: str) -> None:
    """Before it is rolled out: exit code 64 and one line that begins with the file and, where there is one, the line."""
    file = config(tmp_path)
    spoil(file, content)
    answer = check_config(file)
    assert (answer.returncode, answer.stdout) == (64, "")
    assert answer.stderr.startswith(complaint.format(file=file))
    assert answer.stderr.count("\n") == 1


def test_check_config_counts_the_targets_of_a_good_file(tmp_path: Path) -> None:
    """A good file is exit code 0 and one line on stdout."""
    file = config(tmp_path, *targets(8000, "a", "b"))
    answer = check_config(file)
    assert (answer.returncode, answer.stdout, answer.stderr) == (0, f"{file}: fine, 2 targets\n", "")


def test_check_config_names_the_files_that_are_not_there(tmp_path: Path) -> None:
    """A file for another machine is fine, and whoever checks on that machine sees what is missing; one that is there has to be of use."""
    (tmp_path / "token").write_text("secret")
    target = "  - {name: a, url: 'https://a', bearer_token_file: token, model_config: model.json, tls: {ca_file: ca.pem}}"
    file = config(tmp_path, "targets:", target)
    answer = check_config(file)
    missing = f"{tmp_path / 'model.json'}, {tmp_path / 'ca.pem'}"
    assert (answer.returncode, answer.stdout, answer.stderr) == (0, f"{file}: fine, 1 target; cannot be read here: {missing}\n", "")
    (tmp_path / "model.json").write_text("[]")
    answer = check_config(file)
    assert (answer.returncode, answer.stdout) == (64, "")
    assert answer.stderr == f"{tmp_path / 'model.json'}: not an object: model_config names the model's config.json\n"


@pytest.mark.parametrize("command", ["rules", "render"])
def test_only_who_watches_needs_the_models_file(command: str, tmp_path: Path) -> None:
    """Limits are shown and rendered where the model is not."""
    file = config(tmp_path, "targets:", "  - {name: a, url: 'http://a', model_config: elsewhere.json}")
    words = {"rules": ["rules"], "render": ["render", "alerts", "--output", str(tmp_path)]}[command]
    done = subprocess.run([sys.executable, "-m", "kvwatch", *words, "--config", str(file)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def check_config(file: Path) -> subprocess.CompletedProcess[str]:
    """What ``kvwatch check-config`` says about a file."""
    command = [sys.executable, "-m", "kvwatch", "check-config", str(file)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def test_a_bad_file_is_refused_and_the_old_one_stays(tmp_path: Path, engine: int) -> None:
    """The log says what and where, the metrics that; the old targets are still scraped, and a good file is taken again."""
    file = config(tmp_path, *targets(engine, "old"))
    with serving(tmp_path, "--config", str(file)) as child:
        child.shows(up("old"))
        for content, complaint in WRONG.values():
            spoil(file, content)
            child.reload()
            child.logs(f"configuration not reloaded, the old one stays: {complaint.format(file=file)}")
            child.shows(taken(0))
            assert up("old") in child.page("/metrics")
            config(tmp_path, *targets(engine, "old"))
            child.reload()
            child.shows(taken(1))
        config(tmp_path, *targets(engine, "old", "new"))
        child.reload()
        child.shows(up("new"))
        assert up("old") in child.page("/metrics")


def test_a_bad_file_is_no_start(tmp_path: Path) -> None:
    """A daemon that was never right does not run on guesses: exit code 64, which a supervisor need not try again, and the line."""
    file = config(tmp_path, "interval: 1s", "listen: nowhere")
    command = [sys.executable, "-m", "kvwatch", "serve", "--config", str(file)]
    answer = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert answer.returncode == 64
    assert answer.stderr.startswith(f"{file}:2: listen: ")


def test_the_reload_page_is_off_unless_asked_for(tmp_path: Path) -> None:
    """Whoever can scrape must not be able to make the daemon do things: 404, until the configuration says otherwise."""
    file = config(tmp_path, "nvml: off")
    with serving(tmp_path, "--config", str(file)) as child:
        assert child.pages.post("/-/reload").status_code == 404
        assert "configuration" not in child.log


def test_the_reload_page_does_as_sighup_and_says_why_not(tmp_path: Path, engine: int) -> None:
    """200 when the file was taken; 400 with the same sentence as in the log when not, and the old targets stay."""
    on = "reload_endpoint: true"
    file = config(tmp_path, on, *targets(engine, "old"))
    with serving(tmp_path, "--config", str(file)) as child:
        child.shows(up("old"))
        config(tmp_path, on, "intervall: 1s")
        refused = child.pages.post("/-/reload")
        assert refused.status_code == 400
        assert refused.text == f"{file}:2: unknown key 'intervall'; did you mean 'interval'?\n"
        assert refused.text.strip() in child.log
        assert up("old") in child.page("/metrics")
        assert child.pages.get("/-/reload").status_code == 405

        config(tmp_path, on, *targets(engine, "new"))
        assert child.pages.post("/-/reload").status_code == 200
        child.shows(up("new"))
        assert 'target="old"' not in child.page("/metrics")


def test_a_setting_that_only_a_restart_brings_is_named(tmp_path: Path, engine: int) -> None:
    """Sockets stay open and GPU watching stays as it was: the log says so instead of letting the file and the daemon differ in silence."""
    file = config(tmp_path, *targets(engine, "a"))
    with serving(tmp_path, "--config", str(file)) as child:
        config(tmp_path, "reload_endpoint: true", *targets(engine, "a", "b")[:1], "nvml: auto", *targets(engine, "a", "b")[2:])
        child.reload()
        child.logs("configuration reloaded: 2 targets; only a restart brings the new nvml, reload_endpoint")
        child.shows(up("b"))
        assert child.pages.post("/-/reload").status_code == 404


@pytest.mark.parametrize("order", [signal.SIGHUP, signal.SIGTERM])
def test_an_order_that_comes_during_the_start_is_obeyed(tmp_path: Path, order: signal.Signals) -> None:
    """Before there is anything to reload SIGHUP does no harm, and SIGTERM is exit code 0 at once.

    The start is held by a configuration that is a pipe: it can be opened for writing once the daemon waits to read it.
    """
    file = tmp_path / "kvwatch.yaml"
    os.mkfifo(file)
    command = [sys.executable, "-m", "kvwatch", "serve", "--config", str(file)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process, ExitStack() as stack:
        stack.callback(process.kill)
        pipe: list[int] = []

        def is_read() -> bool:
            with contextlib.suppress(OSError):
                pipe.append(os.open(file, os.O_WRONLY | os.O_NONBLOCK))
            return bool(pipe)

        eventually(is_read, lambda: "a daemon that reads its configuration")
        process.send_signal(order)
        if order == signal.SIGHUP:
            os.write(pipe[0], b"listen: 127.0.0.1:0\nnvml: off\n")
        os.close(pipe[0])
        if order == signal.SIGHUP:
            assert process.stderr is not None
            assert "listening on" in process.stderr.readline()
            process.terminate()  # at a moment when the pages may not be served yet
        assert process.wait(timeout=LONGEST_END_SECONDS) == os.EX_OK


def test_the_daemon_ends_in_time_whatever_hangs(tmp_path: Path, engine: int) -> None:
    """SIGTERM while one target says nothing, a client keeps its connection and another has sent half a request: exit code 0 within 5 s."""
    with server(silent) as hanging:
        file = config(tmp_path, *targets(engine, "a"), f"  - {{name: mute, url: 'http://127.0.0.1:{hanging}'}}", "timeout: 10s")
        with serving(tmp_path, "--config", str(file)) as child:
            child.shows(up("a"))
            assert child.pages.get("/readyz").status_code == 503
            with socket.create_connection((child.pages.base_url.host, child.pages.base_url.port or 0)) as half:
                half.sendall(b"GET /metr")
                child.process.send_signal(signal.SIGTERM)
                assert child.process.wait(timeout=LONGEST_END_SECONDS) == os.EX_OK
        assert "Traceback" not in child.log
