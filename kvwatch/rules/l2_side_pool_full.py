"""The host pool for states is full while the host pool for KV has room.

**What it means.** In hybrid models a prefix can be resumed only from a state checkpoint. Host KV without one is dead weight: L2 is limited by its state
pool, and a merged ratio looks healthy.
"""

from kvwatch.rules.kinds import Do, Rule, Say
from kvwatch.signals import l2

RULE = Rule(
    id="l2-side-pool-full",
    severity="warning",
    hold=60,
    when=(l2.side_resident >= 0.95, l2.resident_ratio <= 0.8),
    title="The host pool for states is full while the host pool for KV has room",
    explanation=(Say("States fill {l2_side_resident_ratio} of their host pool, KV only {l2_resident_ratio} of its own."),),
    remedy=(Do("give states a larger share of host memory: --hicache-ratio for the state pool, or --hicache-size",
               "KV without a state checkpoint cannot be resumed", engine="sglang"),),
    page=__doc__ or "",
)  # fmt: skip
