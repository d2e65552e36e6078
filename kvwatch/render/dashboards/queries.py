"""PromQL over what kvwatch exports, for whatever the dashboard's variables choose.

Everything is first brought to one value per pool owner: the labels of the scrape go, and a target that two daemons watch counts once.
"""

from __future__ import annotations

from typing import get_args

from kvwatch.finding import Severity
from kvwatch.signals.kinds import Condition, Signal, TargetSignal

OWNER = ("target", "engine", "model", "rank")
TARGET = 'target=~"$target"'
CHOSEN = f'{TARGET}, model=~"$model", rank=~"$rank"'
FOUND = f'{TARGET}, model=~"$model|", rank=~"$rank|"'
"""Chosen findings: one about a whole target has neither model nor rank."""
WEIGHTS = {severity: weight for weight, severity in enumerate(reversed(get_args(Severity)), 1)}
"""Severities as numbers, so that the worst is the largest."""
STATES = {"used": "1", "resident": "1", "evictable": "2", "reclaimable": "2"}
"""Where a pool's states stand in a stack, from below; those without a number come last."""


def name(signal: Signal | TargetSignal | Condition) -> str:
    """The series of a signal or a condition."""
    return f"kvwatch_{signal.name}"


def each(series: str, *by: str, **labels: str) -> str:
    """One value per pool owner, and per label of ``by``."""
    return f"max by ({', '.join((*OWNER, *by))}) ({_chosen(series, labels)})"


def rate(counter: str, *by: str, **labels: str) -> str:
    """Increase per second of each pool owner."""
    return f"max by ({', '.join((*OWNER, *by))}) (rate({_chosen(counter, labels)}[$__rate_interval]))"


def of_target(series: str, *by: str) -> str:
    """One value per target."""
    return f"max by ({', '.join(('target', *by))}) ({series}{{{TARGET}}})"


def total(each_owner: str, *by: str) -> str:
    """The sum over the chosen pool owners."""
    return f"sum by ({', '.join(by)}) ({each_owner})" if by else f"sum({each_owner})"


def stacked(each_owner: str) -> str:
    """The sum by state, in an order that keeps what holds data together: Prometheus sorts by labels, so a label is put in front."""
    expr = total(each_owner, "state")
    for place in sorted(set(STATES.values())):
        states = "|".join(state for state, where in STATES.items() if where == place)
        expr = f'label_replace({expr}, "at", "{place}", "state", "{states}")'
    return expr


def only_bytes(*by: str, **labels: str) -> str:
    """The states of pools that are counted in bytes alone."""
    tokens, size = (each(f"kvwatch_pool_{unit}", *by, **labels) for unit in ("tokens", "bytes"))
    return f"{size} unless {tokens}"


def buckets(histogram: str) -> str:
    """Observations by bucket, for a heat map."""
    return f"sum by (le) (max by ({', '.join((*OWNER, 'le'))}) (increase({_chosen(f'{histogram}_bucket', {})}[$__rate_interval])))"


def quantile(q: float, histogram: str) -> str:
    """A quantile by engine: buckets of different engines have different edges and cannot be added."""
    return f"histogram_quantile({q:g}, {total(rate(f'{histogram}_bucket', 'le'), 'engine', 'le')})"


def findings(*by: str) -> str:
    """What fires, with its severity as a number, the worst where several share the labels."""
    parts = [f'{weight} * kvwatch_finding{{severity="{severity}", {FOUND}}}' for severity, weight in WEIGHTS.items()]
    return f"max by ({', '.join(by)}) ({' or '.join(parts)})"


def _chosen(series: str, labels: dict[str, str]) -> str:
    matchers = [CHOSEN, *(f'{label}="{value}"' for label, value in labels.items())]
    return f"{series}{{{', '.join(matchers)}}}"
