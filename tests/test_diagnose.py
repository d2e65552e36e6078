"""Episodes and their order: since when, what stands for what, and which finding is the root."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

import pytest

from kvwatch.diagnose import Case, findings, incidents, status_of
from kvwatch.finding import Finding, Subject
from kvwatch.judge import Episode, Judged, Telling
from kvwatch.quantity import TRUE
from kvwatch.report import verdict
from kvwatch.rules import RULES, active
from kvwatch.rules.kinds import CLEAR_HOLD, ActiveRule
from kvwatch.schema import EngineName
from kvwatch.store import Store
from kvwatch.target import Target
from kvwatch.view import Watch
from tests.samples import Amount, hbm, lost, sample, turn

HELD, PRESENT = 60.0, 0.0
"""Ages of an episode: as old as every hold that is not longer than a minute, and just begun."""
NOW = 1000.0


def watched(
    rule: str, samples: Sequence[tuple[float, Amount, bool]], *, hold: float | None = None, engine: EngineName = "vllm"
) -> list[Finding | None]:
    """A rule's finding after each sample: time, used tokens of 1,000 with a queue, and whether the engine has restarted by then."""
    rules = tuple(ActiveRule(r.rule, r.limits, hold) for r in active() if r.rule.id == rule)
    store = Store([Target("t", "http://t/metrics")], Watch(interval=5.0), rules)
    found: list[Finding | None] = []
    for at, used, again in samples:
        pools = [hbm(used)] if used is not None else []
        store.add(turn(sample(at, engine=engine, pools=pools, waiting=5, running=3, preemptions=0, started=99.0 if again else 1.0)))
        found.append(next((f for f in verdict(store.snapshot(at), rules).findings if f.status != "unknown"), None))
    return found


def ages(found: Sequence[Finding | None]) -> list[tuple[str, float | None] | None]:
    """Status and age of each."""
    return [None if f is None else (f.status, f.since_seconds) for f in found]


FULL, ROOM = 990.0, 300.0


def at(*used: Amount, step: float = 10.0) -> list[tuple[float, Amount, bool]]:
    """Samples ten seconds apart."""
    return [(i * step, u, False) for i, u in enumerate(used)]


def test_an_episode_begins_with_the_first_sample_that_has_it() -> None:
    """It is pending until it is as old as the hold, and its age counts from its beginning."""
    found = watched("l1-saturated", at(ROOM, FULL, FULL, FULL, FULL, FULL))
    assert ages(found) == [None, ("pending", 0), ("pending", 10), ("pending", 20), ("firing", 30), ("firing", 40)]


def test_holds_are_time_not_samples() -> None:
    """Two samples half a minute apart are as good as a dozen."""
    assert ages(watched("l1-saturated", at(FULL, FULL, step=30.0))) == [("pending", 0), ("firing", 30)]


def test_an_outage_ends_an_episode() -> None:
    """What was open has gone unseen for longer than its clear-hold and than values are shown."""
    assert ages(watched("l1-saturated", at(FULL, FULL, step=31.0))) == [("pending", 0), ("pending", 0)]


def test_a_wobble_is_inside_the_episode_before_the_hold_and_after_it() -> None:
    """As long as some sample of the clear-hold had the terms true."""
    before = watched("l1-saturated", at(FULL, ROOM, ROOM, FULL, FULL))
    assert ages(before) == [("pending", 0), ("pending", 10), ("pending", 20), ("firing", 30), ("firing", 40)]
    after = watched("l1-saturated", at(FULL, FULL, FULL, FULL, ROOM, ROOM, ROOM, ROOM, FULL))
    assert ages(after)[4:] == [("firing", 40), ("firing", 50), ("firing", 60), None, ("pending", 0)]


def test_the_clear_hold_is_never_longer_than_the_hold() -> None:
    """A rule that holds ten seconds is over after ten."""
    assert ages(watched("l1-saturated", at(FULL, ROOM, ROOM, FULL), hold=10.0)) == [("pending", 0), ("firing", 10), None, ("pending", 0)]


def test_without_a_hold_there_is_no_wobble() -> None:
    """It fires with the first sample and is gone with the first that denies it."""
    assert ages(watched("l1-saturated", at(FULL, ROOM, FULL), hold=0.0)) == [("firing", 0), None, ("firing", 0)]


def test_in_a_wobble_the_last_proof_is_shown() -> None:
    """Evidence and words are of the last sample that had the terms true, so they satisfy the condition."""
    proof, wobble = watched("l1-saturated", at(FULL, ROOM))
    assert proof is not None
    assert wobble is not None
    assert wobble.evidence == proof.evidence
    assert wobble.explanation == proof.explanation


