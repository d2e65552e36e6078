"""Configurations that are none: one readable line for each problem, and never a password in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvwatch.command_line import main
from kvwatch.config import ConfigError, load
from kvwatch.sizing import token_sizes

RULES = {"l1-saturated": frozenset({"l1_used_ratio"})}


def refusal(text: str) -> tuple[str, ...]:
    """The lines that a configuration is refused with."""
    with pytest.raises(ConfigError) as refused:
        load(text, "f.yaml", RULES)
    assert all(line.isprintable() for line in refused.value.lines)
    return refused.value.lines


@pytest.mark.parametrize(
    "text",
    [
        "interval: http://u:hunter2@engine:8000/metrics",
        "interval: http://u:a-very-long-password-which-is-cut-hunter2-somewhere@engine/",
        "limits: {body: 'http://u:hunter2@engine/'}",
        "http://u:hunter2@engine/: 1",
        "targets: [{url: 'http://u:hunter2@engine:99999/'}]",
        "targets: [{url: 'http://a/', engine: 'http://u:hunter2@engine/'}]",
    ],
)
def test_a_password_in_the_wrong_place_is_not_repeated(text: str) -> None:
    """A URL may stand where a duration or a key belongs."""
    assert not any(word in line for line in refusal(text) for word in ("hunter2", "a-very"))


@pytest.mark.parametrize("escape", ["\\0", "\\x1b[2J", "\\ud800", "\\x9b"])
@pytest.mark.parametrize(
    "place",
    ["targets: [{{name: {0}, url: 'http://a/'}}]", "interval: {0}", "{0}: 1", "targets: [{{url: 'http://a/', labels: {{{0}: x}}}}]"],
)
def test_a_control_character_is_refused_with_its_line(escape: str, place: str) -> None:
    """YAML's escapes can write what no file name, label or terminal can bear."""
    assert refusal(f"listen: '9477'\n{place.format(chr(34) + 'x' + escape + chr(34))}\n") == ("f.yaml:2: a control character",)


@pytest.mark.parametrize("size", ["9" * 400, "9" * 5000, "9" * 310 + "GiB", "2000000TiB"])
def test_no_size_is_beyond_what_machines_have(size: str) -> None:
    """A size too large for a number is a wrong size."""
    (line,) = refusal(f"limits: {{body: {size}}}")
    assert "is no size" in line


def test_a_line_stays_readable() -> None:
    """However long the names in it are."""
    (line,) = refusal(f"targets: [{{name: {'x' * 5000}, url: 'http://a/'}}, {{url: 'http://b/', l2: {{from: y}}}}]")
    assert len(line) < 600
    assert line.startswith("f.yaml:1: targets[1].l2.from")


@pytest.mark.parametrize("value", ["NaN", "Infinity", "1e308", "1" + "0" * 400, "1" + "0" * 5000, "-1", "[" * 60_000 + "]" * 60_000])
@pytest.mark.parametrize("key", ["num_hidden_layers", "num_key_value_heads", "head_dim"])
def test_a_model_file_with_impossible_numbers_is_refused(key: str, value: str, tmp_path: Path) -> None:
    """In one line, and at no cost in memory."""
    shape = {
        "num_hidden_layers": "2",
        "num_attention_heads": "8",
        "num_key_value_heads": "8",
        "head_dim": "64",
        "torch_dtype": '"bfloat16"',
    }
    file = tmp_path / "config.json"
    file.write_text("{" + ",".join(f'"{name}": {number}' for name, number in {**shape, key: value}.items()) + "}")
    with pytest.raises(ConfigError) as refused:
        token_sizes(str(file))
    assert len(refused.value.lines) == 1


@pytest.mark.parametrize("option", ["--layers", "--kv-heads", "--head-dim", "--tp", "--pool-tokens"])
def test_an_impossible_number_on_the_command_line_is_refused(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Before anything is computed with it."""
    shape = {"--layers": "2", "--kv-heads": "8", "--head-dim": "64", "--dtype": "bf16", option: "9" * 20}
    with pytest.raises(SystemExit) as refused:
        main(["capacity", *(word for pair in shape.items() for word in pair)])
    assert refused.value.code == 64
    assert option in capsys.readouterr().err
