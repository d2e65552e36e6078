"""The parser against prometheus_client's, on recorded and on generated bodies, and what only ours promises."""

from __future__ import annotations

import gc
import gzip
import json
import math
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Metric, exposition
from prometheus_client import core as client
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_oracle
from prometheus_client.parser import text_string_to_metric_families as text_oracle
from prometheus_client.registry import Collector

from kvwatch.engines import lmcache, vllm
from kvwatch.exposition import Exposition, Memo, Sample, fault, parse

DATA = Path(__file__).parent / "data" / "exposition"
CAPTURES = Path(os.environ.get("KVWATCH_CAPTURES", Path(__file__).parents[2] / "shared" / "captures"))

Flat = list[tuple[str, list[tuple[str, str]], str]]
"""Samples in a form that compares NaN with NaN: name, sorted labels, the number as Python writes it."""


def keep(name: str) -> str:
    """Select everything."""
    return name


def ours(body: bytes) -> Flat:
    """All samples by name, each name's in the order of their lines."""
    return flat(sample for row in parse(body, keep).samples.values() for sample in row)


def flat(samples: Iterable[Sample]) -> Flat:
    """Samples by name; the order within a name stays."""
    written = [(s.name, sorted(s.labels.items()), repr(float(s.value))) for s in samples]
    return sorted(written, key=lambda s: s[0])


def theirs(families: Iterable[Metric]) -> Flat:
    """The same of prometheus_client's families."""
    return flat(Sample(s.name, s.labels, s.value) for family in families for s in family.samples)


def types_of(families: Iterable[Metric]) -> dict[str, str]:
    """Types by family name; prometheus_client cuts ``_total`` off counters and calls untyped unknown."""
    return {family.name: family.type for family in families}


def our_types(body: bytes) -> dict[str, str]:
    """The same of ours."""
    types = parse(body, keep).types
    return {name.removesuffix("_total") if kind == "counter" else name: kind.replace("untyped", "unknown") for name, kind in types.items()}


def recorded(path: Path) -> list[bytes]:
    """The bodies of a recording, in order."""
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        scrapes = [json.loads(line) for line in lines]
    return [scrape["body"].encode() for scrape in scrapes if scrape.get("body")]


def check_recording(bodies: list[bytes], step: int = 1) -> None:
    """Every body gives what prometheus_client says (each ``step``-th is asked), and the same with the memory of those before."""
    everything, engines = Memo(), Memo()
    for i, body in enumerate(bodies):
        warm, warm_engine = parse(body, keep, everything), parse(body, vllm.select, engines)
        if i % step:
            continue
        families = list(text_oracle(body.decode()))
        assert flat(s for row in warm.samples.values() for s in row) == theirs(families)
        assert types_of(families).items() >= our_types(body).items()
        assert (warm.malformed_count, warm.sample_lines) == (0, sum(len(family.samples) for family in families))
        assert warm == parse(body, keep)
        assert warm_engine == parse(body, vllm.select)


@pytest.mark.parametrize("path", sorted(DATA.glob("*.gz")), ids=lambda path: path.stem)
def test_reads_recordings_as_prometheus_client_does(path: Path) -> None:
    """Scrapes of the three engines, one after the other: same samples and types, nothing malformed, no trace of the scrape before."""
    check_recording(recorded(path))


