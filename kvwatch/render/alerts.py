"""Alerts on the exported signals, one for each rule, with its hold, its wobble and what stands above it.

The terms are asked for over the last clear-hold, so that a wobble does not reset ``for``. It is in whole intervals of the site, and so is
the hold of a site that scrapes seldom: the verdict, too, knows of the next sample only when it is there. A superseded alert is silent while
the specific one fires. What a root brought about shows in rates and quantiles for a window after the root itself is over, when Alertmanager
does not inhibit it any more: for that time such an alert is silent, too, unless it is critical, and so is a superseded one. An effect ends
before its root does: were both to end at once, Alertmanager could hear first that the root is over, and tell the effect. The specific and
the roots come first: a group evaluates its alerts in order.
"""

from __future__ import annotations

import graphlib
import math
from collections.abc import Iterator, Mapping
from itertools import islice

import yaml

from kvwatch.render import Site
from kvwatch.render.alertmanager import silenced
from kvwatch.render.promql import MODEL, OWNER, OWNER_LABELS, TARGET, TARGET_LABELS, series_of, shown, terms
from kvwatch.rules.kinds import ActiveRule, Rule
from kvwatch.signals.kinds import SignalUnit
from kvwatch.view import Watch

PATH = "alerts/kvwatch.rules.yaml"
HEADER = "# Rendered by `kvwatch render alerts`; change the rule, or render with your own configuration.\n"
LOOKS = 5
"""How often the terms are asked for within the last clear-hold, at least."""
FIRST_DIGITS = (1, 5)
"""Steps between two looks begin with one of these, so that evaluations on even seconds meet them."""
SHOWN = 4
"""How many values a description carries."""
AFTERMATH_WINDOWS = 2
"""How many windows after a root an effect that remains is a trouble of its own."""
OFTEN_SECONDS = Watch().interval
"""With a longer interval Prometheus evaluates several times in one, and a single sample would last as long as a hold."""
ENDING_SHARE = 0.25
"""What part of its clear-hold a root has to be quiet to count as ending: a single sample of ``OFTEN_SECONDS``, as the next may end it."""
WRITERS: Mapping[SignalUnit, str] = {
    "ratio": "humanizePercentage",
    "fraction": 'printf "%.2f"',
    "times": 'printf "%.3gx"',
    "bytes": 'humanize1024 | printf "%sB"',
    "seconds": "humanizeDuration",
    "per second": 'printf "%.3g/s"',
    "tokens": "humanize",
    "tokens/s": 'humanize | printf "%s tokens/s"',
    "requests": 'printf "%.0f"',
    "count": 'printf "%.4g"',
}
"""How Prometheus' templates write each unit."""


def alert_name(rule_id: str) -> str:
    """``l1-saturated`` is called KvwatchL1Saturated."""
    return "Kvwatch" + "".join(part.capitalize() for part in rule_id.split("-"))


def in_order(rules: tuple[ActiveRule, ...]) -> Iterator[ActiveRule]:
    """Superseding rules before those they supersede, roots before their effects."""
    by_id = {r.rule.id: r for r in rules}
    sorter = graphlib.TopologicalSorter(
        {r.rule.id: sorted(o.rule.id for o in rules if r.rule.id in {*_all_superseded(o.rule), *o.rule.causes}) for r in rules}
    )
    for rule_id in sorter.static_order():
        yield by_id[rule_id]


def _all_superseded(rule: Rule) -> set[str]:
    return {*rule.supersedes, *(general for reason in rule.reasons for general in reason.supersedes)}


def render(site: Site) -> Mapping[str, str]:
    """The rule file for Prometheus."""
    alerts = [alert for r in in_order(site.rules) for alert in _alerts(r, site)]
    document = {"groups": [{"name": "kvwatch", "rules": alerts}]}
    return {PATH: HEADER + yaml.safe_dump(document, sort_keys=False, width=160, allow_unicode=True)}


def _alerts(r: ActiveRule, site: Site) -> Iterator[dict[str, object]]:
    """One alert, or one for each hold where engines differ."""
    engines = {} if r.hold is not None else r.rule.holds
    if not engines:
        yield _alert(r, site)
        return
    others = "|".join(engines)
    yield _alert(r, site, only=f'engine!~"{others}"')
    for engine in engines:
        yield _alert(r, site, engine, only=f'engine="{engine}"')


