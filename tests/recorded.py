"""Verdicts of the recorded incidents: what kvwatch would have said, every few seconds of them."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from importlib.resources import as_file, files

from kvwatch.recording import recording
from kvwatch.report import Verdict, verdict
from kvwatch.rules import active
from kvwatch.store import Store
from kvwatch.target import Target
from kvwatch.view import Watch

NAMES = ("vllm", "sglang-hicache")
EVERY = 4
"""Not each sample is looked at: neighbours are alike."""


@functools.cache
def verdicts(name: str) -> Sequence[Verdict]:
    """The verdicts of one incident, oldest first; the last one of the recording is always among them."""
    rules, target = active(), Target(name, f"http://{name}:8000/metrics", labels={"pod": f"{name}-0"})
    store = Store([target], Watch(interval=1.0), rules)
    with as_file(files("kvwatch.demo") / "recordings" / name) as folder:
        said = []
        for outcome in recording(folder, target):
            store.add(outcome)
            said.append(verdict(store.snapshot(outcome.at), rules))
    return said[::-EVERY][::-1]