@pytest.mark.skipif(not CAPTURES.is_dir(), reason=f"no recordings in {CAPTURES}; KVWATCH_CAPTURES names their folder")
@pytest.mark.parametrize("path", sorted(CAPTURES.glob("*/*/metrics.jsonl.gz")), ids=lambda path: f"{path.parts[-3]}-{path.parts[-2]}")
def test_reads_all_captures_as_prometheus_client_does(path: Path) -> None:
    """The same for whole recordings, a sample of their bodies compared."""
    bodies = recorded(path)
    check_recording(bodies, step=max(1, len(bodies) // 3))


def test_keeps_what_is_selected_under_its_canonical_name() -> None:
    """A selective reading has the selected names alone, in the selector's spelling, and still counts every line."""
    body = recorded(DATA / "vllm.jsonl.gz")[1]
    everything = parse(body, keep)
    some = parse(body, lambda name: name.replace("vllm:", "x:") if name.startswith("vllm:num_requests_") else None)
    assert set(some.samples) == {"x:num_requests_running", "x:num_requests_waiting", "x:num_requests_waiting_by_reason"}
    assert some.types == dict.fromkeys(some.samples, "gauge")
    assert some.get("x:num_requests_running")[0] == everything.get("vllm:num_requests_running")[0]._replace(name="x:num_requests_running")
    assert (some.sample_lines, some.type_lines) == (everything.sample_lines, everything.type_lines)
    assert some.get("vllm:num_requests_running") == ()


# --- generated bodies

NAMES = st.from_regex(r"[a-z:][a-z0-9_:]{0,6}", fullmatch=True).filter(
    lambda name: not name.endswith(("total", "created", "bucket", "count", "sum", "info", "max"))
)
LABEL_NAMES = st.from_regex(r"[a-zA-Z][a-zA-Z0-9_]{0,4}", fullmatch=True).filter(lambda name: name not in {"le", "quantile"})
TEXTS = st.text(st.one_of(st.sampled_from('\\\\""n\n,={}# '), st.characters(exclude_categories=["Cs"])), max_size=8)
LABELS = st.dictionaries(LABEL_NAMES, TEXTS, max_size=3)
NUMBERS = st.floats() | st.integers(-(10**20), 10**20).map(float)
BLANKS = st.text(" \t", max_size=2)


def escaped(text: str) -> str:
    """A label value as exporters write it."""
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


@st.composite
def text_lines(draw: st.DrawFn) -> str:
    """One valid line of the text format, with blanks wherever prometheus_client takes them too."""
    b: list[str] = draw(st.lists(BLANKS, min_size=6, max_size=6))
    name = draw(NAMES)
    kind = draw(st.sampled_from(["sample", "sample", "sample", "type", "help", "comment", "blank"]))
    if kind == "type":
        return f"{b[0]}# TYPE {name} {draw(st.sampled_from(['gauge', 'histogram', 'summary', 'untyped']))}{b[1]}"
    if kind != "sample":
        return {"help": f"# HELP {name} {escaped(draw(TEXTS))}", "comment": "# a comment {", "blank": b[0]}[kind]
    labels = [f'{b[1]}{key}{b[2]}={b[3]}"{escaped(text)}"{b[1]}' for key, text in draw(LABELS).items()]
    comma = draw(st.sampled_from(["", ","])) if labels else ""
    braces: bool = draw(st.booleans())
    block = "{" + ",".join(labels) + comma + b[2] + "}" if labels or braces else ""
    value = draw(st.sampled_from(["+Inf", "-Inf", "NaN", "-nan", "inf", "1e3", "+5", ".5", "7"]) | NUMBERS.map(str))
    stamp = draw(st.sampled_from(["", " 1790000000123", "\t-5"]))
    return f"{b[4]}{name}{b[5]}{block}{draw(st.sampled_from([' ', '  ']))}{value}{stamp.replace(chr(9), ' ')}{b[0]}"


@settings(max_examples=150, deadline=None)
@given(st.lists(text_lines(), max_size=8), st.sampled_from(["\n", "\r\n"]), st.booleans())
def test_reads_generated_text_as_prometheus_client_does(lines: list[str], ending: str, ended: bool) -> None:  # noqa: FBT001
    """Blanks, escapes, time stamps, empty and trailing-comma label lists, CRLF, and a missing last line end are all read alike."""
    text = ending.join(lines) + (ending if ended else "")
    families = list(text_oracle(text))
    assert ours(text.encode()) == theirs(families)
    assert parse(text.encode(), keep).malformed == ()


class Generated(Collector):
    """Collects given families."""

    def __init__(self, families: list[Metric]) -> None:
        self.families = families

    def collect(self) -> Iterator[Metric]:
        """The families."""
        return iter(self.families)


@st.composite
def registries(draw: st.DrawFn) -> CollectorRegistry:
    """A registry of counters with creation times and exemplars, gauges, histograms and infos, as prometheus_client writes them."""
    families: list[Metric] = []
    for name in draw(st.lists(NAMES.map(lambda name: "n" + name.replace(":", "_")), unique=True, max_size=5)):  # ":" is rewritten
        kind = draw(st.sampled_from(["counter", "gauge", "histogram", "info"]))
        keys = draw(st.lists(LABEL_NAMES, unique=True, max_size=2))
        values = draw(st.lists(st.tuples(*(TEXTS for _ in keys)), unique=True, max_size=3))
        stamp = draw(st.none() | st.integers(0, 2**31).map(float))
        exemplar = draw(st.none() | st.just(client.Exemplar({"trace_id": "a} 7,"}, 0.5, stamp)))
        amount = draw(st.integers(0, 2**40).map(float))
        family: Metric
        if kind == "counter":
            family = client.CounterMetricFamily(name, "help", labels=keys)
            for value in values:
                family.add_metric(value, amount, created=1789990000.25, timestamp=stamp, exemplar=exemplar)
        elif kind == "gauge":
            family = client.GaugeMetricFamily(name, "help", labels=keys)
            for value in values:
                family.add_metric(value, draw(NUMBERS), timestamp=stamp)
        elif kind == "histogram":
            family = client.HistogramMetricFamily(name, "help", labels=keys)
            for value in values:
                buckets = [("0.5", amount, exemplar), ("+Inf", amount + 1, None)]
                family.add_metric(value, buckets, draw(st.floats(0, 1e9)), timestamp=stamp)  # type: ignore[arg-type]
        else:
            family = client.InfoMetricFamily(name, "help", labels=keys)
            for value in values:
                family.add_metric(value, {"version": draw(TEXTS)})
        families.append(family)
    registry = CollectorRegistry(auto_describe=False)
    registry.register(Generated(families))
    return registry


@settings(max_examples=100, deadline=None)
@given(registries())
def test_reads_both_formats_of_a_registry_as_prometheus_client_does(registry: CollectorRegistry) -> None:
    """What prometheus_client writes as OpenMetrics and as text is read as it reads it, and both say the same."""
    modern, classic = openmetrics.generate_latest(registry), exposition.generate_latest(registry)  # type: ignore[no-untyped-call]
    families = list(openmetrics_oracle(modern.decode()))  # type: ignore[no-untyped-call]
    assert ours(modern) == theirs(families)
    assert our_types(modern) == types_of(families)
    assert ours(classic) == theirs(text_oracle(classic.decode()))
    assert [s for s in ours(modern) if not s[0].endswith("_created")] == [s for s in ours(classic) if not s[0].endswith("_created")]
    assert (parse(modern, keep).malformed_count, parse(classic, keep).malformed_count) == (0, 0)


# --- one line

VALID = [
    ("a 1", "a", {}, 1),
    ("a{} 1", "a", {}, 1),
    ('a{b="c"} 1', "a", {"b": "c"}, 1),
    ('a{b="c"}1', "a", {"b": "c"}, 1),
    ('a{b="c",} 1', "a", {"b": "c"}, 1),
    ('\t a \t{ b\t= "c" , d="" } \t 1 \t', "a", {"b": "c", "d": ""}, 1),
    ("a\t1\t2", "a", {}, 1),
    ("a 1 1790000000.25", "a", {}, 1),
    ("a 1 -1790000000250", "a", {}, 1),
    ("a:b_C9 .5e-3", "a:b_C9", {}, 0.0005),
    (r'a{b="\\\"\n",c="D:\\m\\n"} 1', "a", {"b": '\\"\n', "c": "D:\\m\\n"}, 1),
    (r'a{b="C:\models\q"} 1', "a", {"b": r"C:\models\q"}, 1),
    (r'a{b="\\"} 1', "a", {"b": "\\"}, 1),
    (r'a{b="\\\\\""} 1', "a", {"b": '\\\\"'}, 1),
    ('a{b="x y",c=",}{=# 5"} 6', "a", {"b": "x y", "c": ",}{=# 5"}, 6),
    ('a{b="é漢\x00\x0b"} 1', "a", {"b": "é漢\x00\x0b"}, 1),
    ("a +Inf", "a", {}, math.inf),
    ("a -Infinity", "a", {}, -math.inf),
    ("a NaN", "a", {}, math.nan),
    ("a -nan", "a", {}, math.nan),
    ('a_bucket{le="1"} 5 # {trace_id="x\\"} 9"} 0.67 1790000000.1', "a_bucket", {"le": "1"}, 5),
    ("a_total 5 17 # {} 0.67", "a_total", {}, 5),
    ('{"a.b c",d="e"} 1', "a.b c", {"d": "e"}, 1),
    ('{d="e","a"} 1', "a", {"d": "e"}, 1),
    ('a{"b.c"="d"} 1', "a", {"b.c": "d"}, 1),
    ("TYPE 1", "TYPE", {}, 1),
]


@pytest.mark.parametrize("ending", ["", "\n", "\r\n"])
@pytest.mark.parametrize(("line", "name", "labels", "value"), VALID)
def test_reads_a_valid_line(line: str, name: str, labels: dict[str, str], value: float, ending: str) -> None:
    """Every form the formats allow, whatever ends the line: escapes undone once, time stamp and exemplar without effect."""
    found = parse((line + ending).encode(), keep)
    assert found == Exposition({name: (Sample(name, labels, math.nan if math.isnan(value) else float(value)),)}, {}, 1, (), 0)


MALFORMED = [
    *(
        "a",
        "a ",
        "1",
        "a b",
        "a 1_0",
        "a 0x10",
        "a 1,5",
        "a \u0661",
        "a+1",
        "a-1",
        "a.b 1",
        "9a 1",
        "a 1 2 3",
        "a 1 x",
        "a 1 # comment",
        "-",
    ),
    *(
        'a{b="c} 1',
        'a{b="my 14" adapter"} 1.7e9',
        'a{b="c"d} 1',
        'a{b="c" d="e"} 1',
        "a{b=c} 1",
        "a{b} 1",
        'a{b="c"',
        'a{b="c"} ',
        'a{"b"} 1',
    ),
    *("a{,} 1", 'a{,b="c"} 1', 'a{b="c",,} 1', 'a{b:c="d"} 1', 'a{9="d"} 1', 'a{="d"} 1', 'a{b="c",b="d"} 1', 'a{__name__="c"} 1'),
    *('{b="c"} 1', '{"a","b"} 1', '{"a} 1', '{""} 1', '"a" 1', '"a"{} 1', "a{}{} 1", r'a{b="\"} 1', "a{b='c'} 1", "a{b=“c”} 1", "\x0ba 1"),
    *("a 1 # {b} 1", 'a 1 # {b="c"}', 'a 1 # {b="c"} 1 2 3', 'a 1# {b="c"} 1', 'a # {b="c"} 1', 'a 1 # {b="c} 1'),
    *(
        "# TYPE a",
        "# TYPE a banana",
        "# TYPE a gauge gauge",
        "# TYPE 9 gauge",
        "# TYPE a-b gauge",
        "good{ 3",
        "good{} 1_0",
        '# TYPE "a gauge',
    ),
]


@pytest.mark.parametrize("line", MALFORMED)
def test_counts_a_malformed_line_and_keeps_the_rest(line: str) -> None:
    """A line that is no sample and no type costs itself alone, and its number is told."""
    found = parse(f"# TYPE good gauge\ngood 1\n{line}\ngood 2\n".encode(), keep)
    assert [sample.value for sample in found.get("good")] == [1, 2]
    assert set(found.samples) == {"good"}
    assert (found.sample_lines, found.malformed, found.malformed_count, found.types) == (2, (3,), 1, {"good": "gauge"})


def test_counts_bytes_that_are_no_utf8_as_malformed() -> None:
    """Half a character in a label or name costs its line; in a comment it costs nothing."""
    found = parse(b'# HELP a \xff\na{b="\xc3"} 1\n\xff 1\n# TYPE "\xff" gauge\na{b="\xed\xa0\x80"} 1\na 2\n', keep)
    assert (found.get("a"), found.malformed) == ((Sample("a", {}, 2.0),), (2, 3, 4, 5))


def test_keeps_the_numbers_of_twenty_malformed_lines_and_counts_all() -> None:
    """A page of garbage does not make a page of line numbers."""
    found = parse(b"a 1\n" + b"?\n" * 100, keep)
    assert (found.malformed, found.malformed_count, found.sample_lines) == (tuple(range(2, 22)), 100, 1)


def test_keeps_types_without_samples() -> None:
    """A family that is configured and was never used shows by its type; other comments do not."""
    body = (
        b'# TYPE a counter\n # \tTYPE b\t gauge \r\n# HELP c x\n# UNIT d s\n#TYPE e histogram\n# TYPED f gauge\n# TYPE "g.h" info\n# EOF\n'
    )
    found = parse(body, keep)
    assert found.types == {"a": "counter", "b": "gauge", "e": "histogram", "g.h": "info"}
    assert (found.type_lines, found.sample_lines, found.malformed) == (4, 0, ())
    assert parse(body, lambda name: None if name == "a" else name).types == {"b": "gauge", "e": "histogram", "g.h": "info"}


def test_keeps_both_of_a_duplicate_series() -> None:
    """Which of two is right is for the engine file to decide, so both stay, in order."""
    assert [s.value for s in parse(b'a{b="c"} 1\nd 5\na{b="c"} 2\n', keep).get("a")] == [1, 2]


# --- the memory

HEADS = ["a", 'a{b="c"}', 'a{b="c",d="\\\\"}', "b", "b{}", "# TYPE a gauge\nb", "# HELP a x\nb"]
PIECES = [*HEADS, "a ", "a  ", " a", 'a{b="x y"}', 'a{b="x', "b\t", '{"a"}', "# TYPE a", "#", "", "9"]
ENDS = [
    "1",
    "1.5",
    "7",
    "nan",
    "inf",
    "1_0",
    "x",
    "",
    " ",
    " 1",
    "1 2",
    "1\t2",
    "1 ",
    "1\x0b",
    "1 \x0b",
    "1\x0b2",
    '7"}5',
    "1\r",
    "\r",
    '1 # {e="f"} 1',
]
USUAL = st.builds("{} {}".format, st.sampled_from(HEADS), st.sampled_from(["1", "1.5", "7", "NaN"]))
ODD = st.builds("{}{}{}".format, st.sampled_from(PIECES), st.sampled_from(["", " "]), st.sampled_from(ENDS))
LINES = st.one_of(USUAL, USUAL, USUAL, ODD)


@st.composite
def bodies(draw: st.DrawFn) -> list[bytes]:
    """Bodies of which each is the one before with a few edits: other numbers, lines and bytes, some added, dropped, moved or cut."""
    lines = draw(st.lists(USUAL, min_size=1, max_size=8))
    found = ["\n".join(lines).encode()]
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(lines)))
        edit = draw(st.sampled_from(["number", "number", "line", "insert", "drop", "swap", "again"]))
        if edit == "number" and at < len(lines):
            lines[at] = lines[at].rpartition(" ")[0] + " " + draw(st.sampled_from(ENDS))
        elif edit in {"line", "insert"}:
            lines[at : at + (edit == "line")] = [draw(LINES)]
        elif edit == "drop":
            del lines[at : at + 1]
        elif edit == "swap":
            lines = lines[at:] + lines[:at]
        body = "\n".join(lines).encode() + draw(st.sampled_from([b"", b"\n"]))
        cut, byte = draw(st.integers(0, len(body))), draw(st.sampled_from([None, None, None, b"\n", b" ", b'"', b"_", b"\xff", b""]))
        found.append(body if byte is None else body[:cut] + byte + body[cut + 1 :])
    return found


