"""One engine in depth: what its pools hold and what is proven of it, who waits and why, what the cache brings, where time goes."""

from __future__ import annotations

from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models import dashboard

from kvwatch.render import Site
from kvwatch.render.dashboards import cache, found, limits, pools, waits
from kvwatch.render.dashboards.frame import ADDRESS, Board, Row
from kvwatch.render.dashboards.frame import board as framed
from kvwatch.render.dashboards.panels import About, Query, graph, listing, note
from kvwatch.render.dashboards.queries import each, name, of_target
from kvwatch.signals import gpu_memory, scheduler, trust

FACTS = {"version": "version", "role": "role", "l2": "host tier", "write_policy": "write policy", "kv_dtype": "KV type"}
NOTES = f"""What kvwatch had to decide about odd data of this target (a gauge of several processes, a capacity it had to estimate, a
renamed series) is in the notes of [its verdict]({ADDRESS}/diagnose?format=text&target=${{target:percentencode}}), with what is missing
and how to switch it on."""


def board(site: Site) -> dashboard.Dashboard:
    """The dashboard."""
    about = "One target in depth; with several pool owners (data-parallel ranks) choose one to see its pool alone."
    rows = [
        Row("Now", [found.listed(site, width=12), found.over_time(width=12)]),
        Row("What the pools hold", pools.panels(site)),
        Row("Who waits, and why", waits.panels(site)),
        Row("What the cache brings", cache.panels()),
        Row("Where time goes", waits.latencies(site)),
        Row("How much fits", _capacity(site)),
        Row("How far to trust this", _trust(site)),
    ]
    return framed(site, Board("kvwatch-engine", "kvwatch: engine", about, rows, every_target=False))


def _capacity(site: Site) -> list[Builder[dashboard.Panel]]:
    size = About("KV per token", "Bytes that one token of context takes in the pool. Eight-bit KV halves it.", "bytes", 6)
    length = About(
        "Tokens per sequence", "Tokens that one running sequence holds in HBM on average. The ceiling falls as it grows.", "short", 6
    )
    share = About(
        "Ceiling per demand",
        "Sequences that the pool holds, for each one running or waiting. Below the line somebody waits, however well the engine schedules.",
        "none",
        6,
    )
    spare = About(
        "Free HBM",
        "Share of the engine's GPU memory that nobody has. It only helps after a restart with a larger share for the pool.",
        "percentunit",
        6,
    )
    return [
        graph(size, Query(each("kvwatch_kv_bytes_per_token"), "rank {{rank}}")),
        graph(length, Query(each(name(scheduler.mean_sequence)), "rank {{rank}}")),
        graph(
            share,
            Query(each(name(scheduler.ceiling_share)), "rank {{rank}}"),
            steps=limits.lines(site, ("long-context-squeeze", scheduler.ceiling_share)),
        ),
        graph(
            spare,
            Query(each(name(gpu_memory.free)), "rank {{rank}}"),
            steps=limits.lines(site, ("kv-pool-undersized", gpu_memory.free)),
        ).max(1),
    ]


def _trust(site: Site) -> list[Builder[dashboard.Panel]]:
    facts = About("What the engine says of itself", "One line per pool owner. An empty field was not exported.", "none", 12, 6)
    doubts = About(
        "Doubts",
        "Values no engine can mean, series that should be there and are not, and lines that could not be read. All are 0 in good data.",
        "short",
        6,
        6,
    )
    return [
        listing(facts, each("kvwatch_engine_info", *FACTS), found.OWNER | FACTS),
        graph(
            doubts,
            Query(each(name(trust.implausible)), "implausible, rank {{rank}}"),
            Query(of_target(name(trust.missing_series)), "missing"),
            Query(of_target("kvwatch_scrape_malformed_lines"), "malformed"),
            steps=limits.lines(site, ("implausible-metric", trust.implausible)),
        ),
        note(About("Notes", "What cannot be told in numbers.", width=6, height=6), NOTES),
    ]
