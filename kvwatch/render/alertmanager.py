"""Routes by severity, and inhibition from the cause edges: a root silences its effects for the same subject.

Only effects no worse than the root: what would page somebody is not silenced by what would not.
"""

from __future__ import annotations

from collections.abc import Mapping

import yaml

from kvwatch.diagnose import WORST
from kvwatch.render import Site
from kvwatch.render.promql import MODEL_LABELS, OWNER_LABELS
from kvwatch.rules import RULES
from kvwatch.rules.kinds import Rule

PATH = "alerts/alertmanager.yaml"
HEADER = "# Rendered by `kvwatch render alertmanager`; put your receivers in and keep the inhibition rules.\n"


def render(site: Site) -> Mapping[str, str]:
    """The configuration for Alertmanager."""
    inhibitions = [
        {
            "source_matchers": [f'rule="{r.rule.id}"'],
            "target_matchers": [f'rule=~"{"|".join(effects)}"'],
            "equal": list(MODEL_LABELS if r.rule.spreads else OWNER_LABELS),
        }
        for r in site.rules
        if (effects := silenced(r.rule))
    ]
    document = {
        "route": {
            "receiver": "default",
            "group_by": ["target", "model", "rule"],
            "group_wait": "30s",
            "group_interval": "5m",
            "repeat_interval": "4h",
            "routes": [
                {"matchers": ['severity="critical"'], "receiver": "page"},
                {"matchers": ['severity="warning"'], "receiver": "default"},
                {"matchers": ['severity="info"'], "receiver": "quiet"},
            ],
        },
        "inhibit_rules": inhibitions,
        "receivers": [
            {"name": "page", "webhook_configs": [{"url": "http://127.0.0.1:5001/page", "send_resolved": True}]},
            {"name": "default", "webhook_configs": [{"url": "http://127.0.0.1:5001/default", "send_resolved": True}]},
            {"name": "quiet"},
        ],
    }
    return {PATH: HEADER + yaml.safe_dump(document, sort_keys=False, width=160, default_flow_style=None)}


def silenced(rule: Rule) -> list[str]:
    """The effects that are told with their root alone."""
    return [effect for effect in rule.causes if WORST[RULES[effect].severity] <= WORST[rule.severity]]
