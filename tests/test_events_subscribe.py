"""Listening over real sockets: what is missed is asked for again, what cannot be had becomes an interval, and nothing brings it down."""

from __future__ import annotations

import contextlib
import struct
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import msgspec
import pytest
import zmq

from kvwatch.events.sources import RankSource, configured, discovered
from kvwatch.events.subscribe import Subscriber
from kvwatch.target import EventSource, Side, Target

DEADLINE = 10.0


def stored(number: int, medium: str = "GPU") -> bytes:
    """A payload that stores one block of its own."""
    event = {
        "type": "BlockStored",
        "block_hashes": [number + 1],
        "parent_block_hash": None,
        "token_ids": [1],
        "block_size": 1,
        "medium": medium,
    }
    return msgspec.msgpack.encode([time.time(), [event], 0])


@dataclass
class Publisher:
    """A publisher as vLLM's: a PUB socket and a ROUTER that replays what it still has."""

    connect_to: str | None = None
    has: dict[int, bytes] = field(default_factory=dict)
    holes: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.context = zmq.Context()
        self.pub = self.context.socket(zmq.PUB)
        self.pub.setsockopt(zmq.LINGER, 0)
        if self.connect_to is None:
            self.port = self.pub.bind_to_random_port("tcp://127.0.0.1")
        else:
            self.pub.connect(self.connect_to)
        self.router = self.context.socket(zmq.ROUTER)
        self.router.setsockopt(zmq.LINGER, 0)
        self.replay_port = self.router.bind_to_random_port("tcp://127.0.0.1")
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self._replay, daemon=True)
        self.thread.start()

    def _replay(self) -> None:
        while not self.stop.is_set():
            if self.router.poll(20):
                who, _, start = self.router.recv_multipart()
                for number in sorted(n for n in self.has if n >= struct.unpack(">q", start)[0] and n not in self.holes):
                    self.router.send_multipart([who, b"", b"kv", struct.pack(">q", number), self.has[number]])
                self.router.send_multipart([who, b"", b"", struct.pack(">q", -1), b""])

    def publish(self, number: int, payload: bytes | None = None, *, heard: bool = True) -> None:
        """Send one message; ``heard`` false drops it on the way."""
        self.has[number] = payload or stored(number)
        if heard:
            self.pub.send_multipart([b"kv", struct.pack(">q", number), self.has[number]])

    def close(self) -> None:
        """End both sockets."""
        self.stop.set()
        self.thread.join()
        self.context.destroy(linger=0)


@contextlib.contextmanager
def listening(publisher: Publisher, *, replay: bool = True) -> Iterator[Subscriber]:
    """A subscriber of a publisher, closed afterwards within the deadline."""
    source = RankSource(f"tcp://127.0.0.1:{publisher.port}", f"tcp://127.0.0.1:{publisher.replay_port}" if replay else None, "kv")
    subscriber = Subscriber({"0": source})
    try:
        yield subscriber
    finally:
        begun = time.monotonic()
        subscriber.close()
        assert time.monotonic() - begun < DEADLINE
        publisher.close()


def until(true: Callable[[], bool], each: Callable[[], None] = lambda: None) -> None:
    """Wait for something, doing ``each`` again and again; fail after a deadline."""
    end = time.monotonic() + DEADLINE
    while not true():
        assert time.monotonic() < end
        each()
        time.sleep(0.01)


def held(subscriber: Subscriber) -> tuple[float, float] | None:
    """Bounds of the blocks in the cache, None while nothing is known."""
    view = subscriber.view("0", time.monotonic())
    return None if view is None or view.open else (view.gpu.lo, view.gpu.hi)


def test_what_was_before_comes_by_replay() -> None:
    """A late join asks for the beginning, and the count is exact."""
    publisher = Publisher()
    for number in range(5):
        publisher.publish(number, heard=False)
    with listening(publisher) as subscriber:
        until(lambda: held(subscriber) == (5, 5))
        publisher.publish(5)
        until(lambda: held(subscriber) == (6, 6))
        assert subscriber.stats()["0"].state == "exact"


def test_a_dropped_message_is_asked_for_again() -> None:
    """A gap in the numbers is filled from the replay socket."""
    publisher = Publisher()
    with listening(publisher) as subscriber:
        until(lambda: held(subscriber) == (0, 0))
        publisher.publish(0)
        publisher.publish(1, heard=False)
        publisher.publish(2)
        until(lambda: held(subscriber) == (3, 3))
        assert subscriber.stats()["0"].lost == 0


def test_what_the_replay_has_not_either_is_an_interval() -> None:
    """A hole in the replay is given up after a few tries: the truth stays inside."""
    publisher = Publisher(holes={1})
    with listening(publisher) as subscriber:
        until(lambda: held(subscriber) == (0, 0))
        publisher.publish(0)
        publisher.publish(1, heard=False)
        publisher.publish(2)
        until(lambda: (found := held(subscriber)) is not None and found[1] > 3)
        assert subscriber.stats()["0"].lost == 1


