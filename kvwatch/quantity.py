"""A quantity is an interval: exact, bounded or unknown; comparisons are true, false or unknown.

kvwatch never turns silence into 0. Everything measured is carried as ``Interval(lo, hi)`` and a
condition holds only when the whole interval satisfies it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

Op = Literal[">", ">=", "<", "<=", "=="]
Truth = bool | None
"""True and False are proven; None means the numbers do not decide."""


@dataclass(frozen=True, slots=True)
class Interval:
    """All values a non-negative quantity may have: ``lo <= x <= hi``; ``hi`` may be infinite.

    Raises ValueError when the bounds are inverted or not numbers: that is a contradiction in the
    data and belongs to whoever built it.
    """

    lo: float
    hi: float

    def __post_init__(self) -> None:
        """Refuse what is no interval."""
        if math.isnan(self.lo) or math.isnan(self.hi) or self.lo > self.hi or math.isinf(self.lo):
            msg = f"no interval: [{self.lo}, {self.hi}]"
            raise ValueError(msg)

    @property
    def exact(self) -> float | None:
        """The value when it is known to be one number, else None."""
        return self.lo if self.lo == self.hi else None

    @property
    def known(self) -> bool:
        """Whether anything bounds the quantity beyond not being negative."""
        return self.lo > 0 or not math.isinf(self.hi)

    def __add__(self, other: Interval) -> Interval:
        """Sum of two independent quantities."""
        return Interval(self.lo + other.lo, self.hi + other.hi)

    def __sub__(self, other: Interval) -> Interval:
        """Difference, never below zero: every quantity here counts something."""
        hi = math.inf if math.isinf(self.hi) else max(0.0, self.hi - other.lo)
        lo = 0.0 if math.isinf(other.hi) else max(0.0, self.lo - other.hi)
        return Interval(min(lo, hi), hi)

    def __mul__(self, other: Interval) -> Interval:
        """Product of two non-negative quantities; unknown times zero is zero."""
        return Interval(_times(self.lo, other.lo), _times(self.hi, other.hi))

    def __truediv__(self, other: Interval) -> Interval:
        """Ratio; a divisor that may be zero leaves the upper end open."""
        lo = 0.0 if math.isinf(other.hi) or other.hi == 0 else self.lo / other.hi
        hi = math.inf if other.lo == 0 or math.isinf(self.hi) else self.hi / other.lo
        return Interval(lo, max(lo, hi))

    def hull(self, other: Interval) -> Interval:
        """The least interval that contains both."""
        return Interval(min(self.lo, other.lo), max(self.hi, other.hi))

    def capped(self, most: float) -> Interval:
        """The same, knowing that it cannot exceed ``most``."""
        return Interval(min(self.lo, most), min(self.hi, most))

    def compare(self, op: Op, limit: float) -> Truth:
        """Whether ``x op limit`` holds for all, for none, or only for some of the interval."""
        lo, hi = self.lo, self.hi
        if op == ">":
            return True if lo > limit else False if hi <= limit else None
        if op == ">=":
            return True if lo >= limit else False if hi < limit else None
        if op == "<":
            return True if hi < limit else False if lo >= limit else None
        if op == "<=":
            return True if hi <= limit else False if lo > limit else None
        return True if lo == hi == limit else False if limit < lo or limit > hi else None


def _times(a: float, b: float) -> float:
    return 0.0 if a == 0 or b == 0 else a * b


UNKNOWN = Interval(0.0, math.inf)
ZERO = Interval(0.0, 0.0)
TRUE = Interval(1.0, 1.0)
MAYBE = Interval(0.0, 1.0)


def exactly(value: float) -> Interval:
    """The interval of one known value."""
    return Interval(value, value)


def maybe(value: float | None) -> Interval:
    """The interval of a value, or unknown for None."""
    return UNKNOWN if value is None else Interval(value, value)


def at_most(value: float) -> Interval:
    """Anything from zero to ``value``."""
    return Interval(0.0, value)


def at_least(value: float) -> Interval:
    """Anything from ``value`` upwards."""
    return Interval(value, math.inf)


def truth(value: Truth) -> Interval:
    """A condition as a quantity: 1, 0, or between."""
    return MAYBE if value is None else TRUE if value else ZERO


def all_of(truths: list[Truth]) -> Truth:
    """Three-valued conjunction: false as soon as one is false."""
    if any(t is False for t in truths):
        return False
    return None if any(t is None for t in truths) else True


def any_of(truths: list[Truth]) -> Truth:
    """Three-valued disjunction: true as soon as one is true."""
    if any(t is True for t in truths):
        return True
    return None if any(t is None for t in truths) else False


def negate(value: Truth) -> Truth:
    """Three-valued negation."""
    return None if value is None else not value
