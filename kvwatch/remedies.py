"""Advice that several rules give: each flag, its direction and its price stand here once, in the order they should be tried."""

from __future__ import annotations

from kvwatch.rules.kinds import Do, Say
from kvwatch.signals import l1

AMOUNT = "from {memory_fraction} to {memory_fraction_next}: about +{kv_growth_tokens} tokens, {kv_growth_sequences} more sequences of this length"
"""What raising the engine's share of GPU memory buys, where the numbers allow to say it."""

WHAT_IS_FULL = (
    Say("With {requests_waiting} waiting, {l1_used_ratio} of the pool in HBM (L1) is used and {l1_reclaimable_ratio} can still be taken."),
    Say("SGLang charges every candidate its prompt plus its whole max_new_tokens, and the running requests' reserve has used up that budget.",
        engine="sglang", when=(l1.budget_bound.is_(1),)),
    Say("Running requests lose their KV and are computed again ({preemption_rate} in the window).", when=(l1.preempting.is_(1),)),
    Say("First tokens take {ttft_p99_seconds} (p99) against {ttft_baseline_p99_seconds} in calm time."),
)  # fmt: skip
"""The sentences every finding about a full L1 begins with."""

EASE_BUDGET = (
    Do("ask for smaller max_new_tokens (max_tokens) in requests",
       "admission charges the whole of it, up to 4,096 tokens a request, however short the answer turns out", engine="sglang"),
    Do("drop ignore_eos from requests", "such requests are reserved in full while they run", engine="sglang"),
    Do("lower --schedule-conservativeness",
       "it scales the reserve of new and resumed batches; lower admits more at once at the price of more retractions", engine="sglang"),
)  # fmt: skip
"""What helps when SGLang's admission budget, not the pool, is used up."""

RAISE_L1 = (
    Do("raise --gpu-memory-utilization above {memory_fraction}", "more of the GPU becomes KV pool; leave room for activations and CUDA graphs",
       engine="vllm", exact=f"raise --gpu-memory-utilization {AMOUNT}"),
    Do("or set the pool directly with --kv-cache-memory-bytes", "it replaces the estimate of what is left over", engine="vllm"),
    Do("store KV in 8 bits with --kv-cache-dtype fp8", "twice the tokens in the same memory; check answer quality", engine="vllm"),
    Do("raise --mem-fraction-static above {memory_fraction}", "more of the GPU becomes KV pool; too high ends in out-of-memory during prefill",
       engine="sglang", exact=f"raise --mem-fraction-static {AMOUNT}"),
    Do("store KV in 8 bits with --kv-cache-dtype fp8_e5m2", "twice the tokens in the same memory; check answer quality", engine="sglang"),
)  # fmt: skip
"""How to make the pool in HBM larger."""

CAP_DEMAND = (
    Do("lower --max-num-seqs to about {concurrency_ceiling_requests}", "L1 fits no more sequences of the present length; others only preempt each other",
       engine="vllm"),
    Do("lower --max-running-requests to about {concurrency_ceiling_requests}", "L1 fits no more sequences of the present length",
       engine="sglang"),
    Do("bound the queue with --max-num-queued-reqs", "a quick 503 lets the router try another replica instead of waiting here", engine="vllm"),
    Do("bound the queue with --max-queued-requests", "a quick 503 lets the router try another replica instead of waiting here", engine="sglang"),
    Do("shorten sequences: lower max_tokens in requests, route long prompts apart", "the pool holds tokens, not requests"),
    Do("add replicas or GPUs", "concurrency is bound by pool tokens divided by sequence length"),
)  # fmt: skip
"""How to ask less of it."""


def larger_l2(because: str) -> tuple[Do, ...]:
    """How to make the host tier larger, whichever it is."""
    return (
        Do("raise --hicache-ratio above 1, or set --hicache-size", because, engine="sglang", tiers=("hicache",)),
        Do("raise --kv-offloading-size", because, engine="vllm", tiers=("native-offload", "simple-offload")),
        Do("raise LMCache's max_local_cpu_size, which is that of one worker", because, tiers=("lmcache",)),
        Do("raise --l1-size-gb of the LMCache server", because, tiers=("lmcache-server",)),
    )
