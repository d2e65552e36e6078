"""Scraping this target takes a large part of the interval.

**What it means.** The engine's front end is starved of CPU, or the body is very large. Late numbers make late findings; a lone timeout is this, not an
outage.
"""

from kvwatch.rules.kinds import Do, Rule, Say
from kvwatch.signals import trust

RULE = Rule(
    id="scrape-slow",
    severity="warning",
    hold=0,
    when=(trust.scrape_share > 0.5,),
    title="Scraping takes {scrape_share} the interval",
    headline="Scraping takes a large part of the interval",
    explanation=(Say("The last scrape took {scrape_share} the interval."),),
    remedy=(
        Do("lengthen kvwatch's interval", "kvwatch never scrapes twice at once, so slow answers already cost samples"),
        Do("give the engine's front end more CPU", "it serves requests with the same threads"),
    ),
    scope="target",
    page=__doc__ or "",
)
