"""The verdict as values and as JSON: strict, complete, and never more certain than the data."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from kvwatch.model import EngineState, GpuProcess, GpuReading, GpuState, Missing, Note, NvmlState, Outcome, ScrapeError
from kvwatch.pool import Pool
from kvwatch.quantity import Interval, Op, at_least, exactly
from kvwatch.report import Verdict, iso, plain, state_of, to_json, verdict
from kvwatch.rules import RULES, active
from kvwatch.schema import EngineName
from kvwatch.store import Store
from kvwatch.target import Target
from kvwatch.view import Watch
from tests.recorded import NAMES, verdicts
from tests.samples import TARGET, Amount, hbm, host, lost, said, sample, turn

POOL_KEYS = {"tier", "pool", "unit", "capacity", "used", "evictable", "available", "held", "reclaimable", "resident", "used_ratio",
             "resident_ratio", "source", "estimate"}  # fmt: skip


def read(spoken: Verdict) -> dict[str, Any]:
    """The verdict as a program reads it; raises where it is no strict JSON."""
    back: dict[str, Any] = json.loads(json.dumps(to_json(spoken), allow_nan=False))
    return back


def bounds(value: object) -> tuple[float, float] | None:
    """Least and most of a quantity in JSON; None when unknown."""
    if isinstance(value, list):
        low, high = value
        assert low < high if high is not None else low > 0, value
        return low, float("inf") if high is None else high
    assert value is None or (isinstance(value, int | float) and not isinstance(value, bool)), value
    return None if value is None else (float(value), float(value))


def check_pool(pool: Mapping[str, Any]) -> None:
    """Every quantity in its form, ratios within 0 and 1, and parts that can add up to the capacity."""
    assert set(pool) == POOL_KEYS
    told = {name: bounds(pool[name]) for name in POOL_KEYS - {"tier", "pool", "unit", "source", "estimate"}}
    for name in ("used_ratio", "resident_ratio"):
        if (q := told[name]) is not None:
            assert 0 <= q[0] <= q[1] <= 1
    parts = [told[name] for name in ("used", "evictable", "available", "held")]
    capacity = told["capacity"]
    if capacity is not None and all(p is not None for p in parts):
        slack = 1e-6 * max(1.0, capacity[0])
        assert sum(p[0] for p in parts if p) <= capacity[1] + slack
        assert sum(p[1] for p in parts if p) >= capacity[0] - slack
    for union, (a, b) in {"reclaimable": ("evictable", "available"), "resident": ("used", "evictable")}.items():
        x, y, both = told[a], told[b], told[union]
        if x and y and both:
            assert both[0] <= x[1] + y[1] + 1e-6
            assert both[1] >= x[0] + y[0] - 1e-6


@pytest.mark.parametrize("name", NAMES)
def test_whatever_was_recorded_is_told_in_full(name: str) -> None:
    """Strict JSON with all fields; quantities in their forms; findings with what they need; roots before their effects."""
    for spoken in verdicts(name):
        told = read(spoken)
        assert set(told) == {"schema", "at", "status", "summary", "targets", "engines", "nvml", "gpus", "findings", "incidents"}
        assert told["schema"] == 1
        assert told["summary"]
        for engine in told["engines"]:
            check_engine(engine)
        firing = {f["severity"] for f in told["findings"] if f["status"] == "firing"} - {"info"}
        assert told["status"] == ("critical" if "critical" in firing else "warning" if firing else "ok"), told["at"]
        seen: list[str] = []
        for f in told["findings"]:
            check_finding(f, seen)
            seen.append(f["rule"])


def check_engine(engine: Mapping[str, Any]) -> None:
    """Its state is one of the known ones, its quantities have their forms."""
    assert engine["state"] in {"serving", "idle", "stalled", "asleep", "starting", "unknown"}
    for pool in engine["pools"]:
        check_pool(pool)
    rates = (engine["preemptions_per_second"], engine["generation_tokens_per_second"])
    for quantity in (
        *engine["requests"].values(),
        *engine["capacity"].values(),
        *engine["ttft"].values(),
        *rates,
        engine["prefix_cache"]["hit_ratio"],
    ):
        bounds(quantity)


def check_finding(f: Mapping[str, Any], before: Sequence[str]) -> None:
    """One finding: what it needs by its status, evidence that satisfies its condition, its root before it."""
    assert f["runbook"] == f"alerts/runbook.md#{f['rule']}"
    assert f["title"]
    assert "{" not in f["title"] + f["explanation"] + "".join(a["do"] + a["because"] for a in f["remedy"])
    if f["status"] == "unknown":
        assert f["missing"]
        assert (f["since_seconds"], f["evidence"], f["remedy"]) == (None, [], [])
        return
    assert f["missing"] == []
    assert f["since_seconds"] >= 0
    assert f["remedy"]
    for e in f["evidence"]:
        low_high = bounds(e["value"])
        assert low_high is not None
        op: Op = e["op"]
        assert Interval(*low_high).compare(op, e["limit"]) is True
    if f["caused_by"]:
        assert f["caused_by"] in before
        assert f["rule"] in RULES[f["caused_by"]].causes


def test_capacity_alone_is_no_content() -> None:
    """A pool of which the scrape measured nothing is null, not [0, capacity]; its capacity is told."""
    (pool,) = read(said(turn(sample(pools=[Pool.of("l2", "kv", "bytes", capacity=exactly(100))]))))["engines"][0]["pools"]
    assert pool["capacity"] == 100
    assert {name for name in POOL_KEYS if pool[name] is None} == POOL_KEYS - {"tier", "pool", "unit", "capacity", "source"}


def test_exact_bounded_from_below_and_unknown() -> None:
    """A number, [lo, hi], [lo, null], null."""
    pools = read(said(turn(sample(pools=[hbm(990), host(Interval(5, 9), capacity=None)], running=2))))["engines"][0]["pools"]
    assert (pools[0]["used"], pools[0]["evictable"], pools[0]["used_ratio"]) == (990, [0, 10], 0.99)
    assert (pools[1]["resident"], pools[1]["capacity"], pools[1]["available"]) == ([5, 9], None, None)
    at_least = read(said(turn(sample(running=Interval(3, float("inf"))))))["engines"][0]["requests"]
    assert at_least == {"running": [3, None], "waiting": None, "waiting_capacity": None, "waiting_deferred": None}


def test_numbers_are_short() -> None:
    """Whole numbers are whole, others have nine digits; what a double cannot tell apart stays a float."""
    assert [plain(x) for x in (3.0, 0.1 + 0.2, 1e300)] == [3, 0.3, 1e300]
    assert isinstance(plain(3.0), int)


def test_one_sample_has_no_rate() -> None:
    """Rates and quantiles need two; their window is then unknown as well."""
    engine = read(said(turn(sample(preemptions=7, generation_tokens=900))))["engines"][0]
    assert engine["preemptions_per_second"] is None
    assert engine["generation_tokens_per_second"] is None
    assert engine["ttft"] == {"p50": None, "p99": None, "window_seconds": None, "baseline_p99": None}
    assert engine["prefix_cache"] == {"hit_ratio": None, "window_seconds": None}


def test_the_window_is_what_was_really_looked_at() -> None:
    """Shorter at first, than as wide as asked for."""
    turns = [turn(sample(at, generation_tokens=at * 2)) for at in range(0, 100, 10)]
    engine = read(said(*turns[:3]))["engines"][0]
    assert engine["ttft"]["window_seconds"] == 20
    assert engine["generation_tokens_per_second"] == 2
    assert read(said(*turns))["engines"][0]["ttft"]["window_seconds"] == 60


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (sample(running=2, waiting=0, pools=[hbm(1)]), "serving"),
        (sample(running=0, waiting=3, pools=[hbm(1)]), "serving"),
        (sample(running=Interval(0, 2), waiting=0, pools=[hbm(1)]), "serving"),
        (sample(running=0, waiting=0, pools=[hbm(1)]), "idle"),
        (sample(running=0, waiting=0, pools=[hbm(1)], engine="sglang", gauges={"decode_prealloc_queue": 4}), "serving"),
        (sample(running=0, waiting=0, pools=[hbm(1)], asleep=True), "asleep"),
        (sample(), "starting"),
        (sample(pools=[hbm(1)]), "serving"),
        (sample(engine="lmcache", model=None), "serving"),
    ],
)
def test_the_state_of_an_engine(state: EngineState, expected: str) -> None:
    """Idle only when nothing runs, waits, or stands in a queue beside; starting while it says nothing yet."""
    assert state_of(said(turn(state)).snapshot.owners[0]) == expected


def test_stalled_is_what_the_rule_says_now() -> None:
    """From its first true sample on, and no longer once a token was made, although the finding may stand for its clear-hold."""

    def state_after(*tokens: int) -> str:
        turns = [turn(sample(i * 10.0, pools=[hbm(100)], running=0, waiting=4, generation_tokens=n)) for i, n in enumerate(tokens)]
        return state_of(said(*turns).snapshot.owners[0])

    assert state_after(5, 6, 6) == "stalled"
    assert state_after(5, 6) == "serving"
    assert state_after(5, 6, 6, 7) == "serving"


def test_a_sleeping_engine_has_pools_without_content() -> None:
    """They are listed with null quantities."""
    asleep = sample(asleep=True, pools=[Pool.of("l1", "full", "tokens", capacity=exactly(10))])
    engine = read(said(turn(asleep)))["engines"][0]
    assert engine["state"] == "asleep"
    assert [p["used"] for p in engine["pools"]] == [None]


def test_what_is_stale_says_nothing() -> None:
    """After three intervals the engine is unknown, without pools, requests or rates; the target says why."""
    told = read(said(turn(sample(0, pools=[hbm(900)], running=3, waiting=1)), lost("t", 31.0)))
    (engine,) = told["engines"]
    assert (engine["state"], engine["pools"], engine["requests"]["running"]) == ("unknown", [], None)
    assert engine["preemptions_per_second"] is None
    (target,) = told["targets"]
    assert (target["ok"], target["reason"], target["detail"], target["age_seconds"]) == (False, "timeout", "no answer in 10 s", 31)


def test_the_time_is_that_of_the_newest_sample() -> None:
    """In UTC, of a good scrape; null for files without a time and before any."""
    assert read(said(turn(sample(0)), lost("t", 5.0)))["at"] == "2023-11-14T22:13:20Z"
    assert read(said(replace(turn(sample(0)), wall=None)))["at"] is None
    assert read(said(lost("t", 5.0)))["at"] is None
    assert iso(0) == "1970-01-01T00:00:00Z"


def test_what_is_missing_is_listed_by_target() -> None:
    """With why it is and what brings it."""
    missing = Missing("lmcache:local_cache_usage", "it stays in the worker", "set PROMETHEUS_MULTIPROC_DIR")
    told = read(said(replace(turn(sample(0)), missing=(missing,))))
    assert told["targets"][0]["missing"] == [
        {"series": "lmcache:local_cache_usage", "why": "it stays in the worker", "enable": "set PROMETHEUS_MULTIPROC_DIR"}
    ]
    assert [f["rule"] for f in told["findings"]] == ["metrics-missing"]


def test_notes_tell_what_was_decided() -> None:
    """Those of the scrape, a restart while it is inside the window, and SGLang's gauges that may be old."""

    def codes(*turns: Outcome) -> list[str]:
        return [n["code"] for n in read(said(*turns))["engines"][0]["notes"]]

    assert codes(turn(replace(sample(0), notes=(Note("pid-split-gauge", "x"),)))) == ["pid-split-gauge"]
    restarts = [turn(sample(at, started=1.0 if at < 20 else 50.0)) for at in (0.0, 20.0, 80.0)]
    assert codes(*restarts[:2]) == ["restarted"]
    assert codes(*restarts) == ["restarted"]
    assert codes(*restarts, turn(sample(81.0, started=50.0))) == []
    idle = [turn(sample(at, engine="sglang", running=1, waiting=0, generation_tokens=5)) for at in (0.0, 10.0)]
    assert codes(*idle) == ["stale-suspected"]


