"""A stand-in for the daemon's memory: pages are tested on verdicts from files and on a history made from them."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

DATA = Path(__file__).parent / "data" / "web"
WINDOW_SECONDS = 900
STEP_SECONDS = 15


def load(name: str) -> dict[str, Any]:
    """One of the verdicts in tests/data/web."""
    verdict: dict[str, Any] = json.loads((DATA / f"{name}.json").read_text())
    return verdict


def fleet(size: int) -> dict[str, Any]:
    """Many calm engines with one in the flagship's trouble, the last by name."""
    trouble, calm = load("flagship"), load("calm")["engines"][0]
    verdict = trouble | {"engines": [], "targets": [], "findings": []}
    for number in range(size):
        source = trouble["engines"][0] if number == size - 1 else calm
        name = f"chat-{number:03d}"
        verdict["engines"].append(copy.deepcopy(source) | {"target": name})
        verdict["targets"].append(trouble["targets"][0] | {"name": name, "url": f"http://10.0.{number // 250}.{number % 250}:8000/metrics"})
    for finding in copy.deepcopy(trouble["findings"][:3]):
        finding["subject"]["target"] = f"chat-{size - 1:03d}"
        verdict["findings"].append(finding)
    return verdict


def remember(verdict: Mapping[str, Any]) -> dict[str, Any]:
    """Fifteen minutes for every engine of a verdict, rising to the values of now: a minute without values, and one without samples."""
    ages = [float(age) for age in range(WINDOW_SECONDS, -1, -STEP_SECONDS) if not 300 <= age < 360]

    def rise(now: float | None, calm: float) -> list[float | None]:
        if now is None:
            return [None] * len(ages)
        past = [now - (now - calm) * (1 - 1 / (1 + math.exp((age - 300) / 60))) * (0.97 + 0.03 * math.sin(age)) for age in ages]
        return [None if 600 <= age < 660 else value for age, value in zip(ages, [*past[:-1], now], strict=True)]

    engines = []
    for engine in verdict["engines"]:
        pools = {pool["tier"]: pool for pool in reversed(engine["pools"])}
        l1_resident, l2_resident = (_ends(pools.get(tier, {}).get("resident_ratio")) for tier in ("l1", "l2"))
        series = {
            "l1_used_ratio": rise(_ends(pools.get("l1", {}).get("used_ratio"))[1], 0.3),
            "l1_resident_ratio_max": rise(l1_resident[1], 0.9),
            "l2_resident_ratio_min": rise(l2_resident[0], 0.0),
            "l2_resident_ratio_max": rise(l2_resident[1], 0.01),
            "requests_running": rise(_ends(engine["requests"]["running"])[1], 10.0),
            "requests_waiting": rise(_ends(engine["requests"]["waiting"])[1], 0.0),
            "ttft_p99": rise(_ends(engine["ttft"]["p99"])[0], 1.5),
            "preemption_rate": rise(_ends(engine["preemptions_per_second"])[1], 0.0),
            "token_rate": rise(_ends(engine["generation_tokens_per_second"])[1], 1500.0),
        }
        engines.append({key: engine[key] for key in ("target", "engine", "model", "rank")} | {"age_seconds": ages, "series": series})
    return {"window_seconds": WINDOW_SECONDS, "engines": engines}


def _ends(quantity: float | list[float | None] | None) -> tuple[float | None, float | None]:
    if isinstance(quantity, list):
        return quantity[0], quantity[1]
    return quantity, quantity


class FakeSource:
    """Answers with what it is told; a test changes its attributes between two looks."""

    def __init__(self, verdict: dict[str, Any]) -> None:
        self.start_over(verdict)

    def start_over(self, verdict: dict[str, Any]) -> None:
        """Ready, with one verdict, and with a reload that goes well."""
        self.shown = verdict
        self.past: dict[str, Any] | None = None
        self.tried = True
        self.refusal: str | None = None
        self.reloads = 0

    def verdict(self, target: str | None) -> Mapping[str, object]:
        """The verdict, narrowed as the daemon narrows it."""
        if target is None:
            return self.shown
        targets = [known for known in self.shown["targets"] if known["name"] == target]
        engines = [engine for engine in self.shown["engines"] if engine["target"] == target]
        return self.shown | {"targets": targets, "engines": engines, "status": self.shown["status"] if targets else "unknown"}

    def text(self, target: str | None) -> str:
        """One line for people."""
        return f"{self.shown['status']}: {target or 'all'}\n"

    def metrics(self, *, openmetrics: bool) -> tuple[bytes, str]:
        """An exposition long enough to be worth compressing."""
        body = b"".join(b'kvwatch_target_up{target="%d"} 1\n' % number for number in range(200))
        if openmetrics:
            return body + b"# EOF\n", "application/openmetrics-text; version=1.0.0; charset=utf-8"
        return body, "text/plain; version=0.0.4; charset=utf-8"

    def history(self) -> Mapping[str, object]:
        """What the page draws as lines: made of the verdict, unless the past was another."""
        return remember(self.past or self.shown)

    def runbook(self, rule: str) -> str | None:
        """A page for the rules of the verdict."""
        return f"# {rule}\n" if any(finding["rule"] == rule for finding in self.shown["findings"]) else None

    def ready(self) -> bool:
        """As set."""
        return self.tried

    def reload(self) -> str | None:
        """Counts, and refuses as set."""
        self.reloads += 1
        return self.refusal
