"""One rank is full and all ranks stand still.

**What it means.** Ranks that compute in lockstep (expert or data-parallel attention) wait for each other: when one cannot go on, none can.

**How to tell.** This rank is full, requests run or wait, and neither it nor any peer has made a token.
"""

from kvwatch.rules.kinds import Do, Rule, Say
from kvwatch.signals import l1, scheduler, topology

RULE = Rule(
    id="lockstep-freeze",
    severity="critical",
    hold=60,
    when=(l1.used_ratio >= 0.95, scheduler.demand > 0, scheduler.tokenless >= 10, topology.peers_tokenless >= 10, topology.peers_busy > 0),
    title="This rank is full and all ranks stand still",
    explanation=(Say("This rank is {l1_used_ratio} used and no rank has made a token for {tokenless_seconds}."),),
    remedy=(
        Do("restart the full rank's engine", "the others wait for it in every step"),
        Do(
            "bound what decode preallocates with --num-reserved-decode-tokens",
            "a rank that is full of preallocated requests cannot step",
            engine="sglang",
        ),
    ),
    causes=("queue-stalled", "metrics-frozen", "queue-with-free-kv", "admission-reserve-too-large", "ttft-degraded", "load-shed"),
    spreads=True,
    supersedes=("queue-stalled",),
    page=__doc__ or "",
)
