"""What L1 evicts does not reach the host tier.

**What it means.** Evicted prefixes are gone and will be computed again. SGLang's `write_through_selective` copies a prefix only at its second
use; vLLM's offloading connector may ask for several uses (`store_threshold`); in some SGLang releases chunked prompts were never backed up.

**How to tell.** In the window L1 evicted a good part of its capacity and little of that was written to L2. Where evictions are not
counted: prompts are computed and nothing is written at all.
"""

from kvwatch.rules.kinds import Do, Rule, Say
from kvwatch.signals import l2_traffic

RULE = Rule(
    id="l2-write-starved",
    severity="warning",
    hold=60,
    when=(l2_traffic.write_starved,),
    title="What HBM evicts does not reach the host tier (L2)",
    explanation=(
        Say("In the window L1 evicted {l1_evicted_share} of its capacity; {l2_write_share} of that was written to L2."),
        Say("The write policy is {write_policy}."),
        Say(
            "{l2_unwritten_prompt_tokens} prompt tokens were computed in the window and nothing was written.",
            when=(l2_traffic.unwritten_prompts > 0,),
        ),
    ),
    remedy=(
        Do(
            "set --hicache-write-policy write_through",
            "selective writing waits for a second use, so prefixes used once are lost",
            engine="sglang",
            tiers=("hicache",),
        ),
        Do(
            "lower store_threshold in the offloading connector's kv_connector_extra_config",
            "blocks are kept only after that many uses",
            engine="vllm",
            tiers=("native-offload",),
        ),
        Do("check the connector's role and LMCache's save settings", "a consumer stores nothing", tiers=("lmcache", "lmcache-server")),
        Do(
            "check the connector's role and its settings",
            "one that offloads lazily waits for pressure",
            engine="vllm",
            tiers=("simple-offload",),
        ),
    ),
    causes=("prefix-cache-thrash",),
    page=__doc__ or "",
)
