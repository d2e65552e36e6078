"""What a model's configuration file says one token of KV takes, for each data type an engine may keep it in."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from kvwatch.capacity import KvShape, UnknownShape
from kvwatch.config import ConfigError
from kvwatch.content import read_json

DTYPES = ("auto", "bfloat16", "bf16", "float16", "half", "float32", "fp8", "fp8_e4m3", "fp8_e5m2", "int8", "nvfp4")
"""Names engines use for the KV data type."""


def token_sizes(path: str | None) -> Mapping[str, float]:
    """Bytes per token by data type; a type the file leaves open is absent. Raises ConfigError when the file is of no use."""
    if path is None:
        return {}
    try:
        config = read_json(Path(path).read_bytes())
    except OSError as error:
        raise ConfigError([f"{path}: cannot be read ({error.strerror}): correct model_config"]) from None
    except ValueError:
        raise ConfigError([f"{path}: not JSON: model_config names the model's config.json"]) from None
    if not isinstance(config, dict):
        raise ConfigError([f"{path}: not an object: model_config names the model's config.json"])
    sizes: dict[str, float] = {}
    problem = ""
    for dtype in DTYPES:
        try:
            sizes[dtype] = float(KvShape.from_config(config, dtype).bytes_per_token)
        except UnknownShape as error:
            problem = problem or str(error)
    if not sizes:
        raise ConfigError([f"{path}: {problem}"])
    return sizes
