"""One line of Prometheus text 0.0.4 or OpenMetrics, read strictly from its bytes.

It takes what either format allows, because servers send both under either name, and follows prometheus_client where Prometheus is
stricter: an unknown escape stays as written, blanks end a line harmlessly, ``-nan`` is NaN. Python's own liberties (``1_0``) are refused.
Every step is linear in the line, whatever the line holds.
"""

from __future__ import annotations

import re
import sys
from typing import NamedTuple

TYPES = frozenset({b"counter", b"gauge", b"histogram", b"summary", b"untyped", b"unknown", b"gaugehistogram", b"info", b"stateset"})
"""The last word of a ``# TYPE`` line."""

_NAME = rb"[a-zA-Z_:][\w:]*"
_START = re.compile(rb"[ \t]*(" + _NAME + rb")?([ \t]*)(\{?)")
_LABEL = re.compile(rb'[ \t]*(?:"([^"]+)"|([a-zA-Z_]\w*))(?:[ \t]*=[ \t]*"([^"]*)")?[ \t]*([,}])')
_CLOSE = re.compile(rb"[ \t]*\}")
_OPEN = re.compile(rb"[ \t]*\{")
_TYPE = re.compile(rb"\s*#[ \t]*TYPE[ \t]")
_FAMILY = re.compile(rb'[ \t]*(?:"([^"]+)"|(' + _NAME + rb"))[ \t]+([a-z]+)\s*")


class SampleLine(NamedTuple):
    """A sample as written, escapes undone. ``series`` is the text before the value, without the blanks between."""

    name: str
    labels: dict[str, str]
    value: float
    series: bytes


def read_number(token: bytes) -> float:
    """A value or time stamp: decimal, infinite or NaN in any case; ValueError for all else."""
    if b"_" in token:
        msg = "Python reads digits with underscores, Prometheus does not"
        raise ValueError(msg)
    return float(token)


def read_type(line: bytes) -> tuple[str, str] | None:
    """Family and type of a ``# TYPE`` line, None for any other comment; ValueError when it is neither."""
    structure = _mask(line)
    if not (keyword := _TYPE.match(structure)):
        return None
    found = _FAMILY.fullmatch(structure, keyword.end())
    if not found or found[3] not in TYPES:
        raise ValueError("no family and type")
    return _text(line[slice(*found.span(1 if found[1] else 2))]), found[3].decode()


def read_sample(line: bytes) -> SampleLine:
    """The sample on a line that is neither blank nor a comment; ValueError when it is none."""
    structure = _mask(line)
    start = _START.match(structure)
    if not start or not (start[3] or (start[1] and start[2])):
        raise ValueError("no name before labels or a value")
    name, end = start[1].decode() if start[1] else None, start.end()
    labels: dict[str, str] = {}
    if start[3]:
        quoted, labels, end = _read_labels(line, structure, end)
        if name and quoted:
            raise ValueError("two names")
        name = name or quoted
    if name is None:
        raise ValueError("no name")
    mark = line.find(b"#", end)
    value = _read_value(line[end:] if mark < 0 else line[end:mark])
    if mark >= 0:
        _check_exemplar(line, structure, mark)
    return SampleLine(name, labels, value, line[:end].rstrip())


def _mask(line: bytes) -> bytes:
    """The line with every escape of two bytes overwritten, so that each quote left is a delimiter; positions stay.

    Left to right in pairs is right: the byte before a run of backslashes is none, so the run begins with an escape.
    """
    return line.replace(rb"\\", b"\0\0").replace(rb"\"", b"\0\0") if b"\\" in line else line


def _read_labels(line: bytes, structure: bytes, start: int) -> tuple[str | None, dict[str, str], int]:
    """The quoted metric name if there is one, the labels, and the position after the brace that closes."""
    name: str | None = None
    labels: dict[str, str] = {}
    while label := _LABEL.match(structure, start):
        quoted, plain, text, end = label.groups()
        if structure is not line:
            quoted, text = (part and line[slice(*label.span(group))] for group, part in ((1, quoted), (3, text)))
        start = label.end()
        key = sys.intern(_text(quoted or plain))
        if text is not None:
            if key in labels or key == "__name__":
                raise ValueError("a label twice, or the reserved one")
            labels[key] = _text(text)
        elif quoted and name is None:
            name = key
        else:
            raise ValueError("a label without value, or two names")
        if end == b"}":
            return name, labels, start
    if not (close := _CLOSE.match(structure, start)):
        raise ValueError("labels without end")
    return name, labels, close.end()


def _read_value(text: bytes) -> float:
    """A value, which a time stamp may follow."""
    tokens = text.split(None, 2)
    values = [read_number(token) for token in tokens[:2]]
    if not values or len(tokens) != len(values):
        raise ValueError("no value, or more than a value and a time stamp")
    return values[0]


def _check_exemplar(line: bytes, structure: bytes, mark: int) -> None:
    """Raise ValueError unless labels, a value and perhaps a time stamp follow the ``#``, which a blank precedes."""
    start = _OPEN.match(structure, mark + 1)
    if not start or not line[mark - 1 : mark].isspace():
        raise ValueError("text after the value")
    _, _, end = _read_labels(line, structure, start.end())
    _read_value(line[end:])


def _text(written: bytes) -> str:
    """Those bytes as text, escapes undone once."""
    text = written.decode()
    if "\\" not in text:
        return text
    return "\\".join(part.replace(r"\"", '"').replace(r"\n", "\n") for part in text.split(r"\\"))
