"""What stands, for how long, and what is forgotten."""

from __future__ import annotations

from kvwatch.model import EngineState, Outcome, Pool, ScrapeError, Target
from kvwatch.quantity import exactly
from kvwatch.report import state_of, to_json, verdict
from kvwatch.rules import active
from kvwatch.store import Store
from kvwatch.view import Watch

WATCH = Watch(interval=10.0)
RULES = active({"l1-saturated": {"hold": 10.0}})


def full(  # noqa: PLR0913  one keyword for each circumstance
    target: str, at: float, *, waiting: int = 5, ratio: float = 0.99, started: float | None = None, asleep: bool = False
) -> Outcome:
    """A good turn of an engine with a full pool and a queue."""
    state = EngineState(
        target,
        "vllm",
        "m",
        "0",
        at,
        pools=(Pool.of("l1", "full", "tokens", capacity=exactly(1000), used_ratio=exactly(ratio)),),
        running=exactly(3),
        waiting=exactly(waiting),
        counters={"preemptions": 0.0},
        started=started,
        asleep=asleep,
    )
    return Outcome(target, at, at, 0.1, states=(state,))


def failed(target: str, at: float) -> Outcome:
    """A turn without an answer."""
    return Outcome(target, at, at, 0.1, error=ScrapeError("timeout", "no answer in 10 s"))


def store(*targets: Target) -> Store:
    """A store of some targets."""
    return Store(targets or (Target("a", "http://a/metrics"),), WATCH, RULES)


def rules_at(s: Store, now: float) -> dict[str, str]:
    """What is found, by rule."""
    return {f.rule: f.status for f in verdict(s.snapshot(now), RULES).findings}


def test_a_failed_scrape_leaves_the_verdict_standing_for_three_intervals() -> None:
    """Then the values and their findings go, and the failing target is the finding."""
    s = store()
    for at in (0, 10, 20):
        s.add(full("a", at))
    assert rules_at(s, 20)["l1-saturated"] == "firing"
    s.add(failed("a", 30))
    assert rules_at(s, 30)["l1-saturated"] == "firing"
    s.add(failed("a", 40))
    s.add(failed("a", 60))
    assert rules_at(s, 60) == {"target-down": "firing"}
    said = verdict(s.snapshot(60), RULES)
    assert said.status == "critical"
    assert state_of(said.snapshot.owners[0]) == "unknown"
    assert to_json(said)["engines"][0]["pools"] == []  # type: ignore[index,call-overload]
    s.add(full("a", 70))
    assert "target-down" not in rules_at(s, 70)


def test_a_target_that_never_answered_is_starting() -> None:
    """For its grace time nothing is wrong; then it is down."""
    s = store()
    for at in range(0, 900, 100):
        s.add(failed("a", at))
    assert rules_at(s, 800) == {}
    s.add(failed("a", 900))
    assert rules_at(s, 900) == {"target-down": "firing"}


def test_a_restart_ends_what_was_open() -> None:
    """The old saturation is not the new process's."""
    s = store()
    for at in (0, 10, 20):
        s.add(full("a", at, started=1.0))
    s.add(full("a", 30, ratio=0.1, waiting=0, started=99.0))
    assert "l1-saturated" not in rules_at(s, 30)


def test_a_sleeping_engine_is_let_alone() -> None:
    """Rules hold still while the pool is discarded."""
    s = store()
    s.add(full("a", 0))
    s.add(full("a", 10, asleep=True))
    assert rules_at(s, 10) == {}


def test_reconfiguring_keeps_what_did_not_change() -> None:
    """Unchanged targets keep their history, removed ones leave nothing."""
    a, b = Target("a", "http://a/metrics"), Target("b", "http://b/metrics")
    s = store(a, b)
    for at in (0, 10, 20):
        s.add(full("a", at))
        s.add(full("b", at))
    s.reconfigure((a,), WATCH, RULES)
    s.add(full("b", 30))
    said = verdict(s.snapshot(30), RULES)
    assert [t.target.name for t in said.snapshot.targets] == ["a"]
    assert [f.since_seconds for f in said.findings if f.rule == "l1-saturated"] == [20]


def test_a_guess_is_shown_only_once_it_answers() -> None:
    """An engine's default port where nobody listens is no failing target."""
    s = store(Target("a", "http://a/metrics", candidate=True))
    s.add(failed("a", 0))
    assert verdict(s.snapshot(0), RULES).snapshot.targets == ()
    s.add(full("a", 10))
    assert len(verdict(s.snapshot(10), RULES).snapshot.targets) == 1


def test_equal_roots_on_several_ranks_are_one_incident() -> None:
    """A fleet with one trouble reads as one, with a count."""
    s = store(Target("a", "http://a/metrics"), Target("b", "http://b/metrics"))
    for at in (0, 10, 20):
        s.add(full("a", at))
        s.add(full("b", at))
    said = verdict(s.snapshot(20), RULES)
    incidents = to_json(said)["incidents"]
    assert [(i["rule"], i["count"]) for i in incidents] == [("l1-saturated", 2)]  # type: ignore[index,union-attr,call-overload]
    assert said.summary.startswith("2 pool owners (a rank 0, b rank 0)")
