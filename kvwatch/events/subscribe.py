"""Listens to the publishers of one target: one daemon thread, bounded in work and memory, that never holds up an engine or a scrape.

The publisher's socket drops what a slow subscriber does not take, and its replay drops, too (the sockets' high-water marks): every gap is
asked for again from its first missing message, a few times, and then given up into an interval.
"""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass

import zmq

from kvwatch.events.decode import END
from kvwatch.events.ledger import LedgerView
from kvwatch.events.sources import RankSource
from kvwatch.events.track import Track
from kvwatch.model import EventState, EventStats

QUEUED_MESSAGES = 20_000
"""What the socket may hold; beyond it the publisher's messages are dropped, and asked for again."""
LARGEST_MESSAGE = 64 << 20
"""Bytes of one frame; a publisher that sends more is cut off."""
TURN_MESSAGES = 200
"""Messages of one rank before the others, and whoever wants a view, get their turn."""
POLL_MILLISECONDS = 100
REPLAY_QUIET_SECONDS = 1.0
"""A replay that brings nothing for so long is over, whether its end mark came or not."""
REPLAY_TRIES = 3
REPLAY_PAUSE_SECONDS = 5.0
"""Between replays that were not needed by a gap, and after one that was given up."""
SETTLE_SECONDS = 2.0
"""After so much silence one replay makes sure that the last messages were not the dropped ones, and the publisher still the same."""
SILENT_SECONDS = 30.0


@dataclass(slots=True)
class _Rank:
    """One publisher's sockets and what came by them."""

    source: RankSource
    live: zmq.Socket[bytes]
    replay: zmq.Socket[bytes] | None
    track: Track
    heard: float | None = None
    lag: float | None = None
    replays: int = 0
    tries: int = 0
    asked_from: int | None = None
    answers: int = 0
    answered: float = 0.0
    ask_after: float = 0.0
    settled: bool = False


class Subscriber:
    """Follows all ranks of one target until it is closed. Views may be asked for from any thread."""

    def __init__(self, sources: Mapping[str, RankSource]) -> None:
        """Begin to listen. Raises ValueError when an address is none or, with ``bind``, taken."""
        self.sources = dict(sources)
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._poller = zmq.Poller()
        self._ranks: dict[str, _Rank] = {}
        try:
            for rank, source in self.sources.items():
                self._ranks[rank] = self._open(source)
        except zmq.ZMQError as error:
            self._context.destroy(linger=0)
            raise ValueError(str(error)) from error
        self._thread = threading.Thread(target=self._run, name="kvwatch-events", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop listening, within a poll."""
        self._stopped.set()
        self._thread.join(2.0)

    def view(self, rank: str, at: float) -> LedgerView | None:
        """What is known of a rank at a monotonic time; None for a rank nobody publishes for."""
        with self._lock:
            found = self._ranks.get(rank)
            return None if found is None or not self._thread.is_alive() else found.track.view(at)

    def stats(self) -> Mapping[str, EventStats]:
        """How it goes, by rank."""
        now = time.monotonic()
        with self._lock:
            return {name: _stats(rank, now) for name, rank in self._ranks.items()}

    def _open(self, source: RankSource) -> _Rank:
        live = self._context.socket(zmq.SUB)
        live.setsockopt(zmq.RCVHWM, QUEUED_MESSAGES)
        live.setsockopt(zmq.MAXMSGSIZE, LARGEST_MESSAGE)
        live.setsockopt(zmq.IPV6, 1)
        live.setsockopt(zmq.SUBSCRIBE, (source.topic or "").encode())
        if source.bind:
            live.bind(source.subscribe)
        else:
            live.connect(source.subscribe)
        self._poller.register(live, zmq.POLLIN)
        replay = None
        if source.replay is not None:
            replay = self._context.socket(zmq.DEALER)
            replay.setsockopt(zmq.RCVHWM, QUEUED_MESSAGES)
            replay.setsockopt(zmq.IPV6, 1)
            replay.setsockopt(zmq.LINGER, 0)
            replay.connect(source.replay)
            self._poller.register(replay, zmq.POLLIN)
        return _Rank(source, live, replay, Track(source.topic))

    def _run(self) -> None:
        while not self._stopped.is_set():
            ready = dict(self._poller.poll(POLL_MILLISECONDS))
            for rank in self._ranks.values():
                with self._lock:
                    if rank.live in ready:
                        self._take_live(rank)
                    if rank.replay is not None and rank.replay in ready:
                        self._take_replay(rank)
                    self._mend(rank)
        self._context.destroy(linger=0)

    def _take_live(self, rank: _Rank) -> None:
        for _ in range(TURN_MESSAGES):
            frames = _received(rank.live)
            if frames is None:
                return
            now = time.monotonic()
            rank.heard, rank.settled = now, False
            rank.track.live(frames, now)
            rank.lag = None if rank.track.ts is None else time.time() - rank.track.ts

    def _take_replay(self, rank: _Rank) -> None:
        for _ in range(TURN_MESSAGES):
            frames = None if rank.replay is None else _received(rank.replay)
            if frames is None:
                return
            now = time.monotonic()
            rank.answered = now
            message = rank.track.replayed(frames, now)
            if message is None:
                continue
            if message.number == END:
                self._end(rank, now)
                return
            rank.answers += 1

    def _mend(self, rank: _Rank) -> None:
        """Ask for what is missing, or stop waiting for it."""
        now = time.monotonic()
        if rank.asked_from is not None:
            if now - rank.answered >= REPLAY_QUIET_SECONDS:
                self._end(rank, now)
            return
        if rank.replay is None:
            while rank.track.sequence.gap:
                rank.track.give_up(now)
            return
        if not rank.track.sequence.open:
            rank.tries = 0
            if rank.settled or rank.heard is None or now - rank.heard < SETTLE_SECONDS:
                return
            rank.settled = True
        if now < rank.ask_after:
            return
        if rank.tries >= REPLAY_TRIES:
            rank.track.give_up(now)
            rank.tries, rank.ask_after = 0, now + REPLAY_PAUSE_SECONDS
            return
        rank.asked_from, rank.answers, rank.answered = rank.track.sequence.wanted, 0, now
        try:
            rank.replay.send_multipart([b"", struct.pack(">q", rank.asked_from)], zmq.NOBLOCK)
        except zmq.Again:
            rank.asked_from, rank.tries, rank.ask_after = None, rank.tries + 1, now + REPLAY_QUIET_SECONDS
            return
        rank.replays += 1
        rank.tries += 1

    def _end(self, rank: _Rank, now: float) -> None:
        if rank.asked_from is not None and now - rank.answered < REPLAY_QUIET_SECONDS:
            rank.track.ended(rank.asked_from, rank.answers, now)
        rank.asked_from = None


def _received(socket: zmq.Socket[bytes]) -> list[bytes] | None:
    try:
        return socket.recv_multipart(zmq.NOBLOCK)
    except zmq.Again:
        return None


def _stats(rank: _Rank, now: float) -> EventStats:
    track = rank.track
    view = track.view(now)
    silent = rank.heard is None or (rank.source.unclear and now - rank.heard > SILENT_SECONDS)
    known = not view.open and view.gpu.exact is not None
    state: EventState = "exact" if known else "partial" if rank.heard is not None and not view.open else "silent" if silent else "listening"
    return EventStats(state, track.batches, track.events, track.gaps, track.lost, rank.replays, track.garbled, track.restarts, rank.lag)