@settings(max_examples=400, deadline=None)
@given(bodies(), st.sampled_from([keep, lambda name: None if name == "a" else name]))
def test_remembers_without_trace(scrapes: list[bytes], select: Callable[[str], str | None]) -> None:
    """Whatever bodies came before, a body is read as if it were the first."""
    memo = Memo()
    for body in scrapes:
        assert parse(body, select, memo) == parse(body, select)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b"a 1\n", b"a 1_0\n"),
        (b"a 1\n", b"a \n"),
        (b"a 1\nb 2", b"a 1\nb "),
        (b"a 1\n", b"a 1 2\n"),
        (b"a 1\t2\n", b"a 3\n"),
        (b"a 1\n", b"5\n"),
        (b"a 1\nb 2\n", b"5\nb 2\nx\n"),
        (b"a 1\nb 2\n", b"b 2\na 1\n"),
        (b"a 1\nb 2\n", b"a 1\n"),
        (b"a 1\n", b"a 1\na 2\n"),
        (b"a 1\n# EOF", b"a 1\n# EOF5"),
        (b"a 1\n5", b"a 1\n5"),
        (b"a 1\nx", b"a 1\nx 7"),
        (b"# TYPE a gauge\na 1\n", b"# TYPE b gauge\na 1\n"),
        (b'a{b="x y"}5\n', b'a{b="x 7\n'),
        (b'a{b="x y"}5\n', b'a{b="x y"}5\na 1\n'),
        (b"a 1\n", b"a 1"),
        (b"a 1\n", b"a 1\r\n"),
        (b"a{\n", b"a{ 1\n"),
        (b'a 1\n{"q"} 1\n{"z"} 2\n', b'{"q"} 3\n 1\n'),
        (b"a 1\na_created 2\n", b"a 1\na_created 3\n"),
    ],
)
def test_sees_each_way_a_body_can_change(before: bytes, after: bytes) -> None:
    """The edits that a comparison of lengths, prefixes or numbers alone would miss."""
    memo = Memo()
    for body in (before, before, after, before):
        assert parse(body, keep, memo) == parse(body, keep)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_remembers_a_recorded_body_without_trace(data: st.DataObject) -> None:
    """The same for a real body with one edit anywhere: a byte changed, lines dropped or repeated."""
    body = recorded(DATA / "lmcache-server.jsonl.gz")[2]
    at, other = data.draw(st.integers(0, len(body))), data.draw(st.integers(0, len(body)))
    edited = data.draw(
        st.sampled_from(
            [
                body[:at] + b"7" + body[at + 1 :],
                body[:at] + b"\n" + body[at:],
                body[:at] + body[body.find(b"\n", at) :],
                body[: body.rfind(b"\n", 0, at) + 1] + body[body.rfind(b"\n", 0, other) + 1 :],
                body[:at],
            ]
        )
    )
    memo = Memo()
    for scrape in (body, edited, edited, body):
        assert parse(scrape, lmcache.select, memo) == parse(scrape, lmcache.select)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200) | st.text('a1 \t\r\n{}",=\\#_TYPE.+-nif\x0b\x00é', max_size=60).map(str.encode))
