"""A document against the schema and the catalogue: settings, or every problem there is with its line."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from kvwatch.address import Address, parse_address
from kvwatch.config.document import Document, Path, Problem, Value
from kvwatch.config.settings import Settings, describe
from kvwatch.units import parse_duration

Rules = Mapping[str, frozenset[str]]
"""Rule ids with the signals whose limits may be set."""

HOLD = "hold"
_SCHEMA_WORDS = frozenset({"(mapping)", "(word)", "[key]"})  # parts of pydantic's locations that are not in the file
_SENTENCES = {
    "missing": "is needed",
    "list_type": "must be a list",
    "dict_type": "must be a mapping of keys to values",
    "model_type": "must be a mapping of keys to values",
    "string_type": "must be a single value",
    "string_too_short": "must not be empty",
    "too_short": "must not be empty",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "int_type": "must be a whole number",
    "int_parsing": "must be a whole number",
    "literal_error": "must be {expected}",
    "greater_than_equal": "must be at least {ge}",
    "value_error": "{error}",
}
_MOST_NAMES = 15


def check(document: Document, rules: Rules, *, need_urls: bool) -> tuple[Settings | None, tuple[Problem, ...]]:
    """The settings (None when a value is wrong) and all problems in the order of the file."""
    problems = [*document.problems, *_thresholds(document, rules), *_targets(document, need_urls=need_urls)]
    settings = None
    try:
        settings = Settings.model_validate(document.value)
    except ValidationError as errors:
        problems += [_problem(error, document) for error in errors.errors(include_url=False, include_input=False)]
    return settings, tuple(sorted(set(problems)))


def limit(signal: str, word: str) -> float:
    """The limit of a signal, or the seconds of a hold; ValueError with a sentence."""
    if signal == HOLD:
        return parse_duration(word)
    value = float(word) if re.fullmatch(r"(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", word, re.ASCII | re.IGNORECASE) else math.inf
    if math.isinf(value):
        raise ValueError("must be a number, 0 or more")
    if signal.endswith("_ratio") and value > 1:
        raise ValueError("must be a share from 0 to 1: 97 % is 0.97")
    return value


def names(targets: Iterable[tuple[str | None, Address | None]]) -> tuple[str, ...]:
    """The names of targets: as given, else ``host:port``, told apart by path and number where two would be the same."""
    pairs = tuple(targets)
    taken = {name for name, _ in pairs if name is not None}
    found: list[str] = []
    for index, (given, address) in enumerate(pairs, start=1):
        name = given
        if name is None:
            wishes = (f"target-{index}",) if address is None else (address.netloc, address.netloc + address.prefix)
            name = next(w for w in _numbered(wishes) if w not in taken)
            taken.add(name)
        found.append(name)
    return tuple(found)


def _numbered(wishes: Sequence[str]) -> Iterator[str]:
    yield from wishes
    number = 2
    while True:
        yield f"{wishes[-1]}-{number}"
        number += 1


def _problem(error: ErrorDetails, document: Document) -> Problem:
    """What pydantic found, in our words and without the value: it may be a secret in the wrong place."""
    path = tuple(part for part in error["loc"] if part not in _SCHEMA_WORDS)
    if error["type"] == "extra_forbidden":
        return Problem(document.line(path), _unknown_key(path))
    known = _SENTENCES.get(error["type"])
    sentence = error["msg"] if known is None else known.format_map(error.get("ctx", {}))
    return Problem(document.line(path), f"{_dotted(path)}: {sentence}")


def _dotted(path: Path) -> str:
    """``targets[0].l2.capacity``."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part[:60]}" for part in path).removeprefix(".")


def _unknown_key(path: Path) -> str:
    """An unknown key, with the nearest one of this place or the place where it belongs."""
    key, where = str(path[-1]), path[:-1]
    keys = [known.name for known in describe()]
    prefix = "".join("[]" if isinstance(part, int) else f".{part}" for part in where).removeprefix(".")
    prefix = f"{prefix}." if prefix else ""
    here = tuple(dict.fromkeys(re.split(r"[.\[]", name.removeprefix(prefix))[0] for name in keys if name.startswith(prefix)))
    elsewhere = [name for name in keys if name.endswith(f".{key}")]
    hint = f"; did you mean '{elsewhere[0]}'?" if elsewhere and not _near(key, here) else _hint(key, here)
    return f"unknown key {key[:60]!r}" + (f" in {_dotted(where)}" if where else "") + hint


def _near(word: str, names: Sequence[str]) -> str | None:
    """The name that begins with the word or looks most like it."""
    return next((n for n in names if n.startswith(word)), None) or next(iter(difflib.get_close_matches(word, names, 1)), None)


def _hint(word: str, names: Iterable[str]) -> str:
    """What could have been meant."""
    known = sorted(names)
    near = _near(word, known)
    if near is not None:
        return f"; did you mean '{near}'?"
    return f"; known are {', '.join(known[:_MOST_NAMES])}" + (" and others" if len(known) > _MOST_NAMES else "")


def _thresholds(document: Document, rules: Rules) -> Iterator[Problem]:
    """Rules and signals that do not exist, and limits that are none."""
    for rule, limits in _mapping(document.value.get("thresholds")).items():
        path: Path = ("thresholds", rule)
        if rule not in rules:
            yield Problem(document.line(path), f"unknown rule {rule[:60]!r}{_hint(rule, rules)}")
            continue
        for signal, word in _mapping(limits).items():
            line = document.line((*path, signal))
            if signal != HOLD and signal not in rules[rule]:
                yield Problem(line, f"{rule} has no limit {signal[:60]!r}{_hint(signal, (HOLD, *rules[rule]))}")
            elif isinstance(word, str):
                try:
                    limit(signal, word)
                except ValueError as error:
                    yield Problem(line, f"{_dotted((*path, signal))}: {error}")


def _targets(document: Document, *, need_urls: bool) -> Iterator[Problem]:
    """Names that are there twice, host tiers of targets that are not there, and targets without a URL."""
    told = document.value.get("targets")
    listed = told if isinstance(told, list) else []
    targets = [_mapping(item) for item in listed]
    given = [name if isinstance(name := target.get("name"), str) else None for target in targets]
    found = names(zip(given, map(_address, targets), strict=True))
    for index, target in enumerate(targets):
        path: Path = ("targets", index)
        first = found.index(found[index])
        if first != index:
            where = document.line(("targets", first))
            yield Problem(document.line((*path, "name")), f"{_dotted((*path, 'name'))}: line {where} has a target of that name already")
        source = _mapping(target.get("l2")).get("from")
        others = [name for other, name in enumerate(found) if other != index]
        if isinstance(source, str) and source not in others:
            hint = _hint(source, others) if others else ""
            tied: Path = (*path, "l2", "from")
            yield Problem(document.line(tied), f"{_dotted(tied)}: no other target is named '{source}'{hint}")
        if need_urls and isinstance(listed[index], dict) and target.get("url") is None:
            yield Problem(document.line(path), f"{_dotted((*path, 'url'))}: is needed")


def _mapping(value: Value) -> Mapping[str, Value]:
    """The value where it is a mapping; the schema says so where it is not."""
    return value if isinstance(value, dict) else {}


def _address(target: Mapping[str, Value]) -> Address | None:
    url = target.get("url")
    try:
        return parse_address(url) if isinstance(url, str) else None
    except ValueError:
        return None
