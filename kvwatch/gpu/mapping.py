"""Which GPUs are an engine's: what the configuration says, who runs on them, what its environment says, or the only one there is. Pure.

NVML lists GPUs by PCI bus and knows nothing of ``CUDA_VISIBLE_DEVICES``. A mapping that is not proven is None: then no GPU is anybody's.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import replace
from urllib.parse import urlsplit

from kvwatch.model import GpuState
from kvwatch.target import Target

_INDEX = re.compile(r"\d+", re.ASCII)
_UUID = ("GPU-", "MIG-")


def gpus_of(
    target: Target,
    gpus: tuple[GpuState, ...],
    environment: Mapping[str, str] | None,
    engines_on_host: int,
    pids: frozenset[int] = frozenset(),
) -> tuple[GpuState, ...] | None:
    """The GPUs proven to be a target's engine's, or None.

    ``environment`` is the engine's, None when it cannot be read; ``pids`` are the engine's processes as the driver numbers them, empty
    when unknown; ``gpus`` are all of the host.
    """
    found = _configured(target, gpus)
    if found is None and not target.gpus:
        found = _used(gpus, pids) or _visible(gpus, environment) or _only(target, gpus, engines_on_host)
    if found is None or any(row.uuid in _cut(gpus) for row in found):  # an engine runs on an instance, never on the card that is cut
        return None
    return tuple(_owned(row, pids) for row in found)


def is_local(target: Target, host: str) -> bool:
    """Whether a target's URL points to this host."""
    name = urlsplit(target.url).hostname or ""
    if name in ("localhost", host):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def _configured(target: Target, gpus: tuple[GpuState, ...]) -> tuple[GpuState, ...] | None:
    """The rows the configuration names; None when one of them is not there: it may be the one that matters."""
    rows = [_by_uuid(uuid, gpus) for uuid in target.gpus]
    found = tuple(row for row in rows if row is not None)
    return found if found and len(found) == len(rows) else None


def _used(gpus: tuple[GpuState, ...], pids: frozenset[int]) -> tuple[GpuState, ...] | None:
    """The rows on which an engine's process runs."""
    found = tuple(row for row in gpus if any(p.pid in pids for p in row.processes or ()))
    return found or None


def _visible(gpus: tuple[GpuState, ...], environment: Mapping[str, str] | None) -> tuple[GpuState, ...] | None:
    """The rows that CUDA shows an engine with this environment; None when it leaves that open, or shows it none."""
    if environment is None or not ("CUDA_VISIBLE_DEVICES" in environment or "NVIDIA_VISIBLE_DEVICES" in environment):
        return None
    listed = environment.get("CUDA_VISIBLE_DEVICES")
    if listed is not None and listed.strip().startswith(_UUID):  # names mean the same inside and outside of a container
        return _selected(listed, gpus, in_order=False)
    inside = _container(gpus, environment.get("NVIDIA_VISIBLE_DEVICES"))
    if inside is None:
        return None
    if any(row.parent is not None for row in inside):  # CUDA gives a process one instance; which of several is not documented
        return inside if len(inside) == 1 and listed in (None, "0") else None
    in_order = environment.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID" or len({row.name for row in inside}) <= 1
    return inside or None if listed is None else _selected(listed, inside, in_order=in_order)


def _container(gpus: tuple[GpuState, ...], listed: str | None) -> tuple[GpuState, ...] | None:
    """What ``NVIDIA_VISIBLE_DEVICES`` puts into a container; unset means no container. ``void`` says nothing: plugins add GPUs."""
    if listed is None or listed == "all":
        cards = tuple(row for row in gpus if row.parent is None)
        return None if any(row.parent is not None for row in gpus) else cards
    if listed in ("", "void", "none"):
        return None
    rows = [_by_uuid(e, gpus) if e.startswith(_UUID) else _by_index(e, gpus) for e in (entry.strip() for entry in listed.split(","))]
    found = tuple(row for row in rows if row is not None)
    return tuple(sorted(found, key=lambda row: row.index)) if len(found) == len(rows) else None


def _selected(listed: str, gpus: tuple[GpuState, ...], *, in_order: bool) -> tuple[GpuState, ...] | None:
    """Entries of ``CUDA_VISIBLE_DEVICES`` up to the first invalid one. Numbers count in CUDA's order, NVML's only if ``in_order``."""
    found: list[GpuState] = []
    for entry in (e.strip() for e in listed.split(",")):
        if _INDEX.fullmatch(entry):
            if not in_order:
                return None
            row = gpus[int(entry)] if int(entry) < len(gpus) else None
        else:
            row = _by_uuid(entry, gpus) if entry.startswith(_UUID) else None
        if row is None or row in found:
            break
        found.append(row)
    return tuple(found) or None


def _only(target: Target, gpus: tuple[GpuState, ...], engines: int) -> tuple[GpuState, ...] | None:
    """The only GPU of a host, or the only instance that answers, when the host has one engine."""
    if engines != 1 or not gpus or not is_local(target, gpus[0].host):
        return None
    usable = tuple(row for row in gpus if row.uuid not in _cut(gpus))
    return usable if len(usable) == 1 else None


def _cut(gpus: tuple[GpuState, ...]) -> set[str]:
    """Cards that are cut into instances."""
    return {row.parent for row in gpus if row.parent is not None}


def _by_uuid(uuid: str, gpus: tuple[GpuState, ...]) -> GpuState | None:
    """The row of a UUID, which may be shortened while it fits only one."""
    exact = [row for row in gpus if row.uuid == uuid]
    fitting = exact or [row for row in gpus if len(uuid) > len(_UUID[0]) and row.uuid.startswith(uuid)]
    return fitting[0] if len(fitting) == 1 else None


def _by_index(entry: str, gpus: tuple[GpuState, ...]) -> GpuState | None:
    rows = [row for row in gpus if row.parent is None and entry == str(row.index)]
    return rows[0] if len(rows) == 1 else None


def _owned(row: GpuState, pids: frozenset[int]) -> GpuState:
    """The row with every process told apart, once the driver's numbers are proven to be ours: an engine's process is among them."""
    if row.processes is None or not any(p.pid in pids for p in row.processes):
        return row
    return replace(row, processes=tuple(replace(p, mine=p.pid in pids) for p in row.processes))
