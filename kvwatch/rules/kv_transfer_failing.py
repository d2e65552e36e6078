"""KV transfers between engines fail.

**What it means.** Requests whose KV does not arrive are computed again or aborted.
"""

from kvwatch.rules.kinds import Do, Rule, Say
from kvwatch.signals import topology

RULE = Rule(
    id="kv-transfer-failing",
    severity="warning",
    hold=60,
    when=(topology.transfer_failures > 0,),
    title="KV transfers between engines fail",
    explanation=(Say("Transfers or handshakes that failed in the window: {transfer_failures_in_window}."),),
    remedy=(
        Do("look at the transfer backend's log (NIXL, Mooncake) and the network between the engines", "the failures are theirs"),
        Do("check that both sides run the same version and layout", "a handshake between unequal layouts fails"),
    ),
    causes=("ttft-degraded", "pd-handover-backlog"),
    page=__doc__ or "",
)
