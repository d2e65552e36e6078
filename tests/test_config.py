"""The configuration: what a file may say, and what is said about a file that is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvwatch.config import Config, ConfigError, Overrides, describe, from_environment, load, load_file, overlaid, target_from_url
from kvwatch.target import EventSource, L2Setting, Side, Target, Tls

RULES = {"l1-saturated": frozenset({"l1_used_ratio"}), "queue-stalled": frozenset({"token_rate", "requests_waiting"})}

FULL = """
listen: 127.0.0.1:9000
interval: 5s
timeout: 2s
startup_grace: 1h
window: 90
targets:
  - name: chat-0
    url: http://127.0.0.1:8000
    engine: vllm
    labels: {pod: chat-0, zone: no, shard: 010}
    bearer_token_file: token
    tls: {ca_file: /etc/ca.pem, insecure_skip_verify: false, server_name: engine.example}
    l2: {capacity: 50GiB, per: instance, workers: 2}
    model_config: models/config.json
    gpus: [GPU-1111, GPU-2222]
    side: {loads: off, server_info: auto, events: {subscribe: ["tcp://127.0.0.1:5557"], bind: yes}}
  - url: engine:30000
    l2: {from: chat-0}
    side: {events: false}
slo: {ttft_p99: 500ms}
thresholds:
  l1-saturated: {l1_used_ratio: 0.97, hold: 1m}
  queue-stalled: {hold: 0}
limits: {body: 1MiB}
nvml: off
gpu_processes: true
reload_endpoint: true
"""


def defaults() -> Config:
    """The configuration of an empty file."""
    return load("", "kvwatch.yaml", RULES)


def wrong(text: str, *, need_urls: bool = False) -> tuple[str, ...]:
    """The problems of a file that must be refused."""
    with pytest.raises(ConfigError) as caught:
        load(text, "kvwatch.yaml", RULES, need_urls=need_urls)
    return caught.value.lines


def test_every_key_arrives() -> None:
    """The whole schema becomes plain values; files are relative to the configuration; words of YAML stay words."""
    assert load(FULL, "/etc/kvwatch/kvwatch.yaml", RULES, need_urls=True) == Config(
        listen_host="127.0.0.1",
        listen_port=9000,
        interval=5.0,
        timeout=2.0,
        startup_grace=3600.0,
        window=90.0,
        targets=(
            Target(
                name="chat-0",
                url="http://127.0.0.1:8000/metrics",
                engine="vllm",
                labels={"pod": "chat-0", "zone": "no", "shard": "010"},
                bearer_token_file="/etc/kvwatch/token",  # noqa: S106  a path
                tls=Tls("/etc/ca.pem", "engine.example", insecure_skip_verify=False),
                l2=L2Setting(50 * 2**30, "instance", 2),
                model_config="/etc/kvwatch/models/config.json",
                gpus=("GPU-1111", "GPU-2222"),
                side=Side(loads=False, event_source=EventSource(("tcp://127.0.0.1:5557",), bind=True)),
            ),
            Target("engine:30000", "http://engine:30000/metrics", l2=L2Setting(source="chat-0"), side=Side(events=False)),
        ),
        slo_ttft_p99=0.5,
        thresholds={"l1-saturated": {"l1_used_ratio": 0.97, "hold": 60.0}, "queue-stalled": {"hold": 0.0}},
        limit_bytes=2**20,
        nvml=False,
        gpu_processes=True,
        reload_endpoint=True,
    )


@pytest.mark.parametrize("text", ["", "# nothing\n", "interval:\ntargets:\nslo:\n", "interval: 15s\nlimits: {}\n"])
def test_every_key_is_optional(text: str) -> None:
    """An empty file, empty keys and empty sections all mean the defaults."""
    assert load(text, "kvwatch.yaml", RULES) == Config(
        listen_host="::",
        listen_port=9477,
        interval=15.0,
        timeout=10.0,
        startup_grace=900.0,
        window=60.0,
        targets=(),
        slo_ttft_p99=None,
        thresholds={},
        limit_bytes=64 * 2**20,
        nvml=True,
        gpu_processes=False,
        reload_endpoint=False,
    )


@pytest.mark.parametrize(("interval", "timeout"), [("5s", 5.0), ("1m", 10.0)])
def test_the_timeout_follows_the_interval(interval: str, timeout: float) -> None:
    """Unless said, a scrape may take the interval, and at most 10 s."""
    assert load(f"interval: {interval}", "kvwatch.yaml", RULES).timeout == timeout


def test_targets_without_a_name_are_told_apart() -> None:
    """host:port, then the gateway's path, then a number; never a name that is given to another."""
    text = "targets: [{url: gw:1/a/metrics}, {url: gw:1/b/metrics}, {url: gw:1/b/metrics}, {name: 'h:2', url: x:1}, {url: h:2}, {}]"
    names = [target.name for target in load(text, "kvwatch.yaml", RULES).targets]
    assert names == ["gw:1", "gw:1/b", "gw:1/b-2", "h:2", "h:2-2", "target-6"]


