"""A reported value that no engine can mean.

**What it means.** A usage below 0 or above 1, a negative count: a defect of the engine's accounting or of something between. kvwatch drops the
value and keeps the rest; it is never clamped, since 0 would read as idle and 1 as full.
"""

from kvwatch.rules.kinds import Do, Rule, Say
from kvwatch.signals import trust

RULE = Rule(
    id="implausible-metric",
    severity="warning",
    hold=0,
    when=(trust.implausible > 0,),
    title="The engine reports a value it cannot mean: {implausible_names}",
    headline="The engine reports a value it cannot mean",
    explanation=(Say("Dropped: {implausible_names}. What depends on it is unknown until it makes sense again."),),
    remedy=(
        Do("restart the engine when the value stays implausible", "a counter that went wrong stays wrong"),
        Do("report it to the engine's project with its version", "such values come from its accounting"),
    ),
    asleep=True,
    page=__doc__ or "",
)
