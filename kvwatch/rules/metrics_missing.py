"""The engine answers, but series that should be there for it are not.

**What it means.** A flag is off, the version is older, or a proxy filters the body. Findings that need these series stay unknown.

**What to do first.** Each missing series is listed with the setting that brings it.
"""

from kvwatch.rules.kinds import Do, Rule, Say
from kvwatch.signals import trust

RULE = Rule(
    id="metrics-missing",
    severity="warning",
    hold=0,
    when=(trust.missing_series > 0,),
    title="Missing from the target's metrics: {missing_names}",
    headline="Series that should be there are missing",
    explanation=(Say("{missing_why}."),),
    remedy=(Do("enable what exports them", "findings that need these series stay unknown without them", exact="{missing_enable}"),),
    scope="target",
    page=__doc__ or "",
)