def test_gpus_are_told_as_nvml_tells_them() -> None:
    """Unknown numbers and processes are null; without a reading, watching is off."""
    assert read(said(turn(sample())))["nvml"] == {"state": "off", "detail": None}
    card = GpuState("n1", 0, "GPU-0", "card", "ok", total=100, used=90, free=10, processes=(GpuProcess(7, None, mine=None),))
    dark = GpuState("n1", 1, "GPU-1", "card", "lost", detail="fell off the bus")
    told = read(said(turn(sample()), gpus=GpuReading(0.0, NvmlState("ok"), (card, dark))))
    assert told["nvml"] == {"state": "ok", "detail": None}
    first, second = told["gpus"]
    assert first["processes"] == [{"pid": 7, "used": None, "mine": None}]
    assert (first["reserved"], first["parent"], first["profile"]) == (None, None, None)
    assert (second["state"], second["detail"], second["total"], second["processes"]) == ("lost", "fell off the bus", None, None)


def test_processes_are_told_apart_where_that_is_proven() -> None:
    """A process is an engine's if any engine proves so; on a card that no engine is proven to run on nobody knows."""
    cards = tuple(
        GpuState("n1", index, f"GPU-{index}", "card", "ok", processes=tuple(GpuProcess(pid, 1 << 30, mine=None) for pid in (7, 8, 9)))
        for index in (0, 1)
    )

    def mapped(target: Target, _reading: GpuReading | None, _engines: int) -> tuple[GpuState, ...]:
        own = {"a": 7, "b": 8}[target.name]
        return (replace(cards[0], processes=tuple(GpuProcess(pid, 1 << 30, mine=pid == own) for pid in (7, 8, 9))),)

    store = Store([replace(TARGET, name=name) for name in ("a", "b")], Watch(interval=10.0), active(), mapped)
    store.set_gpus(GpuReading(0.0, NvmlState("ok"), cards))
    for name in ("a", "b"):
        store.add(turn(sample(target=name)))
    first, second = read(verdict(store.snapshot(0.0), active()))["gpus"]
    assert [p["mine"] for p in first["processes"]] == [True, True, False]
    assert [p["mine"] for p in second["processes"]] == [None, None, None]


