"""What the pools of one engine hold, by state, and what is proven of that."""

from __future__ import annotations

from collections.abc import Iterator

from grafana_foundation_sdk.builders import timeseries
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models import dashboard

from kvwatch.render import Site
from kvwatch.render.dashboards import limits
from kvwatch.render.dashboards.fields import COLORS, colored, filled_to
from kvwatch.render.dashboards.panels import About, Query, graph, stack
from kvwatch.render.dashboards.queries import each, only_bytes, stacked, total
from kvwatch.signals import l1, l2

L1 = {"tier": "l1", "pool": "full"}
L2 = {"tier": "l2", "pool": "kv"}
NO_HOST_TIER = "No host tier, or nothing is known of it."


def first_tier(site: Site, text: str) -> timeseries.Panel:
    """The pool in HBM, state upon state up to its capacity."""
    queries = [Query(stacked(each("kvwatch_pool_tokens", "state", **L1)), "{{state}}")]
    full = limits.value(site, ("l1-saturated", l1.used_ratio))
    if full is not None:
        queries.append(Query(f"{full:g} * {total(each('kvwatch_pool_capacity_tokens', **L1))}", "saturation limit"))
    return stack(About("L1: KV pool in HBM", text, "short"), *queries).axis_label("tokens")


def host_tier(text: str) -> timeseries.Panel:
    """The pool in host memory, in tokens, and on the right in bytes what is counted in nothing else."""
    tokens = Query(stacked(each("kvwatch_pool_tokens", "state", **L2)), "{{state}}")
    size = Query(stacked(only_bytes("state", **L2)), "{{state}}, bytes")
    return stack(About("L2: host tier", text, "short"), tokens, size).axis_label("tokens").no_value(NO_HOST_TIER)


def panels(site: Site) -> Iterator[Builder[dashboard.Panel]]:
    """Both tiers, the bounds of what an engine leaves open, and the shares that findings rest on."""
    yield first_tier(site, "Used from below, up to the capacity. What is not used can be taken for the next request.")
    yield _bounds(
        "L1: what is proven",
        "Where the two ends of a state lie apart, the engine does not say more: the truth is in the band. KV events narrow it.",
        ("evictable", "available"),
        L1,
    )
    yield _used(site)
    yield host_tier("What holds data from below, up to the capacity. None of it admits a request.")
    yield _bounds(
        "L2: what is proven",
        "Used is pinned by transfers or locks, resident is all that holds data. Where the two ends lie apart, the truth is in the band.",
        ("resident", "used"),
        L2,
    ).no_value(NO_HOST_TIER)
    yield _host_share(site)


def _bounds(title: str, text: str, states: tuple[str, ...], pool: dict[str, str]) -> timeseries.Panel:
    queries = [
        Query(total(each(f"kvwatch_pool_{end}_tokens", **pool, state=state)), f"{state}, {word}")
        for end, word in (("min", "at least"), ("max", "at most"))
        for state in states
    ]
    panel = graph(About(title, text, "short"), *queries).axis_label("tokens")
    for state in states:
        panel.override_by_regexp(f"/^{state}/", colored(COLORS[state]))
        panel.override_by_name(f"{state}, at most", filled_to(f"{state}, at least"))
    return panel


def _used(site: Site) -> timeseries.Panel:
    about = About(
        "Used share of each pool",
        "The fullest pool in HBM bounds admission; a sliding-window or state pool can be that one. "
        "The line is where the pool counts as saturated.",
        "percentunit",
    )
    steps = limits.lines(site, ("l1-saturated", l1.used_ratio))
    return graph(about, Query(each("kvwatch_pool_used_ratio", "tier", "pool"), "{{tier}} {{pool}}, rank {{rank}}"), steps=steps).max(1)


def _host_share(site: Site) -> timeseries.Panel:
    about = About(
        "Resident share of the host tier",
        "The interval in which it is proven to be. Below the lower line the tier is idle, above the upper one full.",
        "percentunit",
    )
    steps = limits.lines(site, ("l1-saturated-l2-idle", l2.resident_ratio), ("l1-l2-saturated", l2.resident_ratio))
    panel = graph(
        about,
        Query(f"min({each('kvwatch_pool_resident_min_ratio', **L2)})", "at least"),
        Query(f"max({each('kvwatch_pool_resident_max_ratio', **L2)})", "at most"),
        steps=steps,
    )
    return panel.max(1).override_by_name("at most", filled_to("at least")).no_value(NO_HOST_TIER)
