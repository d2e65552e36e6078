"""What is found: the only values that every output prints."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from kvwatch.quantity import Interval

Severity = Literal["critical", "warning", "info"]
Status = Literal["firing", "pending", "unknown"]


@dataclass(frozen=True, slots=True)
class Evidence:
    """One term of a finding with the value that made it true."""

    signal: str
    value: Interval
    op: str
    limit: float
    unit: str


@dataclass(frozen=True, slots=True)
class Subject:
    """What a finding is about: a pool owner, or a target (engine, model and rank None)."""

    target: str
    engine: str | None = None
    model: str | None = None
    rank: str | None = None


@dataclass(frozen=True, slots=True)
class Advice:
    """One thing to do, and why."""

    do: str
    because: str


@dataclass(frozen=True, slots=True)
class Finding:
    """The only thing every output prints; what it tells is of the last sample that had its terms true, ``quiet_seconds`` ago."""

    rule: str
    severity: Severity
    status: Status
    subject: Subject
    since_seconds: float | None
    reason: str | None
    title: str
    evidence: tuple[Evidence, ...]
    missing: tuple[str, ...]
    explanation: str
    remedy: tuple[Advice, ...]
    causes: tuple[str, ...]
    caused_by: str | None
    runbook: str
    quiet_seconds: float = 0.0
