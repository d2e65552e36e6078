"""One GPU, or one MIG instance, as a row: who it is, what its memory holds, which processes use it.

A number that the driver does not give is None. What a refusal means depends on its number and on what was asked
(NVIDIA's nvml.h); only refusals that are about the whole library leave this file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from kvwatch.gpu.library import (
    ARGUMENT_VERSION_MISMATCH,
    DRIVER_NOT_LOADED,
    FUNCTION_NOT_FOUND,
    GPU_IS_LOST,
    INSUFFICIENT_SIZE,
    LIBRARY_MISMATCH,
    LIBRARY_NOT_FOUND,
    NO_PERMISSION,
    NOT_SUPPORTED,
    RESET_REQUIRED,
    UNINITIALIZED,
    Library,
    Refused,
)
from kvwatch.model import GpuProcess, GpuState, GpuStateName, Note

LIBRARY_WIDE = frozenset({UNINITIALIZED, DRIVER_NOT_LOADED, LIBRARY_NOT_FOUND, LIBRARY_MISMATCH})
OLDER_CALL = frozenset({FUNCTION_NOT_FOUND, ARGUMENT_VERSION_MISMATCH})
UNIFIED_NAME = re.compile(r"\b(GB10|Orin|Thor|Xavier)\b")
"""Boards whose GPU shares the host's memory."""
ATS = 2
"""NVML_DEVICE_ADDRESSING_MODE_ATS: CPU and GPU translate addresses together."""
NO_PID = frozenset({0, 0xFFFFFFFF})
UNKNOWN_BYTES = 1 << 63
"""Sizes from here on are the driver's "not available" (all ones)."""
PROFILE = re.compile(r"\bMIG (\S+)")

UNIFIED = "CPU and GPU share one memory: there is no HBM to measure"
RESERVED_IN_USED = Note("reserved-in-used", "this driver does not tell what it reserves itself: used includes it")
COHERENT = Note(
    "coherent-memory", "the operating system may put ordinary pages into this GPU's memory: used may have no owner, free may be too small"
)


@dataclass(frozen=True, slots=True)
class Identity:
    """Who a row is about, as far as it is known before anything is asked."""

    host: str
    index: int
    uuid: str = ""
    name: str = ""
    parent: str | None = None
    profile: str | None = None

    def row(self, state: GpuStateName, detail: str | None = None) -> GpuState:
        """A row without numbers."""
        return GpuState(self.host, self.index, self.uuid, self.name, state, detail, self.parent, self.profile)


@dataclass(slots=True)
class Memory:
    """What was learned about devices and is worth keeping between rounds: who had an index, and which call a device knows."""

    identities: dict[int, Identity] = field(default_factory=dict)
    old_drivers: set[str] = field(default_factory=set)


def ask(library: Library, name: str, *args: object, **options: object) -> object:
    """Call about one device. Raises Refused; one that is about the whole library is raised as ``Outage``."""
    try:
        return library.call(name, *args, **options)
    except Refused as refusal:
        if refusal.number in LIBRARY_WIDE:
            raise Outage(refusal) from None
        raise


class Outage(Exception):
    """NVML itself is gone, not one device."""

    def __init__(self, refusal: Refused) -> None:
        super().__init__(str(refusal))
        self.refusal = refusal


def identify(library: Library, handle: object, known: Identity) -> Identity:
    """UUID, name and, for an instance, profile."""
    uuid, name = _text(ask(library, "nvmlDeviceGetUUID", handle)), _text(ask(library, "nvmlDeviceGetName", handle))
    return replace(known, uuid=uuid, name=name, profile=_profile(library, handle, name) if known.parent is not None else None)


def refused_row(known: Identity, refusal: Refused) -> GpuState:
    """The row of a device that did not answer: no numbers, and why."""
    if refusal.number in (GPU_IS_LOST, RESET_REQUIRED):
        return known.row("lost", f"{refusal}: reset it or restart the host")
    if refusal.number == NO_PERMISSION:
        return known.row("no-permission", str(refusal))
    if refusal.number == NOT_SUPPORTED:
        return known.row("not-supported", "the driver does not report this GPU's memory")
    return known.row("unavailable", f"{refusal} (NVML error {refusal.number})" if refusal.number >= 0 else str(refusal))


def device_row(library: Library, handle: object, who: Identity, memory: Memory, *, sees_all: bool) -> GpuState:
    """Memory and processes of a device. ``sees_all``: an empty process list means that there are none."""
    row = who.row("unified", UNIFIED)
    if UNIFIED_NAME.search(who.name) is None:  # some of their drivers answer with the host's memory
        try:
            row = _with_memory(library, handle, who.row("ok"), memory)
        except Refused as refusal:
            if refusal.number != NOT_SUPPORTED:
                return refused_row(who, refusal)
            if not _is_unified(library, handle):
                row = refused_row(who, refusal)
    return replace(row, processes=_processes(library, handle, sees_all=sees_all))