def test_ignorance_does_not_clear_within_the_clear_hold() -> None:
    """And does not keep anything open beyond it."""
    found = watched("l1-saturated", at(FULL, None, None, None, None, FULL))
    assert ages(found) == [("pending", 0), ("pending", 10), ("pending", 20), ("firing", 30), None, ("pending", 0)]


def test_a_restart_ends_every_episode() -> None:
    """The new process's trouble is its own."""
    samples = [(0.0, FULL, False), (30.0, FULL, False), (40.0, FULL, True), (50.0, FULL, True)]
    assert ages(watched("l1-saturated", samples)) == [("pending", 0), ("firing", 30), ("pending", 0), ("pending", 10)]


def test_sglang_holds_longer_where_its_gauges_are_old() -> None:
    """A rule may hold longer for an engine."""
    rule = next(r for r in active() if r.rule.id == "queue-stalled")
    assert (rule.hold_for("vllm"), rule.hold_for("sglang")) == (60.0, 90.0)
    assert rule.clear_hold_for("sglang") == CLEAR_HOLD


def test_a_failed_scrape_ages_nothing() -> None:
    """It is no sample: a pending finding does not come of age by silence."""
    rules = tuple(r for r in active() if r.rule.id == "l1-saturated")
    store = Store([Target("t", "http://t/metrics")], Watch(interval=15.0), rules)
    for state in (sample(0, pools=[hbm(FULL)], waiting=5, preemptions=0), sample(20, pools=[hbm(FULL)], waiting=5, preemptions=0)):
        store.add(turn(state))
    store.add(lost("t", 40.0))
    assert ages(verdict(store.snapshot(40.0), rules).findings) == [("pending", 20)]


def case(  # noqa: PLR0913  one keyword for each thing a case has
    rules: Mapping[str, float], *, target: str = "t", rank: str = "0", model: str | None = "m", reasons: Mapping[str, str] | None = None,
    undecided: Mapping[str, tuple[str, ...]] | None = None, engine: EngineName = "vllm", pained: bool = False,
) -> Case:  # fmt: skip
    """A subject whose episodes have these ages."""
    episodes = {
        name: Episode(NOW - age, NOW, Telling((reasons or {}).get(name), "title", "explanation", (), ())) for name, age in rules.items()
    }
    judged = Judged(NOW, engine, values={"pain": TRUE} if pained else {}, episodes=episodes, undecided=undecided or {})
    return Case(Subject(target, engine, model, rank), judged)


def found(*cases: Case) -> list[str]:
    """Ids of what is found, in order."""
    return [f.rule for f in findings(cases, active())]


SUPERSEDES = [(rule.id, general) for rule in RULES.values() for general in rule.supersedes]


@pytest.mark.parametrize(("special", "general"), SUPERSEDES)
@pytest.mark.parametrize(
    ("ages", "listed"),
    [((200, 200), {"special"}), ((0, 0), {"special"}), ((200, 0), {"special"}), ((0, 200), {"special", "general"})],
    ids=["both fire", "both pending", "it fires", "it is pending and the general one fires"],
)
def test_the_specific_stands_for_the_general(special: str, general: str, ages: tuple[float, float], listed: set[str]) -> None:
    """A firing one always, a pending one only for one that is pending, too: what fires is never hidden."""
    engine: EngineName = "sglang"
    rules = [r for r in active() if r.rule.id in {special, general}]
    shown = findings([case({special: ages[0], general: ages[1]}, engine=engine)], rules)
    assert {f.rule for f in shown} == {{"special": special, "general": general}[name] for name in listed}


def test_a_reason_stands_for_the_finding_it_says_already() -> None:
    """Only the reason that was proven."""
    both = {"l1-saturated-l2-idle": HELD, "l2-write-starved": HELD}
    assert found(case(both, reasons={"l1-saturated-l2-idle": "write-starved"})) == ["l1-saturated-l2-idle"]
    assert found(case(both, reasons={"l1-saturated-l2-idle": "never-read"})) == ["l1-saturated-l2-idle", "l2-write-starved"]
    assert found(case(both)) == ["l1-saturated-l2-idle", "l2-write-starved"]


def test_another_rank_is_another_subject() -> None:
    """Nothing stands for a finding on another rank."""
    assert found(case({"l1-saturated-l2-idle": HELD}), case({"l1-saturated": HELD}, rank="1")) == ["l1-saturated-l2-idle", "l1-saturated"]


def test_what_stands_for_is_not_asked_for_either() -> None:
    """An unknown general finding is not listed beside the specific one."""
    assert found(case({"l1-saturated-l2-idle": HELD}, undecided={"l1-saturated": ("x",), "load-shed": ("y",)})) == [
        "l1-saturated-l2-idle", "load-shed",
    ]  # fmt: skip


