"""Bytes of a /metrics answer into the samples somebody wants.

A server repeats itself: two bodies in a row mostly differ in numbers alone. So a ``Memo`` keeps what names and label texts meant, and
the shape of the last body (shape.py). Both only save work. Whatever they do not recognise is read line by line (grammar.py), and the
result is the same with and without them.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import accumulate, chain, repeat
from typing import NamedTuple, TypeVar

from kvwatch.grammar import read_number, read_sample, read_type
from kvwatch.model import ScrapeError
from kvwatch.shape import Shape

Select = Callable[[str], str | None]
"""Sample or family name as written -> the canonical name to keep it under, or None when nobody wants it."""

_MALFORMED_KEPT = 20
_LAST_BYTES = 2 << 20  # a body beyond is read anew each time: a label of 3 MB must not stay for the life of its target
_LAST_LINES = 1 << 15
_TEXTS = 1 << 12  # a memory of texts that is full is emptied, since most of it is label sets that died
_TEXT_BYTES = 1 << 11
_SEEN_BYTES = 1 << 10
_SHOWN_BYTES = 40
_BEGINNING = re.compile(rb"#[ \t]*(?:HELP|TYPE)[ \t]|[a-zA-Z_:][\w:]*[ \t]*\{")

_Text = TypeVar("_Text", str, bytes)
_Meaning = TypeVar("_Meaning")


class Sample(NamedTuple):
    """One line of an exposition: canonical name, labels with escapes undone, value (NaN and infinities included).

    A tuple, since every scrape makes hundreds. Every NaN is ``math.nan``, so that samples that say the same compare equal.
    """

    name: str
    labels: Mapping[str, str]
    value: float


@dataclass(frozen=True, slots=True)
class Exposition:
    """The wanted samples of one body by canonical sample name, in the order of their lines.

    ``types`` maps canonical family names (as on the ``# TYPE`` line, wanted ones only) to their type: a family with a type and
    no sample is configured and never used. ``sample_lines`` and ``type_lines`` count all valid lines of that kind, wanted or not;
    ``malformed`` are the 1-based numbers of lines that could not be read (at most 20 are kept, ``malformed_count`` counts all).
    """

    samples: Mapping[str, tuple[Sample, ...]]
    types: Mapping[str, str]
    sample_lines: int
    malformed: tuple[int, ...]
    malformed_count: int
    type_lines: int = 0

    def get(self, name: str) -> tuple[Sample, ...]:
        """All samples of that canonical name, () when there are none."""
        return self.samples.get(name, ())


_UNWANTED = Sample("", {}, math.nan)
"""Stands for every sample that nobody wants."""


@dataclass(slots=True)
class _Last:
    """The last body: its shape, and what it said.

    Sample ``i`` of ``exposition``, counted through all names, has ``names[i]``, ``labels[i]``, ``values[i]`` and is number
    ``order[i]`` of the body; the samples of one name are a slice of ``rows``.
    """

    shape: Shape
    exposition: Exposition
    order: list[int]
    names: list[str]
    labels: list[Mapping[str, str]]
    values: list[float]
    rows: dict[str, slice]

    @classmethod
    def of(cls, exposition: Exposition, lines: list[bytes], found: list[Sample | None]) -> _Last:
        """What to keep of a body; ``found`` has a sample for each line that ends with a number."""
        # Creation times stand still, and a third of all digits are theirs: let such a line be text.
        moving = [None if sample is _UNWANTED and b"_created" in line else sample for sample, line in zip(found, lines, strict=True)]
        shape = Shape.of(lines, [sample is not None for sample in moving])
        numbered = [sample for sample in moving if sample is not None]
        places: dict[str, list[int]] = {name: [] for name in exposition.samples}
        for i, sample in enumerate(numbered):
            if sample is not _UNWANTED:
                places[sample.name].append(i)
        order = list(chain.from_iterable(places.values()))
        ends = accumulate(map(len, places.values()))
        rows = {name: slice(end - len(own), end) for (name, own), end in zip(places.items(), ends, strict=True)}
        samples = [numbered[i] for i in order]
        return cls(shape, exposition, order, [s.name for s in samples], [s.labels for s in samples], [s.value for s in samples], rows)

    def update(self, body: bytes) -> Exposition | None:
        """What a body of the same shape says, the very exposition of the last time when that is the same; None for any other body."""
        numbers = self.shape.numbers(body)
        if numbers is None:
            return None
        values = list(map(numbers.__getitem__, self.order))
        if values != self.values:
            made = tuple(map(tuple.__new__, repeat(Sample), zip(self.names, self.labels, values, strict=True)))  # quicker than Sample(...)
            self.exposition = replace(self.exposition, samples={name: made[row] for name, row in self.rows.items()})
            self.values = values
        return self.exposition


@dataclass(slots=True)
class Memo:
    """What one target's last body looked like, so that the next one needs no parsing. Bounded; one per target.

    ``chosen`` is what ``select`` said, ``names`` the same by the text before label text or number, ``labels`` label texts without their
    opening brace. All is forgotten when another ``select`` comes.
    """

    select: Select | None = None
    chosen: dict[str, str | None] = field(default_factory=dict)
    names: dict[bytes, str | None] = field(default_factory=dict)
    labels: dict[bytes, Mapping[str, str]] = field(default_factory=dict)
    last: _Last | None = None


def parse(body: bytes, select: Select, memo: Memo | None = None) -> Exposition:
    """Read Prometheus text or OpenMetrics; a line that cannot be read is counted and costs nothing else."""
    if memo is None:
        return _Scan(Memo(), select).read(io.BytesIO(body))
    if memo.select != select:
        memo.select, memo.chosen, memo.names, memo.labels, memo.last = select, {}, {}, {}, None
    if len(body) > _LAST_BYTES:
        memo.last = None
        return _Scan(memo, select).read(io.BytesIO(body))
    if memo.last and (exposition := memo.last.update(body)):
        return exposition
    memo.last = None
    lines = io.BytesIO(body).readlines()
    scan = _Scan(memo, select)
    exposition = scan.read(lines, note=len(lines) <= _LAST_LINES)
    if scan.found and scan.regular:
        memo.last = _Last.of(exposition, lines, scan.found)
    return exposition


class _Scan:
    """One reading of a body, line by line. ``found`` has, for each line, its sample if the line is a series, one space and the rest.

    ``regular`` when it has all the samples there are.
    """

    def __init__(self, memo: Memo, select: Select) -> None:
        self.found: list[Sample | None] = []
        self.regular = True
        self._memo = memo
        self._select = select
        self._samples: dict[str, list[Sample]] = {}
        self._types: dict[str, str] = {}
        self._sample_lines = 0
        self._type_lines = 0
        self._malformed: list[int] = []
        self._malformed_count = 0

    def read(self, lines: Iterable[bytes], *, note: bool = False) -> Exposition:
        """Read all lines; fill ``found`` only when asked to note."""
        names, label_texts, found = self._memo.names, self._memo.labels, self.found
        for number, line in enumerate(lines, 1):
            sample = None
            if line.startswith(b"#"):
                if b"TYPE" in line:
                    self._read_line(number, line)
            elif line != b"\n":
                series, _, token = line.rpartition(b" ")
                name, brace, text = series.partition(b"{")
                try:
                    known = names[name], label_texts[text or brace], read_number(token)
                except (KeyError, ValueError):
                    sample = self._read_line(number, line)
                else:
                    sample = self._keep(*known)
            if note:
                found.append(sample)
        samples = {name: tuple(row) for name, row in self._samples.items()}
        return Exposition(samples, self._types, self._sample_lines, tuple(self._malformed), self._malformed_count, self._type_lines)

    def _read_line(self, number: int, line: bytes) -> Sample | None:
        """Read a line of any kind; gives what ``found`` has for it."""
        content = line.lstrip()
        try:
            if content.startswith(b"#"):
                self._read_comment(content)
            elif content:
                return self._read_sample(line)
        except ValueError:
            self._malformed_count += 1
            if len(self._malformed) < _MALFORMED_KEPT:
                self._malformed.append(number)
        return None

    def _read_comment(self, line: bytes) -> None:
        if family := read_type(line):
            self._type_lines += 1
            if (name := self._choose(family[0])) is not None:
                self._types[name] = family[1]

    def _read_sample(self, line: bytes) -> Sample | None:
        read = read_sample(line)
        canonical = self._choose(read.name)
        sample = self._keep(canonical, read.labels, read.value)
        name, _, text = read.series.partition(b"{")
        if name.strip():  # else the name is quoted, among the labels
            _remember(self._memo.names, name, canonical)
            _remember(self._memo.labels, text, read.labels)
        if line.rfind(b" ") == len(read.series):
            return sample
        self.regular = False
        return None

    def _choose(self, name: str) -> str | None:
        """What ``select`` says, asked once."""
        chosen = self._memo.chosen
        if name in chosen:
            return chosen[name]
        canonical = self._select(name)
        _remember(chosen, name, canonical)
        return canonical

    def _keep(self, name: str | None, labels: Mapping[str, str], value: float) -> Sample:
        """Count a sample, and keep a wanted one."""
        self._sample_lines += 1
        if name is None:
            return _UNWANTED
        sample = Sample(name, labels, math.nan if math.isnan(value) else value)
        self._samples.setdefault(name, []).append(sample)
        return sample


def _remember(memory: dict[_Text, _Meaning], text: _Text, meaning: _Meaning) -> None:
    """Keep what a text means, within bounds."""
    if len(text) > _TEXT_BYTES:
        return
    if len(memory) >= _TEXTS:
        memory.clear()
    memory[text] = meaning


def fault(body: bytes, exposition: Exposition) -> ScrapeError | None:
    """Why a body is no exposition: empty, something else, or broken without one readable sample. A lone ``# TYPE`` makes it one."""
    content = body[:_SEEN_BYTES].lstrip() or body.lstrip()[:_SEEN_BYTES]
    if not content:
        return ScrapeError("empty", "got an empty body; is this the /metrics path, and has the server started?")
    if exposition.sample_lines:
        return None
    if exposition.malformed and (exposition.type_lines or _BEGINNING.match(content)):
        others = f", nor are {exposition.malformed_count - 1} more" if exposition.malformed_count > 1 else ""
        return ScrapeError(
            "malformed", f"line {exposition.malformed[0]} is neither sample nor comment{others}, and no other line is a sample"
        )
    if exposition.type_lines:
        return None
    return ScrapeError("not_exposition", f"got {_kind(content)}; is this the /metrics path?")


def _kind(content: bytes) -> str:
    """What a text that is no exposition looks like, by its beginning."""
    if content.startswith(b"<"):
        return "an XML document" if content.startswith(b"<?xml") else "an HTML page"
    if content.startswith((b"{", b"[", b'"')):
        return "JSON"
    start, _, _ = content.partition(b"\n")
    return f"text that begins with {start[:_SHOWN_BYTES].decode(errors='replace')!a} and has no sample"
