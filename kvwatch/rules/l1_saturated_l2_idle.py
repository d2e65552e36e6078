"""Requests queue because the HBM pool admits no more, while the host tier is proven to have room.

**What it means.** Admission in vLLM and in SGLang reads only the counters of the pool in HBM (L1). When no more can be taken from it,
new requests queue, running ones are preempted (vLLM) or retracted (SGLang) and computed again, and all of it lands in the time to first
token. The host tier (L2) keeps evicted prefixes; it holds no running request, so its free space admits nobody.

**How to tell.** L1 bounds admission (full for the next request, out of admission budget, or preempting) while requests wait, users
feel it, and little of L2 is proven to hold data.

**What to do first.** Give L1 more room or ask less of it. Enlarging L2 changes nothing here. The reason says what else is odd about L2:
`smaller-than-l1` (it cannot hold what L1 evicts), `write-starved` (what L1 evicts never reaches it), `never-read` (written and never
read back), `healthy` (it works; concurrency is the wall).
"""

from kvwatch.remedies import CAP_DEMAND, EASE_BUDGET, RAISE_L1, WHAT_IS_FULL
from kvwatch.rules.kinds import Do, Reason, Rule, Say
from kvwatch.signals import l1, l2, l2_traffic, latency

RULE = Rule(
    id="l1-saturated-l2-idle",
    severity="critical",
    hold=30,
    when=(l1.bound, latency.pain, l2.idle),
    reasons=(
        Reason("smaller-than-l1", (l2.smaller,), supersedes=("l2-smaller-than-l1",)),
        Reason("write-starved", (l2_traffic.write_starved,), supersedes=("l2-write-starved",)),
        Reason("never-read", (l2_traffic.never_read,), supersedes=("l2-never-read",)),
        Reason("healthy", (l2_traffic.served,)),
    ),
    title="Requests queue: HBM (L1) admits no more, and the host tier (L2) has room but cannot admit them",
    explanation=(
        *WHAT_IS_FULL,
        Say("The host tier (L2) is {l2_resident_ratio} full; admission reads only L1, so free L2 space does not raise admission."),
        Say("What L1 evicts does not reach L2: {l2_write_share} of it was written, so it is computed again.", reason="write-starved"),
        Say("{l2_unwritten_prompt_tokens} prompt tokens were computed in the window and none of them was written to L2.", reason="write-starved",
            when=(l2_traffic.unwritten_prompts > 0,)),
        Say("L2 was written for five minutes and nothing was read back.", reason="never-read"),
        Say("L2 is no larger than L1 ({l2_capacity_share} its capacity), so it can keep little of what L1 evicts.", reason="smaller-than-l1"),
        Say("L2 is written and read as it should be; concurrency in L1 is the wall.", reason="healthy"),
    ),
    remedy=(
        *(Do(d.do, d.because, d.engine, when=(l1.budget_bound.is_(1),)) for d in EASE_BUDGET),
        *RAISE_L1,
        *CAP_DEMAND,
        Do("then let L2 keep what L1 evicts: --hicache-write-policy write_through",
           "selective writing waits for a second use, so most evicted prefixes are lost", engine="sglang", reason="write-starved",
           tiers=("hicache",)),
        Do("then lower store_threshold in the offloading connector's settings", "blocks are kept only after that many uses",
           engine="vllm", reason="write-starved", tiers=("native-offload",)),
        Do("then check the connector's role and LMCache's save settings", "a consumer stores nothing", reason="write-starved",
           tiers=("lmcache", "lmcache-server")),
        Do("then look at prompts, routing and chunk alignment", "prefixes that differ early or land on other replicas never hit L2",
           reason="never-read"),
        Do("then raise --hicache-ratio above 1", "a host tier no larger than L1 repeats it", engine="sglang", reason="smaller-than-l1"),
    ),
    causes=("preemption-storm", "ttft-degraded", "throughput-collapse", "load-shed", "prefix-cache-thrash", "long-context-squeeze"),
    supersedes=("l1-saturated", "admission-reserve-too-large", "queue-with-free-kv"),
    engines=("vllm", "sglang"),
    page=__doc__ or "",
)  # fmt: skip
