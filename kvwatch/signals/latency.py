"""First tokens: how late they are, against this engine's own calm time, and whether it hurts."""

from __future__ import annotations

from kvwatch.quantity import UNKNOWN, Interval, at_least, at_most, exactly
from kvwatch.signals import l1, scheduler
from kvwatch.signals.kinds import Condition, Signal
from kvwatch.view import View

LEAST_STALL_SECONDS = 5.0
"""No first token for less than this is no stall, however quick the engine usually is."""


def _p50(view: View) -> Interval:
    return view.window().quantile("ttft", 0.5)


def _p99(view: View) -> Interval:
    return view.window().quantile("ttft", 0.99)


def _baseline(view: View) -> Interval:
    return view.baseline.ttft_quantile(0.99)


def _ratio(view: View) -> Interval:
    return p99.of(view) / baseline.of(view)


def _slo_ratio(view: View) -> Interval | None:
    slo = view.watch.slo_ttft_p99
    return None if slo is None else p99.of(view) / exactly(slo)


def _since_first_token(view: View) -> Interval:
    """Seconds since the newest sample with a new first token; at least the time watched when there was none."""
    if "ttft" not in view.state.histograms:
        return UNKNOWN
    oldest = view.now
    for after, before in view.steps():
        if after.first_tokens > before.first_tokens:
            return exactly(view.now - after.at)
        oldest = before.at
    return at_least(view.now - oldest)


def _stall_ratio(view: View) -> Interval:
    base = baseline.of(view)
    if base.exact is None:
        return UNKNOWN
    return since_first_token.of(view) / exactly(max(2 * base.exact, LEAST_STALL_SECONDS))


def _queue_share(view: View) -> Interval:
    """What share of the way to the first token was queueing.

    Where the engine times prefill too, both are of the requests that finished; else queueing of those admitted against the time of those
    that got their first token, which is at most all of it.
    """
    span = view.window()
    queue, prefill, whole = span.mean("queue"), span.mean("prefill"), span.mean("ttft")
    if queue.known and prefill.known and (queue + prefill).lo > 0:
        return queue / (queue + prefill)
    return (queue / whole).capped(1.0) if queue.known and whole.lo > 0 else UNKNOWN


def _prefill_share(view: View) -> Interval:
    """What share was prefill, of the requests that finished; only where the engine times it."""
    span = view.window()
    queue, prefill = span.mean("queue"), span.mean("prefill")
    return prefill / (queue + prefill) if queue.known and prefill.known and (queue + prefill).lo > 0 else UNKNOWN


def _load_share(view: View) -> Interval:
    """What share was loading KV from the host tier: at most all load time, since loads overlap with waiting and with each other."""
    loads, whole = view.window().total("l2_load"), view.window().total("ttft")
    return at_most(min(1.0, loads.hi / whole.lo)) if loads.known and whole.lo > 0 else UNKNOWN


def _baseline_seconds(view: View) -> Interval:
    return exactly(view.baseline.seconds)


p50 = Signal("ttft_p50_seconds", "seconds", "median time to first token in the window", _p50)
p99 = Signal("ttft_p99_seconds", "seconds", "99th percentile of time to first token in the window", _p99, kept=True, bounded=True)
baseline = Signal("ttft_baseline_p99_seconds", "seconds", "99th percentile of time to first token in this engine's calm time", _baseline)
baseline_seconds = Signal("baseline_seconds", "seconds", "calm time with traffic the baselines were learned from", _baseline_seconds)
queue_share = Signal("ttft_queue_share", "ratio", "share of the way to the first token spent queueing", _queue_share)
prefill_share = Signal("ttft_prefill_share", "ratio", "share of the way to the first token spent in prefill", _prefill_share)
load_share = Signal(
    "ttft_load_share", "ratio", "share of the time to first token spent loading KV from the host tier", _load_share, bounded=True
)
ratio = Signal("ttft_slowdown", "times", "the window's p99 against the calm p99", _ratio, bounded=True)
slo_ratio = Signal("ttft_slo_use", "times", "the window's p99 against the SLO, if one is configured", _slo_ratio, bounded=True)
since_first_token = Signal("first_token_age_seconds", "seconds", "time since the last first token", _since_first_token, bounded=True)
stall_ratio = Signal(
    "first_token_stall", "times", "time since the last first token, against twice the calm p99 and at least 5 s", _stall_ratio, bounded=True
)

high = Condition("ttft_high", "first tokens are much later than in calm time, or than the SLO", "any", (ratio >= 2.0, slo_ratio >= 1.0))
fresh = Condition(
    "ttft_fresh", "a first token came lately, or requests wait for theirs", "any", (since_first_token <= 15.0, l1.waiting > 0)
)
pain = Condition(
    "pain", "users feel it: requests wait on a full pool, are preempted, or get their first token late", "any",
    (
        Condition("queued_on_full_pool", "requests wait and the pool is full or preempts", "all", (l1.waiting > 0, l1.full_or_preempting)),
        l1.preempting.is_(1),
        Condition("queued_after_preemptions", "requests wait and some lost their KV in the window", "all", (l1.waiting > 0, scheduler.preemptions > 0)),
        high,
        Condition("queued_without_first_token", "requests wait and no first token comes", "all", (l1.waiting > 0, stall_ratio >= 1.0)),
    ),
)  # fmt: skip

SIGNALS = (p50, p99, baseline, baseline_seconds, queue_share, prefill_share, load_share, ratio, slo_ratio, since_first_token, stall_ratio)
CONDITIONS = (high, fresh, pain)
