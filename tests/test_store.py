"""What stands, for how long, and what is forgotten."""

from __future__ import annotations

from kvwatch.model import EngineState, GpuReading, GpuState, NvmlState, Outcome, ScrapeError
from kvwatch.pool import Pool
from kvwatch.quantity import exactly
from kvwatch.report import state_of, to_json, verdict
from kvwatch.rules import active
from kvwatch.store import Store
from kvwatch.target import L2Setting, Target
from kvwatch.view import Watch
from tests.samples import hbm, host, sample, turn

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
    assert said.summary.startswith("2 pool owners (a, b)")


def test_what_passed_in_a_gap_is_no_calm_time() -> None:
    """First tokens of scrapes that were missed may have been late; a step no longer than three intervals teaches."""

    def learned(gap: float) -> float:
        s = store()
        for at, tokens in ((0.0, 0.0), (gap, 100.0)):
            s.add(turn(sample(at, target="a", waiting=0, running=1, preemptions=0, pools=[hbm(100)], generation_tokens=tokens)))
        return s.snapshot(gap).owners[0].baseline.seconds

    assert learned(30.0) == 30.0
    assert learned(31.0) == 0.0


def test_after_pain_calm_time_begins_late() -> None:
    """First tokens of those who queued still come after the queue is gone; they are not calm."""
    s = store()
    waiting = (5, 0, 0, 0, 0)
    seconds = []
    for i, queue in enumerate(waiting):
        pool = hbm(990 if queue else 100)
        s.add(turn(sample(i * 10.0, target="a", waiting=queue, running=1, preemptions=0, pools=[pool], generation_tokens=i * 9.0)))
        seconds.append(s.snapshot(i * 10.0).owners[0].baseline.seconds)
    assert seconds == [0.0, 0.0, 10.0, 20.0, 30.0]


def test_a_preempting_engine_is_not_calm() -> None:
    """Even when nobody waits any more."""
    s = store()
    for i in range(3):
        s.add(turn(sample(i * 10.0, target="a", waiting=0, running=1, preemptions=i, pools=[hbm(950)], generation_tokens=i * 9.0)))
    assert s.snapshot(20.0).owners[0].baseline.seconds == 0


def test_ranks_are_in_the_order_of_their_numbers() -> None:
    """10 after 9; what is no number stands beside 0."""
    s = store()
    s.add(turn(*(sample(0.0, target="a", rank=rank) for rank in ("10", "x", "9", "0"))))
    assert [o.state.rank for o in s.snapshot(0).owners] == ["0", "x", "9", "10"]


def test_failures_are_counted_by_reason_for_ever() -> None:
    """And those in a row until the next answer, however many there are."""
    s = store()
    s.add(full("a", 0))
    for i in range(1, 31):
        s.add(failed("a", i * 10.0))
    target = s.snapshot(300).targets[0]
    assert target.failures == {"timeout": 30}
    assert target.judged is not None
    assert target.judged.values["scrape_failures_in_row"] == exactly(30)
    assert target.last_good is not None
    assert target.last_good.at == 0


def test_a_rank_that_is_gone_is_forgotten_after_three_intervals() -> None:
    """The others of its target live on."""
    s = store()
    for at in range(0, 60, 10):
        ranks = ("0", "1") if at < 20 else ("0",)
        s.add(turn(*(sample(float(at), target="a", rank=rank, pools=[hbm(500)], waiting=0) for rank in ranks)))
        assert [o.state.rank for o in s.snapshot(at).owners] == (["0", "1"] if at <= 40 else ["0"])


def test_a_target_that_was_removed_leaves_nothing() -> None:
    """What comes in late of it is dropped."""
    s = store()
    s.reconfigure((), WATCH, RULES)
    s.add(full("a", 0))
    assert s.snapshot(0).owners == ()
    assert s.snapshot(0).targets == ()
    assert s.ready()


def test_a_target_that_changed_begins_anew() -> None:
    """Another address is another engine, whatever its name."""
    s = store(Target("a", "http://a/metrics"))
    s.add(full("a", 0))
    s.reconfigure((Target("a", "http://b/metrics"),), WATCH, RULES)
    assert s.snapshot(0).owners == ()
    assert not s.ready()
    s.add(full("a", 10), Target("a", "http://a/metrics"))
    assert s.snapshot(10).owners == (), "a scrape of the old address that was under way"
    s.add(full("a", 10), Target("a", "http://b/metrics"))
    assert len(s.snapshot(10).owners) == 1


