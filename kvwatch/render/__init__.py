"""Files rendered from the two catalogues, so that they cannot drift: alerts, Alertmanager, runbook, dashboards, the README's tables."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kvwatch.rules.kinds import ActiveRule
from kvwatch.view import Watch

SERVED = "/runbook/"
"""Where a daemon has its own runbook."""
LOCAL_URL = "http://127.0.0.1:9477"
"""Where a browser finds kvwatch on the same machine, through Compose and through a port that is forwarded."""
RUNBOOK_URL = f"{LOCAL_URL}{SERVED}"
"""Where the runbook is until a site says it."""


@dataclass(frozen=True, slots=True)
class Site:
    """What a site decides: limits and holds, where its runbook is, how far rates look back, how often it scrapes, the folder to render."""

    rules: tuple[ActiveRule, ...]
    folder: Path
    runbook_url: str = RUNBOOK_URL
    window: float = Watch().window
    interval: float = Watch().interval


Renderer = Callable[[Site], Mapping[str, str]]
"""Texts by path below the site's folder."""

RENDERERS: Mapping[str, str] = {
    "alerts": "kvwatch.render.alerts",
    "alertmanager": "kvwatch.render.alertmanager",
    "runbook": "kvwatch.render.runbook",
    "dashboards": "kvwatch.render.dashboards",
    "readme": "kvwatch.render.readme",
}
"""What can be rendered, and the module with its ``render``."""


class MissingExtraError(Exception):
    """What a renderer needs is not installed, in one line."""


def render(names: Sequence[str], site: Site) -> dict[str, str]:
    """All texts of the named renderers by path. Raises MissingExtraError."""
    texts: dict[str, str] = {}
    for name in names:
        texts.update(_renderer(name)(site))
    return texts


def _renderer(name: str) -> Renderer:
    try:
        renderer: Renderer = importlib.import_module(RENDERERS[name]).render
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("kvwatch"):
            raise
        package = error.name.partition(".")[0]
        raise MissingExtraError(f"{name} need the extra 'render' ({package} is not installed): pip install 'kvwatch[render]'") from None
    return renderer


def drifted(texts: Mapping[str, str], folder: Path) -> list[str]:
    """Paths whose file is not there or says something else."""
    return [path for path, text in texts.items() if not (folder / path).is_file() or (folder / path).read_bytes() != text.encode()]


def write(texts: Mapping[str, str], folder: Path) -> None:
    """Write them, with the folders that they need. Raises OSError."""
    for path, text in texts.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(text.encode())
