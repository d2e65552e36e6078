"""What a model's configuration file says a token takes, and what is said of a file that is none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvwatch.config import ConfigError
from kvwatch.sizing import token_sizes

LLAMA = {"architectures": ["LlamaForCausalLM"], "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2,
         "num_hidden_layers": 3, "torch_dtype": "bfloat16"}  # fmt: skip
ELEMENTS = 2 * 2 * 16 * 3
"""Keys and values of two heads of 16 in three layers."""


def config(folder: Path, content: object) -> str:
    """A configuration file; gives its path."""
    file = folder / "config.json"
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    return str(file)


def test_no_file_says_nothing() -> None:
    """Bytes stay unknown without one."""
    assert token_sizes(None) == {}


def test_a_token_takes_what_its_elements_take(tmp_path: Path) -> None:
    """By the data type: the model's own, 16 bits, or 8."""
    sizes = token_sizes(config(tmp_path, LLAMA))
    assert (sizes["auto"], sizes["float16"], sizes["fp8_e5m2"]) == (2 * ELEMENTS, 2 * ELEMENTS, ELEMENTS)


def test_a_type_the_file_leaves_open_is_absent(tmp_path: Path) -> None:
    """Where engines may or may not follow the file's own quantisation, only the named types are known."""
    sizes = token_sizes(config(tmp_path, {**LLAMA, "quantization_config": {"kv_cache_scheme": {"num_bits": 8}}}))
    assert "auto" not in sizes
    assert sizes["fp8"] == ELEMENTS


@pytest.mark.parametrize(
    ("content", "says"),
    [("no json", "not JSON"), ("[1]", "not an object"), ("{}", "config.json: "), ({"num_hidden_layers": 3}, "config.json: ")],
)
def test_a_file_that_is_of_no_use_is_one_line(content: object, says: str, tmp_path: Path) -> None:
    """With its name."""
    with pytest.raises(ConfigError) as error:
        token_sizes(config(tmp_path, content))
    (line,) = error.value.lines
    assert "config.json" in line
    assert says in line


def test_a_file_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    """With what to correct."""
    with pytest.raises(ConfigError) as error:
        token_sizes(str(tmp_path / "nowhere.json"))
    assert error.value.lines[0].endswith("cannot be read (No such file or directory): correct model_config")
