"""One rank or replica is full or queues while another that serves the same model has room.

**What it means.** Every data-parallel rank owns its pool; a request on a full rank waits although its neighbour is idle.

**How to tell.** The rank is saturated or has a queue, and a peer has no queue and a good part of its pool free. Prefill and decode engines are
no peers: a request of the one cannot go to the other.

**What to do first.** Look at how requests are spread over the ranks.
"""

from kvwatch.rules.kinds import Do, Rule, Say
from kvwatch.signals import topology

RULE = Rule(
    id="rank-imbalance",
    severity="warning",
    hold=60,
    when=(topology.pressed, topology.spare_peer <= 0.5),
    title="Full or queueing here, while another rank or replica of this model has room",
    explanation=(
        Say("{requests_queued} waiting here with {l1_used_ratio} of L1 used; a peer without a queue uses {peer_least_used_ratio}."),
    ),
    remedy=(
        Do(
            "set --load-balance-method to total_tokens, or to total_requests for short prompts",
            "round robin ignores how long requests are",
            engine="sglang",
        ),
        Do("let the router look at queue and KV usage of each rank or replica", "equal counts are not equal load"),
        Do("check for sticky sessions or prefix routing that pin hot prompts to one place", "affinity without a limit makes hot spots"),
    ),
    causes=("l1-saturated", "l1-saturated-l2-idle", "l1-l2-saturated", "ttft-degraded"),
    page=__doc__ or "",
)
