"""The catalogue of findings: one module each, found by name; deleting a file deletes its finding everywhere."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from types import MappingProxyType

from kvwatch.rules.kinds import ActiveRule, Rule

RULES: Mapping[str, Rule] = MappingProxyType(
    {
        rule.id: rule
        for rule in sorted(
            (
                importlib.import_module(f"{__name__}.{module.name}").RULE
                for module in pkgutil.iter_modules(__path__)
                if module.name != "kinds"
            ),
            key=lambda rule: rule.id,
        )
    }
)


def names() -> Mapping[str, frozenset[str]]:
    """Rule ids with the signals whose limits the configuration may change."""
    return {rule.id: rule.signals() for rule in RULES.values()}


def active(thresholds: Mapping[str, Mapping[str, float]] | None = None) -> tuple[ActiveRule, ...]:
    """All rules with the configured limits and holds."""
    wanted = thresholds or {}
    return tuple(
        ActiveRule(
            rule,
            limits={name: value for name, value in wanted.get(rule.id, {}).items() if name != "hold"},
            hold=wanted.get(rule.id, {}).get("hold"),
        )
        for rule in RULES.values()
    )