def test_where_a_gpu_may_be_anybodys_the_engine_says_so() -> None:
    """Not without a GPU, not once they are mapped, and not of a server that has none."""
    card = GpuState("n1", 0, "GPU-0", "card", "ok", total=100, used=90, free=10)

    def codes(*cards: GpuState, engine: EngineName = "vllm", mine: tuple[GpuState, ...] | None = None) -> list[str]:
        store = Store([TARGET], Watch(interval=10.0), active(), lambda _target, _reading, _engines: mine)
        store.set_gpus(GpuReading(0.0, NvmlState("ok"), cards))
        store.add(turn(sample(engine=engine)))
        return [n["code"] for n in read(verdict(store.snapshot(0.0), active()))["engines"][0]["notes"]]

    assert codes(card) == ["gpu-mapping-unknown"]
    assert codes(card, mine=(card,)) == codes() == codes(card, engine="lmcache") == []


def full(target: str, at: float, *, rank: str = "0", model: str | None = "m") -> Outcome:
    """A turn of an engine in trouble."""
    return turn(sample(at, target=target, rank=rank, model=model, pools=[hbm(990)], waiting=5, running=3, preemptions=0))


def test_the_summary_says_where_what_and_what_first() -> None:
    """The worst root, its first advice, and how many more there are."""
    one = said(full("t", 0.0), l1_saturated=0.0)
    assert one.summary == ("t: Requests queue: the KV pool in HBM (L1) admits no more. Do first: raise --gpu-memory-utilization.")
    missing = replace(full("t", 0.0), missing=(Missing("a", "b", "c"),))
    assert said(missing, l1_saturated=0.0).summary.endswith(" 1 more to look at.")