def test_a_lost_last_message_is_found_in_the_silence_after_it() -> None:
    """No later message shows the gap: the silence does."""
    publisher = Publisher()
    with listening(publisher) as subscriber:
        until(lambda: held(subscriber) == (0, 0))
        publisher.publish(0)
        publisher.publish(1, heard=False)
        until(lambda: held(subscriber) == (2, 2))


def test_a_publisher_that_began_again_in_silence_is_another_one() -> None:
    """A restarted engine that has published nothing new yet does not have what it sent before; its cache is empty."""
    publisher = Publisher()
    with listening(publisher) as subscriber:
        until(lambda: held(subscriber) == (0, 0))
        for number in range(3):
            publisher.publish(number, heard=number != 1)
        until(lambda: held(subscriber) == (3, 3))
        publisher.has.clear()
        until(lambda: held(subscriber) == (0, 0))
        assert subscriber.stats()["0"].restarts == 1


def test_without_a_replay_every_gap_is_given_up_at_once() -> None:
    """Many holes cost no waiting: what came since the last one is certain."""
    publisher = Publisher()
    with listening(publisher, replay=False) as subscriber:
        numbers = iter(range(0, 100_000, 3))
        until(lambda: subscriber.stats()["0"].gaps > 20 and held(subscriber) == (1, float("inf")), lambda: publisher.publish(next(numbers)))


def test_a_late_join_without_a_replay_is_an_interval() -> None:
    """Nothing is guessed about what was before."""
    publisher = Publisher()
    with listening(publisher, replay=False) as subscriber:
        numbers = iter(range(100, 100_000))
        until(lambda: held(subscriber) is not None, lambda: publisher.publish(next(numbers)))
        found = held(subscriber)
        assert found is not None
        assert found[1] == float("inf")
        assert subscriber.stats()["0"].state == "partial"


@pytest.mark.parametrize(
    "frames", [[b"kv"], [b"kv", b"x", b"y"], [b"kv", struct.pack(">q", 0), b"\xc1garbage"], [b"kv", struct.pack(">q", -7), b""], [b""] * 9]
)
def test_garbage_is_counted_and_survived(frames: list[bytes]) -> None:
    """Whatever a publisher sends, the next good message is taken."""
    publisher = Publisher()
    with listening(publisher) as subscriber:
        until(lambda: held(subscriber) == (0, 0))
        publisher.pub.send_multipart(frames if frames[0] else [b"kv", *frames])
        publisher.publish(1)
        until(lambda: subscriber.stats()["0"].garbled > 0)
        until(lambda: held(subscriber) is not None and subscriber.stats()["0"].batches > 0)


def test_an_engine_that_connects_is_waited_for() -> None:
    """With ``bind`` the subscriber is the one that listens."""
    with zmq.Context() as context, context.socket(zmq.SUB) as probe:
        port = probe.bind_to_random_port("tcp://127.0.0.1")
    subscriber = Subscriber({"0": RankSource(f"tcp://127.0.0.1:{port}", topic="kv", bind=True)})
    publisher = Publisher(connect_to=f"tcp://127.0.0.1:{port}")
    numbers = iter(range(100_000))
    try:
        until(lambda: subscriber.stats()["0"].batches > 0, lambda: publisher.publish(next(numbers)))
    finally:
        subscriber.close()
        publisher.close()


def test_a_bad_address_is_refused() -> None:
    """One line for the log, no socket left."""
    with pytest.raises(ValueError, match=r".+"):
        Subscriber({"0": RankSource("tcp://nowhere")})


def test_sources_are_found_as_seen_from_here() -> None:
    """A publisher that binds everywhere is at the target's host; one that names a host may be the one that connects."""
    target = Target("t", "http://10.1.2.3:8000/metrics")
    answer = {
        "0": {"publisher": "zmq", "endpoint": "tcp://*:5557", "replay_endpoint": "tcp://*:5559", "topic": "kv"},
        "1": {"publisher": "zmq", "endpoint": "tcp://collector:5558", "replay_endpoint": None, "topic": ""},
        "2": {"publisher": "null", "endpoint": "tcp://*:5559"},
        "3": "odd",
    }
    found = discovered(answer, target)
    assert found["0"] == RankSource("tcp://10.1.2.3:5557", "tcp://10.1.2.3:5559", "kv")
    assert found["1"] == RankSource("tcp://collector:5558", unclear=True)
    assert set(found) == {"0", "1"}
    assert discovered(["no", "mapping"], target) == {}


def test_the_configuration_comes_first() -> None:
    """Configured endpoints are taken by rank, with their replays as far as they are given."""
    source = EventSource(("tcp://a:1", "tcp://a:2"), ("tcp://a:3",), bind=True)
    assert configured(Target("t", "u", side=Side(event_source=source))) == {
        "0": RankSource("tcp://a:1", "tcp://a:3", bind=True),
        "1": RankSource("tcp://a:2", None, bind=True),
    }
    assert configured(Target("t", "u")) is None
