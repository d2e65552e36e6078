"""The host tier is no larger than the pool in HBM.

**What it means.** What L2 holds is mostly a copy of what L1 holds; evicted prefixes find little room there.

**How to tell.** L2's capacity is no larger than L1's, in the same unit.
"""

from kvwatch.remedies import larger_l2
from kvwatch.rules.kinds import Rule, Say
from kvwatch.signals import l2

RULE = Rule(
    id="l2-smaller-than-l1",
    severity="warning",
    hold=60,
    when=(l2.smaller,),
    title="The host tier (L2) is no larger than the pool in HBM (L1)",
    explanation=(Say("L2 holds {l2_capacity_share} what L1 holds."),),
    remedy=larger_l2("the host tier should hold what L1 evicts beside its copies"),
    engines=("vllm", "sglang"),
    page=__doc__ or "",
)
