"""The engine makes far fewer tokens than in calm time, with as much to do.

**What it means.** Preempted requests are computed again and again, so steps go to recomputation: more requests run and fewer tokens come out.

**How to tell.** Requests run, and as many as in calm time or some wait; the token rate of the last seconds is far below the calm rate, near a
full pool or after preemptions. An engine that drains is none. A gap in the scrapes leaves it unknown.
"""

from kvwatch.remedies import CAP_DEMAND, RAISE_L1
from kvwatch.rules.kinds import Rule, Say
from kvwatch.signals import scheduler

RULE = Rule(
    id="throughput-collapse",
    severity="critical",
    hold=30,
    when=(scheduler.token_change < 0.4, scheduler.running > 0, scheduler.loaded, scheduler.crowded),
    title="The engine makes {token_rate_change} its calm token rate",
    headline="The engine makes far fewer tokens than in calm time",
    explanation=(
        Say("{token_rate} in the window, with {requests_running} running; the last 15 s were at {token_rate_change} the calm rate."),
        Say("{preemptions_in_window} preemptions in the window: steps go to recomputation.", when=(scheduler.preemptions > 0,)),
    ),
    remedy=(*CAP_DEMAND, *RAISE_L1),
    causes=("ttft-degraded",),
    page=__doc__ or "",
)