def test_never_raises(body: bytes) -> None:
    """Any bytes give an exposition and perhaps a fault."""
    found = parse(body, keep, Memo())
    error = fault(body, found)
    assert (error is None) == bool(found.sample_lines or (found.type_lines and not found.malformed))


def test_asks_the_selector_once_per_name() -> None:
    """With a memo no name is asked twice, in one body or the next, though numbers changed and a series was born."""
    asked: Counter[str] = Counter()

    def select(name: str) -> str:
        asked[name] += 1
        return name

    memo = Memo()
    for body in recorded(DATA / "vllm.jsonl.gz"):
        parse(body, select, memo)
        parse(body + b'vllm:num_requests_running{engine="1"} 1 1790000000000\n{"q",a="b"} 1\n', select, memo)
    assert set(asked.values()) == {1}
    assert {"q", "vllm:kv_cache_usage_perc"} <= set(asked)


def test_forgets_what_another_selector_said() -> None:
    """A memo used with another selector gives that selector's names."""
    body, memo = b"# TYPE a gauge\na 1\nb 2\n", Memo()
    for select in (keep, lambda name: name.upper(), lambda name: "c" if name == "b" else None, keep):
        for _ in range(2):
            assert parse(body, select, memo) == parse(body, select)


def held_bytes(root: object) -> int:
    """Bytes of everything that can be reached from an object, classes and functions aside."""
    seen: dict[int, object] = {}
    todo = [root]
    while todo:
        if id(item := todo.pop()) not in seen and not isinstance(item, type) and not callable(item):
            seen[id(item)] = item
            todo += gc.get_referents(item)
    return sum(map(sys.getsizeof, seen.values()))


