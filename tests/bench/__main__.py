"""Prints what kvwatch costs: ``python -m tests.bench [NAME]...`` runs ``bench_NAME.py`` beside this file, all of them unless named.

A bench module has ``run() -> list[tuple[str, str]]``: what was measured, and the figure with its unit and its target.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import cast

Rows = list[tuple[str, str]]


def main(names: list[str]) -> int:
    """Run the named benches, or all, one after the other; 64 for a name that is none."""
    known = sorted(path.stem.removeprefix("bench_") for path in Path(__file__).parent.glob("bench_*.py"))
    if unknown := sorted(set(names) - set(known)):
        print(f"no bench named {', '.join(unknown)}; there are {', '.join(known)}", file=sys.stderr)
        return 64
    for name in names or known:
        run = cast("Callable[[], Rows]", importlib.import_module(f"tests.bench.bench_{name}").run)
        for what, figure in run():
            print(f"{name:12} {what:44} {figure}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