def test_what_is_only_beginning_is_said_to_be() -> None:
    """A pending root is no alarm yet."""
    assert said(full("t", 0.0)).summary.startswith("Beginning: t: Requests queue")


@pytest.mark.parametrize(
    ("targets", "ranks", "where"),
    [(("t",), ("0",), "t"), (("t",), ("3",), "t rank 3"), (("t",), ("0", "1"), "2 ranks of t"),
     (("t", "u"), ("0",), "2 pool owners (t, u)"),
     (("t", "u", "v", "w"), ("0",), "4 pool owners (t, u, v, ...)")],
)  # fmt: skip
def test_the_summary_counts_where_it_shows(targets: Sequence[str], ranks: Sequence[str], where: str) -> None:
    """One name, one rank, or how many of them."""
    turns = [replace(full(t, 0.0), states=tuple(full(t, 0.0, rank=r).states[0] for r in ranks)) for t in targets]
    spoken = said(*turns, targets=[Target(t, f"http://{t}/metrics") for t in targets], l1_saturated=0.0)
    assert spoken.summary.startswith(f"{where}: Requests queue")


def test_nothing_wrong_says_what_was_looked_at() -> None:
    """How many owners, how full at most, how many wait."""
    assert said(turn(sample(pools=[hbm(310)], running=1, waiting=0, preemptions=0))).summary == (
        "Nothing fires: 1 pool owner watched, L1 at most 31 % used, 0 requests wait."
    )