def parent_row(library: Library, handle: object, who: Identity, memory: Memory) -> GpuState:
    """A card that is cut into instances: its memory where privileges allow; its processes are its instances'."""
    try:
        return _with_memory(library, handle, who.row("ok"), memory)
    except Refused as refusal:
        return refused_row(who, refusal)


def _with_memory(library: Library, handle: object, row: GpuState, memory: Memory) -> GpuState:
    version = library.constant("nvmlMemory_v2")
    if version is not None and row.uuid not in memory.old_drivers:
        try:
            return _measured(library, handle, row, ask(library, "nvmlDeviceGetMemoryInfo", handle, version=version))
        except Refused as refusal:
            if refusal.number not in OLDER_CALL:
                raise
            memory.old_drivers.add(row.uuid)
    return _measured(library, handle, replace(row, notes=(RESERVED_IN_USED,)), ask(library, "nvmlDeviceGetMemoryInfo", handle))


def _measured(library: Library, handle: object, row: GpuState, info: object) -> GpuState:
    """The row with the sizes of a memory structure; the older structure has no ``reserved``."""
    total, used, free, reserved = (_size(info, key) for key in ("total", "used", "free", "reserved"))
    if not total:  # Jetsons succeed with zeros
        raise Refused(NOT_SUPPORTED, "the driver reports no memory of its own")
    row = replace(row, total=total, used=used, free=free, reserved=reserved)
    if _numa_node(library, handle) is None:
        return row
    return replace(row, coherent=True, notes=(*row.notes, COHERENT))


def _is_unified(library: Library, handle: object) -> bool:
    """Whether CPU and GPU share all memory: common addresses, and no NUMA node of the GPU's own."""
    mode = _number(optional(library, "nvmlDeviceGetAddressingMode", handle))
    return mode == ATS and _numa_node(library, handle) is None


def _numa_node(library: Library, handle: object) -> int | None:
    """The GPU's own NUMA node: only coherent boards have one."""
    node = _number(optional(library, "nvmlDeviceGetNumaNodeId", handle))
    return node if node is not None and node >= 0 else None


def _processes(library: Library, handle: object, *, sees_all: bool) -> tuple[GpuProcess, ...] | None:
    """Processes by pid; None when the driver does not say, or an empty list proves nothing."""
    compute = _listed(library, "nvmlDeviceGetComputeRunningProcesses", handle)
    if compute is None:
        return None
    graphics = _listed(library, "nvmlDeviceGetGraphicsRunningProcesses", handle)
    used = {**(graphics if graphics is not None else {}), **compute}
    if not used and not sees_all:
        return None
    return tuple(GpuProcess(pid, size, None) for pid, size in sorted(used.items()))


def _listed(library: Library, name: str, handle: object) -> Mapping[int, int | None] | None:
    """Bytes by pid from the newest call that the driver knows; None when it knows none or refuses."""
    for call in (f"{name}_v3", f"{name}_v2", name):
        for _ in range(2):  # the list may grow between the wrapper's two calls
            try:
                found = ask(library, call, handle)
            except Refused as refusal:
                if refusal.number == INSUFFICIENT_SIZE:
                    continue
                if refusal.number in OLDER_CALL:
                    break
                return None
            return dict(_by_pid(found))
    return None


def _by_pid(found: object) -> Iterator[tuple[int, int | None]]:
    for entry in found if isinstance(found, list | tuple) else ():
        pid = _number(getattr(entry, "pid", None))
        if pid is not None and pid not in NO_PID:
            size = _size(entry, "usedGpuMemory")
            yield pid, size or None  # 0 is what a driver says that does not know


def _profile(library: Library, handle: object, name: str) -> str | None:
    """Name of an instance's size, as ``2g.20gb``."""
    named = PROFILE.search(name)
    if named:
        return named[1]
    attributes = optional(library, "nvmlDeviceGetAttributes", handle)
    slices, size = (_number(getattr(attributes, key, None)) for key in ("gpuInstanceSliceCount", "memorySizeMB"))
    return f"{slices}g.{round(size / 1024)}gb" if slices and size else None


def optional(library: Library, name: str, *args: object) -> object:
    """An optional answer; None when the driver does not give it."""
    try:
        return ask(library, name, *args)
    except Refused:
        return None


def _size(info: object, key: str) -> int | None:
    """Bytes in a field; None where the driver means "not available"."""
    value = _number(getattr(info, key, None))
    return value if value is not None and 0 <= value < UNKNOWN_BYTES else None


def _number(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _text(value: object) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