def test_credentials_leave_the_url() -> None:
    """The url can be printed; the password is beside it and in no representation."""
    config = load("targets: [{url: 'http://user:secret@h:1'}]", "kvwatch.yaml", RULES)
    assert (config.targets[0].url, config.targets[0].userinfo) == ("http://h:1/metrics", "user:secret")
    assert "secret" not in repr(config)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("# one\n\nintervall: 15s\n", "kvwatch.yaml:3: unknown key 'intervall'; did you mean 'interval'?"),
        ("targets:\n  - nam: a\n", "kvwatch.yaml:2: unknown key 'nam' in targets[0]; did you mean 'name'?"),
        ("targets:\n- tls:\n    ca: x\n", "kvwatch.yaml:3: unknown key 'ca' in targets[0].tls; did you mean 'ca_file'?"),
        ("ttft_p99: 5s\n", "kvwatch.yaml:1: unknown key 'ttft_p99'; did you mean 'slo.ttft_p99'?"),
        ("bearer_token_file: x\n", "kvwatch.yaml:1: unknown key 'bearer_token_file'; did you mean 'targets[].bearer_token_file'?"),
        ("slo: {percentile: 5s}\n", "kvwatch.yaml:1: unknown key 'percentile' in slo; known are ttft_p99"),
        ("interval: 0.5\n", "kvwatch.yaml:1: interval: must be at least 1 s"),
        ("interval: soon\n", "kvwatch.yaml:1: interval: 'soon' is no duration: write 15, 15s, 2m, 1h or 500ms"),
        ("interval: [15s]\n", "kvwatch.yaml:1: interval: must be a single value"),
        ("limits: {body: 0}\n", "kvwatch.yaml:1: limits.body: must be more than nothing"),
        ("nvml: perhaps\n", "kvwatch.yaml:1: nvml: must be auto or off"),
        ("gpu_processes: maybe\n", "kvwatch.yaml:1: gpu_processes: must be true or false"),
        ("slo: 5s\n", "kvwatch.yaml:1: slo: must be a mapping of keys to values"),
        ("targets: a\n", "kvwatch.yaml:1: targets: must be a list"),
        ("targets: [{engine: trt}]", "kvwatch.yaml:1: targets[0].engine: must be 'auto', 'vllm', 'sglang' or 'lmcache'"),
        ("targets: [{name: ''}]", "kvwatch.yaml:1: targets[0].name: must not be empty"),
        ("targets: [{l2: {workers: some}}]", "kvwatch.yaml:1: targets[0].l2.workers: must be a whole number"),
        ("targets: [{l2: {workers: 0}}]", "kvwatch.yaml:1: targets[0].l2.workers: must be at least 1"),
        ("targets: [{name: a}, {l2: {from: b}}]", "kvwatch.yaml:1: targets[1].l2.from: no other target is named 'b'; known are a"),
        ("targets: [{name: a, l2: {from: a}}]", "kvwatch.yaml:1: targets[0].l2.from: no other target is named 'a'"),
        ("targets:\n- name: a\n- url: b\n  name: a\n", "kvwatch.yaml:4: targets[1].name: line 2 has a target of that name already"),
        (
            "targets: [{labels: {gpu: 1}}]",
            "kvwatch.yaml:1: targets[0].labels.gpu: the label 'gpu' is set by kvwatch or Prometheus: choose another name",
        ),
        (
            "targets: [{labels: {a-b: 1}}]",
            "kvwatch.yaml:1: targets[0].labels.a-b: 'a-b' is no label name: letters, digits and _, not a digit first",
        ),
        ("targets: [{side: {events: {}}}]", "kvwatch.yaml:1: targets[0].side.events.subscribe: is needed"),
        ("thresholds: {l1-saturate: {hold: 1}}", "kvwatch.yaml:1: unknown rule 'l1-saturate'; did you mean 'l1-saturated'?"),
        (
            "thresholds:\n  l1-saturated:\n    l1_used: 1\n",
            "kvwatch.yaml:3: l1-saturated has no limit 'l1_used'; did you mean 'l1_used_ratio'?",
        ),
        (
            "thresholds: {l1-saturated: {l1_used_ratio: nan}}",
            "kvwatch.yaml:1: thresholds.l1-saturated.l1_used_ratio: must be a number, 0 or more",
        ),
        (
            "thresholds: {l1-saturated: {l1_used_ratio: 97}}",
            "kvwatch.yaml:1: thresholds.l1-saturated.l1_used_ratio: must be a share from 0 to 1: 97 % is 0.97",
        ),
        ("interval: 5\ninterval: 6\n", "kvwatch.yaml:2: key 'interval' is there twice, first in line 1"),
        ("targets: [\n", "kvwatch.yaml:2: not valid YAML: expected the node content, but found '<stream end>'"),
        ("listen: [::]:9477\n", "kvwatch.yaml:1: not valid YAML: expected the node content, but found ':'"),
        ("a: b: c", "kvwatch.yaml:1: not valid YAML: mapping values are not allowed here"),
        ("- 5", "kvwatch.yaml:1: expected keys and values, as in 'interval: 15s'"),
        ("interval: !!python/name:os.system 5", "kvwatch.yaml:1: the tag '!!python/name:os.system' means nothing here"),
    ],
)
def test_what_is_wrong_has_its_line_and_a_way_out(text: str, line: str) -> None:
    """One line per problem: file, line, what is wrong, what is allowed."""
    assert wrong(text) == (line,)


