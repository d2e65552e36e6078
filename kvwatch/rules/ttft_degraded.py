"""First tokens are much later than in this engine's calm time.

**What it means.** A symptom: the p99 of the window is far above the calm one, or above the configured SLO. Requests that still wait are in
no histogram, so the truth may be worse.

**How to tell.** Against the engine's own baseline, learned only from calm time with traffic (at least 12 scrapes and 20 first tokens).

**What to do first.** Look for the root beside it; alone, compare queueing with prefill.
"""

from kvwatch.rules.kinds import Do, Rule, Say
from kvwatch.signals import latency

RULE = Rule(
    id="ttft-degraded",
    severity="warning",
    hold=60,
    when=(latency.high, latency.fresh),
    title="First tokens take {ttft_p99_seconds} (p99)",
    headline="First tokens are much later than in calm time",
    explanation=(
        Say(
            "The window's p99 is {ttft_p99_seconds}, in calm time it was {ttft_baseline_p99_seconds} ({baseline_seconds} of calm traffic)."
        ),
        Say("{ttft_queue_share} of the way to it was queueing."),
        Say("{ttft_prefill_share} was prefill."),
        Say("Loading KV from the host tier took {ttft_load_share} of it."),
        Say("{recompute_share} of the prompt tokens computed in the window were computed again after a preemption."),
        Say("Requests that still wait for their first token are in no histogram: the truth may be worse."),
    ),
    remedy=(
        Do(
            "find what the queue waits for: L1's use, or --max-num-seqs",
            "most of the way to a first token is queueing",
            engine="vllm",
            when=(latency.queue_share >= 0.5,),
        ),
        Do(
            "find what the queue waits for: L1's use, its admission budget, or --max-running-requests",
            "most of the way to a first token is queueing",
            engine="sglang",
            when=(latency.queue_share >= 0.5,),
        ),
        Do(
            "shorten prompts, or raise --max-num-batched-tokens",
            "most of the way to a first token is prefill",
            engine="vllm",
            when=(latency.prefill_share >= 0.5,),
        ),
        Do(
            "shorten prompts, or raise --chunked-prefill-size",
            "most of the way to a first token is prefill",
            engine="sglang",
            when=(latency.prefill_share >= 0.5,),
        ),
        Do("compare queueing with prefill time", "queueing asks for capacity, prefill for shorter prompts, chunking or more compute"),
    ),
    page=__doc__ or "",
)
