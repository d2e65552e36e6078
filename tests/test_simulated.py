"""Two hundred random engines, healthy and sick: no false root, no missed incident."""

from __future__ import annotations

import pytest

from kvwatch.exposition import Memo
from kvwatch.finding import Finding
from kvwatch.report import verdict
from kvwatch.rules import active
from kvwatch.store import Store
from kvwatch.target import Target
from kvwatch.turn import Clocked, finished
from kvwatch.view import Watch
from tests.simulated import Engine, random_setup

INTERVAL = 10
ABOUT_L1 = {"l1-saturated", "l1-saturated-l2-idle", "l1-l2-saturated", "admission-reserve-too-large"}
LINGERS = 60
"""Seconds a finding may stand after its cause: the recent preemption, the clear-hold, and a scrape."""
LASTS = 120
"""An incident this long must be found, whatever the scrape interval and the hold."""
SEEDS = range(200)


def watch(seed: int) -> tuple[list[tuple[int, tuple[Finding, ...]]], list[bool], list[int], Store]:
    """Run one engine under a watcher: what was said at each scrape, and the truth of each second."""
    setup = random_setup(seed)
    engine, target, rules, memo = Engine(setup, seed), Target("sim", "sim"), active(), Memo()
    store = Store([target], Watch(interval=INTERVAL), rules)
    said: list[tuple[int, tuple[Finding, ...]]] = []
    bound: list[bool] = []
    waiting: list[int] = []
    for length, rate in setup.rates:
        for _ in range(length):
            engine.step(rate)
            bound.append(engine.bound)
            waiting.append(len(engine.waiting))
            if len(bound) % INTERVAL == 0:
                store.add(finished(target, Clocked(len(bound), float(len(bound))), engine.exposition().encode(), engine.loads(), memo))
                said.append((len(bound), verdict(store.snapshot(len(bound)), rules).findings))
    return said, bound, waiting, store


def live(found: tuple[Finding, ...], rules: set[str]) -> list[str]:
    """Firing and pending findings among some rules."""
    return [f.rule for f in found if f.status != "unknown" and f.rule in rules]


@pytest.mark.parametrize("seed", SEEDS)
def test_random_engine(seed: int) -> None:
    """A root about L1 is named only while L1 held up the queue, and always when it did for two minutes; a calm engine is let alone."""
    said, bound, waiting, store = watch(seed)
    replay = f"replay with: python -m pytest 'tests/test_simulated.py::test_random_engine[{seed}]' ({random_setup(seed)})"
    for now, found in said:
        if roots := live(found, ABOUT_L1):
            assert any(bound[max(0, now - LINGERS) : now]), f"{now} s: {roots} without cause; {replay}"
        if not any(waiting[:now]):
            critical = [f.rule for f in found if f.status != "unknown" and f.severity == "critical"]
            assert not critical, f"{now} s: {critical} on a calm engine; {replay}"
        if now >= LASTS and all(bound[now - LASTS : now]):
            assert live(found, ABOUT_L1), f"{now} s: missed; {replay}"
    pool = store.snapshot(len(bound)).owners[0].state.pool("l1", "full")
    assert pool is not None
    assert pool.measured
