"""Requests are refused for want of capacity.

**What it means.** The engine's queue limit works: clients get a 503 at once instead of waiting. Those requests are in no queue and no latency
histogram.
"""

from kvwatch.rules.kinds import Do, Rule, Say
from kvwatch.signals import scheduler

RULE = Rule(
    id="load-shed",
    severity="warning",
    hold=60,
    when=(scheduler.rejected > 0,),
    title="Requests are refused for want of capacity",
    explanation=(Say("Refused in the window: {rejected_requests}. Such requests appear in no queue and in no latency."),),
    remedy=(
        Do("add replicas, or let the router spread better", "demand exceeds what this engine admits"),
        Do("raise --max-num-queued-reqs only if clients would rather wait", "a longer queue moves the refusal into latency", engine="vllm"),
        Do(
            "raise --max-queued-requests only if clients would rather wait",
            "a longer queue moves the refusal into latency",
            engine="sglang",
        ),
    ),
    page=__doc__ or "",
)
