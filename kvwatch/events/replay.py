"""KV events of a recording, fed into ledgers up to a moment: the same files, the same answer.

Beside ``metrics.jsonl.gz`` lie ``events.PORT.raw.jsonl.gz``, one per data-parallel rank with lines ``{"t", "frames"}``, and what the replay
sockets answered at the end, ``replay.PORT.raw.jsonl.gz`` or, of the first rank, ``replay.raw.jsonl.gz``: lists of frames, all in base64.
"""

from __future__ import annotations

import base64
import contextlib
import gzip
import itertools
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from kvwatch.content import read_json, unix_seconds
from kvwatch.events.decode import END, GarbledBatch, decode, parse
from kvwatch.events.ledger import LedgerView
from kvwatch.events.track import Track

Frames = list[bytes]
BREAKS_OFF = (EOFError, gzip.BadGzipFile, zlib.error)
"""What reading half a file ends with."""


@dataclass(slots=True)
class RecordedRank:
    """The events of one rank of a recording, consumed in the order of time.

    ``lines`` are the messages as they came, with Unix seconds; ``spare`` what the replay has, by number.
    """

    lines: Iterator[tuple[float, Frames]]
    spare: dict[int, Frames] = field(default_factory=dict)
    track: Track = field(default_factory=Track)
    _next: tuple[float, Frames] | None = None

    def view(self, at: float) -> LedgerView:
        """What a subscriber would have known at ``at`` Unix seconds, which must not decrease from call to call."""
        while (line := self.first()) is not None and line[0] <= at:
            self._next = None
            self._take(*line)
        return self.track.view(at)

    def first(self) -> tuple[float, Frames] | None:
        """The next message, which stays the next one; None when there is none. What came where a file breaks off is not known."""
        if self._next is None:
            try:
                self._next = next(self.lines, None)
            except BREAKS_OFF:
                self.track.sequence.confirmed = False
        return self._next

    def _take(self, at: float, frames: Frames) -> None:
        """Apply one live message; what is missing before it is taken from the replay or, where that has it not, given up."""
        self.track.live(frames, at)
        while self.track.sequence.gap:
            missing = self.spare.pop(self.track.sequence.next, None)
            if missing is not None and _between(self.track.ts, missing, frames):
                self.track.replayed(missing, at)
            else:
                self.track.give_up(at)


def open_recording(folder: Path) -> dict[str, RecordedRank]:
    """The recorded publishers by rank ("0", "1", as they name themselves, or in the order of their ports); empty when there are none.

    A recording that has a publisher's first message knows that its cache was empty before. Raises OSError for a file that cannot be
    opened; one that breaks off is read up to there, and what the publisher knows after that is unknown.
    """
    events, replays = _files(folder, "events.*.raw.jsonl.gz"), _files(folder, "replay.*.raw.jsonl.gz")
    answers = [_answers(file) for file in replays or _files(folder, "replay.raw.jsonl.gz")]
    answers_of = dict(zip(_ranks([_told(answer.values()) for answer in answers]), answers, strict=True))
    ranks = _ranks([_told(frames for _, frames in _live(file)) for file in events])
    return {rank: _recorded(file, answers_of.get(rank, {})) for rank, file in zip(ranks, events, strict=True)}


def _recorded(file: Path, answers: dict[int, Frames]) -> RecordedRank:
    """One publisher's file, with what its replay socket answered."""
    ended = answers.pop(END, None) is not None
    recorded = RecordedRank(_from_the_start(_live(file), answers), answers)
    recorded.track.sequence.confirmed = ended
    first = recorded.first()
    if first is not None:
        recorded.track.sequence.confirmed = _number(first[1]) == 0
    return recorded


def _ranks(told: list[str | None]) -> list[str]:
    """One rank per publisher: what its messages say; the ports' order where they say nothing, or the same twice."""
    named = {rank for rank in told if rank is not None}
    if len(named) + told.count(None) < len(told):
        return [str(index) for index in range(len(told))]
    free = (rank for rank in map(str, itertools.count()) if rank not in named)
    return [next(free) if rank is None else rank for rank in told]


def _told(messages: Iterable[Frames]) -> str | None:
    """The rank that the first readable message names."""
    try:
        for frames in messages:
            try:
                rank = decode(parse(frames).payload).rank
            except GarbledBatch:
                continue
            return None if rank is None else str(rank)
    except BREAKS_OFF:
        pass
    return None


def _files(folder: Path, pattern: str) -> list[Path]:
    return sorted((file for file in folder.glob(pattern) if file.is_file()), key=_port)


def _port(file: Path) -> tuple[int, str]:
    port = file.name.split(".")[1]
    return int(port) if port.isdecimal() else 0, file.name


def _from_the_start(live: Iterator[tuple[float, Frames]], spare: dict[int, Frames]) -> Iterator[tuple[float, Frames]]:
    """The live messages behind those that were sent before the recording began, at the time the engine made them."""
    first = next(live, None)
    number = None if first is None else _number(first[1])
    for earlier in sorted(spare):
        if first is not None and (number is None or earlier >= number or not _between(None, spare[earlier], first[1])):
            break
        made = _made(spare[earlier])
        if made is not None:
            yield made, spare.pop(earlier)
    if first is not None:
        yield first
        yield from live


def _live(file: Path) -> Iterator[tuple[float, Frames]]:
    for line in _lines(file):
        if isinstance(line, dict):
            at, frames = unix_seconds(line.get("t")), _frames(line.get("frames"))
            if at is not None and frames:
                yield at, frames


def _answers(file: Path) -> dict[int, Frames]:
    """The messages of a replay by number, up to where the file breaks off."""
    found: dict[int, Frames] = {}
    with contextlib.suppress(*BREAKS_OFF):
        for line in _lines(file):
            frames = _frames(line)
            number = _number(frames)
            if number is not None:
                found[number] = frames
    return found


def _lines(file: Path) -> Iterator[object]:
    """The values of a file, without lines that are no JSON. Raises one of BREAKS_OFF where it is only half a file."""
    with gzip.open(file, "rb") as lines:
        for line in lines:
            with contextlib.suppress(ValueError):
                yield read_json(line)


def _frames(coded: object) -> Frames:
    """The frames of one line; none where it is no list of base64 strings."""
    if not isinstance(coded, list):
        return []
    try:
        return [base64.b64decode(frame, validate=True) for frame in coded]
    except (TypeError, ValueError):
        return []


def _number(frames: Iterable[bytes]) -> int | None:
    try:
        return parse(list(frames)).number
    except GarbledBatch:
        return None


def _made(frames: Frames) -> float | None:
    """When the engine made a message, by its own clock."""
    try:
        return decode(parse(frames).payload).ts
    except GarbledBatch:
        return None


def _between(after: float | None, frames: Frames, before: Frames) -> bool:
    """Whether a replayed message is of the same run as its neighbours: numbers begin at 0 again with every start of the engine."""
    made, latest = _made(frames), _made(before)
    return made is not None and latest is not None and (0.0 if after is None else after) <= made <= latest