def test_all_problems_come_at_once_in_the_order_of_the_file() -> None:
    """Nobody has to correct a file one run per mistake; each kind of check speaks, whatever the others found."""
    lines = wrong(
        "intervall: 1\ntimeout: x\nthresholds:\n  nothing: {}\ntargets:\n- {name: a}\n- {name: a, url: 'ftp://h'}\ntimeout: 5\n",
        need_urls=True,
    )
    assert [line.split(":")[1] for line in lines] == ["1", "2", "4", "6", "7", "7", "8"]


def test_a_target_without_a_url_is_settings_for_files() -> None:
    """It is accepted unless something must be scraped."""
    text = "targets:\n- l2: {capacity: 5GiB}\n"
    assert load(text, "kvwatch.yaml", RULES).targets[0].url == ""
    assert wrong(text, need_urls=True) == ("kvwatch.yaml:2: targets[0].url: is needed",)
    assert wrong("targets: [a:1]", need_urls=True) == ("kvwatch.yaml:1: targets[0]: must be a mapping of keys to values",)


@pytest.mark.parametrize(
    "text",
    [
        "targets: [{url: 'http://user:s3cret@host:port/'}]",
        "targets: [{url: 'http://user:s3/cret@host/'}]",
        "targets: [{url: 'http://user:s3cret@h', bearer_token_file: t}]",
        "targets: [{bearer_token: s3cret}]",
        "targets: [{bearer_token_file: [s3cret]}]",
        "targets: [{engine: s3cret}]",
    ],
)
def test_no_problem_shows_a_secret(text: str) -> None:
    """Values are not repeated where they could be credentials."""
    assert "s3" not in "".join(wrong(text))


def test_anchors_and_merges_work() -> None:
    """Settings can be shared between targets; what a target says itself wins."""
    text = "targets:\n- &first {url: a, engine: vllm, l2: {workers: 2}}\n- {<<: *first, url: b}\n"
    first, second = load(text, "kvwatch.yaml", RULES).targets
    assert (second.url, second.engine, second.l2) == ("http://b/metrics", first.engine, first.l2)


