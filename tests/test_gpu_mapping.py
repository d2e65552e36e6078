"""Which GPU is an engine's: only what is proven, and unknown otherwise."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from kvwatch.gpu import GpuMapper, gpus_of
from kvwatch.gpu.owner import LOOK_EVERY_SECONDS, EngineProcesses, engine_processes
from kvwatch.model import GpuProcess, GpuReading, GpuState, NvmlState
from kvwatch.target import Target


def row(index: int, name: str = "H100", *pids: int, uuid: str | None = None, parent: str | None = None) -> GpuState:
    """A GPU as NVML lists it."""
    processes = tuple(GpuProcess(pid, 1 << 30, None) for pid in pids)
    return GpuState(
        "node", index, uuid if uuid is not None else f"GPU-{index}{index}{index}", name, "ok", parent=parent, processes=processes
    )


FOUR = tuple(row(i) for i in range(4))
MIXED = (row(0, "A100"), row(1, "H100"))
CUT = (row(0), row(0, uuid="MIG-1", parent="GPU-000"), row(0, uuid="MIG-2", parent="GPU-000"))


def target(*gpus: str, url: str = "http://127.0.0.1:8000/metrics") -> Target:
    """A target with GPUs named in its configuration."""
    return Target("t", url, gpus=gpus)


def uuids(rows: tuple[GpuState, ...] | None) -> list[str] | None:
    """Their names, None when the mapping is unknown."""
    return None if rows is None else [r.uuid for r in rows]


# Configuration


def test_configuration_wins() -> None:
    """Named GPUs are the engine's, whatever its environment says; a shortened name counts while it fits one only."""
    env = {"CUDA_VISIBLE_DEVICES": "0"}
    assert uuids(gpus_of(target("GPU-333", "GPU-111"), FOUR, env, 1)) == ["GPU-333", "GPU-111"]
    assert uuids(gpus_of(target("GPU-3"), FOUR, env, 1)) == ["GPU-333"]
    assert uuids(gpus_of(target("MIG-2"), CUT, None, 1)) == ["MIG-2"]


def test_configured_gpu_that_is_not_there_leaves_the_mapping_unknown() -> None:
    """The missing one may be the one that matters; nothing else is tried instead."""
    assert gpus_of(target("GPU-333", "GPU-999"), FOUR, None, 1) is None
    assert gpus_of(target("GPU-9"), (row(0),), None, 1) is None
    assert gpus_of(target("GPU-"), FOUR, None, 1) is None


def test_no_engine_runs_on_a_card_that_is_cut() -> None:
    """Its size is the instances' together, and which of them the engine has is not said."""
    assert gpus_of(target("GPU-000"), CUT, None, 1) is None
    assert gpus_of(target(), CUT, {"CUDA_VISIBLE_DEVICES": "GPU-000"}, 1) is None


# Environment


