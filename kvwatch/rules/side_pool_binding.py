"""A sliding-window or state pool is full, not the KV pool proper.

**What it means.** Hybrid models keep several pools; the fullest one stops admission while the others have room.

**How to tell.** Requests wait, a side pool is nearly used up, and the full-attention pool is not.
"""

from kvwatch.rules.kinds import Do, Rule, Say
from kvwatch.signals import l1

RULE = Rule(
    id="side-pool-binding",
    severity="warning",
    hold=60,
    when=(l1.waiting > 0, l1.side_used_ratio >= 0.95, l1.full_used_ratio < 0.95),
    title="A side pool (sliding window or states) is full, not the KV pool",
    explanation=(
        Say("With {requests_waiting} waiting, the side pool is {l1_side_used_ratio} used, the full-attention pool {l1_full_used_ratio}."),
    ),
    remedy=(
        Do("raise --swa-full-tokens-ratio", "the sliding-window pool then takes a larger share of the memory", engine="sglang"),
        Do("raise --mamba-full-memory-ratio or --max-mamba-cache-size", "each running sequence needs a state slot", engine="sglang"),
    ),
    causes=("l1-saturated", "l1-saturated-l2-idle", "l1-l2-saturated", "ttft-degraded"),
    page=__doc__ or "",
)