def test_unknown_findings_come_last_and_only_with_trouble() -> None:
    """Nobody wants thirty of them about a healthy engine; an info finding is no trouble, pain is."""
    asked = {"l2-write-starved": ("l1_evicted_share",)}
    assert found(case({}, undecided=asked)) == []
    assert found(case({"l2-unobservable": HELD}, undecided=asked)) == ["l2-unobservable"]
    assert found(case({"scrape-slow": HELD}, undecided=asked)) == ["scrape-slow", "l2-write-starved"]
    assert found(case({}, undecided=asked, pained=True)) == ["l2-write-starved"]
    troubled = findings([case({"ttft-degraded": HELD}, undecided=asked), case({"l1-saturated": HELD}, rank="1")], active())
    assert [(f.rule, f.status) for f in troubled] == [
        ("l1-saturated", "firing"), ("ttft-degraded", "firing"), ("l2-write-starved", "unknown"),
    ]  # fmt: skip
    assert (troubled[-1].missing, troubled[-1].since_seconds) == (("l1_evicted_share",), None)


def test_effects_nest_under_the_strongest_root() -> None:
    """A chain is followed, and an effect of several roots belongs to the worst."""
    shown = findings([case({"ttft-degraded": HELD, "preemption-storm": HELD, "l1-saturated": HELD, "kv-pool-undersized": HELD})], active())
    assert [(f.rule, f.caused_by) for f in shown] == [
        ("kv-pool-undersized", None), ("l1-saturated", "kv-pool-undersized"), ("preemption-storm", "l1-saturated"),
        ("ttft-degraded", "l1-saturated"),
    ]  # fmt: skip
    assert shown[1].causes == ("preemption-storm", "ttft-degraded")


def test_what_fires_is_not_put_under_what_is_pending() -> None:
    """A root that may still pass explains pending findings only; a critical one that fires keeps its own remedy and stays on top."""
    shown = findings([case({"l1-saturated": HELD, "kv-pool-undersized": PRESENT})], active())
    assert [(f.rule, f.status, f.causes, f.caused_by) for f in shown] == [
        ("l1-saturated", "firing", (), None), ("kv-pool-undersized", "pending", (), None),
    ]  # fmt: skip
    both_begin = findings([case({"l1-saturated": PRESENT, "kv-pool-undersized": PRESENT})], active())
    assert [(f.rule, f.caused_by) for f in both_begin] == [("kv-pool-undersized", None), ("l1-saturated", "kv-pool-undersized")]
    freeze = findings([case({"lockstep-freeze": PRESENT}), case({"queue-stalled": HELD}, rank="1")], active())
    assert [(f.rule, f.caused_by) for f in freeze] == [("queue-stalled", None), ("lockstep-freeze", None)]


def test_the_worst_root_comes_first() -> None:
    """What fires before what is pending, critical before warning, then by name; each followed by its own effects."""
    shown = findings(
        [
            case({"scrape-slow": HELD}, target="a"),
            case({"l1-saturated": PRESENT, "ttft-degraded": PRESENT}, target="b"),
            case({"l1-saturated": HELD, "ttft-degraded": HELD}, target="c"),
        ],
        active(),
    )
    assert [(f.subject.target, f.rule) for f in shown] == [
        ("c", "l1-saturated"), ("c", "ttft-degraded"), ("a", "scrape-slow"), ("b", "l1-saturated"), ("b", "ttft-degraded"),
    ]  # fmt: skip


def test_ranks_are_told_in_the_order_of_their_numbers() -> None:
    """So that the first of many is the one to look at: 9 before 10."""
    shown = findings([case({"l1-saturated": HELD}, rank=rank) for rank in ("10", "9")], active())
    assert [f.subject.rank for f in shown] == ["9", "10"]


def test_a_root_is_as_bad_as_its_effects() -> None:
    """The verdict is critical for an effect of a warning: that warning is the one on top, not the first by name."""
    shown = findings([case({"scrape-slow": HELD}, target="a"), case({"rank-imbalance": HELD, "l1-saturated": HELD}, target="b")], active())
    assert [(f.subject.target, f.rule, f.caused_by) for f in shown] == [
        ("b", "rank-imbalance", None), ("b", "l1-saturated", "rank-imbalance"), ("a", "scrape-slow", None),
    ]  # fmt: skip


