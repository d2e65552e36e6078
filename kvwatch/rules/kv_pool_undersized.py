"""The KV pool is full while the GPU still has free memory.

**What it means.** The engine preallocates its pool at start; whatever it left free stays unused for ever.

**How to tell.** L1 is full while much of the GPU's memory stayed free, the engine has generated tokens (it is past its warm-up), and
the GPU is proven to be this engine's.

**What to do first.** Raise the memory fraction and restart.
"""

from kvwatch.remedies import AMOUNT
from kvwatch.rules.kinds import Do, Rule, Say
from kvwatch.signals import gpu_memory, l1, scheduler

RULE = Rule(
    id="kv-pool-undersized",
    severity="warning",
    hold=60,
    when=(l1.saturated, gpu_memory.free >= 0.1, scheduler.generated > 0),
    title="The KV pool is full while {hbm_free_ratio} of the GPU's memory is free",
    headline="The KV pool is full while much of the GPU's memory is free",
    explanation=(
        Say("L1 is {l1_used_ratio} used; the engine took its pool at start and left {hbm_free_ratio} of the GPU's memory free."),
        Say("Raising the share from {memory_fraction} to {memory_fraction_next} would add about {kv_growth_tokens} tokens to the pool."),
    ),
    remedy=(
        Do(
            "raise --gpu-memory-utilization and restart",
            "the pool is sized once, at start",
            engine="vllm",
            exact=f"restart with --gpu-memory-utilization raised {AMOUNT}",
        ),
        Do(
            "raise --mem-fraction-static and restart",
            "the pool is sized once, at start",
            engine="sglang",
            exact=f"restart with --mem-fraction-static raised {AMOUNT}",
        ),
    ),
    causes=("l1-saturated", "l1-saturated-l2-idle", "l1-l2-saturated"),
    page=__doc__ or "",
)
