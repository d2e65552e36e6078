"""Requests queue because the HBM pool is full, out of admission budget, or preempting.

**What it means.** The pool in HBM (L1) is the only tier admission looks at. When the next request does not fit, it queues; when running
requests outgrow the pool, some lose their KV and are computed again. Both land in the time to first token.

**How to tell.** Requests wait for capacity, and L1 is full for the next request (`saturated`), SGLang's admission budget is used up
although the pool is not (`budget`), or requests were just preempted or retracted under pressure (`preempting`); and users feel it. A full
pool without a queue is no fault.

**What to do first.** Give L1 more room, or ask less of it. Nothing is claimed about a host tier here: there is none, it cannot be
observed, or it is in use.
"""

from kvwatch.remedies import CAP_DEMAND, EASE_BUDGET, RAISE_L1, WHAT_IS_FULL
from kvwatch.rules.kinds import Do, Reason, Rule
from kvwatch.signals import l1, latency

RULE = Rule(
    id="l1-saturated",
    severity="critical",
    hold=30,
    when=(l1.bound, latency.pain),
    reasons=(
        Reason("saturated", (l1.saturated,)),
        Reason("budget", (l1.budget_bound.is_(1),)),
        Reason("preempting", (l1.preempting.is_(1),)),
    ),
    title="Requests queue: the KV pool in HBM (L1) admits no more",
    explanation=WHAT_IS_FULL,
    remedy=(
        *(Do(d.do, d.because, d.engine, reason="budget") for d in EASE_BUDGET),
        Do(
            "raise --schedule-conservativeness",
            "admission then leaves running requests more room to grow",
            engine="sglang",
            reason="preempting",
        ),
        *RAISE_L1,
        *CAP_DEMAND,
    ),
    causes=("preemption-storm", "ttft-degraded", "throughput-collapse", "load-shed", "prefix-cache-thrash", "long-context-squeeze"),
    supersedes=("admission-reserve-too-large", "queue-with-free-kv"),
    page=__doc__ or "",
)
