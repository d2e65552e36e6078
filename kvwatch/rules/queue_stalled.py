"""Requests wait and no token is produced: the scheduler is stuck or dead.

**What it means.** The front end answers and accepts requests, but nothing is computed: a crashed or hung scheduler or worker, a request at the
head of the queue that can never fit, or a collective that waits for a lost rank. A usage dashboard shows an idle engine.

**How to tell.** Requests wait, and no token was generated or computed all the while. For SGLang that has to last longer, since its gauges
may be 30 seconds old when idle.

**What to do first.** Look at the scheduler's log; take the replica out of rotation and restart it.
"""

from kvwatch.rules.kinds import Do, Rule, Say
from kvwatch.signals import scheduler

RULE = Rule(
    id="queue-stalled",
    severity="critical",
    hold=60,
    holds={"sglang": 90.0},
    when=(scheduler.queued > 0, scheduler.tokenless >= 10),
    title="Requests wait and no token is made: the scheduler is stuck",
    explanation=(
        Say("{requests_queued} waiting, {requests_running} running, and no token was made for {tokenless_seconds}."),
        Say("A low KV usage does not mean idle here: the queue is dead."),
    ),
    remedy=(
        Do("take this replica out of rotation and read the scheduler's log", "new requests only join the dead queue"),
        Do("restart the engine if its scheduler process is gone or hangs", "nothing recovers a dead scheduler"),
        Do("look for a prompt at the head of the queue that can never fit", "first come, first served: it holds up everything behind it"),
    ),
    causes=("metrics-frozen", "queue-with-free-kv", "admission-reserve-too-large", "ttft-degraded", "load-shed"),
    stalled=True,
    page=__doc__ or "",
)
