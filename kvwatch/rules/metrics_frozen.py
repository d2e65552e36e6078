"""Nothing the engine reports changes while requests run.

**What it means.** The front end still answers, but the scheduler behind it does not move: a dead or hung process. All other numbers are old.

**How to tell.** All values stood still while requests run, for longer than a working engine's do, or the scheduler's own load report is old in two
scrapes.
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
        Say("Requests that are said to run: {requests_running}."),
        *(
            Say(f"Nothing changed for {{frozen_use}} the {seconds:.0f} s allowed.", engine=engine, when=(scheduler.frozen >= 1.0,))
            for engine, seconds in scheduler.FROZEN_SECONDS.items()
        ),
        Say("The scheduler's own load report is {loads_stale_seconds} old.", when=(scheduler.stale_loads > 5,)),
    ),
    remedy=(
        Do("look at the scheduler process and its log", "the front end lives, what it reports is old"),
        Do("take the replica out of rotation and restart it if it hangs", "requests it holds will not end"),
    ),
    page=__doc__ or "",
)