@pytest.mark.parametrize(
    "text",
    ["a: &a [*a]", "a: " + "[" * 1500, "a: &a0 [x]\n" + "".join(f"b{i}: &a{i + 1} [{','.join([f'*a{i}'] * 9)}]\n" for i in range(12))],
)
def test_a_bomb_is_refused(text: str) -> None:
    """Aliases of themselves, endless nesting and a billion laughs end with a sentence."""
    (line,) = wrong(text)
    assert "nested too deeply" in line or "too large" in line


@pytest.mark.parametrize(
    ("content", "words"),
    [(None, "cannot be read (No such file or directory)"), (b"\xff\xfe", ":1: not UTF-8"), (b"#" * (2 << 20), "larger than 1 MiB")],
)
def test_a_file_that_cannot_be_read(tmp_path: Path, content: bytes | None, words: str) -> None:
    """The file is named, and what is wrong with it."""
    file = tmp_path / "kvwatch.yaml"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        load_file(str(file), RULES)
    (line,) = caught.value.lines
    assert line.startswith(str(file))
    assert words in line


def test_a_file_with_a_byte_order_mark_is_read(tmp_path: Path) -> None:
    """Editors on Windows write one."""
    file = tmp_path / "kvwatch.yaml"
    file.write_bytes(b"\xef\xbb\xbfinterval: 5s\r\n")
    assert load_file(str(file), RULES).interval == 5


def test_the_command_line_beats_the_environment_and_that_the_file() -> None:
    """Each setting comes from the first that says something."""
    environment = from_environment({"KVWATCH_TARGETS": "a:1, b:2,", "KVWATCH_LISTEN": ":9000", "KVWATCH_CONFIG": "x.yaml", "OTHER": "1"})
    assert environment == Overrides("x.yaml", ("::", 9000), (target_from_url("a:1"), target_from_url("b:2")))
    both = Overrides(listen=("127.0.0.1", 1)).over(environment)
    assert both == Overrides("x.yaml", ("127.0.0.1", 1), environment.targets)
    config = overlaid(load("listen: :1\ntargets: [{url: c}]", "kvwatch.yaml", RULES), both)
    assert (config.listen_host, config.listen_port) == ("127.0.0.1", 1)
    assert [target.url for target in config.targets] == ["http://a:1/metrics", "http://b:2/metrics"]
    assert overlaid(config, from_environment({"KVWATCH_LISTEN": ""})) == config


def test_a_url_takes_the_settings_of_its_target_and_no_others() -> None:
    """The same URL means the configured target; another URL has no settings, and a name of its own."""
    config = load("targets: [{name: 'a:1', url: 'http://u:p@b:2/metrics', engine: sglang}, {url: c}]", "kvwatch.yaml", RULES)
    targets = overlaid(config, Overrides(targets=tuple(map(target_from_url, ["a:1", "http://b:2", "b:2"])))).targets
    assert targets == (Target("a:1-2", "http://a:1/metrics"), config.targets[0])
    assert targets[1].userinfo == "u:p"


def test_what_is_wrong_in_the_environment_is_said_at_once() -> None:
    """Each variable is named; no password is shown."""
    with pytest.raises(ConfigError) as caught:
        from_environment({"KVWATCH_TARGETS": "a,http://user:secret@h:port", "KVWATCH_LISTEN": "here"})
    lines = caught.value.lines
    assert [line.split(":")[0] for line in lines] == ["KVWATCH_TARGETS", "KVWATCH_LISTEN"]
    assert "secret" not in str(caught.value)


def test_every_described_key_is_a_key() -> None:
    """The table of settings is the schema: each name is accepted with its default, and has a meaning."""
    keys = describe()
    assert {"interval", "targets[].tls.ca_file", "targets[].l2.from", "targets[].side.events.subscribe", "limits.body"} <= {
        k.name for k in keys
    }
    assert all(key.meaning for key in keys)
    for key in (key for key in keys if key.default):
        text = "subscribe: ['tcp://h:1'], " if "events." in key.name else ""
        text += f"{key.name.rpartition('.')[2]}: '{key.default}'"
        for part in reversed(key.name.split(".")[:-1]):
            text = f"{part.removesuffix('[]')}: [{{{text}}}]" if part.endswith("[]") else f"{part}: {{{text}}}"
        assert load(f"{{{text}}}", "kvwatch.yaml", RULES).interval == defaults().interval
