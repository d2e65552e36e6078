"""GPUs: what NVML says of their memory, behind one guarded call, and which of them are an engine's."""

from kvwatch.gpu.mapping import gpus_of
from kvwatch.gpu.owner import GpuMapper
from kvwatch.gpu.watcher import GpuWatcher

__all__ = ["GpuMapper", "GpuWatcher", "gpus_of"]
