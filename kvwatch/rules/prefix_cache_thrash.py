"""Prefixes are evicted before they are used again.

**What it means.** The working set of prefixes no longer fits: the hit ratio fell below half of its calm value while evictions go on and hardly anything
cached is left.
"""

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
        Do("give L1 more memory, or ask less of it", "what is in use leaves no room for prefixes"),
        Do("enable or enlarge a host tier", "evicted prefixes are then loaded instead of computed"),
        Do("route by prefix", "each replica then keeps fewer different prefixes"),
    ),
    causes=("ttft-degraded",),
    page=__doc__ or "",
)
