"""Sequences have grown so long that the pool holds fewer of them than are asked for.

**What it means.** Concurrency is pool tokens divided by sequence length. A few long prompts take the room of many short ones.

**How to tell.** The ceiling is below running plus waiting requests, and running sequences hold far more
tokens than in calm time.
"""

from kvwatch.rules.kinds import Do, Rule, Say
from kvwatch.signals import l1, scheduler

RULE = Rule(
    id="long-context-squeeze",
    severity="warning",
    hold=60,
    when=(l1.waiting > 0, scheduler.ceiling_share < 1.0, scheduler.sequence_change >= 1.5),
    title="Long sequences leave room for {concurrency_ceiling_requests} of {demand_requests} requests",
    headline="Long sequences leave room for fewer requests than there are",
    explanation=(
        Say("A running sequence holds {mean_sequence_tokens} tokens on average, {sequence_change} the calm figure, so L1 holds {concurrency_ceiling_requests} of them; "
            "{demand_requests} are running or waiting."),
    ),
    remedy=(
        Do("route long prompts to replicas of their own", "they take the room of many short ones"),
        Do("lower --max-model-len", "the longest sequences are then refused", engine="vllm"),
        Do("lower --context-length", "the longest sequences are then refused", engine="sglang"),
        Do("store KV in 8 bits with --kv-cache-dtype fp8", "twice the tokens in the same memory; check answer quality", engine="vllm"),
        Do("store KV in 8 bits with --kv-cache-dtype fp8_e5m2", "twice the tokens in the same memory; check answer quality", engine="sglang"),
        Do("use more tensor or pipeline parallelism", "each GPU then holds a smaller share of every token"),
    ),
    page=__doc__ or "",
)  # fmt: skip
