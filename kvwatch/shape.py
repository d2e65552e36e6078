"""A body as a form with blanks: the text stays from scrape to scrape, the numbers at the ends of its lines change.

Nothing here knows what a line means. Whether a body fits the form of the last one takes a few passes in C over its lines, which is what
makes a known body some sixty times cheaper than reading it.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterable
from dataclasses import dataclass
from operator import ne


@dataclass(frozen=True, slots=True)
class Shape:
    """A body without its numbers.

    ``heads`` has each line up to its number, and all of a line without one; ``head_bytes`` is their length, ``number_count`` the count
    of lines with a number.
    """

    heads: list[bytes]
    head_bytes: int
    number_count: int

    @classmethod
    def of(cls, lines: list[bytes], numbered: Iterable[bool]) -> Shape:
        """The shape of a body whose ``numbered`` lines have their number after the last space."""
        heads = [line[: line.rfind(b" ") + 1] if has_number else line for line, has_number in zip(lines, numbered, strict=True)]
        return cls(heads, sum(map(len, heads)), sum(map(ne, heads, lines)))

    def numbers(self, body: bytes) -> list[float] | None:
        """The numbers of a body by the order of its lines; None when it has another shape, or anything but numbers in their places."""
        lines = io.BytesIO(body).readlines()
        tokens = list(map(bytes.removeprefix, lines, self.heads))
        written = b"".join(tokens)
        # A line that does not begin with its head stays whole, so the lengths add up only when each begins with its own.
        if len(lines) != len(self.heads) or len(body) - len(written) != self.head_bytes or b"_" in written:
            return None
        try:
            numbers = list(map(float, filter(None, tokens)))
        except ValueError:
            return None
        if len(numbers) != self.number_count:  # the last line lost its number, or grew one
            return None
        return [math.nan if math.isnan(number) else number for number in numbers] if math.isnan(sum(numbers)) else numbers
