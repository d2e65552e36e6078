"""Grafana dashboards: the site at a glance, one engine in depth, the fleet. Their limits are the rules', their names the catalogue's."""

from __future__ import annotations

import json
from collections.abc import Mapping

from grafana_foundation_sdk.cog.encoder import JSONEncoder

from kvwatch.render import Site
from kvwatch.render.dashboards import engine, fleet, overview

BOARDS = {"dashboards/overview.json": overview.board, "dashboards/engine.json": engine.board, "dashboards/fleet.json": fleet.board}


def render(site: Site) -> Mapping[str, str]:
    """One file of JSON for each dashboard, to be provisioned or imported."""
    return {path: json.dumps(board(site), cls=JSONEncoder, sort_keys=True, indent=1) + "\n" for path, board in BOARDS.items()}
