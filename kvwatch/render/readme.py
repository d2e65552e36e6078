"""The README's tables, between their markers: rules, settings, exported signals."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from kvwatch.config import ENVIRONMENT, describe
from kvwatch.render import Site
from kvwatch.signals import CONDITIONS, SIGNALS, TARGET_CONDITIONS, TARGET_SIGNALS
from kvwatch.signals.kinds import Signal, TargetSignal
from kvwatch.wording import duration

PATH = "README.md"


def render(site: Site) -> Mapping[str, str]:
    """The README with its tables filled; nothing where there is no README."""
    file = site.folder / PATH
    if not file.is_file():
        return {}
    text = file.read_text(encoding="utf-8")
    for name, table in TABLES.items():
        head, found, rest = text.partition(f"<!-- {name} -->\n")
        _, closing, tail = rest.partition(f"<!-- /{name} -->")
        if found and closing:
            text = f"{head}{found}\n{table(site)}\n\n{closing}{tail}"
    return {PATH: text}


def _rules(site: Site) -> str:
    rows = [
        f"| [{r.rule.id}](alerts/runbook.md#{r.rule.id}) | {r.rule.severity} "
        f"| {duration(r.hold_for(None)) if r.hold_for(None) else 'at once'} | {r.rule.short} |"
        for r in site.rules
    ]
    return "\n".join(["| finding | severity | after | what it says |", "|---|---|---|---|", *rows])


def _settings(_site: Site) -> str:
    rows = [f"| `{key.name}` | {f'`{key.default}`' if key.default else ''} | {key.meaning} |" for key in (*describe(), *ENVIRONMENT)]
    return "\n".join(["| setting | default | meaning |", "|---|---|---|", *rows])


def _metrics(_site: Site) -> str:
    signals: tuple[Signal | TargetSignal, ...] = (*SIGNALS, *TARGET_SIGNALS)
    rows = [f"| `kvwatch_{s.name}`{', `_min`, `_max`' if s.bounded else ''} | {s.unit} | {s.help} |" for s in signals]
    rows += [f"| `kvwatch_{c.name}{'{reason}' if c.labels else ''}` | condition | {c.help} |" for c in (*CONDITIONS, *TARGET_CONDITIONS)]
    return "\n".join(["| series | unit | meaning |", "|---|---|---|", *rows])


TABLES: Mapping[str, Callable[[Site], str]] = {"rules": _rules, "settings": _settings, "metrics": _metrics}
"""The tables by the name of their markers."""