def test_a_rule_that_changed_begins_anew() -> None:
    """Its open episode was of other limits; those of other rules stand."""
    s = store()
    for at in (0, 10, 20):
        s.add(full("a", at))
    assert set(s.snapshot(20).owners[0].judged.episodes) >= {"l1-saturated"}
    s.reconfigure((Target("a", "http://a/metrics"),), WATCH, active({"l1-saturated": {"l1_used_ratio": 0.98}}))
    assert "l1-saturated" not in s.snapshot(20).owners[0].judged.episodes


def test_another_hold_leaves_an_episode_as_old_as_it_is() -> None:
    """What was seen stays seen: with a shorter hold it fires at once, and what fires is not taken back."""
    s, target = store(), Target("a", "http://a/metrics")
    for at in (0, 10, 20):
        s.add(full("a", at))
    for hold, status in ((20.0, "firing"), (25.0, "pending")):
        rules = active({"l1-saturated": {"hold": hold}})
        s.reconfigure((target,), WATCH, rules)
        found = verdict(s.snapshot(20), rules).findings
        assert [(f.status, f.since_seconds) for f in found if f.rule == "l1-saturated"] == [(status, 20)]


def test_ready_once_every_target_was_tried() -> None:
    """A failure is a try."""
    s = store(Target("a", "http://a/metrics"), Target("b", "http://b/metrics"))
    s.add(full("a", 0))
    assert not s.ready()
    s.add(failed("b", 0))
    assert s.ready()


def spare_peer(*owners: EngineState, targets: tuple[str, ...] = ("a", "b")) -> float | None:
    """What the last one is told of its peers."""
    s = store(*(Target(name, f"http://{name}/metrics") for name in targets))
    for state in owners:
        s.add(turn(state))
    last = owners[-1]
    return next(o for o in s.snapshot(last.at).owners if o.state.owner == last.owner).judged.values["peer_least_used_ratio"].exact


def test_peers_serve_the_same_model_and_are_fresh() -> None:
    """Of another target, too; not of another engine or model, and not one that was last seen long ago."""
    me = sample(50.0, target="b", pools=[hbm(900)], waiting=3)
    assert spare_peer(sample(50.0, target="a", pools=[hbm(200)], waiting=0), me) == 0.2
    assert spare_peer(sample(10.0, target="a", pools=[hbm(200)], waiting=0), me) is None
    assert spare_peer(sample(50.0, target="a", model="n", pools=[hbm(200)], waiting=0), me) is None
    assert spare_peer(sample(50.0, target="a", engine="sglang", pools=[hbm(200)], waiting=0), me) is None


def test_prefill_and_decode_engines_are_no_peers() -> None:
    """A request of the one cannot go to the other, however much room it has; two of the same half are."""

    def engine(target: str, role: str, used: int, waiting: int) -> EngineState:
        return sample(50.0, target=target, engine="sglang", pools=[hbm(used)], waiting=waiting, facts={"role": role})

    assert spare_peer(engine("a", "prefill", 100, 0), engine("b", "decode", 900, 3)) is None
    assert spare_peer(engine("a", "decode", 100, 0), engine("b", "decode", 900, 3)) == 0.1


def test_without_a_model_only_ranks_of_the_target_are_peers() -> None:
    """Two engines that do not name their model may serve different ones."""
    me = sample(50.0, target="b", model=None, pools=[hbm(900)], waiting=3)
    assert spare_peer(sample(50.0, target="a", model=None, pools=[hbm(200)], waiting=0), me) is None
    assert spare_peer(sample(50.0, target="b", model=None, rank="1", pools=[hbm(200)], waiting=0), me) == 0.2


