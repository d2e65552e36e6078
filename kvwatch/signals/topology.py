"""One rank against its peers: the other pool owners that serve the same model."""

from __future__ import annotations

from kvwatch.quantity import UNKNOWN, ZERO, Interval, exactly, maybe
from kvwatch.signals import l1, scheduler
from kvwatch.signals.kinds import Condition, Signal
from kvwatch.view import View

HANDOVER = ("prefill_bootstrap_queue", "prefill_inflight_queue", "decode_prealloc_queue", "decode_transfer_queue")
DECODE = ("decode_prealloc_queue", "decode_transfer_queue", "decode_retracted_queue")


def _spare_peer(view: View) -> Interval | None:
    """The least used ratio among peers without a queue."""
    newest = [t.frames[-1] for t in view.peers]
    ratios = [l1.used_ratio_of(f) for f in newest if f.state.waiting.compare(">", 0) is False and not f.state.asleep]
    return Interval(min(r.lo for r in ratios), min(1.0, *(r.hi for r in ratios))) if ratios else None


def _peers_tokenless(view: View) -> Interval | None:
    """Seconds in which no peer made a token."""
    still = [scheduler.tokenless_of(track) for track in view.peers]
    return Interval(min(s.lo for s in still), min(s.hi for s in still)) if still else None


def _peers_busy(view: View) -> Interval:
    """Requests running on the peers."""
    return sum((track.frames[-1].state.running for track in view.peers), ZERO)


def _sum(view: View, names: tuple[str, ...]) -> Interval:
    """All of these queues that are told; an engine that does both halves itself has none of them."""
    known = [view.state.gauges[n] for n in names if n in view.state.gauges]
    if not known and view.state.facts.get("role") != "unified":
        return UNKNOWN
    return sum(known, ZERO)


def _grown(view: View, names: tuple[str, ...]) -> Interval:
    """How much a sum of queues grew since the window's first sample that told all of them; unknown with one sample."""
    span, told = view.window(), [n for n in names if n in view.state.gauges]
    if not told:
        return _sum(view, names)
    first = next((f.state.gauges for f in span.frames[:-1] if all(n in f.state.gauges for n in told)), None)
    if first is None or not span.judged:
        return UNKNOWN
    return exactly(max(0.0, _sum(view, names).lo - sum(first[n].hi for n in told)))


def _handover(view: View) -> Interval:
    return _sum(view, HANDOVER)


def _handover_growth(view: View) -> Interval:
    return _grown(view, HANDOVER)


def _decode_backlog(view: View) -> Interval:
    return _sum(view, DECODE)


def _decode_growth(view: View) -> Interval:
    return _grown(view, DECODE)


def _transfer_failures(view: View) -> Interval:
    return maybe(view.window().increase("transfer_failures"))


peers_tokenless = Signal(
    "peers_tokenless_seconds", "seconds", "time in which no peer made a token, if there are peers", _peers_tokenless, bounded=True
)
peers_busy = Signal("peers_running_requests", "requests", "requests running on the peers", _peers_busy)
handover_queue = Signal("handover_queue_requests", "requests", "requests between prefill and decode", _handover)
handover_growth = Signal(
    "handover_queue_growth", "requests", "growth of the queue between prefill and decode over the window", _handover_growth
)
decode_queue = Signal("decode_queue_requests", "requests", "requests that wait for room on the decode side", _decode_backlog)
decode_growth = Signal("decode_queue_growth", "requests", "growth of the queue for room on the decode side over the window", _decode_growth)
transfer_failures = Signal("transfer_failures_in_window", "count", "KV transfers that failed in the window", _transfer_failures)
spare_peer = Signal("peer_least_used_ratio", "ratio", "used share of the least used peer without a queue, if there is one", _spare_peer)
pressed = Condition("rank_pressed", "the rank is full or has a queue", "any", (l1.saturated, l1.waiting > 0))

SIGNALS = (spare_peer, peers_tokenless, peers_busy, handover_queue, handover_growth, decode_queue, decode_growth, transfer_failures)
CONDITIONS = (pressed,)
