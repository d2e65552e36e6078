"""``kvwatch capacity``: the account on paper, and one line for whatever was said wrongly."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from kvwatch.capacity import cli

LLAMA = {
    "model_type": "llama",
    "num_hidden_layers": 80,
    "hidden_size": 8192,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "torch_dtype": "bfloat16",
}
LATENT = "--layers 61 --mla-latent 576 --dtype bf16"
HEADS = "--layers 80 --kv-heads 8 --head-dim 128 --dtype bf16"


class Parser(argparse.ArgumentParser):
    """Raises what it would print."""

    def error(self, message: str) -> None:  # type: ignore[override]
        """Refuse."""
        raise ValueError(message)


def run(words: str) -> int:
    """The exit code of a command line."""
    parser = Parser()
    cli.add_arguments(parser)
    return cli.run(parser.parse_args(words.split()))


def account(words: str, capsys: pytest.CaptureFixture[str]) -> dict[str, object]:
    """The JSON of a command line that works."""
    assert run(f"{words} --output json") == 0
    answer = json.loads(capsys.readouterr().out)
    assert isinstance(answer, dict)
    return answer


def refused(words: str, capsys: pytest.CaptureFixture[str]) -> str:
    """The one line on stderr of a command line that does not work."""
    assert run(words) == 64
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    return printed.err


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model's file."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA))
    return path


def test_file_and_numbers_give_the_same_account(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Llama 3 70B on eight GPUs with 60 GiB each: 48 sequences of 32K, 12 of 128K."""
    pool = "--tp 8 --kv-memory 60GiB --sequence 32K --sequence 131072"
    by_file, by_numbers = account(f"--model {model} {pool}", capsys), account(f"{HEADS} {pool}", capsys)
    assert by_file == {**by_numbers, "dtype": "bfloat16"}
    assert (by_file["bytes_per_token"], by_file["gpu_bytes_per_token"], by_file["pool_tokens"]) == (327_680, 40_960, 1_572_864)
    assert by_file["sequences"] == [
        {"tokens": 32_768, "bytes": 10_737_418_240, "ceiling": 48, "gpu_kv_bytes_needed": None},
        {"tokens": 131_072, "bytes": 42_949_672_960, "ceiling": 12, "gpu_kv_bytes_needed": None},
    ]


def test_text_names_tokens_pool_ceilings_and_what_raises_them(capsys: pytest.CaptureFixture[str]) -> None:
    """A person sees the cost of a token, the pool, the ceilings in one table, and each lever with its effect."""
    assert run(f"{HEADS} --tp 8 --kv-memory 60GiB --sequence 32K") == 0
    text = capsys.readouterr().out
    assert text.startswith("320 KiB (327,680 B) of KV per token in bf16, 80 layers\n40 KiB of it on each of 8 GPUs")
    assert "a pool of 1,572,864 tokens" in text
    rows = {line[: line.rindex("  ")].strip(): line.split()[-1] for line in text.splitlines() if line.endswith(("48", "96", "52"))}
    assert rows == {
        "sequences at once, at most": "48",
        "with 8-bit KV (--kv-cache-dtype)": "96",
        "with twice the pipeline stages (16 GPUs)": "96",
        "with a tenth more KV memory (66 GiB per GPU)": "52",
    }
    assert "more tensor parallelism buys no room" in text


def test_memory_of_a_card_less_the_weights(capsys: pytest.CaptureFixture[str]) -> None:
    """The pool is the engine's share of a card less the card's share of the weights."""
    answer = account(f"{HEADS} --tp 4 --hbm 80GiB --memory-fraction 0.5 --weights 40GiB", capsys)
    assert answer["gpu_kv_bytes"] == 30 * 2**30


def test_pool_in_tokens_and_needed_memory(capsys: pytest.CaptureFixture[str]) -> None:
    """A pool may be given as the engine logs it, and the memory for a concurrency is told without any pool."""
    assert account(f"{LATENT} --tp 8 --pool-tokens 100000", capsys)["gpu_kv_bytes"] == 100_000 * 70_272
    answer = account(f"{LATENT} --concurrency 3 --sequence 1K", capsys)
    assert answer["sequences"] == [{"tokens": 1024, "bytes": 71_958_528, "ceiling": None, "gpu_kv_bytes_needed": 3 * 71_958_528}]
    assert answer["pool_tokens"] is None
    assert answer["raise"] == []


