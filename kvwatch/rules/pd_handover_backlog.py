"""Requests pile up between prefill and decode although the pool is free.

**What it means.** Handshakes or transfers are slower than prefill. The main queue does not count these requests, so the engine looks idle.
"""

from kvwatch.rules.kinds import Do, Rule, Say
from kvwatch.signals import l1, topology

RULE = Rule(
    id="pd-handover-backlog",
    severity="warning",
    hold=60,
    when=(topology.handover_queue > 0, topology.handover_growth > 0, l1.used_ratio < 0.8),
    title="Requests pile up between prefill and decode",
    explanation=(
        Say(
            "Requests between prefill and decode: {handover_queue_requests}, {handover_queue_growth} more than a window ago; {l1_used_ratio} of L1 is used."
        ),
    ),
    remedy=(
        Do("look at the transfer backend (NIXL, Mooncake) and its network", "KV waits to be handed over"),
        Do("re-split prefill and decode engines", "one side makes more than the other takes"),
    ),
    causes=("ttft-degraded",),
    engines=("sglang",),
    page=__doc__ or "",
)
