"""How numbers look to people: exact, bounded or unknown, with their unit, and sentences with places for them."""

from __future__ import annotations

import math
import re
import string
from collections.abc import Callable, Mapping

from kvwatch.quantity import Interval

_SIZES = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))
_AMOUNT = re.compile(r"(?P<number>[\d.,]+)(?P<unit>.*)")
PERCENT = 100
_LARGE, _SMALL = 10, 0.1
"""Numbers from the first on need no fraction, those from the second on one digit of it."""


def number(value: float, unit: str) -> str:
    """Write one number in the way its unit is read."""
    return _WRITERS.get(unit, _plain)(value)


def _plain(value: float) -> str:
    return f"{value:,.0f}" if value == round(value) or value >= PERCENT else f"{value:.3g}"


def _share(value: float) -> str:
    share = value * PERCENT
    return f"{share:.0f} %" if share >= _LARGE or share == 0 else f"{share:.1f} %" if share >= _SMALL else f"{share:.2g} %"


def _size(value: float) -> str:
    size, name = next(((s, n) for s, n in _SIZES if value >= s), (1, "B"))
    return f"{value / size:.4g} {name}"


def _rounded(value: float) -> str:
    return f"{value:,.0f}" if value >= _LARGE else f"{value:.2g}"


def duration(seconds: float) -> str:
    """Write seconds as people say them: 0.35 s, 38 s, 4 min, 2 h."""
    if seconds < 10:  # noqa: PLR2004
        return f"{seconds:.2g} s"
    if seconds < 180:  # noqa: PLR2004
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"  # noqa: PLR2004


_WRITERS: Mapping[str, Callable[[float], str]] = {
    "ratio": _share,
    "fraction": lambda value: f"{value:.2f}",
    "times": lambda value: f"{_rounded(value)}x",
    "bytes": _size,
    "seconds": duration,
    "per second": lambda value: f"{value:.2g}/s",
    "tokens/s": lambda value: f"{_rounded(value)} tokens/s",
    "requests": lambda value: f"{math.floor(value):,}",
}
"""How each unit is written; the others as plain numbers."""


def show(value: Interval, unit: str) -> str:
    """Write an interval: ``7920``, ``0-80``, ``>= 7920`` or ``unknown``."""
    if not value.known:
        return "unknown"
    if value.exact is not None:
        return number(value.exact, unit)
    if math.isinf(value.hi):
        return f">= {number(value.lo, unit)}"
    low, high = number(value.lo, unit), number(value.hi, unit)
    if low == high:
        return low
    amount, its = _AMOUNT.fullmatch(low), _AMOUNT.fullmatch(high)
    same = amount is not None and its is not None and (value.lo == 0 or amount["unit"] == its["unit"])
    return f"{amount['number'] if amount is not None and same else low}-{high}"


def prose(value: Interval, unit: str) -> str:
    """The same inside a sentence."""
    return re.sub("^>= ", "at least ", show(value, unit))


def places(text: str) -> tuple[str, ...]:
    """Name the places of a sentence."""
    return tuple(name for _, name, _, _ in string.Formatter().parse(text) if name)


def fill(text: str, words: Mapping[str, str]) -> str | None:
    """Put words into the places of a sentence; None when one is not known: then the sentence is not said."""
    return text.format_map(words) if all(name in words for name in places(text)) else None


def without_places(text: str) -> str:
    """A sentence as general advice: what only leads to a number goes with it."""
    return re.sub(r"( above| at| from| to about)? \{\w+\}", "", text)


def printable(line: str) -> str:
    """A line with its control characters spelled out, so that no label can forge a line or drive a terminal."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line)
