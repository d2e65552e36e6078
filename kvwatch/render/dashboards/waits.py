"""Who waits in one engine, why, and for how long."""

from __future__ import annotations

from collections.abc import Iterator

from grafana_foundation_sdk.builders import timeseries
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models import dashboard

from kvwatch.render import Site
from kvwatch.render.dashboards import limits
from kvwatch.render.dashboards.fields import Texts, dashed
from kvwatch.render.dashboards.panels import About, Query, graph, heat, timeline
from kvwatch.render.dashboards.queries import buckets, each, name, quantile, rate, total
from kvwatch.signals import l1, l2, latency, scheduler

YES: Texts = {0: ("no", "transparent"), 1: ("yes", "orange")}
STATES = (latency.pain, l1.saturated, scheduler.heavy_preemption, latency.high, l2.idle, l2.full)


def panels(site: Site) -> Iterator[Builder[dashboard.Panel]]:
    """Requests, what bounds admission, and what it leads to."""
    yield queue("Running and waiting. Those that wait for capacity are the pool's doing; deferred ones were put aside for another reason.")
    reasons = About(
        "What bounds admission",
        "Why requests wait on the pool in HBM: it is full for the next one, SGLang's budget is used up, or running ones are preempted. "
        "A gap means that it is not known.",
        "none",
    )
    yield timeline(reasons, Query(f"max by (reason) ({each(name(l1.bound), 'reason')})", "{{reason}}"), texts=YES)
    states = About("Conditions", "What findings are made of, each while it is proven. A gap means that it is not known.", "none")
    yield timeline(states, *(Query(f"max({each(name(state))})", state.name.replace("_", " ")) for state in STATES), texts=YES)
    yield ceiling(width=12)
    rates = About(
        "Preemptions",
        "Running requests that lost their KV and are computed again, per second in kvwatch's window. The line is where it becomes a storm.",
        "cps",
        12,
    )
    steps = limits.lines(site, ("preemption-storm", scheduler.preemption_rate))
    yield graph(rates, Query(each(name(scheduler.preemption_rate)), "rank {{rank}}"), steps=steps)


def queue(text: str, width: int = 8) -> timeseries.Panel:
    """Requests by state."""
    return graph(About("Requests", text, "short", width), Query(total(each("kvwatch_requests", "state"), "state"), "{{state}}")).axis_label(
        "requests"
    )


def ceiling(width: int = 8) -> timeseries.Panel:
    """What the pool holds at once, against what is asked of it."""
    about = About(
        "Ceiling against demand",
        "The ceiling is how many sequences of the present length the pool in HBM holds at once. "
        "Demand above it queues, whatever the host tier has free.",
        "short",
        width,
    )
    panel = graph(
        about,
        Query(total(each(name(scheduler.ceiling))), "ceiling"),
        Query(total(each(name(scheduler.demand))), "demand"),
        Query(total(each(name(scheduler.running))), "running"),
    )
    return panel.override_by_name("ceiling", dashed("red")).axis_label("requests")


def latencies(site: Site) -> Iterator[Builder[dashboard.Panel]]:
    """First tokens and the queue before them, as heat maps and as shares."""
    first = About(
        "Time to first token",
        "The darker, the more requests; upwards is later. A second band far above the first is requests that queued.",
        "s",
        12,
    )
    yield heat(first, buckets("kvwatch_ttft_seconds"))
    before = About(
        "Time in the queue",
        "The same for the time before a request was first scheduled. Without a queue all of it is in the lowest row.",
        "s",
        12,
    )
    yield heat(before, buckets("kvwatch_queue_seconds"))
    yield first_token(site, width=12)
    shares = About(
        "On the way to the first token",
        "How much of it was queueing and how much prefill, in kvwatch's window. Queueing asks for capacity, prefill for shorter prompts.",
        "percentunit",
        12,
    )
    yield graph(
        shares,
        Query(each(name(latency.queue_share)), "queueing, rank {{rank}}"),
        Query(each(name(latency.prefill_share)), "prefill, rank {{rank}}"),
    ).max(1)


def first_token(site: Site, width: int = 8) -> timeseries.Panel:
    """Quantiles, what is usual, and from where on a finding calls it late."""
    about = About(
        "First token against calm time",
        "The calm p99 is learned from the engine's quiet time; of several pool owners the slowest is drawn. "
        "Requests that still wait for their first token are in no histogram, so the truth may be worse.",
        "s",
        width,
    )
    calm = f"max by (engine) ({each(name(latency.baseline))})"
    queries = [
        Query(quantile(0.5, "kvwatch_ttft_seconds"), "p50 {{engine}}"),
        Query(quantile(0.99, "kvwatch_ttft_seconds"), "p99 {{engine}}"),
        Query(calm, "calm p99 {{engine}}"),
    ]
    late = limits.value(site, ("ttft-degraded", latency.ratio))
    if late is not None:
        queries.append(Query(f"{late:g} * {calm}", f"{late:g} times calm {{{{engine}}}}"))
    return graph(about, *queries).override_by_regexp("/calm/", dashed())


def preemptions(width: int = 8) -> timeseries.Panel:
    """Preemptions by target."""
    about = About(
        "Preemptions",
        "Running requests that lost their KV and are computed again, per second. "
        "Each one takes steps from everybody, so a rate that stays is a storm.",
        "cps",
        width,
    )
    return graph(about, Query(total(rate("kvwatch_preemptions_total"), "target"), "{{target}}"))
