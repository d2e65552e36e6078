"""What /metrics gives: valid, bounded in names and labels, absent where unknown, and parts that sum to their whole."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest
from prometheus_client.core import Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_openmetrics
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector, CollectorRegistry
from prometheus_client.samples import Sample

from kvwatch.metrics import families
from kvwatch.metrics.owners import COUNTERS
from kvwatch.model import EventStats, GpuProcess, GpuReading, GpuState, NvmlState
from kvwatch.pool import Pool
from kvwatch.quantity import Interval, exactly
from kvwatch.report import Verdict
from kvwatch.signals import CONDITIONS, SIGNALS
from tests.recorded import NAMES, verdicts
from tests.samples import hbm, histogram, host, lost, said, sample, turn

LABELS = {"target", "engine", "model", "rank", "tier", "pool", "state", "rule", "severity", "reason", "gpu", "uuid", "pid"}
OWNER = {"target", "engine", "model", "rank"}
PARTITIONS = [{"used", "evictable", "available", "held"}, {"used", "reclaimable", "held"}, {"resident", "available", "held"}]
PROMISED = {
    "kvwatch_pool_tokens", "kvwatch_pool_capacity_tokens", "kvwatch_pool_bytes", "kvwatch_pool_capacity_bytes", "kvwatch_pool_used_ratio",
    "kvwatch_pool_min_tokens", "kvwatch_pool_max_tokens", "kvwatch_pool_resident_min_ratio", "kvwatch_pool_resident_max_ratio",
    "kvwatch_requests", "kvwatch_preemptions_total", "kvwatch_prefix_cache_queried_tokens_total", "kvwatch_prefix_cache_hit_tokens_total",
    "kvwatch_prompt_tokens_total", "kvwatch_generation_tokens_total", "kvwatch_tier_written_tokens_total",
    "kvwatch_tier_read_tokens_total", "kvwatch_tier_written_bytes_total", "kvwatch_tier_read_bytes_total", "kvwatch_evicted_tokens_total",
    "kvwatch_ttft_seconds_bucket", "kvwatch_ttft_seconds_sum", "kvwatch_ttft_seconds_count", "kvwatch_queue_seconds_bucket",
    "kvwatch_kv_bytes_per_token", "kvwatch_mean_sequence_tokens", "kvwatch_concurrency_ceiling_requests", "kvwatch_hbm_bytes",
    "kvwatch_hbm_process_bytes", "kvwatch_nvml_up", "kvwatch_finding", "kvwatch_l1_bound", "kvwatch_target_up",
    "kvwatch_scrape_duration_seconds", "kvwatch_scrape_failures_total", "kvwatch_scrape_body_bytes",
    "kvwatch_last_scrape_timestamp_seconds", "kvwatch_engine_info", "kvwatch_target_info", "kvwatch_build_info",
}  # fmt: skip
"""Names that are relied on; renaming one is a breaking change."""


class Once(Collector):
    """Some families as prometheus_client renders them."""

    def __init__(self, metrics: Sequence[Metric]) -> None:
        """Give these."""
        self.metrics = metrics

    def collect(self) -> Iterator[Metric]:
        """The families."""
        yield from self.metrics


def rendered(spoken: Verdict, *, processes: bool = False) -> CollectorRegistry:
    """A registry with the families of a verdict."""
    registry = CollectorRegistry()
    registry.register(Once(list(families(spoken, gpu_processes=processes))))
    return registry


def samples(spoken: Verdict, *, processes: bool = False) -> list[Sample]:
    """What Prometheus would read."""
    text = generate_latest(rendered(spoken, processes=processes)).decode()
    return [s for family in text_string_to_metric_families(text) for s in family.samples]


def by_name(spoken: Verdict, name: str, *, processes: bool = False) -> list[tuple[dict[str, str], float]]:
    """Labels and values of one name."""
    return [(dict(s.labels), s.value) for s in samples(spoken, processes=processes) if s.name == name]


def value(spoken: Verdict, name: str, **labels: str) -> float | None:
    """The one value with these labels; None when the series is absent."""
    found = [v for told, v in by_name(spoken, name) if labels.items() <= told.items()]
    assert len(found) <= 1, found
    return found[0] if found else None


EVERYTHING = turn(
    sample(
        0.0, pools=[hbm(960, evictable=20), host(300)], running=3, waiting=2, for_capacity=1, deferred=1,
        gauges={"kv_bytes_per_token": 2048}, histograms={"ttft": histogram(1, 2, 3, 4, 5), "queue": histogram(1, 1, 1, 1, 1)},
        facts={"version": "0.32.0"}, counters={counter: 1.0 for counter, *_ in COUNTERS},
    )
)  # fmt: skip
CARD = GpuState("h", 0, "GPU-0", "card", "ok", total=100, used=60, free=30, reserved=10, processes=(GpuProcess(7, 50, mine=True),))
ALL = said(
    EVERYTHING, lost("t", 10.0), replace(EVERYTHING, at=20.0, states=(replace(EVERYTHING.states[0], at=20.0),)),
    gpus=GpuReading(0.0, NvmlState("ok"), (CARD,)), l1_saturated=0.0, l1_saturated_l2_idle=0.0,
)  # fmt: skip


def test_every_promised_name_is_exported() -> None:
    """An engine that tells everything brings every metric there is."""
    assert {s.name for s in samples(ALL, processes=True)} >= PROMISED


def test_every_signal_is_exported_under_its_name() -> None:
    """With its bounds where it is often only bounded; conditions as 0 or 1."""
    names = {m.name for m in families(ALL)}
    assert {f"kvwatch_{s.name}" for s in SIGNALS} | {f"kvwatch_{c.name}" for c in CONDITIONS} <= names
    assert {f"kvwatch_{s.name}{end}" for s in SIGNALS if s.bounded for end in ("_min", "_max")} <= names


@pytest.mark.parametrize("name", ["everything", *NAMES])
def test_whatever_is_said_is_a_valid_exposition(name: str) -> None:
    """In both formats: no NaN, no infinite value, no series twice, known labels, partitions that sum to the capacity."""
    for one in [ALL] if name == "everything" else verdicts(name)[::3]:
        found = samples(one, processes=True)
        keys = [(s.name, tuple(sorted(s.labels.items()))) for s in found]
        assert len(keys) == len(set(keys))
        for s in found:
            assert math.isfinite(s.value), s
            if not s.name.endswith("_info"):
                assert set(s.labels) <= LABELS | ({"le"} if s.name.endswith("_bucket") else set()), s
                assert not {"instance", "job"} & set(s.labels)
        check_partitions(found)
        openmetrics = generate_openmetrics(rendered(one)).decode()  # type: ignore[no-untyped-call]
        assert openmetrics.endswith("# EOF\n")
        list(read_openmetrics(openmetrics))  # type: ignore[no-untyped-call]


def check_partitions(found: Sequence[Sample]) -> None:
    """States of a pool are one of the partitions, and sum to its capacity."""
    for unit in ("tokens", "bytes"):
        pools: dict[tuple[tuple[str, str], ...], dict[str, float]] = {}
        for s in found:
            if s.name == f"kvwatch_pool_{unit}":
                key = tuple(sorted((k, v) for k, v in s.labels.items() if k != "state"))
                pools.setdefault(key, {})[s.labels["state"]] = s.value
        capacities = {tuple(sorted(s.labels.items())): s.value for s in found if s.name == f"kvwatch_pool_capacity_{unit}"}
        for key, states in pools.items():
            assert set(states) in PARTITIONS
            assert sum(states.values()) == pytest.approx(capacities[key], rel=1e-9)


def test_names_and_help_pass_promtools_lint() -> None:
    """Snake case with the prefix, counters and only those end in _total, base units, no type or colon in the name, a help for each."""
    for metric in families(ALL, gpu_processes=True):
        assert re.fullmatch(r"kvwatch_[a-z0-9]+(_[a-z0-9]+)*", metric.name)
        assert metric.documentation
        assert not re.search(r"_(gauge|counter|histogram|summary|milliseconds|minutes|hours|kilobytes|percent)(_|$)", metric.name)
        assert metric.name.endswith("_total") is False, "prometheus_client adds it to counters"
        assert metric.type in {"gauge", "counter", "histogram"}
        if metric.type == "gauge":
            assert not metric.name.endswith(("_count", "_sum", "_bucket"))


def test_one_family_is_one_type_with_one_set_of_labels() -> None:
    """A name stands for one thing; info series carry what the configuration adds."""
    seen: dict[str, set[frozenset[str]]] = {}
    for metric in families(ALL, gpu_processes=True):
        assert metric.name not in seen
        seen[metric.name] = {frozenset(set(s.labels) - {"le"}) for s in metric.samples}
        assert len(seen[metric.name]) <= 1, metric.name


def test_what_is_unknown_is_absent() -> None:
    """Never 0: an engine that says nothing has no pools, requests, counters, rates or conditions; what cannot be at all is told."""
    silent = said(turn(sample(0.0)), turn(sample(10.0)))
    names = {s.name for s in samples(silent)}
    absent = ("pool_tokens", "pool_used_ratio", "requests", "preemptions_total", "ttft_seconds_count", "token_rate", "l1_used_ratio",
              "pain", "kv_bytes_per_token", "hbm_bytes", "nvml_up")  # fmt: skip
    assert not {f"kvwatch_{name}" for name in absent} & names
    assert "kvwatch_engine_info" in names
    assert by_name(silent, "kvwatch_l1_bound") == [({"target": "t", "engine": "vllm", "model": "m", "rank": "0", "reason": "budget"}, 0.0)]


def test_the_finest_exact_partition_is_exported() -> None:
    """Used, evictable and available where all are exact; else the union that is; else none."""

    def states(pool: Pool) -> dict[str, float]:
        return {labels["state"]: v for labels, v in by_name(said(turn(sample(pools=[pool]))), "kvwatch_pool_tokens")}

    assert states(hbm(300, evictable=500)) == {"used": 300, "evictable": 500, "available": 200, "held": 0}
    assert states(hbm(300)) == {"used": 300, "reclaimable": 700, "held": 0}
    assert states(host(300)) == {"resident": 300, "available": 700, "held": 0}
    assert states(hbm(300, held=100)) == {"used": 300, "reclaimable": 600, "held": 100}
    assert states(hbm(Interval(200, 300))) == {}
    assert states(hbm(None)) == {}


def test_bounds_are_exported_beside() -> None:
    """Equal when exact, absent above when open there; ratios of what is resident as well."""
    spoken = said(turn(sample(pools=[hbm(300), host(Interval(100, 400))])))
    assert (
        value(spoken, "kvwatch_pool_min_tokens", tier="l1", state="used")
        == value(spoken, "kvwatch_pool_max_tokens", tier="l1", state="used")
        == 300
    )
    assert value(spoken, "kvwatch_pool_min_tokens", tier="l1", state="evictable") == 0
    assert value(spoken, "kvwatch_pool_max_tokens", tier="l1", state="evictable") == 700
    assert value(spoken, "kvwatch_pool_resident_min_ratio", tier="l2") == 0.1
    assert value(spoken, "kvwatch_pool_resident_max_ratio", tier="l2") == 0.4
    open_ended = said(turn(sample(pools=[host(Interval(100, 400), capacity=None)])))
    assert value(open_ended, "kvwatch_pool_resident_max_ratio") is None


def test_bytes_where_they_are_known() -> None:
    """By the bytes of a token, or as the tier counts itself; slots are neither tokens nor bytes."""
    slots = Pool.of("l1", "mamba", "slots", capacity=exactly(10), used=exactly(4))
    raw = Pool.of("l2", "kv", "bytes", capacity=exactly(1000), resident=exactly(400))
    spoken = said(turn(sample(pools=[hbm(300), slots, raw], gauges={"kv_bytes_per_token": 2})))
    assert value(spoken, "kvwatch_pool_capacity_bytes", tier="l1", pool="full") == 2000
    assert value(spoken, "kvwatch_pool_bytes", tier="l1", pool="full", state="used") == 600
    assert value(spoken, "kvwatch_pool_bytes", tier="l2", state="resident") == 400
    assert value(spoken, "kvwatch_pool_capacity_tokens", tier="l2") is None
    assert value(spoken, "kvwatch_pool_used_ratio", pool="mamba") == 0.4
    assert not [
        labels for name in ("tokens", "bytes") for labels, _ in by_name(spoken, f"kvwatch_pool_{name}") if labels["pool"] == "mamba"
    ]


def test_a_histogram_keeps_the_engines_own_buckets() -> None:
    """Cumulative, closed by +Inf, with its sum and count."""
    buckets = {labels["le"]: v for labels, v in by_name(ALL, "kvwatch_ttft_seconds_bucket")}
    assert buckets == {"1": 1, "2": 2, "5": 3, "10": 4, "+Inf": 5}
    assert value(ALL, "kvwatch_ttft_seconds_count") == 5


def test_a_condition_with_reasons_has_a_series_for_each() -> None:
    """0 or 1, and absent where it is open."""
    spoken = said(turn(sample(pools=[hbm(990)], waiting=5, running=3)))
    assert value(spoken, "kvwatch_l1_bound", reason="saturated") == 1
    assert value(spoken, "kvwatch_l1_bound", reason="budget") == 0
    assert value(spoken, "kvwatch_l1_bound", reason="preempting") is None


def test_a_finding_is_1_while_it_fires() -> None:
    """Absent while pending, and gone with its target."""
    full = turn(sample(pools=[hbm(990)], waiting=5, running=3, preemptions=0))
    assert by_name(said(full), "kvwatch_finding") == []
    fires = said(full, l1_saturated=0.0)
    assert by_name(fires, "kvwatch_finding") == [
        (
            {
                "rule": "l1-saturated",
                "severity": "critical",
                "reason": "saturated",
                "target": "t",
                "engine": "vllm",
                "model": "m",
                "rank": "0",
            },
            1.0,
        )
    ]
    assert value(fires, "kvwatch_findings_firing") == 1
    gone = said(full, lost("t", 31.0), l1_saturated=0.0)
    assert by_name(gone, "kvwatch_finding") == []


def test_a_stale_engine_has_no_series() -> None:
    """Only its target tells that it is down, why, and since when."""
    gone = said(EVERYTHING, lost("t", 31.0))
    assert {s.name for s in samples(gone) if "engine" in s.labels} == set()
    assert value(gone, "kvwatch_target_up", target="t") == 0
    assert value(gone, "kvwatch_scrape_failures_total", reason="timeout") == 1
    assert value(gone, "kvwatch_last_scrape_timestamp_seconds") == 1_700_000_000
    assert value(gone, "kvwatch_scrape_failures_in_row") == 1


def test_no_model_is_an_empty_label() -> None:
    """And a long one is cut, to what stays distinct."""
    nameless = said(turn(sample(model=None, running=1)))
    assert by_name(nameless, "kvwatch_requests")[0][0]["model"] == ""
    long = [said(turn(sample(model="m" * 300 + end, running=1))) for end in ("a", "b")]
    names = {by_name(spoken, "kvwatch_requests")[0][0]["model"] for spoken in long}
    assert len(names) == 2
    assert max(map(len, names)) <= 256


def test_texts_stand_in_info_series() -> None:
    """The URL and the configured labels of a target, what an engine says of itself, and our own version."""
    ((labels, one),) = by_name(ALL, "kvwatch_target_info")
    assert (labels, one) == ({"target": "t", "url": "http://t:8000/metrics", "pod": "t-0"}, 1.0)
    ((engine, _),) = by_name(ALL, "kvwatch_engine_info")
    assert engine.keys() > OWNER
    assert engine["version"] == "0.32.0"
    assert len(by_name(ALL, "kvwatch_build_info")) == 1


def test_gpus_only_where_they_are_watched() -> None:
    """States sum to the total; processes only when asked for; up is 0 while NVML does not answer."""
    memory = {labels["state"]: v for labels, v in by_name(ALL, "kvwatch_hbm_bytes")}
    assert memory == {"used": 60, "free": 30, "reserved": 10}
    assert by_name(ALL, "kvwatch_hbm_process_bytes") == []
    assert by_name(ALL, "kvwatch_hbm_process_bytes", processes=True) == [({"gpu": "0", "uuid": "GPU-0", "pid": "7"}, 50.0)]
    dark = GpuState("h", 0, "GPU-0", "card", "not-supported")
    assert value(said(turn(sample()), gpus=GpuReading(0.0, NvmlState("unavailable"), (dark,))), "kvwatch_nvml_up") == 0


def test_listening_to_events_is_counted_by_rank() -> None:
    """What came, what was lost, and how old the newest is; never a negative age."""
    stats = EventStats("exact", batches=5, events=9, gaps=1, lost=2, replays=3, garbled=4, restarts=0, lag_seconds=-0.1)
    spoken = said(replace(turn(sample()), events={"1": stats}))
    counted = {name: value(spoken, f"kvwatch_event_{name}_total", rank="1") for name in ("batches", "gaps", "lost", "replays", "garbled")}
    assert counted == {"batches": 5, "gaps": 1, "lost": 2, "replays": 3, "garbled": 4}
    assert value(spoken, "kvwatch_event_lag_seconds") == 0
