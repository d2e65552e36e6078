"""SGLang holds requests back for output they may never generate.

**What it means.** Every candidate is charged its prompt plus its whole `max_new_tokens` (up to 4,096), and running requests hold a reserve
of `new_token_ratio` times what they may still generate; with `ignore_eos` the ratio is 1. The budget is used up while the pool has room.

**How to tell.** Requests wait, the pool is not full, nothing was retracted, and every other reason for the queue is excluded: the running
count moved below its maximum, it is not at its cap, and no grammar, adapter, transfer or prefetch queue explains the wait. Where the cap is
unknown, an admission ratio that stays high is the proof.

**What to do first.** Ask for less output per request, or lower `--schedule-conservativeness`.
"""

from kvwatch.remedies import EASE_BUDGET
from kvwatch.rules.kinds import Rule, Say
from kvwatch.signals import l1, scheduler

RULE = Rule(
    id="admission-reserve-too-large",
    severity="warning",
    hold=60,
    when=(l1.waiting > 0, l1.budget_bound.is_(1), scheduler.preemptions <= 0),
    title="Requests queue although the pool has room: SGLang's admission reserve is too large",
    explanation=(
        Say("With {requests_waiting} waiting, {l1_reclaimable_ratio} of the pool in HBM could be taken, and nothing was retracted."),
        Say("The last admission reserved {admission_reserve_ratio} of what running requests may still generate."),
    ),
    remedy=EASE_BUDGET,
    causes=("ttft-degraded", "load-shed"),
    supersedes=("queue-with-free-kv",),
    engines=("sglang",),
    page=__doc__ or "",
)
