"""The catalogue of everything kvwatch derives and exports as ``kvwatch_<name>``; what the rules read and alerts are rendered from."""

from __future__ import annotations

from kvwatch.signals import gpu_memory, l1, l2, l2_traffic, latency, scheduler, topology, trust
from kvwatch.signals.kinds import Condition, Signal, TargetSignal

SIGNALS: tuple[Signal, ...] = (
    *l1.SIGNALS,
    *latency.SIGNALS,
    *l2.SIGNALS,
    *l2_traffic.SIGNALS,
    *scheduler.SIGNALS,
    *gpu_memory.SIGNALS,
    *topology.SIGNALS,
    *trust.SIGNALS,
)
CONDITIONS: tuple[Condition, ...] = (
    *l1.CONDITIONS,
    *latency.CONDITIONS,
    *l2.CONDITIONS,
    *l2_traffic.CONDITIONS,
    *scheduler.CONDITIONS,
    *topology.CONDITIONS,
)
TARGET_SIGNALS: tuple[TargetSignal, ...] = trust.TARGET_SIGNALS
TARGET_CONDITIONS: tuple[Condition, ...] = trust.TARGET_CONDITIONS

HELP = (
    {s.name: s.help for s in SIGNALS}
    | {s.name: s.help for s in TARGET_SIGNALS}
    | {c.name: c.help for c in (*CONDITIONS, *TARGET_CONDITIONS)}
)
UNITS = {s.name: s.unit for s in SIGNALS} | {s.name: s.unit for s in TARGET_SIGNALS}
