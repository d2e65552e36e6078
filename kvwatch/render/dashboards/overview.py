"""The site at a glance: what is wrong now, the two tiers side by side, who waits, how late first tokens are."""

from __future__ import annotations

from grafana_foundation_sdk.builders import timeseries
from grafana_foundation_sdk.models import dashboard

from kvwatch.render import Site
from kvwatch.render.dashboards import found, pools, waits
from kvwatch.render.dashboards.frame import Board, Row
from kvwatch.render.dashboards.frame import board as framed
from kvwatch.render.dashboards.panels import About, Query, stack

FIRST_TIER = (
    "Only what is not used can admit a request; evictable still holds cached prefixes. "
    "Where an engine does not tell evictable from available, both together are reclaimable."
)
HOST_TIER = (
    "Resident is what holds data: used and evictable together, where an engine does not tell them apart. "
    "Room here admits nobody, because it keeps prefixes and no running requests."
)
QUEUE = "Running and waiting. Those that wait for capacity are the pool's doing; deferred ones were put aside for another reason."


def board(site: Site) -> dashboard.Dashboard:
    """The dashboard."""
    about = "What is wrong with the KV caches of all engines now, and the numbers it rests on."
    rows = [
        Row("What is wrong", [found.listed(site, width=16), found.over_time(width=8)]),
        Row("Memory", [pools.first_tier(site, FIRST_TIER), pools.host_tier(HOST_TIER), waits.ceiling()]),
        Row("What users feel", [waits.first_token(site, width=12), waits.queue(QUEUE, width=12)]),
        Row("What it costs", [waits.preemptions(width=12), hbm(width=12)]),
    ]
    return framed(site, Board("kvwatch-overview", "kvwatch: overview", about, rows))


def hbm(width: int) -> timeseries.Panel:
    """The GPUs' memory by state."""
    about = About(
        "HBM",
        "Memory of all GPUs that kvwatch sees. "
        "A full HBM is normal, since engines take their pool when they start; whether requests fit is in L1.",
        "bytes",
        width,
    )
    return stack(about, Query("sum by (state) (max by (gpu, uuid, state) (kvwatch_hbm_bytes))", "{{state}}")).no_value(
        "NVML is off or has no GPU."
    )
