"""The host tier is written and nothing is read back.

**What it means.** L2 costs bandwidth and memory and serves nobody: pages or chunks do not line up, requests land on other replicas, hashes differ
between processes, or prompts differ early.

**How to tell.** For five minutes L2 was written and nothing was read, although prefixes repeat, and L1 has been evicted whole at least once (before
that L1 alone serves the hits).
"""

from kvwatch.rules.kinds import Do, Rule, Say
from kvwatch.signals import l2_traffic

RULE = Rule(
    id="l2-never-read",
    severity="warning",
    hold=60,
    when=(l2_traffic.never_read,),
    title="The host tier (L2) is written and never read",
    explanation=(
        Say(
            "In five minutes {l2_written_5m} were written and {l2_read_5m} read (tokens or bytes), while {prefix_repeats_5m} prompt tokens repeated."
        ),
    ),
    remedy=(
        Do("check that page or chunk sizes of engine and tier line up", "a prefix that ends inside a chunk never hits"),
        Do("route requests with the same prefix to the same replica", "each replica's L2 is its own"),
        Do(
            "with LMCache, start all its processes with the same PYTHONHASHSEED",
            "the builtin hash differs between processes otherwise",
            tiers=("lmcache", "lmcache-server"),
        ),
        Do("move what changes (dates, ids) behind the shared part of prompts", "a prefix that differs early shares nothing"),
    ),
    page=__doc__ or "",
)
