"""``kvwatch capacity``: what a token costs, what a pool holds, and what would raise it, before anything is started."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path

from kvwatch.capacity import KvShape, UnknownShape
from kvwatch.capacity.account import Account, as_json, as_text
from kvwatch.content import read_json
from kvwatch.units import parse_size
from kvwatch.wording import number

WRONG_USAGE = 64
DEFAULT_SEQUENCES = (4096, 32768, 131072)
_TOKENS = re.compile(r"(\d{1,15})([kKmM]?)", re.ASCII)
_LONGEST_COUNT = 5
_MULTIPLES = {"": 1, "k": 1 << 10, "m": 1 << 20}


class WrongUsage(ValueError):
    """Arguments that do not fit together, in one line."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    model = parser.add_argument_group("the model: a file, or its numbers")
    model.add_argument("--model", type=Path, metavar="CONFIG_JSON", help="the model's config.json")
    model.add_argument("--layers", type=_count, metavar="N", help="layers that attend")
    model.add_argument("--kv-heads", type=_count, metavar="N", help="KV heads of a layer")
    model.add_argument("--head-dim", type=_count, metavar="N", help="width of a head")
    model.add_argument("--mla-latent", type=_count, metavar="N", help="numbers in the latent of a layer (kv_lora_rank + qk_rope_head_dim)")
    model.add_argument("--dtype", default="auto", metavar="NAME", help="the engine's KV data type: auto, bf16, fp16, fp8, int8, nvfp4")
    memory = parser.add_argument_group("the pool: memory of one GPU, or tokens")
    memory.add_argument("--tp", type=_count, default=1, metavar="N", help="tensor-parallel GPUs")
    memory.add_argument("--pp", type=_count, default=1, metavar="N", help="pipeline stages")
    memory.add_argument("--kv-memory", type=_size, metavar="SIZE", help="memory for KV on each GPU, as 60GiB")
    memory.add_argument("--hbm", type=_size, metavar="SIZE", help="memory of each GPU, with --memory-fraction and --weights")
    memory.add_argument("--memory-fraction", type=_share, metavar="F", help="share of it the engine may use, as 0.9")
    memory.add_argument("--weights", type=_size, metavar="SIZE", help="memory of the whole model's weights, divided over the GPUs")
    memory.add_argument("--pool-tokens", type=_tokens, metavar="N", help="tokens of the pool, as the engine logs them")
    asked = parser.add_argument_group("what to hold")
    asked.add_argument("--sequence", type=_tokens, action="append", metavar="TOKENS", help="length of a sequence, as 32K; may be repeated")
    asked.add_argument("--concurrency", type=_count, metavar="N", help="say the memory that so many sequences at once need")
    parser.add_argument("--output", choices=("text", "json"), default="text")


def run(args: argparse.Namespace) -> int:
    """Print the account and return 0, or one line on stderr and 64."""
    try:
        account = _account(args)
    except (UnknownShape, WrongUsage) as error:
        sys.stderr.write(f"kvwatch capacity: {error}\n")
        return WRONG_USAGE
    sys.stdout.write(json.dumps(as_json(account), indent=2) + "\n" if args.output == "json" else as_text(account))
    return 0


def _account(args: argparse.Namespace) -> Account:
    shape = _shape(args)
    lengths = tuple(args.sequence or DEFAULT_SEQUENCES)
    shape.stages(args.tp, args.pp)
    return Account(shape, args.tp, args.pp, _gpu_bytes(args, shape), lengths, args.concurrency, args.pool_tokens is not None)