def test_levers_that_change_nothing_or_cannot_be_are_not_offered(capsys: pytest.CaptureFixture[str]) -> None:
    """A latent is not split by more tensor parallelism, 8 bits are not halved, one layer has no second stage."""
    levers = account("--layers 1 --mla-latent 576 --dtype fp8 --kv-memory 1GiB", capsys)["raise"]
    assert isinstance(levers, list)
    assert [lever["change"].split(" (")[0] for lever in levers] == ["a tenth more KV memory"]


def test_windows_and_states_are_noted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What makes a sequence cheaper or dearer than its length is said."""
    path = tmp_path / "config.json"
    windowed = {**LLAMA, "model_type": "mistral", "sliding_window": 4096}
    path.write_text(json.dumps(windowed))
    assert "window" in str(account(f"--model {path}", capsys)["notes"])
    path.write_text(json.dumps({**LLAMA, "layer_types": ["linear_attention", "full_attention"] * 40}))
    assert "unknown size" in str(account(f"--model {path}", capsys)["notes"])
    path.write_text(json.dumps({**LLAMA, "attn_layer_period": 8, "mamba_d_conv": 4, "mamba_d_state": 16, "mamba_expand": 2}))
    assert "of state" in str(account(f"--model {path}", capsys)["notes"])


def test_tokens_of_a_pool_with_windows_are_an_estimate_of_its_memory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Engines count them by the longest sequence or by the full layers alone; where all layers are alike there is nothing to say."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**LLAMA, "model_type": "mistral", "sliding_window": 4096}))
    assert "estimate" in str(account(f"--model {path} --pool-tokens 4096", capsys)["notes"])
    assert "estimate" not in str(account(f"--model {path} --kv-memory 1GiB", capsys)["notes"])
    path.write_text(json.dumps(LLAMA))
    assert "estimate" not in str(account(f"--model {path} --pool-tokens 4096", capsys)["notes"])


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("", "--model CONFIG_JSON"),
        ("--kv-heads 8", "--model CONFIG_JSON"),
        ("--layers 4 --kv-heads 8 --head-dim 128", "--dtype"),
        ("--layers 4 --kv-heads 8 --dtype bf16", "--head-dim"),
        (f"{LATENT} --kv-heads 8", "--mla-latent"),
        ("--model config.json --layers 4", "--layers"),
        (f"{HEADS} --kv-memory 1GiB --pool-tokens 5", "--pool-tokens"),
        (f"{HEADS} --hbm 80GiB", "--memory-fraction"),
        (f"{HEADS} --weights 80GiB", "--hbm"),
        (f"{HEADS} --hbm 80GiB --memory-fraction 0.5 --weights 90GiB", "no memory for KV"),
        (f"{HEADS} --tp 3", "8 KV heads"),
        (f"{HEADS} --pp 81", "80 layers"),
        ("--layers 4 --kv-heads 8 --head-dim 128 --dtype bf17", "bf17"),
        ("--model not-there.json", "not-there.json"),
    ],
)
def test_arguments_that_do_not_fit_are_one_line(words: str, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Wrong usage is exit code 64 and one line that says what to do."""
    assert says in refused(words, capsys)


@pytest.mark.parametrize(
    "words",
    [
        "--sequence 32KB",
        "--sequence 0",
        "--layers 0",
        "--tp 1.5",
        "--kv-memory lots",
        "--kv-memory 0",
        "--memory-fraction 90",
        "--memory-fraction x",
    ],
)
def test_values_that_are_none_are_refused(words: str) -> None:
    """The parser names the option and the value."""
    with pytest.raises(ValueError, match=words.split(maxsplit=1)[0]):
        run(f"{HEADS} {words}")


def test_files_that_are_no_configuration_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Text, a list, and a configuration that leaves something open."""
    path = tmp_path / "config.json"
    for content, says in (("hello", "not JSON"), ("[1]", "no JSON object"), ("{}", "num_hidden_layers"), ("\xff", "not JSON")):
        path.write_bytes(content.encode("latin-1"))
        assert says in refused(f"--model {path}", capsys)
