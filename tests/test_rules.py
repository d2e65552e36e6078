"""Every rule fires on its scenario, holds back just below, waits for its hold, clears, and says unknown."""

from __future__ import annotations

import pytest

from kvwatch.finding import Finding
from kvwatch.quantity import TRUE, UNKNOWN
from kvwatch.rules import FILES, RULES, active
from tests.scenarios import STEP, Scenario, Values, run, scenarios

ALL = scenarios()
each = pytest.mark.parametrize("scenario", ALL, ids=lambda s: s.rule.id)


def status(found: list[Finding], rule: str) -> str | None:
    """The rule's status among the findings."""
    return next((f.status for f in found if f.rule == rule), None)


def said(scenario: Scenario, moments: list[Values]) -> list[str | None]:
    """The rule's status at each moment."""
    rules = [r for r in active() if r.rule.id == scenario.rule.id]
    return [status(found, scenario.rule.id) for found in run(scenario.engine, moments, rules)]


def hold_of(scenario: Scenario) -> float:
    """The hold for the scenario's engine."""
    return next(r for r in active() if r.rule.id == scenario.rule.id).hold_for(scenario.engine)


def test_every_rule_has_a_scenario() -> None:
    """No rule goes without one, and none is about a rule that does not exist."""
    assert {s.rule.id for s in ALL} == set(RULES)


def test_every_edge_leads_to_a_rule() -> None:
    """What a rule causes or stands for exists: a name that is misspelled, or whose file was deleted, would be left out without a word."""
    for rule in FILES:
        edges = {*rule.causes, *rule.supersedes, *(general for reason in rule.reasons for general in reason.supersedes)}
        assert edges <= set(RULES), rule.id


@each
def test_fires_after_its_hold_and_is_pending_before(scenario: Scenario) -> None:
    """With its values from the first sample on, a rule is pending until the episode is as old as the hold, then firing."""
    hold = hold_of(scenario)
    steps = int(hold / STEP)
    expected = ["pending"] * steps + ["firing"] * 2
    assert said(scenario, [scenario.fires] * (steps + 2)) == expected


@each
def test_holds_back_just_below(scenario: Scenario) -> None:
    """A change of one value to the other side of its limit is enough to keep a rule from firing."""
    assert scenario.below
    for values in scenario.below:
        assert set(said(scenario, [values] * 30)) <= {None, "unknown"}


@each
def test_clears_after_the_clear_hold_and_not_before(scenario: Scenario) -> None:
    """A wobble shorter than the clear-hold is inside the episode; after it the finding is gone, and the next one begins anew."""
    rule = next(r for r in active() if r.rule.id == scenario.rule.id)
    hold, clear = rule.hold_for(scenario.engine), rule.clear_hold_for(scenario.engine)
    fires, quiet = int(hold / STEP) + 1, int(clear / STEP)
    off = scenario.below[0]
    got = said(scenario, [*[scenario.fires] * fires, *[off] * quiet, *[scenario.fires] * 2, *[off] * (quiet + 1), scenario.fires])
    if clear:
        assert set(got[fires : fires + quiet]) == {"firing"}, "a wobble is inside the episode"
    assert got[fires + quiet] == "firing" or not clear
    assert got[-2] is None or got[-2] == "unknown"
    assert got[-1] == ("pending" if hold else "firing")


@each
def test_is_unknown_without_a_signal_it_needs(scenario: Scenario) -> None:
    """Without one of its signals a rule neither fires nor counts as clear; it names what it lacks."""
    for name in scenario.unknown:
        if scenario.engine == "target":
            continue  # a target's turns are always known
        values = {**scenario.fires, name: UNKNOWN}
        rules = [r for r in active() if r.rule.id in {scenario.rule.id, "load-shed"}]
        found = run(scenario.engine, [{**values, "rejected_requests": scenario.fires.get("rejected_requests", UNKNOWN)}] * 3, rules)[-1]
        assert status(found, scenario.rule.id) not in {"firing", "pending"}, name
        troubled = run(scenario.engine, [{**values, "rejected_requests": TRUE}] * 3, rules)[-1]
        mine = [f for f in troubled if f.rule == scenario.rule.id]
        assert [f.status for f in mine] == ["unknown"], name
        assert name in mine[0].missing


@each
def test_each_reason_is_named_and_has_its_remedy(scenario: Scenario) -> None:
    """The first reason that is proven is named; every reason of the rule has a scenario where it has several."""
    rules = [r for r in active() if r.rule.id == scenario.rule.id]
    assert set(scenario.reasons) == {r.name for r in scenario.rule.reasons}
    for name, values in scenario.reasons.items():
        found = run(scenario.engine, [values] * 30, rules)[-1]
        assert [(f.reason, f.status) for f in found] == [(name, "firing")]
        assert found[0].remedy


SETTINGS = {
    "hicache": ("--hicache",),
    "native-offload": ("--kv-offloading-size", "store_threshold", "--kv-events-config"),
    "simple-offload": ("--kv-offloading-size", "--kv-events-config"),
    "lmcache": ("LMCache", "max_local_cpu_size", "pin_timeout_sec", "PYTHONHASHSEED", "PROMETHEUS_MULTIPROC_DIR", "l2.capacity"),
    "lmcache-server": ("LMCache", "--l1-size-gb", "--l1-read-ttl-seconds", "--eviction-trigger-watermark", "PYTHONHASHSEED", "--http-host"),
}
"""What only some kinds of host tier have, by the kinds that have it."""


@pytest.mark.parametrize("scenario", [s for s in ALL if any(do.tiers for do in s.rule.remedy)], ids=lambda s: s.rule.id)
@pytest.mark.parametrize("kind", SETTINGS)
def test_advice_is_about_the_host_tier_that_is_there(scenario: Scenario, kind: str) -> None:
    """The settings of another kind are not named to an engine that says which it has; one that does not say hears of each."""
    engine = "sglang" if kind == "hicache" else "vllm"
    rules = [r for r in active() if r.rule.id == scenario.rule.id]
    foreign = {word for words in SETTINGS.values() for word in words} - set(SETTINGS[kind])
    for values in (scenario.fires, *scenario.reasons.values()):
        told, open_ = ([a.do for a in run(engine, [values] * 40, rules, facts)[-1][0].remedy] for facts in ({"l2_kind": kind}, {}))
        assert told
        assert set(told) <= set(open_)
        assert not [(word, do) for do in told for word in foreign if word in do]


@each
def test_says_what_is_wrong_and_what_to_do(scenario: Scenario) -> None:
    """A firing finding has evidence that satisfies its condition, a title and explanation without holes, and something to do."""
    rules = [r for r in active() if r.rule.id == scenario.rule.id]
    finding = run(scenario.engine, [scenario.fires] * 30, rules)[-1][0]
    assert finding.evidence
    assert "{" not in finding.title + finding.explanation + "".join(a.do + a.because for a in finding.remedy)
    assert finding.remedy
    for e in finding.evidence:
        assert e.value.compare(e.op, e.limit) is True  # type: ignore[arg-type]  # evidence carries an operator of terms
