"""What is scraped, as the user configured it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from kvwatch.schema import EngineName


@dataclass(frozen=True, slots=True)
class Tls:
    """How a target's certificate is judged."""

    ca_file: str | None = None
    server_name: str | None = None
    insecure_skip_verify: bool = False


@dataclass(frozen=True, slots=True)
class L2Setting:
    """What the operator says about L2 because the engine does not export it.

    ``capacity_bytes`` is one worker's when ``per`` is "worker" (times ``workers``, or the workers seen),
    the whole tier's when "instance". ``source`` names the LMCache server target that is this engine's L2.
    """

    capacity_bytes: float | None = None
    per: Literal["worker", "instance"] = "worker"
    workers: int | None = None
    source: str | None = None


@dataclass(frozen=True, slots=True)
class EventSource:
    """Where vLLM publishes KV events: endpoints by data-parallel rank; ``bind`` when the engine connects to us."""

    subscribe: tuple[str, ...] = ()
    replay: tuple[str, ...] = ()
    bind: bool = False


@dataclass(frozen=True, slots=True)
class Side:
    """Which optional endpoints beside /metrics may be asked; without an ``event_source`` the engine is asked who publishes its events."""

    loads: bool = True
    server_info: bool = True
    events: bool = True
    event_source: EventSource | None = None


@dataclass(frozen=True, slots=True)
class Target:
    """One thing to scrape, as configured.

    ``url`` holds no credentials and may be printed; those it was written with are ``userinfo`` (``user:password``), which may not.
    ``candidate`` marks a guess (an engine's default port on loopback): it is shown only once it answered. ``kv_bytes_per_token`` is what
    ``model_config`` says one token takes, by the name of the KV data type ("auto": the model's own).
    """

    name: str
    url: str
    engine: Literal["auto"] | EngineName = "auto"
    labels: Mapping[str, str] = field(default_factory=dict)
    bearer_token_file: str | None = None
    tls: Tls = Tls()
    l2: L2Setting = L2Setting()
    model_config: str | None = None
    gpus: tuple[str, ...] = ()
    side: Side = Side()
    candidate: bool = False
    kv_bytes_per_token: Mapping[str, float] = field(default_factory=dict)
    userinfo: str | None = field(default=None, repr=False)
