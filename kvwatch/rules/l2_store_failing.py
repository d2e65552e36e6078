"""The host tier cannot take what it is given.

**What it means.** Stores are dropped or allocations fail because nothing in L2 may be evicted: pinned or locked objects fill it, or it is far too small
for its writers. LMCache counts such stores as requested, so its stored-token counter still rises.

**How to tell.** Within some seconds more was refused than taken, or tokens that L1 evicted were lost. Short bursts in which writers outrun the eviction
loop do not count.
"""

from kvwatch.remedies import larger_l2
from kvwatch.rules.kinds import Do, Reason, Rule, Say
from kvwatch.signals import l2, l2_traffic

RULE = Rule(
    id="l2-store-failing",
    severity="warning",
    hold=60,
    when=(l2.present.is_(1), l2_traffic.failed_stores > 0),
    reasons=(Reason("pinned", (l2.pinned_ratio >= 0.9,)),),
    title="The host tier (L2) cannot take what it is given",
    explanation=(
        Say("Refused lately: {l2_failed_stores} (stores, allocations or tokens)."),
        Say("{l2_pinned_share} of the tier is pinned: nothing there may be evicted.", reason="pinned"),
        Say("It is {l2_resident_ratio} full."),
    ),
    remedy=(
        Do("shorten LMCache's pin_timeout_sec", "leaked pins of aborted requests hold objects until they time out", reason="pinned",
           tiers=("lmcache",)),
        Do("shorten --l1-read-ttl-seconds of the LMCache server", "leaked locks of aborted requests hold objects until they time out",
           reason="pinned", tiers=("lmcache-server",)),
        Do("look for requests aborted between lookup and load", "each leaves pins behind", reason="pinned"),
        *larger_l2("writers need room that is not pinned"),
        Do("lower --eviction-trigger-watermark or raise --eviction-ratio of the LMCache server", "room is then made before writers need it",
           tiers=("lmcache-server",)),
    ),
    causes=("prefix-cache-thrash",),
    supersedes=("l2-write-starved",),
    page=__doc__ or "",
)  # fmt: skip
