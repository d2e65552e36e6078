"""YAML as plain words with their line numbers.

No scalar is given a type here: ``off``, ``1:30`` and ``0777`` stay what was written, and the schema says what they mean. Only the
node graph is taken from PyYAML, so tags make nothing, aliases cost what they hold, and a repeated key is seen.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

import yaml

Value: TypeAlias = "str | list[Value] | dict[str, Value] | None"
Path = tuple[str | int, ...]

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
"""What escapes can bring into a word and no system can use: in a file's name, a label, a header."""
_MOST_NODES = 100_000
_DEEPEST = 20
_YAML = "tag:yaml.org,2002:"
_TAGS = frozenset(_YAML + name for name in ("map", "seq", "str", "int", "float", "bool", "null", "timestamp", "merge", "value"))


@dataclass(frozen=True, slots=True, order=True)
class Problem:
    """What is wrong in a line of the file."""

    line: int
    text: str


class BrokenError(Exception):
    """The text cannot be read as YAML at all; carries the problem."""

    def __init__(self, problem: Problem) -> None:
        """Carry the one problem that ended the reading."""
        super().__init__(problem.text)
        self.problem = problem


@dataclass(frozen=True, slots=True)
class Document:
    """A mapping of words, lists and mappings; ``lines`` has the 1-based line of each key and list item."""

    value: Mapping[str, Value]
    lines: Mapping[Path, int]
    problems: tuple[Problem, ...]

    def line(self, path: Path) -> int:
        """The line of the innermost part of a path that is in the file."""
        known: Path = ()
        for part in path:
            if (*known, part) in self.lines:
                known = (*known, part)
        return self.lines.get(known, 1)


def read(text: str) -> Document:
    """Read one YAML document. Raises BrokenError when it is not one, or not a mapping."""
    reading = _Reading()
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        value = None if node is None else reading.value(node, ())
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise BrokenError(Problem(mark.line + 1 if mark else 1, f"not valid YAML: {error.problem or error.context}")) from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise BrokenError(Problem(line, "not valid YAML: a control character")) from None
    except RecursionError:
        raise BrokenError(Problem(1, "nested too deeply")) from None
    if not isinstance(value, dict | None):
        raise BrokenError(Problem(1, "expected keys and values, as in 'interval: 15s'"))
    return Document(value or {}, reading.lines, tuple(reading.problems))


class _Reading:
    """The walk over the nodes."""

    def __init__(self) -> None:
        self.lines: dict[Path, int] = {}
        self.problems: list[Problem] = []
        self._nodes = 0

    def value(self, node: yaml.Node, path: Path) -> Value:
        self._nodes += 1
        line = node.start_mark.line + 1
        if self._nodes > _MOST_NODES:
            raise BrokenError(Problem(line, "too large, aliases written out"))
        if len(path) > _DEEPEST:
            raise BrokenError(Problem(line, "nested too deeply"))
        if node.tag not in _TAGS:
            self.problems.append(Problem(line, f"the tag {node.tag.replace(_YAML, '!!')[:60]!r} means nothing here"))
            return None
        if isinstance(node, yaml.ScalarNode) and _CONTROL.search(node.value):
            raise BrokenError(Problem(line, "a control character"))
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            for index, item in enumerate(node.value):
                self.lines.setdefault((*path, index), item.start_mark.line + 1)
            return [self.value(item, (*path, index)) for index, item in enumerate(node.value)]
        return None if node.tag == _YAML + "null" else str(node.value)

    def _mapping(self, node: yaml.MappingNode, path: Path) -> dict[str, Value]:
        found: dict[str, Value] = {}
        merged: list[yaml.Node] = []
        for key, value in node.value:
            line = key.start_mark.line + 1
            if key.tag == _YAML + "merge":
                merged += value.value if isinstance(value, yaml.SequenceNode) else [value]
            elif not isinstance(key, yaml.ScalarNode):
                self.problems.append(Problem(line, "a key must be a word"))
            elif _CONTROL.search(key.value):
                raise BrokenError(Problem(line, "a control character"))
            elif key.value in found:
                self.problems.append(
                    Problem(line, f"key {key.value[:60]!r} is there twice, first in line {self.lines[(*path, key.value)]}")
                )
            else:
                self.lines.setdefault((*path, key.value), line)
                found[key.value] = self.value(value, (*path, key.value))
        for other in merged:
            more = self.value(other, path)
            if isinstance(more, dict):
                found = more | found
            else:
                self.problems.append(Problem(other.start_mark.line + 1, "only a mapping can be merged with '<<'"))
        return found
