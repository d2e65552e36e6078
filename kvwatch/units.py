"""Durations and sizes as people write them."""

from __future__ import annotations

import re
from collections.abc import Mapping

_SECONDS = {"ms": 0.001, "": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DECIMAL = {"": 1, "B": 1, "kB": 10**3, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_BINARY = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_BYTES = _DECIMAL | _BINARY | {unit.removesuffix("B"): size for unit, size in _BINARY.items()}  # Kubernetes writes 50Gi
_AMOUNT = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)", re.ASCII)
_LONGEST_SECONDS = 366 * 86400.0
_MOST_BYTES = 2.0**60
_SHOWN = 40


def parse_duration(text: str) -> float:
    """Seconds of ``15``, ``15s``, ``2m``, ``1h``, ``1d`` or ``500ms``; ValueError with a sentence for everything else."""
    amount = _amount(text, _SECONDS)
    if amount is None:
        msg = f"{_shown(text)} is no duration: write 15, 15s, 2m, 1h or 500ms"
        raise ValueError(msg)
    if amount > _LONGEST_SECONDS:
        msg = f"{_shown(text)} is longer than a year"
        raise ValueError(msg)
    return amount


def parse_size(text: str) -> int:
    """Bytes of ``1024``, ``50GB`` (decimal) or ``50GiB`` (binary, also ``50Gi``); ValueError with a sentence for everything else."""
    amount = _amount(text, _BYTES)
    if amount is None or amount > _MOST_BYTES:
        msg = f"{_shown(text)} is no size: write 1024, 50GB or 50GiB"
        raise ValueError(msg)
    return int(amount)


def _shown(text: str) -> str:
    """What was written instead, unless it may hold a password."""
    return "a URL" if "://" in text else f"'{text[:_SHOWN]}'"


def _amount(text: str, units: Mapping[str, float]) -> float | None:
    """The number times its unit, or None when it is no such amount."""
    match = _AMOUNT.fullmatch(text.strip())
    if match is None or match[2] not in units:
        return None
    return float(match[1]) * units[match[2]]
