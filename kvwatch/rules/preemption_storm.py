"""Running requests keep losing their KV and are computed again.

**What it means.** vLLM reserves no room for output, so long answers outgrow the pool and the newest requests are preempted; SGLang retracts
when its estimate of future output was too low. Each one is computed from the start (less what its prefix still hits), which takes steps from
everybody.

**How to tell.** A preemption just happened under pressure, and in the window they came fast, or there were several and they hit many
of the running requests.

**What to do first.** More room in L1, or fewer sequences at once. In vLLM raise `--gpu-memory-utilization`; never lower it for this.
"""

from kvwatch.remedies import RAISE_L1
from kvwatch.rules.kinds import Do, Rule, Say
from kvwatch.signals import l1, scheduler

RULE = Rule(
    id="preemption-storm",
    severity="warning",
    hold=30,
    when=(l1.preempting.is_(1), scheduler.heavy_preemption),
    title="Running requests are preempted and computed again",
    explanation=(
        Say("Preemptions in the window: {preemptions_in_window} ({preemption_rate}), with {requests_running} running."),
        Say("{recompute_share} of the tokens computed were computed a second time."),
    ),
    remedy=(
        *RAISE_L1,
        Do("lower --max-num-seqs to about {concurrency_ceiling_requests}", "fewer sequences at once outgrow the pool less often", engine="vllm"),
        Do("lower --max-num-batched-tokens", "smaller prefill steps take blocks more slowly", engine="vllm"),
        Do("set --watermark, such as 0.05", "that share of the pool stays free for growth before a request is admitted", engine="vllm"),
        Do("raise --schedule-conservativeness", "admission reserves more for the output of running requests", engine="sglang"),
        Do("lower --max-running-requests to about {concurrency_ceiling_requests}", "fewer sequences at once outgrow the pool less often",
           engine="sglang"),
    ),
    causes=("throughput-collapse", "ttft-degraded"),
    page=__doc__ or "",
)  # fmt: skip
