"""One rank against its peers, and the queues between prefill and decode."""

from __future__ import annotations

from kvwatch.history import Track
from kvwatch.model import EngineState
from kvwatch.quantity import UNKNOWN, ZERO, Interval, at_least, exactly
from kvwatch.signals import topology
from kvwatch.signals.kinds import holds
from tests.samples import Amount, hbm, moment, sample, track


def peer(used: Amount = 300, *, waiting: Amount = 0, running: Amount = 1, asleep: bool = False) -> Track:
    """Another rank."""
    return track(sample(rank="1", pools=[hbm(used)], waiting=waiting, running=running, asleep=asleep))


def still_peer(*counts: float) -> Track:
    """A rank that counted these tokens, one sample in 10 s."""
    return track(*(sample(at * 10.0, rank="1", generation_tokens=n) for at, n in enumerate(counts)))


def test_a_spare_peer_has_no_queue() -> None:
    """The least used of those, if there is one. A sleeping one, or one whose queue is unknown, is none."""
    view = moment(sample(), peers=[peer(700), peer(400), peer(200, waiting=1), peer(100, asleep=True), peer(50, waiting=None)])
    assert topology.spare_peer.of(view) == exactly(0.4)
    assert topology.spare_peer.told(moment(sample(), peers=[peer(200, waiting=1)])) is None
    assert topology.spare_peer.told(moment(sample())) is None
    assert topology.spare_peer.of(moment(sample(), peers=[peer(None)])) == Interval(0.0, 1.0)


def test_peers_stand_still_only_all_together() -> None:
    """The shortest time without a token among them; nothing without peers, unknown where one does not say."""
    stopped, watched_shortly = still_peer(6, 7, 7, 7, 7), still_peer(7, 7)
    assert topology.peers_tokenless.of(moment(sample(), peers=[stopped, watched_shortly])) == Interval(10, 30)
    assert topology.peers_tokenless.told(moment(sample())) is None
    assert topology.peers_tokenless.of(moment(sample(), peers=[stopped, peer()])) == Interval(0, 30)


def test_peers_are_busy_together() -> None:
    """Requests that run on all of them; unknown where one does not say."""
    assert topology.peers_busy.of(moment(sample(), peers=[peer(running=2), peer(running=3)])) == exactly(5)
    assert topology.peers_busy.of(moment(sample(), peers=[peer(running=2), peer(running=None)])) == at_least(2)
    assert topology.peers_busy.of(moment(sample())) == ZERO


def queues(*moments: dict[str, Amount]) -> list[EngineState]:
    """Samples with these queues."""
    return [sample(i * 5.0, engine="sglang", gauges=gauges) for i, gauges in enumerate(moments)]


def test_the_queues_of_a_handover_add_up() -> None:
    """Prefill and decode sides have queues of their own; growth is against the window's start."""
    view = moment(
        *queues({"prefill_bootstrap_queue": 1, "prefill_inflight_queue": 2}, {"prefill_bootstrap_queue": 4, "prefill_inflight_queue": 5})
    )
    assert topology.handover_queue.of(view) == exactly(9)
    assert topology.handover_growth.of(view) == exactly(6)


def test_queues_that_are_not_told_are_unknown() -> None:
    """But an engine that says that it does both halves itself has none of them."""
    assert topology.decode_queue.of(moment(sample(), sample(5))) == UNKNOWN
    assert topology.decode_growth.of(moment(sample(), sample(5))) == UNKNOWN
    unified = moment(*(sample(at, facts={"role": "unified"}) for at in (0, 5)))
    assert (topology.decode_queue.of(unified), topology.decode_growth.of(unified)) == (ZERO, ZERO)


def test_a_queue_that_shrinks_has_not_grown() -> None:
    """Growth is never negative."""
    assert topology.decode_growth.of(moment(*queues({"decode_prealloc_queue": 9}, {"decode_prealloc_queue": 4}))) == ZERO


def test_a_queue_first_told_now_has_not_grown() -> None:
    """Its growth is unknown, not all of it; a pause at the window's start is passed over."""
    assert topology.decode_growth.of(moment(*queues({}, {"decode_prealloc_queue": 40}))) == UNKNOWN
    assert topology.decode_growth.of(moment(*queues({"decode_prealloc_queue": 40}))) == UNKNOWN
    paused = queues({}, {"decode_prealloc_queue": 40}, {"decode_prealloc_queue": 41})
    assert topology.decode_growth.of(moment(*paused)) == exactly(1)


def test_transfers_that_failed_in_the_window() -> None:
    """Unknown without the counter."""
    assert topology.transfer_failures.of(moment(sample(0, transfer_failures=2), sample(9, transfer_failures=5))) == exactly(3)
    assert topology.transfer_failures.of(moment(sample(0), sample(9))) == UNKNOWN


def test_a_rank_is_pressed_by_its_pool_or_its_queue() -> None:
    """Either is enough."""
    assert holds(topology.pressed, moment(sample(pools=[hbm(990)], waiting=0)), {}) is True
    assert holds(topology.pressed, moment(sample(pools=[hbm(300)], waiting=1)), {}) is True
    assert holds(topology.pressed, moment(sample(pools=[hbm(300)], waiting=0)), {}) is False
