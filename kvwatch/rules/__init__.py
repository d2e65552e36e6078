"""The catalogue of findings: one module each, found by name; deleting a file deletes its finding everywhere."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from kvwatch.rules.kinds import ActiveRule, Rule

FILES: tuple[Rule, ...] = tuple(
    importlib.import_module(f"{__name__}.{m.name}").RULE for m in pkgutil.iter_modules(__path__) if m.name != "kinds"
)
"""The rules as they are written, edges to rules without a file included."""


def _among(rule: Rule, ids: frozenset[str]) -> Rule:
    """The rule with the edges that lead somewhere."""
    reasons = tuple(replace(r, supersedes=tuple(i for i in r.supersedes if i in ids)) for r in rule.reasons)
    causes, supersedes = (tuple(i for i in edge if i in ids) for edge in (rule.causes, rule.supersedes))
    return replace(rule, reasons=reasons, causes=causes, supersedes=supersedes)


_IDS = frozenset(rule.id for rule in FILES)
RULES: Mapping[str, Rule] = MappingProxyType({rule.id: _among(rule, _IDS) for rule in sorted(FILES, key=lambda rule: rule.id)})


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