@pytest.mark.parametrize(
    ("waiting", "end"),
    [
        (None, "L1 at most 31 % used."),
        (Interval(0, 4), "0-4 requests wait."),
        (at_least(3), "at least 3 requests wait."),
        (1, ", 1 request waits."),
    ],
)
def test_a_queue_that_is_not_told_is_no_empty_one(waiting: Amount, end: str) -> None:
    """The summary counts what is known to wait, as far as it is known."""
    assert said(turn(sample(pools=[hbm(310)], running=1, waiting=waiting, preemptions=0))).summary.endswith(end)


def test_of_several_the_fullest_and_the_newest_count() -> None:
    """An upper bound is meant, and those who wait add up."""
    owners = [
        turn(sample(at, target=t, pools=[hbm(used)], running=1, waiting=1, preemptions=0))
        for t, at, used in (("t", 9.0, 100), ("u", 0.0, 310))
    ]
    spoken = said(*owners, targets=[TARGET, Target("u", "http://u/metrics")], now=9.0)
    assert spoken.summary == "Nothing fires: 2 pool owners watched, L1 at most 31 % used, 2 requests wait."
    assert read(spoken)["at"] == iso(1_700_000_009.0)


def test_a_queue_that_one_engine_does_not_tell_is_known_from_below() -> None:
    """What the others tell is the least there is; an LMCache server has no queue to tell."""
    targets = [Target(name, f"http://{name}/metrics") for name in ("t", "u", "v")]
    queued, silent = turn(sample(target="t", running=1, waiting=3)), turn(sample(target="u", running=1))
    server = turn(sample(target="v", engine="lmcache"))
    assert said(queued, silent, targets=targets).summary == "Nothing fires: 2 pool owners watched, at least 3 requests wait."
    assert said(queued, server, targets=targets).summary == "Nothing fires: 2 pool owners watched, 3 requests wait."
    assert said(server, targets=targets).summary == "Nothing fires: 1 pool owner watched."


def test_of_a_server_nothing_is_asked_that_only_an_engine_knows() -> None:
    """An LMCache server in trouble lacks no pool in HBM and no queue."""
    troubled = [turn(sample(at, engine="lmcache", model=None, pools=[host(1000)], l2_store_failures=at)) for at in (0.0, 9.0)]
    told = read(said(*troubled))
    assert told["findings"], "no trouble, nothing proven"
    assert not [name for f in told["findings"] for name in f["missing"] if name.startswith(("l1_", "requests_waiting", "ttft_"))]


def test_nothing_judged_says_why() -> None:
    """With the failing target's own sentence; before the first turn nothing was scraped."""
    spoken = said(Outcome("t", 0.0, 1.0, 0.1, error=ScrapeError("refused", "cannot connect to t port 8000")))
    assert (spoken.status, spoken.summary) == ("unknown", "Nothing could be judged. t: cannot connect to t port 8000")
    assert said(now=5.0).summary == "Nothing was scraped yet."


def test_one_target_alone() -> None:
    """Narrowed by name: its engines, its findings, its status."""
    rules = active({"l1-saturated": {"hold": 0.0}})
    store = Store([TARGET, Target("u", "http://u/metrics")], Watch(interval=10.0), rules)
    store.add(full("t", 0.0))
    store.add(turn(sample(0.0, target="u", pools=[hbm(10)], waiting=0, running=0)))
    calm = verdict(store.snapshot(0.0), rules, "u")
    assert (calm.status, [o.state.target for o in calm.snapshot.owners], calm.findings) == ("ok", ["u"], ())
    assert verdict(store.snapshot(0.0), rules).status == "critical"
    nobody = verdict(store.snapshot(0.0), rules, "nobody")
    assert (nobody.status, nobody.snapshot.targets, nobody.summary) == ("unknown", (), "No target has the name that was asked for.")