def _alert(r: ActiveRule, site: Site, engine: str | None = None, *, only: str | None = None) -> dict[str, object]:
    rule = r.rule
    hold = r.hold_for(engine)
    if site.interval > OFTEN_SECONDS:
        hold = math.ceil(hold / site.interval) * site.interval
    clear = math.floor(r.clear_hold_for(engine) / site.interval) * site.interval
    alert: dict[str, object] = {"alert": alert_name(rule.id), "expr": _expr(r, site, clear, only)}
    if hold:
        alert["for"] = _duration(hold)
    alert["labels"] = {"severity": rule.severity, "rule": rule.id} | ({} if only is None else {"hold": _duration(hold)})
    alert["annotations"] = {
        "summary": f"{rule.short} ({{{{ $labels.target }}}}{'' if rule.scope == 'target' else ' rank {{ $labels.rank }}'})",
        "description": _description(rule),
        "runbook_url": f"{site.runbook_url}{rule.id}",
    }
    return alert


def _duration(seconds: float) -> str:
    """A time span as Prometheus reads it: whole seconds or milliseconds, of which it needs one."""
    return f"{seconds:.0f}s" if seconds == round(seconds) else f"{max(1, round(seconds * 1000))}ms"


def _window(clear: float, interval: float) -> str:
    """The last clear-hold and the time between two looks: the longest even step that gives ``LOOKS`` of them and misses no sample."""
    longest = min(clear / LOOKS, interval)
    steps = (digit * 10.0**power for power in range(5, -4, -1) for digit in reversed(FIRST_DIGITS))
    return f"{_duration(clear)}:{_duration(next((step for step in steps if step <= longest), 0.001))}"


def _expr(r: ActiveRule, site: Site, clear: float, only: str | None) -> str:
    on = TARGET if r.rule.scope == "target" else OWNER
    expr = terms(r.rule, r.limits)
    if only is not None:
        expr = f"({expr}) and {on} kvwatch_engine_info{{{only}}}"
    if clear:
        expr = f"last_over_time(({expr})[{_window(clear, site.interval)}])"
    above = sorted(o.rule.id for o in site.rules if r.rule.id in o.rule.supersedes)
    said = [f'ALERTS{{alertname=~"{"|".join(map(alert_name, above))}", alertstate="firing"}}'] if above else []
    said += [
        f'kvwatch_finding{{rule="{other.rule.id}", reason="{reason.name}"}}'
        for other in site.rules
        for reason in other.rule.reasons
        if r.rule.id in reason.supersedes
    ]
    for series in said:
        expr += f" unless {on} {series if r.rule.severity == 'critical' else f'last_over_time({series}[{_aftermath_of(site)}])'}"
    return expr + _aftermath(r, site)


def _aftermath_of(site: Site) -> str:
    """For how long after a finding what it left behind is no news."""
    return _duration(AFTERMATH_WINDOWS * site.window)


def _aftermath(r: ActiveRule, site: Site) -> str:
    """What keeps an effect silent when its root is about to end or just over."""
    if r.rule.severity == "critical":
        return ""
    expr = ""
    for on, spreads in ((OWNER, False), (MODEL, True)):
        roots = [o for o in site.rules if o.rule.spreads == spreads and r.rule.id in silenced(o.rule)]
        if roots:
            names = "|".join(o.rule.id for o in roots)
            firing = f'ALERTS{{alertstate="firing", rule=~"{names}"}}'
            ending = ENDING_SHARE * min(o.clear_hold_for(engine) for o in roots for engine in (None, *o.rule.holds))
            expr += (
                f" unless {on} (last_over_time({firing}[{_aftermath_of(site)}]) unless {on} {firing})"
                f' unless {on} kvwatch_finding_quiet_seconds{{rule=~"{names}"}} > {ending:g}'
            )
    return expr


def _description(rule: Rule) -> str:
    """What the rule means in a sentence, and the values of what it rests on."""
    labels = TARGET_LABELS if rule.scope == "target" else OWNER_LABELS
    matchers = ",".join(f"{name}=%q" for name in labels)
    arguments = " ".join(f"$labels.{name}" for name in labels)
    values = [
        f'{series.removeprefix("kvwatch_")} {{{{ with printf "{series}{{{matchers}}}" {arguments} | query }}}}'
        f"{{{{ . | first | value | {WRITERS[unit]} }}}}{{{{ else }}}}unknown{{{{ end }}}}"
        for series, unit in ((series_of(term), term.signal.unit) for term in islice(shown(rule), SHOWN))
    ]
    return f"{rule.page.strip().splitlines()[0]} Now: {', '.join(values)}." if values else rule.page.strip().splitlines()[0]