def test_every_rank_of_a_page_sees_how_long_the_others_stand_still() -> None:
    """Whichever of them is the full one, and in whatever order the page tells them: the freeze is its finding."""
    for full_rank in ("0", "1", "2"):
        s = store()
        for at in range(0, 80, 10):
            used = {rank: hbm(990 if rank == full_rank else 300) for rank in ("0", "1", "2")}
            ranks = [sample(at, target="a", rank=r, pools=[p], running=5, waiting=1, generation_tokens=70) for r, p in used.items()]
            s.add(Outcome("a", at, at, 0.1, states=tuple(ranks)))
        found = verdict(s.snapshot(70), active({"l1-saturated": {"hold": 10.0}})).findings
        assert [(f.subject.rank, f.status) for f in found if f.rule == "lockstep-freeze"] == [(full_rank, "firing")]
        assert not [f for f in found if f.rule == "queue-stalled" and f.subject.rank == full_rank and f.status != "unknown"]


def resident(targets: tuple[Target, ...], *turns: Outcome) -> float | None:
    """The host tier's resident share as target "a" is told."""
    s = store(*targets)
    for outcome in turns:
        s.add(outcome)
    me = next(o for o in s.snapshot(turns[-1].at).owners if (o.state.target, o.state.engine) == ("a", "vllm"))
    return me.judged.values["l2_resident_ratio"].exact


def test_a_server_is_the_tier_of_the_engine_that_names_it() -> None:
    """Not of one that does not, and not when it was last seen long ago."""
    tied, server = Target("a", "http://a/metrics", l2=L2Setting(source="srv")), Target("srv", "http://srv/metrics")
    said = sample(0.0, target="srv", engine="lmcache", model=None, pools=[host(300)])
    me = sample(20.0, target="a", pools=[hbm(900)])
    assert resident((tied, server), turn(said), turn(me)) == 0.3
    assert resident((Target("a", "http://a/metrics"), server), turn(said), turn(me)) is None
    assert resident((tied, server), turn(said), turn(sample(31.0, target="a", pools=[hbm(900)]))) is None


def test_a_server_on_the_engines_own_port_is_its_tier() -> None:
    """Unless the engine has a host pool of its own."""
    alone = Target("a", "http://a/metrics")
    port = sample(0.0, target="a", engine="lmcache", model=None, pools=[host(300)])
    assert resident((alone,), turn(sample(0.0, target="a", pools=[hbm(900)]), port)) == 0.3
    assert resident((alone,), turn(sample(0.0, target="a", pools=[hbm(900), host(800)]), port)) == 0.8


def test_gpus_are_those_that_are_proven_to_be_the_engines() -> None:
    """The mapping is asked with the number of engines, servers not counted, and its answer reaches the signals."""
    asked: list[tuple[str, int]] = []
    card = GpuState("h", 0, "GPU-0", "card", "ok", total=100, free=25)

    def mapping(target: Target, reading: GpuReading | None, engines: int) -> tuple[GpuState, ...] | None:
        asked.append((target.name, engines))
        return None if reading is None else reading.gpus

    s = Store((Target("a", "http://a/metrics"),), WATCH, RULES, mapping)
    states = (sample(0.0, target="a"), sample(0.0, target="a", engine="lmcache", model=None))
    s.add(turn(*states))
    assert asked == [("a", 1)], "once for a page"
    assert not s.snapshot(0).owners[0].judged.values["hbm_free_ratio"].known
    s.set_gpus(GpuReading(1.0, NvmlState("ok"), (card,)))
    s.add(turn(sample(10.0, target="a")))
    assert next(o for o in s.snapshot(10).owners if o.state.engine == "vllm").judged.values["hbm_free_ratio"] == exactly(0.25)


def test_history_is_handed_out_only_when_asked_for() -> None:
    """Frames with the signals the page draws; a snapshot for a verdict needs none."""
    s = store()
    for at in (0, 10):
        s.add(full("a", at))
    assert s.snapshot(10).owners[0].frames == ()
    frames = s.snapshot(10, with_frames=True).owners[0].frames
    assert [f.at for f in frames] == [0, 10]
    assert frames[-1].values["l1_used_ratio"] == exactly(0.99)
    assert "l1_session_ratio" not in frames[-1].values


def test_an_outage_ends_what_was_open() -> None:
    """What nobody saw for longer than values are shown is not one episode with what comes after it."""
    s = store()
    for at in (0, 10, 20):
        s.add(full("a", at))
    s.add(full("a", 200))
    assert rules_at(s, 200)["l1-saturated"] == "pending"
    assert [f.since_seconds for f in verdict(s.snapshot(200), RULES).findings if f.rule == "l1-saturated"] == [0]
