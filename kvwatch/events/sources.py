"""Where the engines publish: what the configuration says, or what vLLM answers to ``GET /kv_event_sources``. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from kvwatch.target import Target

_TCP = re.compile(r"tcp://(\[[^\]]*\]|[^:/]+):(\d+)")
ANY = ("*", "0.0.0.0", "[::]", "[::ffff:0.0.0.0]")  # noqa: S104  what a publisher that listens everywhere calls itself
MAPPED = "[::ffff:"


@dataclass(frozen=True, slots=True)
class RankSource:
    """One publisher: where to subscribe, where to ask for what was missed (None: nowhere), the topic (None: any).

    ``bind`` says that the engine connects to us. ``unclear`` says that its address names a host, so that the engine may be the one that
    connects (``_is_bind_endpoint`` in vllm/distributed/kv_events.py): a subscriber that connects too would hear nothing.
    """

    subscribe: str
    replay: str | None = None
    topic: str | None = None
    bind: bool = False
    unclear: bool = False


def configured(target: Target) -> Mapping[str, RankSource] | None:
    """The publishers the configuration names, by rank; None where it leaves them to be found."""
    source = target.side.event_source
    if source is None:
        return None
    replays = [*source.replay, *[None] * len(source.subscribe)]
    return {str(i): RankSource(endpoint, replays[i], bind=source.bind) for i, endpoint in enumerate(source.subscribe)}


def discovered(answer: object, target: Target) -> Mapping[str, RankSource]:
    """The publishers an engine names, by rank, as seen from here; empty where it publishes nothing or the answer has another shape."""
    host = urlsplit(target.url).hostname
    if not isinstance(answer, Mapping) or host is None:
        return {}
    found = {}
    for rank, told in answer.items():
        if isinstance(told, Mapping) and told.get("publisher", "zmq") == "zmq" and isinstance(told.get("endpoint"), str):
            subscribe, unclear = _seen_from_here(told["endpoint"], host)
            replay = told.get("replay_endpoint")
            topic = told.get("topic")
            if subscribe is not None:
                found[str(rank)] = RankSource(
                    subscribe,
                    _seen_from_here(replay, host)[0] if isinstance(replay, str) else None,
                    topic if isinstance(topic, str) and topic else None,
                    unclear=unclear,
                )
    return found


def _seen_from_here(endpoint: str, host: str) -> tuple[str | None, bool]:
    """An endpoint as somebody at another place must write it, and whether the engine may be the one that connects."""
    match = _TCP.fullmatch(endpoint)
    if match is None:
        return (endpoint, False) if endpoint.startswith("ipc://") else (None, False)
    told = match[1]
    if told in ANY or told.startswith("[::"):
        name = told[len(MAPPED) : -1] if told.startswith(MAPPED) and told not in ANY else host
        shown = f"[{name}]" if ":" in name else name
        return f"tcp://{shown}:{match[2]}", False
    return endpoint, True
