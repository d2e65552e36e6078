"""All calls to NVML from one daemon thread, with a deadline outside of it: a wedged driver may keep that thread, and nothing else."""

from __future__ import annotations

import logging
import platform
import queue
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

from kvwatch.gpu.library import Library, import_library
from kvwatch.gpu.session import Session
from kvwatch.model import GpuReading, GpuState, GpuStateName, NvmlState

LOG = logging.getLogger("kvwatch")
KEPT_ROUNDS = 3
"""How many unanswered rounds the last rows outlive."""
HOST_PID_NAMESPACE: Final = "pid:[4026531836]"
"""The kernel's first pid namespace (PROC_PID_INIT_INO): pids there are the driver's, and no process is hidden."""


class GpuWatcher:
    """Reads all GPUs. One thread may call ``read``; the library is imported in the daemon thread of this object, at the first call."""

    def __init__(
        self,
        *,
        timeout: float = 5.0,
        clock: Callable[[], float],
        load: Callable[[], Library] = import_library,
        sees_all: bool | None = None,
    ) -> None:
        """``timeout`` is the longest ``read`` takes, in seconds; ``clock`` gives monotonic seconds; nothing starts before ``read``.

        ``sees_all`` says whether an empty process list means that there is none; by default that is so in the host's pid namespace.
        """
        self._timeout, self._clock = timeout, clock
        self._session = Session(load, platform.node(), sees_host_processes() if sees_all is None else sees_all)
        self._questions: queue.SimpleQueue[float | None] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[GpuReading] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._asked_at: float | None = None
        self._unanswered = 0
        self._last = GpuReading(0.0, NvmlState("off"))
        self._states: dict[str, GpuStateName] = {}

    def read(self, now: float) -> GpuReading:
        """One round at monotonic seconds ``now``, or what is known when it does not end in time.

        While a call is out no other is made and the answer is immediate. When it comes back it is too old to be used.
        """
        if self._asked_at is not None:
            try:
                self._answers.get_nowait()
            except queue.Empty:
                return self._published(self._stuck(now))
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="kvwatch-nvml", daemon=True)
            self._thread.start()
        self._asked_at = self._clock()
        self._questions.put(now)
        try:
            reading = self._answers.get(timeout=self._timeout)
        except queue.Empty:
            return self._published(self._stuck(now))
        self._asked_at, self._unanswered = None, 0
        return self._published(reading)

    def close(self) -> None:
        """Let the thread end, and with it NVML, unless it is stuck: then it ends with the process."""
        if self._thread is not None and self._asked_at is None:
            self._questions.put(None)
            self._thread.join(self._timeout)
            self._thread = None

    def _work(self) -> None:
        while (now := self._questions.get()) is not None:
            state, rows = self._session.round(now)
            self._answers.put(GpuReading(now, state, rows))
        self._session.stop()

    def _stuck(self, now: float) -> GpuReading:
        """What is known while a call is out: the device it asks is lost, the rows before it stay for some rounds."""
        asked_at = self._clock() if self._asked_at is None else self._asked_at
        self._unanswered += 1
        progress = self._session.progress
        detail = (
            f"an NVML call has not returned for {max(0.0, self._clock() - asked_at):.0f} s: the driver is wedged; reset the GPU or reboot"
        )
        state = NvmlState("stuck", detail)
        if progress.asked is None:
            return GpuReading(now, state, self._kept(set()))
        asked = progress.asked.row("lost", "NVML call did not return")
        done = progress.rows if self._unanswered <= KEPT_ROUNDS else ()
        kept = self._kept({asked.uuid, *(row.uuid for row in done)})
        return GpuReading(now, state, tuple(sorted((*done, asked, *kept), key=lambda row: row.index)))

    def _kept(self, but: set[str]) -> tuple[GpuState, ...]:
        """Rows of the last complete round, while they are not too old."""
        return () if self._unanswered > KEPT_ROUNDS else tuple(row for row in self._last.gpus if row.uuid not in but)

    def _published(self, reading: GpuReading) -> GpuReading:
        """Log what changed; keep a complete round."""
        if reading.nvml.state != self._last.nvml.state:
            expected = reading.nvml.state in ("ok", "no-library", "no-driver")
            LOG.log(logging.INFO if expected else logging.WARNING, "NVML: %s%s", reading.nvml.state, _because(reading.nvml.detail))
        for row in reading.gpus:
            if self._states.get(row.uuid, "ok") != row.state:
                level = logging.INFO if row.state in ("ok", "unified") else logging.WARNING
                LOG.log(level, "GPU %d %s: %s%s", row.index, row.uuid, row.state, _because(row.detail))
            self._states[row.uuid] = row.state
        self._last = reading if reading.nvml.state != "stuck" else replace(self._last, nvml=reading.nvml)
        return reading


def sees_host_processes() -> bool:
    """Whether this process lives in the host's pid namespace, as outside of containers and with hostPID."""
    try:
        return str(Path("/proc/self/ns/pid").readlink()) == HOST_PID_NAMESPACE
    except OSError:
        return False


def _because(detail: str | None) -> str:
    return "" if detail is None else f" ({detail})"
