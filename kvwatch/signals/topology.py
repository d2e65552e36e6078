"""One rank against its peers: the other pool owners that serve the same model."""

from __future__ import annotations

from kvwatch.quantity import Interval, TRUE
from kvwatch.signals import l1
from kvwatch.signals.kinds import Condition, Signal
from kvwatch.view import View


def _spare_peer(view: View) -> Interval:
    """The least used ratio among peers without a queue; 1 when there is no such peer."""
    ratios = [l1.used_ratio_of(f) for f in view.peers if f.state.waiting.compare(">", 0) is False and not f.state.asleep]
    return Interval(min(r.lo for r in ratios), min(1.0, min(r.hi for r in ratios))) if ratios else TRUE


spare_peer = Signal("peer_least_used_ratio", "ratio", "used share of the least used peer that has no queue; 1 without such a peer", _spare_peer)
pressed = Condition("rank_pressed", "the rank is full or has a queue", "any", (l1.saturated, l1.waiting > 0))

SIGNALS = (spare_peer,)
CONDITIONS = (pressed,)
