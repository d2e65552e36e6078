"""Loads from the storage tier fail.

**What it means.** Lookups find prefixes in storage, but they do not arrive: the backend refuses or times out, or the host tier has no room to receive them.
"""

from kvwatch.rules.kinds import Do, Rule, Say
from kvwatch.signals import l2_traffic

RULE = Rule(
    id="l3-prefetch-failing",
    severity="warning",
    hold=60,
    when=(l2_traffic.l3_failures > 0,),
    title="Loads from the storage tier (L3) fail",
    explanation=(Say("Loads from storage that failed in the window: {l3_load_failures_in_window}."),),
    remedy=(
        Do("look at the storage backend and the network to it", "what it holds does not arrive"),
        Do("enlarge L2, the host tier", "it must have room for what is prefetched"),
        Do(
            "set --hicache-storage-prefetch-policy to best_effort or timeout",
            "requests then do not wait for what does not come",
            engine="sglang",
        ),
    ),
    causes=("ttft-degraded",),
    page=__doc__ or "",
)
