"""All pool owners beside each other: which is full, which waits most, which target does not answer."""

from __future__ import annotations

from collections.abc import Iterator

from grafana_foundation_sdk.builders import bargauge, timeseries
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models import dashboard

from kvwatch.render import Site
from kvwatch.render.dashboards import limits
from kvwatch.render.dashboards.frame import Board, Row, engine, link
from kvwatch.render.dashboards.frame import board as framed
from kvwatch.render.dashboards.panels import About, Query, Steps, cells, graph, ranking, stats, timeline
from kvwatch.render.dashboards.queries import FOUND, OWNER, TARGET, each, name, of_target
from kvwatch.signals import l1, l2, scheduler, topology, trust

MOST = 10
"""How many offenders are listed."""
WHO = "{{target}} {{model}} rank {{rank}}"
IN_DEPTH = link("Engine in depth", engine("${__field.labels.target:percentencode}"))
UP = {0: ("down", "red"), 1: ("up", "green")}


def board(site: Site) -> dashboard.Dashboard:
    """The dashboard."""
    about = "All targets and pool owners beside each other: the full, the waiting, the uneven, the unreachable."
    rows = [
        Row("Now", [_counts()]),
        Row("How full", _fullness(site)),
        Row("Top offenders", _offenders(site)),
        Row("Balance", _balance(site)),
        Row("Scraping", _scraping(site)),
    ]
    return framed(site, Board("kvwatch-fleet", "kvwatch: fleet", about, rows))


def _counts() -> Builder[dashboard.Panel]:
    about = About(
        "Fleet",
        "Targets that answer, all targets, schedulers that own a pool, and firing findings by severity. Each number is of this moment.",
        "none",
        24,
        4,
    )
    queries = [
        Query(f"sum({of_target('kvwatch_target_up')})", "targets up", "now"),
        Query(f"count({of_target('kvwatch_target_info')})", "targets", "now"),
        Query(f"count({each('kvwatch_engine_info')})", "pool owners", "now"),
    ]
    for severity in limits.COLORS:
        # no finding is 0 only as long as somebody looks
        firing = f'count(max by ({", ".join((*OWNER, "rule"))}) (kvwatch_finding{{severity="{severity}", {FOUND}}}))'
        queries.append(Query(f"{firing} or 0 * max(kvwatch_build_info)", severity, "now"))
    return stats(about, *queries)


def _fullness(site: Site) -> Iterator[Builder[dashboard.Panel]]:
    first = About(
        "L1 used, by pool owner",
        "A row per pool owner; red is saturated. One red row among green ones is a matter of balance, all red is too little capacity.",
        "percentunit",
        12,
        10,
    )
    steps = limits.bands(site, ("l1-saturated", l1.used_ratio))
    yield cells(first, Query(each(name(l1.used_ratio)), WHO), steps=steps).data_links([IN_DEPTH])
    host = About(
        "L2 resident, by pool owner",
        "The share of the host tier that is proven to hold data. Blue has room that admits nobody, red loses what it evicts.",
        "percentunit",
        12,
        10,
    )
    shares = each("kvwatch_pool_resident_min_ratio", tier="l2", pool="kv")
    yield cells(host, Query(shares, WHO), steps=_host_bands(site)).data_links([IN_DEPTH])


def _host_bands(site: Site) -> Steps:
    """Idle, in use, full."""
    idle = limits.value(site, ("l1-saturated-l2-idle", l2.resident_ratio))
    full = limits.bands(site, ("l1-l2-saturated", l2.resident_ratio))
    if idle is None:
        return full
    return [dashboard.Threshold(value=None, color="blue"), dashboard.Threshold(value=idle, color=limits.CALM), *full[1:]]


def _offenders(site: Site) -> Iterator[Builder[dashboard.Panel]]:
    yield _top(
        "Most waiting", "Requests that wait, the pool owners with most of them first.", "short", each("kvwatch_requests", state="waiting")
    )
    yield _top(
        "Fullest",
        "Used share of the binding pool in HBM, the fullest first. Red is saturated.",
        "percentunit",
        each(name(l1.used_ratio)),
        limits.bands(site, ("l1-saturated", l1.used_ratio)),
    )
    yield _top(
        "Most preemptions",
        "Preemptions per second in kvwatch's window. Beyond the limit it is a storm.",
        "cps",
        each(name(scheduler.preemption_rate)),
        limits.bands(site, ("preemption-storm", scheduler.preemption_rate)),
    )


def _top(title: str, text: str, unit: str, expr: str, steps: Steps = ()) -> bargauge.Panel:
    return ranking(About(title, text, unit), Query(f"topk({MOST}, {expr})", WHO, "now"), steps).data_links([IN_DEPTH])


def _balance(site: Site) -> Iterator[Builder[dashboard.Panel]]:
    spread = About(
        "Spread of L1 use",
        "Fullest less emptiest pool owner of a model. A large spread while one of them waits asks for better routing, not for more GPUs.",
        "percentunit",
        12,
    )
    used = each(name(l1.used_ratio))
    yield graph(spread, Query(f"max by (engine, model) ({used}) - min by (engine, model) ({used})", "{{model}} ({{engine}})")).max(1)
    spare = About(
        "Emptiest idle peer",
        "Used share of the emptiest peer without a queue, as each pool owner sees it. "
        "Below the line, a request that waits here would run there.",
        "percentunit",
        12,
    )
    steps = limits.lines(site, ("rank-imbalance", topology.spare_peer))
    yield graph(spare, Query(each(name(topology.spare_peer)), WHO), steps=steps).max(1)


def _scraping(site: Site) -> Iterator[Builder[dashboard.Panel]]:
    up = About(
        "Targets", "Whether the last scrape of each target succeeded. A target that never answered is down from the start.", "none", 12
    )
    yield timeline(up, Query(of_target("kvwatch_target_up"), "{{target}}"), texts=UP).data_links([IN_DEPTH])
    yield _failures()
    took = About(
        "Scrape time",
        "What the last scrape of a target took, as a share of the interval. Above the line samples are about to be missed.",
        "percentunit",
    )
    steps = limits.lines(site, ("scrape-slow", trust.scrape_share))
    yield graph(took, Query(of_target(name(trust.scrape_share)), "{{target}}"), steps=steps)
    age = About("Age of the data", "Time since the last good scrape. Numbers older than three intervals are no longer exported.", "s")
    yield graph(age, Query(f"time() - {of_target('kvwatch_last_scrape_timestamp_seconds')}", "{{target}}"))
    size = About("Size of a scrape", "Bytes of a target's last exposition. It grows with labels and workers.", "bytes")
    yield graph(size, Query(of_target("kvwatch_scrape_body_bytes"), "{{target}}"))


def _failures() -> timeseries.Panel:
    about = About("Failed scrapes", "Per second, by target and reason. The verdict names what to do about it.", "cps", 12)
    failed = f"max by (target, reason) (rate(kvwatch_scrape_failures_total{{{TARGET}}}[$__rate_interval]))"
    return graph(about, Query(failed, "{{target}} {{reason}}")).no_value("No scrape failed.")
