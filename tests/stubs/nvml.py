"""A stand-in for the NVML binding: cards as data, refusals by number, and calls that never return until they are let go."""

# ruff: noqa: ARG002, D102, N802, N815  the functions are called and behave as the binding documents them

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from types import SimpleNamespace

MEMORY_V2 = 0x02000028


class NvmlFailure(Exception):
    """As the binding raises: a number in ``value``, and an equality that breaks on anything else."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, value: int) -> None:
        super().__init__(f"refused {value}")
        self.value = value

    def __eq__(self, other: object) -> bool:
        """Compare as the binding does."""
        return bool(self.value == other.value)  # type: ignore[attr-defined]


class NVMLLibraryMismatchError(Exception):
    """What the binding raises, without a number, for process lists of a driver older than itself."""


@dataclass
class Card:
    """One card or instance. An answer is a value, or the number of a refusal; sizes are (total, used, free, reserved)."""

    uuid: str
    name: str = "NVIDIA H100"
    handle: int | None = None
    memory: tuple[int, int, int, int] | int = (80, 60, 18, 2)
    v2: int | None = None
    processes: list[tuple[int, int | None]] | int = field(default_factory=list)
    graphics: list[tuple[int, int | None]] | int = field(default_factory=list)
    numa_node: int | None = None
    addressing: int | None = None
    instances: list[Card | None] | None = None
    gpu_instance: int = 1
    attributes: tuple[int, int] | None = None
    hangs: threading.Event | None = None


class FakeNvml:
    """The binding's functions over some cards. Functions named in ``lacking`` do not exist; ``asked`` counts calls."""

    nvmlMemory_v2 = MEMORY_V2

    def __init__(self, *cards: Card, init: int | None = None, lacking: tuple[str, ...] = ()) -> None:
        self.cards = list(cards)
        self.init = init
        self.ready = False
        self.asked: dict[str, int] = {}
        self.lacking = lacking
        self.broken_calls: dict[str, int] = {}

    def __getattribute__(self, name: str) -> object:
        """Count calls, hide what is lacking, and refuse what is broken once."""
        own = super().__getattribute__
        if name.startswith("nvml"):
            if name in own("lacking"):
                raise AttributeError(name)
            asked = own("asked")
            asked[name] = asked.get(name, 0) + 1
            broken = own("broken_calls")
            if name in broken:
                failure = NvmlFailure(broken.pop(name))

                def refuse(*_args: object, **_options: object) -> None:
                    raise failure

                return refuse
        return own(name)

    def nvmlInit(self) -> None:
        _refuse(self.init)
        self.ready = True

    def nvmlShutdown(self) -> None:
        self.ready = False

    def nvmlDeviceGetCount(self) -> int:
        if not self.ready:
            raise NvmlFailure(1)
        return len(self.cards)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Card:
        return _answering(self.cards[index])

    def nvmlDeviceGetUUID(self, card: Card) -> str:
        return _answering(card).uuid

    def nvmlDeviceGetName(self, card: Card) -> bytes:
        return _answering(card).name.encode()

    def nvmlDeviceGetMemoryInfo(self, card: Card, version: int | None = None) -> SimpleNamespace:
        if card.hangs is not None:
            card.hangs.wait()
        if version is not None:
            _refuse(card.v2)
        if isinstance(card.memory, int):
            raise NvmlFailure(card.memory)
        total, used, free, reserved = card.memory
        if version is None:
            return SimpleNamespace(total=total, used=used + reserved, free=free)
        return SimpleNamespace(total=total, used=used, free=free, reserved=reserved)

    def nvmlDeviceGetMigMode(self, card: Card) -> list[int]:
        if card.instances is None:
            raise NvmlFailure(3)
        return [1, 1]

    def nvmlDeviceGetMaxMigDeviceCount(self, card: Card) -> int:
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, card: Card, slot: int) -> Card:
        instances = card.instances or []
        found = instances[slot] if slot < len(instances) else None
        if found is None:
            raise NvmlFailure(6)
        return found

    def nvmlDeviceGetGpuInstanceId(self, card: Card) -> int:
        return card.gpu_instance

    def nvmlDeviceGetAttributes(self, card: Card) -> SimpleNamespace:
        if card.attributes is None:
            raise NvmlFailure(3)
        slices, size = card.attributes
        return SimpleNamespace(gpuInstanceSliceCount=slices, memorySizeMB=size)

    def nvmlDeviceGetComputeRunningProcesses_v3(self, card: Card) -> list[SimpleNamespace]:
        return _listed(card.processes)

    def nvmlDeviceGetGraphicsRunningProcesses_v3(self, card: Card) -> list[SimpleNamespace]:
        return _listed(card.graphics)

    def nvmlDeviceGetComputeRunningProcesses_v2(self, card: Card) -> list[SimpleNamespace]:
        return _listed(card.processes)

    def nvmlDeviceGetComputeRunningProcesses(self, card: Card) -> list[SimpleNamespace]:
        raise NVMLLibraryMismatchError("no such function in this driver")

    def nvmlDeviceGetAddressingMode(self, card: Card) -> int:
        if card.addressing is None:
            raise NvmlFailure(13)
        return card.addressing

    def nvmlDeviceGetNumaNodeId(self, card: Card) -> int:
        if card.numa_node is None:
            raise NvmlFailure(3)
        return card.numa_node


def _refuse(number: int | None) -> None:
    if number is not None:
        raise NvmlFailure(number)


def _answering(card: Card) -> Card:
    _refuse(card.handle)
    return card


def _listed(entries: list[tuple[int, int | None]] | int) -> list[SimpleNamespace]:
    if isinstance(entries, int):
        raise NvmlFailure(entries)
    return [SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in entries]
