"""NVML in the one thread that may touch it: started when needed, a row per GPU, and no hammering of what is not there."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from kvwatch.gpu.device import Identity, Memory, Outage, ask, device_row, identify, optional, parent_row, refused_row
from kvwatch.gpu.library import (
    DRIVER_NOT_LOADED,
    INVALID_ARGUMENT,
    LIBRARY_MISMATCH,
    LIBRARY_NOT_FOUND,
    NOT_FOUND,
    UNINITIALIZED,
    Library,
    Misfit,
    Refused,
)
from kvwatch.model import GpuState, NvmlState

RETRY_SECONDS = 180.0
"""How long a library that did not start is left alone."""

OK = NvmlState("ok")
OUTAGES = {
    LIBRARY_NOT_FOUND: NvmlState(
        "no-library", "no libnvidia-ml.so.1: not a GPU host, or a container without NVIDIA_DRIVER_CAPABILITIES=utility"
    ),
    DRIVER_NOT_LOADED: NvmlState("no-driver", "the NVIDIA kernel driver is not loaded, or its device nodes are not in this container"),
    LIBRARY_MISMATCH: NvmlState(
        "driver-mismatch",
        "the driver package was upgraded under the running kernel module: reboot or reload the module, then restart kvwatch",
    ),
}


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a round is: the rows that are complete, and the device that is being asked."""

    rows: tuple[GpuState, ...] = ()
    asked: Identity | None = None


@dataclass(slots=True)
class Session:
    """The state of the library between rounds. ``progress`` may be read from other threads."""

    load: Callable[[], Library]
    host: str
    sees_all: bool
    progress: Progress = field(default_factory=Progress)
    _library: Library | None = None
    _outage: NvmlState | None = None
    _retry_at: float = 0.0
    _memory: Memory = field(default_factory=Memory)

    def round(self, now: float) -> tuple[NvmlState, tuple[GpuState, ...]]:
        """Ask for everything, at monotonic seconds; may never return."""
        self.progress = Progress()
        if self._outage is not None and now < self._retry_at:
            return self._outage, ()
        try:
            try:
                return OK, self._rows(self._started())
            except Outage as outage:
                if outage.refusal.number != UNINITIALIZED:
                    raise
                self._library = None  # somebody in this process shut NVML down: start it again at once
                return OK, self._rows(self._started())
        except Outage as outage:
            return self._fail(now, OUTAGES.get(outage.refusal.number) or _unavailable(outage.refusal)), ()
        except Refused as refusal:
            return self._fail(now, _unavailable(refusal)), ()
        except Misfit as misfit:
            return self._fail(now, NvmlState("unavailable", str(misfit))), ()

    def stop(self) -> None:
        """Give NVML back, if it was started."""
        if self._library is not None:
            with contextlib.suppress(Refused):
                self._library.call("nvmlShutdown")
            self._library = None

    def _fail(self, now: float, state: NvmlState) -> NvmlState:
        self._library, self._outage, self._retry_at = None, state, now + RETRY_SECONDS
        return state

    def _started(self) -> Library:
        if self._library is None:
            library = self.load()
            ask(library, "nvmlInit")
            self._library, self._outage = library, None
        return self._library

    def _rows(self, library: Library) -> tuple[GpuState, ...]:
        count = ask(library, "nvmlDeviceGetCount")
        rows: tuple[GpuState, ...] = ()
        for index in range(count if isinstance(count, int) else 0):
            rows = (*rows, *self._card(library, index, rows))
        self.progress = Progress(rows)
        return _distinct(rows)

    def _card(self, library: Library, index: int, done: tuple[GpuState, ...]) -> tuple[GpuState, ...]:
        """The rows of one card: itself, and its instances when it is cut into some."""
        known = self._memory.identities.get(index, Identity(self.host, index))
        self.progress = Progress(done, known)
        try:
            handle = ask(library, "nvmlDeviceGetHandleByIndex", index)
            known = self._memory.identities[index] = identify(library, handle, Identity(self.host, index))
            self.progress = Progress(done, known)
            instances = _instances(library, handle)
        except Refused as refusal:
            return (refused_row(known, refusal),)
        if instances is None:
            return (device_row(library, handle, known, self._memory, sees_all=self.sees_all),)
        card = parent_row(library, handle, known, self._memory)
        return (card, *self._slices(library, known, instances, (*done, card)))

    def _slices(self, library: Library, card: Identity, handles: tuple[object, ...], done: tuple[GpuState, ...]) -> tuple[GpuState, ...]:
        rows: list[GpuState] = []
        first_of: dict[int, str] = {}
        for handle in handles:
            who = Identity(self.host, card.index, parent=card.uuid)
            self.progress = Progress((*done, *rows), who)
            try:
                who = identify(library, handle, who)
                row = device_row(library, handle, who, self._memory, sees_all=self.sees_all)
                instance = optional(library, "nvmlDeviceGetGpuInstanceId", handle)
            except Refused as refusal:
                rows.append(refused_row(who, refusal))
                continue
            if isinstance(instance, int) and first_of.setdefault(instance, who.uuid) != who.uuid:
                row = replace(who.row("ok", f"shares the memory of {first_of[instance]}"), processes=row.processes)
            rows.append(row)
        return tuple(rows)


def _instances(library: Library, handle: object) -> tuple[object, ...] | None:
    """Handles of the MIG instances of a card; None when it is not cut. Empty slots are skipped."""
    try:
        mode = ask(library, "nvmlDeviceGetMigMode", handle)
        if not isinstance(mode, list | tuple) or not mode or mode[0] != 1:
            return None
        most = ask(library, "nvmlDeviceGetMaxMigDeviceCount", handle)
    except Refused:
        return None
    found = []
    for slot in range(most if isinstance(most, int) else 0):
        try:
            found.append(ask(library, "nvmlDeviceGetMigDeviceHandleByIndex", handle, slot))
        except Refused as refusal:
            if refusal.number not in (NOT_FOUND, INVALID_ARGUMENT):
                break
    return tuple(found)


def _distinct(rows: tuple[GpuState, ...]) -> tuple[GpuState, ...]:
    """Forget a remembered identity that another row of this round proved to be its own: the cards were renumbered."""
    proven = {row.uuid for row in rows if row.state == "ok"}
    return tuple(replace(row, uuid="", name="") if row.state != "ok" and row.uuid in proven else row for row in rows)


def _unavailable(refusal: Refused) -> NvmlState:
    number = f" (NVML error {refusal.number})" if refusal.number >= 0 else ""
    advice = "a container that lost its device rights must be restarted; CDI or links in /dev/char keep them"
    return NvmlState("unavailable", f"NVML does not answer: {refusal}{number}; {advice}")
