"""Sessions or pinned objects hold a large part of a pool.

**What it means.** KV kept for open sessions, or objects pinned for loads that never came, can neither be used nor evicted.
"""

from kvwatch.rules.kinds import Do, Rule, Say
from kvwatch.signals import l1, l2

RULE = Rule(
    id="kv-held-by-sessions",
    severity="warning",
    hold=60,
    when=(l2.held,),
    title="Sessions or pinned objects hold a large part of a pool",
    explanation=(
        Say("Sessions hold {l1_session_ratio} of L1.", when=(l1.session_ratio >= 0.2,)),
        Say("Pinned objects hold {l2_held_share} of L2.", when=(l2.held_ratio >= 0.2,)),
    ),
    remedy=(
        Do("close idle sessions, or shorten their timeout", "their KV is held until then", when=(l1.session_ratio >= 0.2,)),
        Do(
            "shorten LMCache's pin_timeout_sec in the engine, or --l1-read-ttl-seconds of an LMCache server",
            "pins of aborted requests last until then",
            when=(l2.held_ratio >= 0.2,),
        ),
    ),
    causes=("l2-store-failing",),
    page=__doc__ or "",
)