def _shape(args: argparse.Namespace) -> KvShape:
    numbers = {"--layers": args.layers, "--kv-heads": args.kv_heads, "--head-dim": args.head_dim, "--mla-latent": args.mla_latent}
    given = [flag for flag, value in numbers.items() if value is not None]
    if args.model is not None:
        if given:
            msg = f"--model and {given[0]} cannot be used together: the file has the model's numbers"
            raise WrongUsage(msg)
        return KvShape.from_config(_config(args.model), args.dtype)
    if args.layers is None:
        raise WrongUsage("say the model: --model CONFIG_JSON, or --layers with --kv-heads and --head-dim, or --layers with --mla-latent")
    if args.dtype == "auto":
        raise WrongUsage("without --model the KV data type must be said: --dtype bf16")
    if args.mla_latent is not None:
        if args.kv_heads is not None or args.head_dim is not None:
            raise WrongUsage("--mla-latent stands for --kv-heads and --head-dim: say one or the other")
        return KvShape.latent(args.layers, args.mla_latent, args.dtype)
    if args.kv_heads is None or args.head_dim is None:
        raise WrongUsage("--layers needs --kv-heads and --head-dim, or --mla-latent")
    return KvShape.uniform(args.layers, args.kv_heads, args.head_dim, args.dtype)


def _config(path: Path) -> Mapping[str, object]:
    try:
        config = read_json(path.read_bytes())
    except OSError as error:
        msg = f"cannot read {path}: {error.strerror}"
        raise WrongUsage(msg) from None
    except ValueError:
        msg = f"{path} is not JSON: give the config.json of a Hugging Face model"
        raise WrongUsage(msg) from None
    if not isinstance(config, dict):
        msg = f"{path} is no JSON object: give the config.json of a Hugging Face model"
        raise WrongUsage(msg)
    return config


def _gpu_bytes(args: argparse.Namespace, shape: KvShape) -> int | None:
    ways = [
        flag
        for flag, value in (("--kv-memory", args.kv_memory), ("--hbm", args.hbm), ("--pool-tokens", args.pool_tokens))
        if value is not None
    ]
    if len(ways) > 1:
        msg = f"{ways[0]} and {ways[1]} both say how large the pool is: say one"
        raise WrongUsage(msg)
    if args.hbm is None and (args.memory_fraction is not None or args.weights is not None):
        raise WrongUsage("--memory-fraction and --weights are shares of --hbm: say --hbm SIZE too")
    if args.pool_tokens is not None:
        return int(args.pool_tokens) * shape.gpu_bytes_per_token(args.tp, args.pp)
    if args.hbm is None:
        return None if args.kv_memory is None else int(args.kv_memory)
    if args.memory_fraction is None or args.weights is None:
        raise WrongUsage("--hbm needs --memory-fraction and --weights, or say --kv-memory")
    left = int(args.hbm * args.memory_fraction - args.weights / (args.tp * args.pp))
    if left <= 0:
        msg = f"the weights leave no memory for KV: {number(-left, 'bytes')} short on each GPU"
        raise WrongUsage(msg)
    return left


def _count(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or len(text) > _LONGEST_COUNT or int(text) < 1:
        msg = f"'{text[:40]}' is no whole number from 1 to {10**_LONGEST_COUNT - 1:,}"
        raise argparse.ArgumentTypeError(msg)
    return int(text)


def _tokens(text: str) -> int:
    """Tokens of ``32768`` or ``32K``: multiples of 1,024, as context lengths are written."""
    match = _TOKENS.fullmatch(text.strip())
    if match is None or int(match[1]) < 1:
        msg = f"'{text[:40]}' is no number of tokens: write 32768 or 32K"
        raise argparse.ArgumentTypeError(msg)
    return int(match[1]) * _MULTIPLES[match[2].lower()]


def _size(text: str) -> int:
    try:
        size = parse_size(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if size < 1:
        msg = f"'{text[:40]}' is not more than 0"
        raise argparse.ArgumentTypeError(msg)
    return size


def _share(text: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = 0.0
    if not 0 < share <= 1:
        msg = f"'{text[:40]}' is no share: write a number above 0 and up to 1, as 0.9"
        raise argparse.ArgumentTypeError(msg)
    return share
