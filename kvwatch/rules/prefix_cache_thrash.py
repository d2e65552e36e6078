"""Prefixes are evicted before they are used again.

**What it means.** The working set of prefixes no longer fits: the hit ratio fell far below its calm value while evictions go on and hardly anything
cached is left.
"""

from kvwatch.remedies import RAISE_L1
from kvwatch.rules.kinds import Do, Rule, Say
from kvwatch.signals import l1

RULE = Rule(
    id="prefix-cache-thrash",
    severity="warning",
    hold=60,
    when=(l1.hit_change < 0.5, l1.evicted_ratio > 0, l1.evictable_ratio < 0.05),
    title="Prefixes are evicted before they are used again",
    explanation=(
        Say(
            "{prefix_hit_ratio} of looked-up tokens hit L1, {prefix_hit_change} the calm share; {l1_evictable_ratio} of the pool is reusable cache."
        ),
    ),
    remedy=(
        *RAISE_L1,
        Do(
            "enable or enlarge a host tier with --kv-offloading-size",
            "evicted prefixes are then loaded instead of computed",
            engine="vllm",
        ),
        Do(
            "enable a host tier with --enable-hierarchical-cache, or enlarge it with --hicache-ratio",
            "evicted prefixes are then loaded instead of computed",
            engine="sglang",
        ),
        Do("route by prefix", "each replica then keeps fewer different prefixes"),
    ),
    causes=("ttft-degraded",),
    page=__doc__ or "",
)