@pytest.mark.parametrize(
    "body",
    [
        b'a 1\ninfo{cfg="' + b"x" * 3_000_000 + b'"} 1\nb 2\n',
        b"a 1\n" * 200_000,
        b"".join(b'a{b="%d"} 1\n' % i for i in range(100_000)),
        b"".join(b"a%d 1\n" % i for i in range(100_000)),
    ],
    ids=["giant label", "many lines", "many series", "many names"],
)
def test_memory_is_bounded(body: bytes) -> None:
    """Neither a giant label nor a crowd of lines, series or names stays, and the body is read all the same."""
    memo = Memo()
    usual = parse(b"a 1\nb 2\n", keep, memo)
    found = parse(body, keep, memo)
    assert (found.sample_lines, found.malformed_count) == (len(body.splitlines()), 0)
    assert held_bytes(memo) < 2_500_000
    assert parse(b"a 1\nb 2\n", keep, memo) == usual


def test_memory_of_a_usual_body_is_small() -> None:
    """Thousands of targets fit: the memory is not much more than three times a body."""
    memo = Memo()
    for body in recorded(DATA / "vllm.jsonl.gz"):
        parse(body, vllm.select, memo)
    assert len(body) < held_bytes(memo) < 4 * len(body)


MANY = 1_000_000


