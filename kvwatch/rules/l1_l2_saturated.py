"""Requests queue because the HBM pool admits no more, and the host tier is full and drops what it should keep.

**What it means.** L1 bounds admission, and L2 has no room for what L1 evicts, so evicted prefixes are computed again: queueing and
recomputation feed each other.

**How to tell.** As for a saturated L1, with L2 proven nearly full and stores dropped or allocations failing in the window.

**What to do first.** More room in L1 admits requests; a larger L2 or a storage tier behind it saves recomputation.
"""

from kvwatch.remedies import CAP_DEMAND, EASE_BUDGET, RAISE_L1, WHAT_IS_FULL, larger_l2
from kvwatch.rules.kinds import Do, Rule, Say
from kvwatch.signals import l1, l2, l2_traffic, latency

RULE = Rule(
    id="l1-l2-saturated",
    severity="critical",
    hold=30,
    when=(l1.bound, latency.pain, l2.full, l2_traffic.drops > 0),
    title="Requests queue: HBM (L1) admits no more, and the host tier (L2) is full, too",
    explanation=(
        *WHAT_IS_FULL,
        Say("The host tier is {l2_resident_ratio} full; stores or tokens it dropped in the window: {l2_drops}."),
    ),
    remedy=(
        *(Do(d.do, d.because, d.engine, when=(l1.budget_bound.is_(1),)) for d in EASE_BUDGET),
        *RAISE_L1,
        *larger_l2("evicted prefixes are then kept instead of computed again"),
        Do("put a storage tier behind L2", "what host memory cannot keep survives there"),
        *CAP_DEMAND,
    ),
    causes=("preemption-storm", "ttft-degraded", "throughput-collapse", "load-shed", "prefix-cache-thrash", "long-context-squeeze",
            "l2-store-failing"),
    supersedes=("l1-saturated", "admission-reserve-too-large", "queue-with-free-kv"),
    engines=("vllm", "sglang"),
    page=__doc__ or "",
)  # fmt: skip
