"""Nothing the engine reports changes while requests run.

**What it means.** The front end still answers, but the scheduler behind it does not move: a dead or hung process. All other numbers are old.

**How to tell.** All values stood still for a minute (SGLang 90 seconds) while requests run, or the scheduler's own load report is older than 5 seconds in
two scrapes.
"""

from kvwatch.rules.kinds import Do, Rule, Say
from kvwatch.signals import scheduler

RULE = Rule(
    id="metrics-frozen",
    severity="warning",
    hold=0,
    when=(scheduler.running > 0, scheduler.unchanging),
    title="The engine's numbers stand still while requests run",
    explanation=(
        Say("{requests_running} requests are said to run."),
        Say("Nothing changed for {frozen_use} the time allowed.", when=(scheduler.frozen >= 1.0,)),
        Say("The scheduler's own load report is {loads_stale_seconds} old.", when=(scheduler.stale_loads > 5,)),
    ),
    remedy=(
        Do("look at the scheduler process and its log", "the front end lives, what it reports is old"),
        Do("take the replica out of rotation and restart it if it hangs", "requests it holds will not end"),
    ),
    page=__doc__ or "",
)
