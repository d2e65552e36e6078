"""The processes of an engine on this host: who listens on its port, all that it started, and all in its container.

The driver lists processes by the host's pids, so this helps where kvwatch sees those (hostPID, or no container), and is empty elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from kvwatch.gpu.mapping import gpus_of, is_local
from kvwatch.model import GpuReading, GpuState
from kvwatch.target import Target

LOOK_EVERY_SECONDS = 60.0
LISTENING = "0A"
CONTAINERS = ("kubepods", "docker", "containerd", "libpod", "crio")
RAY_WORKER = b"ray::"
"""Name of processes that Ray starts: they belong to whatever engine asked for them, and are never called foreign."""


@dataclass(frozen=True, slots=True)
class EngineProcesses:
    """An engine's pids, and the environment of its server, None when it may not be read."""

    pids: frozenset[int] = frozenset()
    environment: Mapping[str, str] | None = None


@dataclass(slots=True)
class GpuMapper:
    """Maps targets to GPUs, looking the engine's processes up once a minute; callable as the store's mapping. ``clock`` gives seconds."""

    clock: Callable[[], float]
    proc: Path = Path("/proc")
    _known: dict[int, tuple[float, EngineProcesses]] = field(default_factory=dict)

    def __call__(self, target: Target, reading: GpuReading | None, engines: int) -> tuple[GpuState, ...] | None:
        """The GPUs proven to be the target's engine's, None when that is unknown."""
        if reading is None or not reading.gpus:
            return None
        engine = self._engine(target, reading.gpus[0].host)
        return gpus_of(target, reading.gpus, engine.environment, engines, engine.pids)

    def _engine(self, target: Target, host: str) -> EngineProcesses:
        port = urlsplit(target.url).port
        if port is None or not is_local(target, host):
            return EngineProcesses()
        now = self.clock()
        looked_at, found = self._known.get(port, (-LOOK_EVERY_SECONDS, EngineProcesses()))
        if now - looked_at >= LOOK_EVERY_SECONDS:
            found = engine_processes(self.proc, port)
            self._known[port] = now, found
        return found


def engine_processes(proc: Path, port: int) -> EngineProcesses:
    """Find an engine by the TCP port it listens on; without the right to look there is nothing to find."""
    sockets = set(_listening(proc, port))
    if not sockets:
        return EngineProcesses()
    processes = _pids(proc)
    servers = {pid for pid in processes if sockets & set(_sockets(proc / str(pid) / "fd"))}
    if not servers:
        return EngineProcesses()
    parents = {pid: _parent(proc, pid) for pid in processes}
    kin = {pid for pid in processes if _descends(pid, servers, parents)}
    container = _container(proc, min(servers))
    for pid in processes:
        if (container is not None and _container(proc, pid) == container) or _read(proc / str(pid) / "cmdline").startswith(RAY_WORKER):
            kin.add(pid)
    return EngineProcesses(frozenset(kin), _environment(proc, min(servers)))


def _pids(proc: Path) -> tuple[int, ...]:
    return tuple(int(entry.name) for entry in proc.iterdir() if entry.name.isdecimal())


def _listening(proc: Path, port: int) -> Iterator[str]:
    """Names of the sockets that listen on the port, as they stand in a process's list of files."""
    for table in ("tcp", "tcp6"):
        for line in _read(proc / "net" / table).decode(errors="replace").splitlines()[1:]:
            columns = line.split()
            if len(columns) > 9 and columns[3] == LISTENING and int(columns[1].rpartition(":")[2], 16) == port:  # noqa: PLR2004  the inode's column
                yield f"socket:[{columns[9]}]"


def _sockets(files: Path) -> Iterator[str]:
    try:
        for entry in files.iterdir():
            yield str(entry.readlink())
    except OSError:  # another user's process, or one that just ended
        return


def _parent(proc: Path, pid: int) -> int:
    """The pid of the parent; 0 when the process is gone. The name before it may hold spaces and brackets."""
    after_name = _read(proc / str(pid) / "stat").rpartition(b")")[2].split()
    return int(after_name[1]) if len(after_name) > 1 else 0


def _descends(pid: int, roots: set[int], parents: Mapping[int, int]) -> bool:
    seen: set[int] = set()
    while pid in parents and pid not in seen:
        if pid in roots:
            return True
        seen.add(pid)
        pid = parents[pid]
    return False


def _container(proc: Path, pid: int) -> str | None:
    """The control group of a container, in Kubernetes of its pod; None outside of containers."""
    for line in _read(proc / str(pid) / "cgroup").decode(errors="replace").splitlines():
        path = line.rpartition(":")[2]
        if any(name in path for name in CONTAINERS):
            return path.rpartition("/")[0] if "kubepods" in path else path
    return None


def _environment(proc: Path, pid: int) -> Mapping[str, str] | None:
    text = _read(proc / str(pid) / "environ").decode(errors="replace")
    pairs = (entry.partition("=") for entry in text.split("\0") if "=" in entry)
    return {name: value for name, _, value in pairs} or None


def _read(path: Path) -> bytes:
    """What a file of /proc holds; nothing when it may not be read or its process ended."""
    try:
        return path.read_bytes()
    except OSError:
        return b""