def test_the_order_does_not_depend_on_the_order_of_the_cases() -> None:
    """The same trouble reads the same, whoever was scraped first."""
    chance = random.Random(1)
    ids = sorted(RULES)
    cases = [
        case(dict.fromkeys(chance.sample(ids, 6), HELD if chance.random() < 0.7 else PRESENT), target=f"t{n // 2}", rank=str(n % 2))
        for n in range(12)
    ]
    first = findings(cases, active())
    for _ in range(5):
        chance.shuffle(cases)
        assert findings(cases, active()) == first


@pytest.mark.parametrize("seed", range(30))
def test_nothing_is_lost_or_told_twice(seed: int) -> None:
    """Whatever is open is listed once: in its place, in one incident; only what something stands for is left out."""
    chance = random.Random(seed)
    cases = [
        case(
            dict.fromkeys(chance.sample(sorted(RULES), chance.randrange(12)), HELD * 4),
            target=f"t{n}",
            model=chance.choice(["m", "n", None]),
        )
        for n in range(5)
    ]
    shown = findings(cases, active())
    keys = [(f.rule, f.subject) for f in shown]
    assert len(keys) == len(set(keys))
    replaced = {(general, c.subject) for c in cases for name in c.judged.episodes for general in RULES[name].supersedes}
    assert {(name, c.subject) for c in cases for name in c.judged.episodes} - set(keys) <= replaced
    for i, f in enumerate(shown):
        if f.caused_by is not None:
            assert f.caused_by in {r.rule for r in shown[:i]}, "an effect follows its root"
            assert f.rule in RULES[f.caused_by].causes
    in_incidents = [(f.rule, f.subject) for incident in incidents(shown) for f in (*incident.roots, *incident.effects)]
    assert {(f.rule, f.subject) for f in shown if f.caused_by is None} <= set(in_incidents)


def test_a_root_that_spreads_owns_its_effects_on_the_other_ranks() -> None:
    """A full rank freezes all of them: their stalls are its doing, on that model only."""
    shown = findings(
        [
            case({"lockstep-freeze": HELD * 2}, rank="0"),
            case({"queue-stalled": HELD * 2}, rank="1"),
            case({"queue-stalled": HELD * 2}, rank="1", target="u", model="another"),
        ],
        active(),
    )
    assert [(f.rule, f.subject.model, f.caused_by) for f in shown] == [
        ("lockstep-freeze", "m", None), ("queue-stalled", "m", "lockstep-freeze"), ("queue-stalled", "another", None),
    ]  # fmt: skip


def test_a_full_decode_pool_owns_the_backlog_on_the_prefill_side() -> None:
    """Prefill cannot hand over what decode has no room for: one incident, whose root is on the other target."""
    shown = findings(
        [
            case({"pd-decode-pool-full": HELD * 2, "pd-handover-backlog": HELD * 2}, target="d", engine="sglang"),
            case({"pd-handover-backlog": HELD * 2}, target="p", engine="sglang"),
        ],
        active(),
    )
    assert [(f.rule, f.subject.target, f.caused_by) for f in shown] == [
        ("pd-decode-pool-full", "d", None), ("pd-handover-backlog", "p", "pd-decode-pool-full"),
    ]  # fmt: skip


def test_equal_roots_of_a_model_are_one_incident() -> None:
    """With all their effects; of another model, and of targets without one, each is its own."""
    one = [case({"l1-saturated": HELD, "ttft-degraded": HELD}, target=f"t{n}") for n in range(3)]
    other = case({"l1-saturated": HELD}, target="x", model="another")
    nameless = [case({"l1-saturated": HELD}, target=f"n{n}", model=None) for n in range(2)]
    grouped = incidents(findings([*one, other, *nameless], active()))
    assert [(i.roots[0].subject.target, len(i.roots), len(i.effects)) for i in grouped] == [
        ("n0", 1, 0), ("n1", 1, 0), ("t0", 3, 3), ("x", 1, 0),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("cases", "judged_any", "expected"),
    [
        ([case({"l1-saturated": HELD, "scrape-slow": HELD})], True, "critical"),
        ([case({"scrape-slow": HELD})], True, "warning"),
        ([case({"l1-saturated": PRESENT})], True, "ok"),
        ([case({"l2-unobservable": HELD})], True, "ok"),
        ([case({}, undecided={"load-shed": ("x",)}, pained=True)], True, "ok"),
        ([], False, "unknown"),
        ([case({"target-down": HELD})], False, "critical"),
    ],
    ids=["worst", "warning", "pending", "info", "unknown", "nothing judged", "only the target"],
)
def test_the_status_is_the_worst_that_fires(cases: list[Case], judged_any: bool, expected: str) -> None:  # noqa: FBT001  a table's column
    """Pending, info and unknown ones do not count; unknown when nothing could be judged."""
    assert status_of(findings(cases, active()), judged_any=judged_any) == expected
