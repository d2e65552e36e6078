"""Files as a source: single expositions in time order, or a recording with the engine's other pages beside it."""

from __future__ import annotations

import bisect
import gzip
import itertools
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from kvwatch.content import CorruptError, TooLargeError, decode, read_json, unix_seconds
from kvwatch.exposition import Memo
from kvwatch.model import Outcome, ScrapeError
from kvwatch.refine import Refiner, ViewOf, no_events
from kvwatch.target import Target
from kvwatch.turn import Clocked, failed, finished

RECORDING = "metrics.jsonl.gz"
LOADS = "loads.jsonl.gz"
LONGEST_LINE = 1 << 28
CHUNK_BYTES = 1 << 16


class UnreadableError(Exception):
    """A file that cannot be used, in one line."""


@dataclass(frozen=True, slots=True)
class Line:
    """One scrape of a recording: body, or error when it failed; times in Unix seconds."""

    t: float
    t1: float
    body: str | None
    error: str | None


def is_recording(path: Path) -> bool:
    """Whether a path is a recording (or a folder with one) rather than a single exposition."""
    return path.is_dir() or path.name.endswith(".jsonl.gz") or path.name.endswith(".jsonl")


def expositions(paths: Sequence[Path], target: Target, interval: float, limit_bytes: int) -> Iterator[Outcome]:
    """Outcomes of single files, ``interval`` seconds apart, without a wall time."""
    memo, refiner = Memo(), Refiner()
    for number, path in enumerate(paths):
        when = Clocked(at=number * interval, wall=None)
        try:
            body = _read(path, limit_bytes)
        except OSError as error:
            raise UnreadableError(f"{path}: {error.strerror or 'cannot be read'}; name an exposition file or a recording") from None
        except CorruptError as error:
            yield failed(target, when, ScrapeError("malformed", f"{path} is {error}"))
            continue
        except TooLargeError:
            yield failed(target, when, ScrapeError("too_large", f"{path} is larger than limits.body ({limit_bytes} bytes)"))
            continue
        yield refiner.refine(finished(target, when, body, {}, memo))


def _read(path: Path, limit_bytes: int) -> bytes:
    """The content, decompressed; a pipe will do. Raises OSError, TooLargeError and CorruptError."""
    with path.open("rb") as raw:
        return decode(iter(lambda: raw.read(CHUNK_BYTES), b""), "", limit_bytes)


def recording(path: Path, target: Target) -> Iterator[Outcome]:
    """Outcomes of a recording in the order of its lines; ``/v1/loads`` beside it is used as it was then."""
    file = path / RECORDING if path.is_dir() else path
    loads = _Beside(file.with_name(LOADS))
    memo, refiner, events = Memo(), Refiner(), recorded_events(file.parent)
    last: float | None = None
    for line in lines(file):
        if last is not None and line.t <= last:
            continue
        last = line.t
        when = Clocked(at=line.t, wall=line.t, seconds=max(0.0, line.t1 - line.t))
        if line.body is None:
            error = line.error or "the scrape failed"
            reason = ScrapeError("timeout" if "time" in error.lower() else "refused", f"the recording says: {error[:200]}")
            yield failed(target, when, reason)
            continue
        answer = loads.before(line.t1)
        body, side = line.body.encode(errors="replace"), {} if answer is None else {"loads": answer}
        yield refiner.refine(finished(target, when, body, side, memo), events)


def recorded_events(folder: Path) -> ViewOf:
    """The KV events recorded beside the scrapes, as a subscriber would have known them; nothing without them or without the extra.

    Raises UnreadableError for a file that is there and cannot be opened.
    """
    if not any(folder.glob("events.*.raw.jsonl.gz")):
        return no_events
    try:
        from kvwatch.events.replay import open_recording  # noqa: PLC0415  needs the extra "events"
    except ModuleNotFoundError:
        return no_events
    try:
        ranks = open_recording(folder)
    except OSError as error:
        raise UnreadableError(f"{error.filename}: {error.strerror}; KV events lie beside a recording, or leave them away") from None
    return lambda rank, at: ranks[rank].view(at) if rank in ranks else None


def spacing(path: Path) -> float:
    """Seconds between the scrapes of a recording, by their median."""
    file = path / RECORDING if path.is_dir() else path
    times = [line.t for line in lines(file)]
    steps = sorted(b - a for a, b in itertools.pairwise(times) if b > a)
    return steps[len(steps) // 2] if steps else 1.0


def lines(file: Path) -> Iterator[Line]:
    """The scrapes of a recording, in the order of its lines. Raises UnreadableError."""
    for number, record in _records(file):
        t, t1 = unix_seconds(record.get("t")), unix_seconds(record.get("t1"))
        if t is None:
            raise UnreadableError(f'{file}:{number}: no time \'t\'; a recording has lines {{"t": seconds, "body": text}}')
        body, error = record.get("body"), record.get("error")
        yield Line(t, t if t1 is None else t1, body if isinstance(body, str) else None, None if error is None else str(error))


def _records(file: Path) -> Iterator[tuple[int, dict[str, object]]]:
    number = 0
    try:
        with (
            gzip.open(file, "rt", encoding="utf-8", errors="replace")
            if file.name.endswith(".gz")
            else file.open(encoding="utf-8", errors="replace") as stream
        ):
            for number, text in enumerate(iter(lambda: stream.readline(LONGEST_LINE), ""), 1):
                if len(text) == LONGEST_LINE:
                    raise UnreadableError(f"{file}:{number}: a line too long for a recording")
                if text.strip():
                    value = read_json(text)
                    if not isinstance(value, dict):
                        raise UnreadableError(f"{file}:{number}: not an object")
                    yield number, value
    except OSError as error:
        raise UnreadableError(f"{file}: {error.strerror or error}; a recording is a metrics.jsonl.gz") from None
    except (EOFError, zlib.error):
        return  # cut off while it was written: what is there counts
    except ValueError:
        raise UnreadableError(f"{file}:{number}: not JSON; a recording has one object a line") from None


class _Beside:
    """JSON answers recorded beside the scrapes, by time; nothing when there is no such file."""

    def __init__(self, file: Path) -> None:
        self.times: list[float] = []
        self.answers: list[object] = []
        if not file.is_file():
            return
        for _, record in _records(file):
            body, t1 = record.get("body"), unix_seconds(record.get("t1", record.get("t")))
            if isinstance(body, str) and t1 is not None:
                try:
                    self.answers.append(read_json(body))
                except ValueError:
                    continue
                self.times.append(t1)

    def before(self, t: float, oldest: float = 5.0) -> object | None:
        """The newest answer that was there at ``t`` and is not older than some seconds."""
        i = bisect.bisect_right(self.times, t) - 1
        return self.answers[i] if i >= 0 and t - self.times[i] <= oldest else None
