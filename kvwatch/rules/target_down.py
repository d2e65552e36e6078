"""A target that answered before does not answer any more, or never began within its grace time.

**What it means.** kvwatch knows nothing about this engine now; its last values were dropped after three intervals. An engine that is starved of
CPU answers late: a lone timeout is not an outage.

**How to tell.** Several scrapes in a row failed, or a target never answered within `startup_grace`.
"""

from kvwatch.rules.kinds import Do, Rule, Say
from kvwatch.signals import trust

RULE = Rule(
    id="target-down",
    severity="critical",
    hold=0,
    when=(trust.down,),
    title="The target does not answer: {failure_reason}",
    headline="The target does not answer",
    explanation=(Say("{scrape_failures_in_row} scrapes in a row failed: {failure_detail}"),),
    remedy=(
        Do("check that the engine's process runs and listens at {url}", "kvwatch can say nothing about this engine until it answers"),
        Do(
            "check network policy, TLS and the token between kvwatch and the engine", "a healthy engine behind a closed door looks the same"
        ),
    ),
    scope="target",
    page=__doc__ or "",
)
