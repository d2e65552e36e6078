"""What a pool owner said, by keywords: samples, the moment that signals look at, and turns of a target for the store."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from kvwatch.baseline import Baseline
from kvwatch.history import Track
from kvwatch.model import EngineState, GpuReading, GpuState, Histogram, Outcome, ScrapeError
from kvwatch.pool import Pool
from kvwatch.quantity import UNKNOWN, Interval, exactly
from kvwatch.report import Verdict, verdict
from kvwatch.rules import active
from kvwatch.schema import EngineName
from kvwatch.store import Store
from kvwatch.target import Target
from kvwatch.view import View, Watch

Amount = float | Interval | None
EDGES = (1.0, 2.0, 5.0, 10.0, math.inf)
CAPACITY = 1000.0
WATCH = Watch(interval=5.0)
TARGET = Target("t", "http://t:8000/metrics", labels={"pod": "t-0"})


def amount(value: Amount) -> Interval:
    """A number as known, None as unknown."""
    if isinstance(value, Interval):
        return value
    return UNKNOWN if value is None else exactly(float(value))


def hbm(used: Amount, capacity: Amount = CAPACITY, **others: Amount) -> Pool:
    """The pool in HBM, in tokens."""
    told = {name: amount(value) for name, value in others.items()}
    return Pool.of("l1", "full", "tokens", capacity=amount(capacity), used=amount(used), **told)  # type: ignore[arg-type]


def host(resident: Amount, capacity: Amount = CAPACITY, **others: Amount) -> Pool:
    """The host tier, in tokens."""
    told = {name: amount(value) for name, value in others.items()}
    return Pool.of("l2", "kv", "tokens", capacity=amount(capacity), resident=amount(resident), **told)  # type: ignore[arg-type]


def histogram(*counts: float, total: float | None = None, edges: Sequence[float] = EDGES) -> Histogram:
    """Cumulative counts by edge; the sum is the count unless said."""
    return Histogram(tuple(zip(edges, counts, strict=True)), counts[-1] if total is None else total, counts[-1])


def sample(  # noqa: PLR0913  one keyword for each thing an engine may say; others are counters
    at: float = 0.0,
    *,
    target: str = "t",
    engine: EngineName = "vllm",
    model: str | None = "m",
    rank: str = "0",
    pools: Sequence[Pool] = (),
    running: Amount = None,
    waiting: Amount = None,
    for_capacity: Amount = None,
    deferred: Amount = None,
    gauges: Mapping[str, Amount] | None = None,
    histograms: Mapping[str, Histogram] | None = None,
    facts: Mapping[str, str] | None = None,
    started: float | None = None,
    identity: str = "",
    asleep: bool = False,
    joined: bool = False,
    implausible: tuple[tuple[str, float], ...] = (),
    fingerprint: int = 0,
    counters: Mapping[str, float] | None = None,
    **others: float,
) -> EngineState:
    """One sample of one owner; what is not named is unknown."""
    return EngineState(
        target,
        engine,
        model,
        rank,
        at,
        pools=tuple(pools),
        running=amount(running),
        waiting=amount(waiting),
        waiting_capacity=amount(for_capacity),
        waiting_deferred=amount(deferred),
        counters={**(counters or {}), **others},
        gauges={name: amount(value) for name, value in (gauges or {}).items()},
        histograms=histograms or {},
        facts=facts or {},
        started=started,
        identity=identity,
        asleep=asleep,
        joined=joined,
        implausible=implausible,
        fingerprint=fingerprint,
    )


def track(*states: EngineState, baseline: Baseline | None = None, values: Mapping[str, Interval] | None = None) -> Track:
    """A history of samples; the newest with these ``values``, and with this calm time behind it."""
    made = Track(states[0].owner)
    for state in states:
        made.append(state)
    if values is not None:
        made.keep(values)
    if baseline is not None:
        made.baseline = baseline
    return made


def moment(
    *states: EngineState,
    watch: Watch = WATCH,
    baseline: Baseline | None = None,
    peers: Sequence[Track] = (),
    server: Track | None = None,
    gpus: tuple[GpuState, ...] | None = None,
) -> View:
    """An owner at its newest sample."""
    return View(track(*states, baseline=baseline), Target(states[0].target, "http://t/metrics"), watch, tuple(peers), server, gpus)


def calm_time(  # noqa: PLR0913  one keyword for each thing a baseline knows
    *, p99: float = 1.0, rate: float = 100.0, hits: float = 0.5, running: float = 4.0, sequence: float = 50.0, seconds: float = 100.0
) -> Baseline:
    """Enough calm traffic: its p99 of first tokens is the given edge's."""
    return Baseline(
        scrapes=20,
        seconds=seconds,
        ttft=((p99 / 0.99, 1000.0), (math.inf, 1000.0)),
        tokens=rate * seconds,
        token_seconds=seconds,
        queried=1000.0,
        hit=1000.0 * hits,
        running=running * seconds,
        running_seconds=seconds,
        sequences=running * seconds,
        resident=sequence * running * seconds,
    )


def turn(*states: EngineState, duration: float = 0.1) -> Outcome:
    """A good turn of the target these owners were found at; its wall time is a Unix second of its own."""
    first = states[0]
    return Outcome(first.target, first.at, 1_700_000_000.0 + first.at, duration, states=states)


def lost(target: str, at: float, detail: str = "no answer in 10 s") -> Outcome:
    """A turn that brought nothing."""
    return Outcome(target, at, 1_700_000_000.0 + at, 0.1, error=ScrapeError("timeout", detail))


def said(
    *turns: Outcome, targets: Sequence[Target] = (TARGET,), now: float | None = None, gpus: GpuReading | None = None, **holds: float
) -> Verdict:
    """The verdict after some turns, at the last of them unless told; ``holds`` by rule, with _ for -."""
    rules = active({name.replace("_", "-"): {"hold": hold} for name, hold in holds.items()})
    store = Store(targets, Watch(interval=10.0), rules)
    if gpus is not None:
        store.set_gpus(gpus)
    for outcome in turns:
        store.add(outcome)
    return verdict(store.snapshot(turns[-1].at if now is None else now), rules)