@pytest.mark.parametrize(
    "line",
    [
        b'a{b="' + b"\\" * MANY + b'"} 1',
        b'a{b="' + b'\\"' * MANY + b'"} 1',
        b"a 1" + b" " * MANY + b"\r",
        b"a " + b"1" * MANY,
        b"a" * MANY + b" 1",
        b"a{" + b",".join(b'l%d="v"' % i for i in range(MANY // 20)) + b"} 1",
    ],
    ids=["backslashes", "quotes", "blanks", "digits", "name", "labels"],
)
def test_reads_a_long_line(line: bytes) -> None:
    """A valid line of any length is read, in time that grows with its length (else this would not end)."""
    assert parse(line, keep, Memo()).sample_lines == 1


@pytest.mark.parametrize(
    "line",
    [
        *(
            b"a{" + b" " * MANY + b"?",
            b"a{b" + b" " * MANY + b"?",
            b"a" + b" " * MANY + b"?",
            b"a 1" + b" " * MANY + b"?",
            b" " * MANY + b"?",
        ),
        *(b"# TYPE " + b" " * MANY + b"?", b"# TYPE a" + b" " * MANY + b"?", b"# TYPE " + b"a" * MANY + b"?", b"a 1 " + b"#" * MANY),
        *(b'a{b="' * MANY, b"{" * MANY, b'"' * MANY, b"a{b=" + b'"' * MANY, b"a 1 # {" + b'b="c",' * MANY + b"} 1", b"a " + b"1 " * MANY),
    ],
)
def test_gives_up_a_long_malformed_line(line: bytes) -> None:
    """A malformed line of any length is given up, in time that grows with its length (else this would not end)."""
    assert parse(line, keep, Memo()).malformed == (1,)


# --- bodies that are no exposition


def seen(body: bytes) -> tuple[str, str] | None:
    """Reason and detail of the fault, if there is one."""
    error = fault(body, parse(body, keep))
    return None if error is None else (error.reason, error.detail)


@pytest.mark.parametrize("body", [b"", b"\n", b" \r\n\t\n", b"\n" * 5000])
def test_nothing_is_empty(body: bytes) -> None:
    """No bytes, or white space alone, is said to be empty."""
    assert (seen(body) or ("",))[0] == "empty"


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"<!DOCTYPE html>\n<html><body>Sign in</body></html>", "an HTML page"),
        (b"\n\n <html>", "an HTML page"),
        (b'<?xml version="1.0"?>\n<Error/>', "an XML document"),
        (b'{"detail":"Not Found"}', "JSON"),
        (b"[]", "JSON"),
        (b"OK\n1 2 3", "'OK'"),
        (b"\x1f\x8b\x08\x00", "'\\x1f"),
        (b"# just a comment\n# EOF\n", "'# just a comment'"),
        (b"x" * 5000, "'" + "x" * 40 + "'"),
    ],
)
def test_says_what_came_instead_of_an_exposition(body: bytes, words: str) -> None:
    """A page of another kind is named, in one line, with the likeliest mistake."""
    reason, detail = seen(body) or ("", "")
    assert reason == "not_exposition"
    assert words in detail
    assert "/metrics" in detail
    assert "\n" not in detail


@pytest.mark.parametrize("body", [b'# TYPE a gauge\n\na{b="c} 1\na{b="d} 1\n', b'# HELP a x\n\na{b="c} 1\n', b'\n\na{b="c} 1\n'])
def test_names_the_first_line_of_a_broken_exposition(body: bytes) -> None:
    """An exposition without one readable sample is malformed, and the line to look at is named."""
    reason, detail = seen(body) or ("", "")
    assert reason == "malformed"
    assert "line 3 " in detail


@pytest.mark.parametrize("body", [b"a 1", b"# TYPE a gauge\n", b"<html>\na 1\n", b'a{b="c} 1\na 1\n'])
def test_one_sample_or_type_makes_an_exposition(body: bytes) -> None:
    """Odd lines beside a sample are no fault, and neither is an engine that has not sampled anything yet."""
    assert seen(body) is None
