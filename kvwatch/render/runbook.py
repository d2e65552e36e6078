"""The runbook: every rule's page, under an anchor that is its id."""

from __future__ import annotations

from collections.abc import Mapping

from kvwatch.catalogue import page
from kvwatch.render import Site

PATH = "alerts/runbook.md"
HEADER = "# Runbook\n\nRendered by `kvwatch render runbook` from the rules themselves. `kvwatch explain RULE` prints one.\n"


def render(site: Site) -> Mapping[str, str]:
    """One page of Markdown."""
    return {PATH: "\n".join([HEADER, *(page(r) for r in site.rules)])}
