"""Requests wait although the KV pool has room.

**What it means.** Something other than KV holds them: the limit on concurrent sequences (`sequence-cap`), the tokens of one step
(`token-budget`; no release read so far tells both the tokens of a step and its budget, so it is not named there), a grammar, adapter or KV fetch they wait for (`deferred`), or the state slots of a state-space model (`state-slots`).

**How to tell.** Requests keep waiting, the full-attention pool is not nearly used up, and it is proven that L1 does not bound admission.

**What to do first.** Change the limit that binds; more KV memory does not help.
"""

from kvwatch.rules.kinds import Do, Reason, Rule, Say
from kvwatch.signals import l1, scheduler

RULE = Rule(
    id="queue-with-free-kv",
    severity="warning",
    hold=60,
    when=(scheduler.queued > 0, l1.full_used_ratio < 0.8, l1.unbound),
    reasons=(
        Reason("state-slots", (l1.side_used_ratio >= 0.8,)),
        Reason("deferred", (scheduler.put_aside,)),
        Reason("sequence-cap", (scheduler.at_cap.is_(1),)),
        Reason("token-budget", (scheduler.step_fill >= 0.9,)),
        Reason("unknown", (scheduler.queued > 0,)),
    ),
    title="Requests wait although the KV pool has room",
    explanation=(
        Say("{requests_queued} waiting, {requests_running} running, and only {l1_full_used_ratio} of the KV pool is used."),
        Say("As many requests run as the engine allows.", reason="sequence-cap"),
        Say("The state slots are {l1_side_used_ratio} used: each running sequence needs one.", reason="state-slots"),
        Say("Of these, {requests_deferred} were put aside for a grammar, an adapter or KV from a lower tier.", reason="deferred",
            when=(scheduler.deferred > 0,)),
        Say("All slots for adapters are taken, so a request that needs another one waits.", when=(scheduler.adapter_slots >= 1.0,)),
        Say("Each step is full of tokens ({step_fill_ratio} of its budget).", reason="token-budget"),
    ),
    remedy=(
        Do("raise --max-num-seqs", "the pool has room for more sequences", engine="vllm", reason="sequence-cap"),
        Do("raise --max-running-requests", "the pool has room for more sequences", engine="sglang", reason="sequence-cap"),
        Do("raise --max-num-batched-tokens", "more prompt tokens fit one step, at the price of longer steps", engine="vllm", reason="token-budget"),
        Do("raise --chunked-prefill-size or --max-prefill-tokens", "more prompt tokens fit one step", engine="sglang", reason="token-budget"),
        Do("raise --max-mamba-cache-size or --mamba-full-memory-ratio", "state slots cap how many sequences run", engine="sglang",
           reason="state-slots"),
        Do("look at grammars, adapters (--max-loras) and the KV connector", "the requests wait for those, not for memory", engine="vllm",
           reason="deferred"),
        Do("look at grammars, and at --max-loras-per-batch for adapters", "the requests wait for those, not for memory", engine="sglang",
           reason="deferred"),
        Do("compare running requests with --max-num-seqs and the step with --max-num-batched-tokens",
           "one of the two limits admission when KV does not", engine="vllm", reason="unknown"),
        Do("compare running requests with --max-running-requests and look at grammar, adapter and transfer queues",
           "one of these limits admission when KV does not", engine="sglang", reason="unknown"),
    ),
    causes=("ttft-degraded", "load-shed"),
    page=__doc__ or "",
)  # fmt: skip
