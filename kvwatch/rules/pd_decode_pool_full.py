"""The decode side of a disaggregated deployment is full, and requests pile up before it.

**What it means.** Prefill is done, but the decode engine has no room to take the KV; requests pile up on the prefill side, too.
"""

from kvwatch.rules.kinds import Do, Rule, Say
from kvwatch.signals import l1, topology

RULE = Rule(
    id="pd-decode-pool-full",
    severity="critical",
    hold=60,
    when=(topology.decode_growth > 0, topology.decode_queue > 0, l1.saturated),
    title="The decode pool is full and requests pile up before it",
    explanation=(
        Say(
            "Requests that wait for room: {decode_queue_requests}, {decode_queue_growth} more than a window ago; {l1_used_ratio} of the decode pool is used."
        ),
    ),
    remedy=(
        Do("add decode engines", "prefill makes more than decode can hold"),
        Do("lower --num-reserved-decode-tokens", "each request then reserves less room for its output", engine="sglang"),
    ),
    causes=("pd-handover-backlog", "ttft-degraded"),
    spreads=True,
    supersedes=("pd-handover-backlog",),
    engines=("sglang",),
    page=__doc__ or "",
)