@pytest.mark.parametrize(
    ("environment", "gpus", "expected"),
    [
        ({"CUDA_VISIBLE_DEVICES": "2,0"}, FOUR, ["GPU-222", "GPU-000"]),
        ({"CUDA_VISIBLE_DEVICES": "2,-1,0"}, FOUR, ["GPU-222"]),
        ({"CUDA_VISIBLE_DEVICES": "1,9,0"}, FOUR, ["GPU-111"]),
        ({"CUDA_VISIBLE_DEVICES": "1,1,0"}, FOUR, ["GPU-111"]),
        ({"CUDA_VISIBLE_DEVICES": "GPU-3, GPU-111"}, FOUR, ["GPU-333", "GPU-111"]),
        ({"CUDA_VISIBLE_DEVICES": "GPU-3,GPU-99,GPU-111"}, FOUR, ["GPU-333"]),
        ({"CUDA_VISIBLE_DEVICES": "MIG-2"}, CUT, ["MIG-2"]),
        ({"CUDA_VISIBLE_DEVICES": "GPU-11", "NVIDIA_VISIBLE_DEVICES": "void"}, FOUR, ["GPU-111"]),
        ({"CUDA_VISIBLE_DEVICES": ""}, FOUR, None),
        ({"CUDA_VISIBLE_DEVICES": "-1"}, FOUR, None),
        ({"CUDA_VISIBLE_DEVICES": "1"}, MIXED, None),
        ({"CUDA_VISIBLE_DEVICES": "1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, MIXED, ["GPU-111"]),
        ({"CUDA_VISIBLE_DEVICES": "0"}, CUT, None),
        ({"NVIDIA_VISIBLE_DEVICES": "3,GPU-11"}, FOUR, ["GPU-111", "GPU-333"]),
        ({"NVIDIA_VISIBLE_DEVICES": "3,1", "CUDA_VISIBLE_DEVICES": "1"}, FOUR, ["GPU-333"]),
        ({"NVIDIA_VISIBLE_DEVICES": "MIG-1"}, CUT, ["MIG-1"]),
        ({"NVIDIA_VISIBLE_DEVICES": "MIG-1,MIG-2"}, CUT, None),
        ({"NVIDIA_VISIBLE_DEVICES": "3,8"}, FOUR, None),
        ({"NVIDIA_VISIBLE_DEVICES": "all"}, FOUR, ["GPU-000", "GPU-111", "GPU-222", "GPU-333"]),
        ({"NVIDIA_VISIBLE_DEVICES": "void", "CUDA_VISIBLE_DEVICES": "0"}, FOUR, None),
        ({"NVIDIA_VISIBLE_DEVICES": "none"}, FOUR, None),
        ({"PATH": "/bin"}, FOUR, None),
        (None, FOUR, None),
    ],
)
def test_environment(environment: Mapping[str, str] | None, gpus: tuple[GpuState, ...], expected: list[str] | None) -> None:
    """CUDA's list ends at its first invalid entry, counts in CUDA's order, and counts what the container was given."""
    assert uuids(gpus_of(target(), gpus, environment, 2)) == expected


# The only one


@pytest.mark.parametrize(
    ("gpus", "engines", "url", "expected"),
    [
        ((row(0),), 1, "http://localhost:8000/metrics", ["GPU-000"]),
        ((row(0),), 1, "http://[::1]:8000/metrics", ["GPU-000"]),
        ((row(0),), 1, "http://node:8000/metrics", ["GPU-000"]),
        ((row(0),), 2, "http://127.0.0.1:8000/metrics", None),
        ((row(0),), 1, "http://engine-7:8000/metrics", None),
        ((row(0),), 1, "http://10.0.0.7:8000/metrics", None),
        (FOUR, 1, "http://127.0.0.1:8000/metrics", None),
        (CUT, 1, "http://127.0.0.1:8000/metrics", None),
        (CUT[:2], 1, "http://127.0.0.1:8000/metrics", ["MIG-1"]),
        ((), 1, "http://127.0.0.1:8000/metrics", None),
    ],
)
def test_the_only_gpu_is_the_only_engines(gpus: tuple[GpuState, ...], engines: int, url: str, expected: list[str] | None) -> None:
    """One GPU, or one instance of a cut card, and one engine, both on this host."""
    assert uuids(gpus_of(target(url=url), gpus, None, engines)) == expected


# Processes


def test_processes_of_the_engine_prove_its_gpus_and_tell_the_others() -> None:
    """Where an engine's process runs is its GPU; every other process there is foreign."""
    gpus = (row(0, "H100", 10, 99), row(1, "H100", 11), row(2, "H100", 99))
    found = gpus_of(target(), gpus, None, 3, frozenset({10, 11, 12}))
    assert uuids(found) == ["GPU-000", "GPU-111"]
    assert found is not None
    assert [(p.pid, p.mine) for p in found[0].processes or ()] == [(10, True), (99, False)]


def test_ownership_is_unknown_until_a_pid_agrees() -> None:
    """Pids of another namespace match nothing: then nobody is called foreign."""
    (found,) = gpus_of(target("GPU-000"), (row(0, "H100", 10, 99),), None, 1, frozenset({7})) or ()
    assert [p.mine for p in found.processes or ()] == [None, None]


class Proc:
    """A /proc with some processes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        (path / "net").mkdir()

    def listening(self, port: int, inode: int, table: str = "tcp") -> None:
        """A socket that listens, and one that does not."""
        line = "   0: 0100007F:{:04X} 00000000:0000 {} 00000000:00000000 00:00000000 00000000  1000        0 {} 1 0 100 0 0 10 0\n"
        (self.path / "net" / table).write_text("  sl  local_address ...\n" + line.format(port, "01", 1) + line.format(port, "0A", inode))

    def process(self, pid: int, parent: int, *, socket: int | None = None, cgroup: str = "/user.slice", cmdline: str = "python") -> Path:
        """A process; its name has a bracket, as names may."""
        home = self.path / str(pid)
        (home / "fd").mkdir(parents=True)
        (home / "stat").write_text(f"{pid} (a) b c) S {parent} 1 1 0")
        (home / "cgroup").write_text(f"0::{cgroup}\n")
        (home / "cmdline").write_text(cmdline)
        if socket is not None:
            (home / "fd" / "3").symlink_to(f"socket:[{socket}]")
        return home


@pytest.fixture
def proc(tmp_path: Path) -> Proc:
    """An empty /proc."""
    return Proc(tmp_path)


def test_engine_is_found_by_its_port(proc: Proc) -> None:
    """Its server, all that it started, Ray's workers, and nothing else; with the server's environment."""
    proc.listening(8000, 555, "tcp6")
    (proc.process(10, 1, socket=555) / "environ").write_text("CUDA_VISIBLE_DEVICES=1\0PATH=/bin\0")
    for pid, parent in ((11, 10), (12, 11), (20, 1), (21, 20)):
        proc.process(pid, parent)
    proc.process(30, 1, cmdline="ray::RayWorker")
    found = engine_processes(proc.path, 8000)
    assert found == EngineProcesses(frozenset({10, 11, 12, 30}), {"CUDA_VISIBLE_DEVICES": "1", "PATH": "/bin"})
    assert engine_processes(proc.path, 8001) == EngineProcesses()


def test_processes_of_the_same_pod_are_the_engines(proc: Proc) -> None:
    """In a pod, workers in another container of it belong to the engine; another pod's do not."""
    proc.listening(8000, 555)
    pod = "/kubepods.slice/kubepods-pod{}.slice/cri-containerd-{}.scope"
    proc.process(10, 1, socket=555, cgroup=pod.format("a", "1"))
    proc.process(20, 1, cgroup=pod.format("a", "2"))
    proc.process(30, 1, cgroup=pod.format("b", "3"))
    assert engine_processes(proc.path, 8000).pids == {10, 20}


def test_what_may_not_be_read_is_not_found(proc: Proc) -> None:
    """Without the process that holds the socket, or any table of sockets, there is no engine; half a process is skipped."""
    assert engine_processes(proc.path, 8000) == EngineProcesses()
    proc.listening(8000, 555)
    (proc.path / "40").mkdir()
    assert engine_processes(proc.path, 8000) == EngineProcesses()


def test_mapper_looks_once_a_minute_and_only_at_this_host(proc: Proc) -> None:
    """The mapping follows the engine's processes, without reading /proc at every scrape."""
    proc.listening(8000, 555)
    proc.process(10, 1, socket=555)
    now = 0.0
    mapper = GpuMapper(clock=lambda: now, proc=proc.path)
    reading = GpuReading(0.0, NvmlState("ok"), (row(0, "H100", 10), row(1, "H100", 77)))
    assert uuids(mapper(target(), reading, 2)) == ["GPU-000"]
    assert mapper(target(url="http://10.0.0.7:8000/metrics"), reading, 2) is None
    assert mapper(target(), None, 2) is None
    assert mapper(target(), GpuReading(0.0, NvmlState("no-library")), 2) is None
    proc.process(77, 10)
    assert uuids(mapper(target(), reading, 2)) == ["GPU-000"]
    now = LOOK_EVERY_SECONDS
    assert uuids(mapper(target(), reading, 2)) == ["GPU-000", "GPU-111"]
