"""Another process holds memory on this engine's GPU.

**What it means.** The engine sized its pool by what was free at its start, or will fail to start next time. Engines preallocate, so full HBM by itself
means nothing.

**How to tell.** The driver lists a process that is proven not to be the engine's, and more than a small one, on a GPU proven to be the engine's.
"""

from kvwatch.rules.kinds import Do, Rule, Say
from kvwatch.signals import gpu_memory

RULE = Rule(
    id="hbm-foreign-process",
    severity="warning",
    hold=60,
    when=(gpu_memory.foreign >= float(512 << 20),),
    title="Another process holds {hbm_foreign_bytes} on this engine's GPU",
    headline="Another process holds memory on this engine's GPU",
    explanation=(Say("{hbm_foreign_bytes} of GPU memory belong to processes that are not the engine's."),),
    remedy=(
        Do("stop that process or move it to another GPU", "the engine cannot use what it holds"),
        Do("give the engine a GPU of its own, by device plugin or MIG", "sharing without isolation makes the pool's size a matter of luck"),
    ),
    causes=("kv-pool-undersized",),
    page=__doc__ or "",
)
