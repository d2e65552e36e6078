"""Loading KV from the host tier costs more than computing it, or requests pile up behind it.

**What it means.** The copy to the GPU is slow (layout, NUMA, too many at once), so hits in L2 make first tokens later, not earlier.

**How to tell.** Where the engine times both: seconds to load a token against seconds to compute one. Or most of the queue waits for KV from below.
"""

from kvwatch.rules.kinds import Do, Rule, Say
from kvwatch.signals import l2, l2_traffic

RULE = Rule(
    id="l2-load-slow",
    severity="warning",
    hold=60,
    when=(l2.present.is_(1), l2_traffic.slow_loads),
    title="Loading from the host tier (L2) is slower than it is worth",
    explanation=(
        Say("Loading a token from L2 takes {l2_load_cost} the time to compute it."),
        Say("{requests_fetching} requests ({fetching_share} of the queue) wait for KV from a lower tier.", when=(l2_traffic.fetching > 0,)),
    ),
    remedy=(
        Do(
            "set --hicache-io-backend kernel with --hicache-mem-layout page_first",
            "it copies whole pages instead of layer slices",
            engine="sglang",
        ),
        Do("pin the engine to the GPU's NUMA node", "host memory on the other socket halves the bandwidth"),
        Do("limit how many loads run at once in the connector", "they share one PCIe link"),
    ),
    causes=("ttft-degraded", "queue-with-free-kv"),
    engines=("vllm", "sglang"),
    page=__doc__ or "",
)
