"""Bodies gone wrong: whatever an exposition says, a turn ends in values that can be meant, never in an exception."""

from __future__ import annotations

import gzip
import json
import math
import re
from collections.abc import Sequence
from functools import partial
from importlib.resources import files
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.openmetrics.exposition import generate_latest
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from kvwatch.metrics import families
from kvwatch.report import Verdict, to_json, verdict
from kvwatch.rules import active
from kvwatch.store import Store
from kvwatch.target import Target
from kvwatch.text import to_text
from kvwatch.turn import Clocked, finished
from kvwatch.view import Watch

DATA = Path(__file__).parent / "data"
DEMO = Path(str(files("kvwatch.demo"))) / "recordings"
NUMBERS = ("NaN", "-1", "1e308", "+Inf", "-Inf", "0", "1e-320", "1e23", "0.5", "9007199254740993")
TEXTS = ("", "\\n", '\\"', "\\\\", "\x1b[31m", "9" * 5000, "-1", "1e400", "NaN", "None", "x" * 1000, "\u202e")
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


def demo(engine: str) -> list[str]:
    """Bodies of a shipped recording, far apart."""
    (file,) = (DEMO / engine).glob("metrics.jsonl.gz")
    bodies = [body for line in gzip.decompress(file.read_bytes()).splitlines() if (body := json.loads(line).get("body"))]
    return bodies[:: max(1, len(bodies) // 6)]


RUNS = {
    **{name: demo(name) for name in ("vllm", "sglang-hicache")},
    **{f"lmcache {p.stem}": [p.read_text()] * 4 for p in sorted((DATA / "lmcache").glob("*.prom"))},
}


def judge(bodies: Sequence[str]) -> Verdict:
    """The verdict after these bodies, 5 s apart; the pages of every moment are laid out too."""
    rules = active()
    store = Store([Target("t", "http://127.0.0.1/metrics")], Watch(interval=5.0), rules)
    for number, body in enumerate(bodies):
        store.add(finished(Target("t", "http://127.0.0.1/metrics"), Clocked(number * 5.0, 1.8e9 + number * 5.0), body.encode(), {}))
        said = verdict(store.snapshot(number * 5.0), rules)
        json.dumps(to_json(said), allow_nan=False)
        assert all(row.isprintable() for row in to_text(said).split("\n"))
    return said


class Families(Collector):
    """One verdict as a collector."""

    def __init__(self, said: Verdict) -> None:
        self.said = said

    def collect(self) -> list[Metric]:
        """All families."""
        return list(families(self.said))


def exported(said: Verdict) -> list[tuple[str, tuple[tuple[str, str], ...], float]]:
    """Every sample of the exposition, by the strictest parser there is."""
    registry = CollectorRegistry()
    registry.register(Families(said))
    text = generate_latest(registry).decode()  # type: ignore[no-untyped-call]
    return [(s.name, tuple(sorted(s.labels.items())), s.value) for f in text_string_to_metric_families(text) for s in f.samples]  # type: ignore[no-untyped-call]


@st.composite
def spoilt(draw: st.DrawFn) -> list[str]:
    """A run of bodies from whose middle on a few families are dropped, doubled, renumbered or relabelled."""
    bodies = RUNS[draw(st.sampled_from(sorted(RUNS)))]
    names = sorted({m[0] for line in bodies[-1].splitlines() if (m := re.match(r"(vllm|sglang|lmcache)[\w:]+", line))})
    labels = sorted({key for key, _ in LABEL.findall(bodies[-1])} - {"job"})
    changes = draw(
        st.lists(
            st.one_of(
                st.tuples(st.just("drop"), st.sampled_from(names), st.none()),
                st.tuples(st.sampled_from(("value", "twice")), st.sampled_from(names), st.sampled_from(NUMBERS)),
                st.tuples(st.just("label"), st.sampled_from(labels), st.sampled_from(TEXTS)),
            ),
            min_size=1,
            max_size=5,
        )
    )
    begin = draw(st.sampled_from((0, len(bodies) // 2)))
    return [body if i < begin else "\n".join(_spoil(body.splitlines(), changes)) + "\n" for i, body in enumerate(bodies)]


def _spoil(lines: list[str], changes: Sequence[tuple[str, str, str | None]]) -> list[str]:
    for kind, what, by in changes:
        if kind == "label":
            lines = [
                line if line.startswith("#") else re.sub(rf'\b{what}="(?:[^"\\]|\\.)*"', partial(_labelled, what, by), line)
                for line in lines
            ]
            continue
        changed = []
        for line in lines:
            if not line.startswith((f"{what}{{", f"{what} ")):
                changed.append(line)
                continue
            changed += [line] if kind == "twice" else []
            changed += [] if kind == "drop" else [f"{line.rpartition(' ')[0]} {by}"]
        lines = changed
    return lines


@given(spoilt())
@settings(max_examples=60, deadline=None)
def test_no_body_breaks_a_turn(bodies: list[str]) -> None:
    """Every page can be written; what is exported is finite, not negative, without doubles, and no share exceeds 1."""
    samples = exported(judge(bodies))
    assert len({sample[:2] for sample in samples}) == len(samples)
    assert all(math.isfinite(value) and value >= 0 for _, _, value in samples)
    assert all(value <= 1 for name, _, value in samples if name.endswith("_ratio"))


def _labelled(name: str, text: str | None, _found: re.Match[str]) -> str:
    return f'{name}="{text}"'


GAUGES = {"num_running_reqs": "8", "num_queue_reqs": "3", "max_total_num_tokens": "1000", "token_usage": "0.5"}
SGLANG = {f'sglang:{name}{{model_name="m",tp_rank="0"}}': value for name, value in GAUGES.items()}


def body(**histogram: str) -> str:
    """A scheduler with a queue, and a histogram of prompts by upper edge."""
    rows = {f'sglang:prompt_tokens_histogram_bucket{{model_name="m",le="{le}"}}': n for le, n in histogram.items()}
    rows |= {f'sglang:prompt_tokens_histogram_{end}{{model_name="m"}}': list(histogram.values())[-1] for end in ("count", "sum")}
    return "".join(f"{series} {value}\n" for series, value in {**SGLANG, **rows}.items())


def test_a_share_above_one_is_not_exported() -> None:
    """SGLang caps its admission ratio at 1 (srt/managers/schedule_policy.py); what is above is no ratio."""
    said = judge([body(**{"+Inf": "1"}) + 'sglang:new_token_ratio{model_name="m",tp_rank="0"} 9\n'])
    assert "new_token_ratio" not in said.snapshot.owners[0].state.gauges
    assert "implausible-value" in {note.code for note in said.snapshot.owners[0].state.notes}


def test_a_prompt_longer_than_every_bucket() -> None:
    """What it may be charged has no bound then; the verdict goes on."""
    said = judge([body(**{"100": "0", "+Inf": "0"}), body(**{"100": "0", "+Inf": "5"})])
    assert said.snapshot.targets[0].last is not None
    assert said.snapshot.targets[0].last.ok


@pytest.mark.parametrize("edges", [{"100": "5", "+Inf": "3"}, {"100": "0.5", "+Inf": "3"}, {"100": "5", "x": "7", "+Inf": "4"}])
def test_buckets_that_do_not_grow_are_no_histogram(edges: dict[str, str]) -> None:
    """A quantile of them would be made up, and a strict scraper would refuse the whole page."""
    (owner,) = judge([body(**edges)]).snapshot.owners
    assert owner.state.histograms == {}


@pytest.mark.parametrize("edge", ["x", "", "NaN", "-1", "1e308"])
def test_a_bucket_without_a_readable_edge_is_left_out(edge: str) -> None:
    """The others still say how the values lie."""
    (owner,) = judge([body(**{"100": "1", edge: "2", "+Inf": "3"})]).snapshot.owners
    assert [h.buckets for h in owner.state.histograms.values()] == [((100.0, 1.0), (math.inf, 3.0))]


def test_neighbouring_edges_stay_two_series() -> None:
    """Edges are exported with all their digits."""
    name = "sglang:time_to_first_token_seconds"
    rows = {f'{name}_bucket{{model_name="m",le="{le}"}}': "1" for le in ("1000000", "1000001", "+Inf")}
    rows |= {f'{name}_{end}{{model_name="m"}}': "1" for end in ("count", "sum")}
    said = judge(["".join(f"{series} {value}\n" for series, value in {**SGLANG, **rows}.items())])
    edges = [dict(labels)["le"] for sample, labels, _ in exported(said) if sample == "kvwatch_ttft_seconds_bucket"]
    assert edges == ["1000000", "1000001", "+Inf"]


def test_long_names_that_begin_alike_stay_two() -> None:
    """Labels are cut short, series are not merged by it."""
    models = ("m" * 300 + "a", "m" * 300 + "b")
    text = "".join(f'vllm:num_requests_{state}{{engine="0",model_name="{m}"}} 1\n' for m in models for state in ("running", "waiting"))
    running = [labels for name, labels, _ in exported(judge([text])) if name == "kvwatch_requests" and ("state", "running") in labels]
    assert len({dict(labels)["model"] for labels in running}) == 2


def test_a_server_whose_gauges_were_read_apart() -> None:
    """LMCache's usage had grown when its ratio was read as 0 before: the usage counts, the ratio does not."""
    said = judge(["lmcache_mp_l1_memory_usage_bytes 1000\nlmcache_mp_l1_usage_ratio 0\n"])
    (pool,) = said.snapshot.owners[0].state.pools
    assert (pool.resident.exact, pool.resident_ratio.exact) == (1000, None)
