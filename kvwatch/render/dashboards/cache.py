"""What the cache of one engine brings: hits by tier, and what moves between the tiers."""

from __future__ import annotations

from collections.abc import Iterator

from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models import dashboard

from kvwatch.render.dashboards.fields import on_right
from kvwatch.render.dashboards.panels import About, Query, graph
from kvwatch.render.dashboards.queries import rate, total

TOKENS = "short"


def panels() -> Iterator[Builder[dashboard.Panel]]:
    """Hits, traffic and work."""
    found = rate("kvwatch_prefix_cache_hit_tokens_total", "tier")
    asked = rate("kvwatch_prefix_cache_queried_tokens_total", "tier")
    ratio = About(
        "Prefix hit ratio by tier",
        "Share of the prompt tokens looked up in a tier that it had. "
        "A fall together with evictions means that prefixes are pushed out before they come back.",
        "percentunit",
        6,
    )
    yield graph(ratio, Query(f"{total(found, 'tier')} / {total(asked, 'tier')}", "{{tier}}")).max(1)
    hits = About("Prefix hits by tier", "Prompt tokens that a tier had, per second: work the GPU was spared.", TOKENS, 6)
    yield graph(hits, Query(total(found, "tier"), "{{tier}}")).axis_label("tokens/s")
    moves = About(
        "Evictions against L2 traffic",
        "What L1 evicts and L2 was never written is lost and computed again. Writes without reads serve nobody.",
        TOKENS,
        6,
    )
    yield (
        graph(
            moves,
            Query(total(rate("kvwatch_evicted_tokens_total", "tier"), "tier"), "evicted from {{tier}}"),
            Query(total(rate("kvwatch_tier_written_tokens_total", "tier"), "tier"), "written to {{tier}}"),
            Query(total(rate("kvwatch_tier_read_tokens_total", "tier"), "tier"), "read from {{tier}}"),
            Query(total(rate("kvwatch_tier_written_bytes_total", "tier"), "tier"), "written to {{tier}}, bytes"),
            Query(total(rate("kvwatch_tier_read_bytes_total", "tier"), "tier"), "read from {{tier}}, bytes"),
        )
        .axis_label("tokens/s")
        .override_by_regexp("/bytes$/", on_right("binBps"))
    )
    work = About(
        "Tokens per second",
        "Prompt tokens as the engine counts them, and generated ones. "
        "Generation that falls while requests run is time lost to recomputing.",
        TOKENS,
        6,
    )
    yield graph(
        work,
        Query(total(rate("kvwatch_prompt_tokens_total")), "prompt"),
        Query(total(rate("kvwatch_generation_tokens_total")), "generated"),
    ).axis_label("tokens/s")
