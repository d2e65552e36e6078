"""The pool in HBM: how full, what can still be taken, and whether admission is bound by it."""

from __future__ import annotations

import math
from dataclasses import replace

from kvwatch.pool import Pool
from kvwatch.quantity import MAYBE, TRUE, UNKNOWN, ZERO, Interval, Truth, any_of, exactly, truth
from kvwatch.signals.kinds import Condition, Signal
from kvwatch.span import Frame
from kvwatch.view import View

RECENT_SECONDS = 15.0
"""How long a preemption counts as present, or two scrapes if that is longer."""
PRESSED_RATIO = 0.9
"""Above this a preemption is the pool's doing even when the queue is empty again."""
CLIP_NEW_TOKENS = 4096
"""SGLang charges at most this much future output per request (SGLANG_CLIP_MAX_NEW_TOKENS_ESTIMATION)."""
LONGEST_PROMPT = 8192
"""Assumed where no histogram tells the prompts' lengths."""
CLEAR_DIP = 0.1
"""With the cap unknown, running requests must lie this far below their maximum before the cap is excluded."""
HIGH_ADMISSION_RATIO = 0.5
ADMISSION_RATIO_SECONDS = 30.0


def _most(values: list[Interval]) -> Interval:
    return Interval(max(v.lo for v in values), max(v.hi for v in values)) if values else UNKNOWN


def _least(values: list[Interval]) -> Interval:
    return Interval(min(v.lo for v in values), min(v.hi for v in values)) if values else UNKNOWN


def used_ratio_of(frame: Frame) -> Interval:
    """The used ratio of the binding L1 pool in one sample."""
    return _most([p.used_ratio for p in frame.state.pools if p.tier == "l1"])


def _used_ratio(view: View) -> Interval:
    return used_ratio_of(view.frame)


def _full(view: View) -> Pool | None:
    return view.state.pool("l1", "full")


def _full_used_ratio(view: View) -> Interval:
    pool = _full(view)
    return UNKNOWN if pool is None else pool.used_ratio


def _side_used_ratio(view: View) -> Interval | None:
    side = [p.used_ratio for p in view.l1_pools() if p.pool != "full"]
    return _most(side) if side else None


def free_ratio(pool: Pool) -> Interval:
    """Share of a pool that admission can still get."""
    if pool.capacity.lo > 0 and pool.measured:
        return (pool.reclaimable / pool.capacity).capped(1.0)
    return exactly(1.0) - pool.used_ratio if pool.used_ratio.known else UNKNOWN


def _reclaimable_ratio(view: View) -> Interval:
    return _least([free_ratio(p) for p in view.l1_pools()])


def _resident_ratio(view: View) -> Interval:
    pool = _full(view)
    return UNKNOWN if pool is None else pool.resident_ratio


def _evictable_ratio(view: View) -> Interval:
    pool = _full(view)
    if pool is None or pool.capacity.lo == 0 or not pool.measured:
        return UNKNOWN
    return (pool.evictable / pool.capacity).capped(1.0)


def _shortfall(view: View) -> Interval | None:
    """Tokens the next request lacks, by the mean prompt of the window; None where no prompt of the window is told."""
    pool, prompt = _full(view), view.window().mean("prompt")
    if pool is None or pool.unit != "tokens" or prompt.exact is None:
        return None
    block = view.gauge("block_size").exact
    need = prompt.exact if not block else math.ceil(prompt.exact / block) * block
    return exactly(need) - pool.reclaimable if pool.reclaimable.known else UNKNOWN


def _waiting(view: View) -> Interval:
    """Requests that wait for capacity: without those the engine put aside for another reason."""
    state = view.state
    if state.waiting_capacity.known:
        return state.waiting_capacity
    return state.waiting - state.waiting_deferred if state.waiting_deferred.known else state.waiting


def _pressed(frame: Frame) -> Truth:
    return any_of([frame.state.waiting.compare(">", 0), used_ratio_of(frame).compare(">=", PRESSED_RATIO)])


def _preempting(view: View) -> Interval:
    """A request lost its KV a moment ago, under pressure at an end of that interval."""
    if "preemptions" not in view.state.counters:
        return MAYBE
    found: list[Truth] = []
    for count, (after, before) in enumerate(view.steps()):
        if count >= 2 and view.now - before.at > RECENT_SECONDS:
            break
        grown = after.counters.get("preemptions", 0.0) > before.counters.get("preemptions", 0.0)
        found.append(any_of([_pressed(after), _pressed(before)]) if grown else False)
    return truth(any_of(found)) if found else MAYBE


def _longest_prompt(view: View) -> float:
    """Tokens that no prompt of the window exceeds; infinite when one lies beyond the last finite edge."""
    grown = view.window().buckets("prompt")
    if not grown:
        return LONGEST_PROMPT
    before = 0.0
    edge_of_last = 0.0
    for edge, count in grown:
        if count > before:
            edge_of_last = edge
        before = count
    return edge_of_last if edge_of_last > 0 else LONGEST_PROMPT


def _other_wait(view: View) -> bool:
    """Whether another queue may explain why requests wait."""
    names = ("waiting_grammar", "waiting_prefetch", "prefill_bootstrap_queue", "prefill_inflight_queue",
             "decode_prealloc_queue", "decode_transfer_queue")  # fmt: skip
    if any(view.gauge(name).lo > 0 for name in names) or view.gauge("adapter_slots_ratio").lo >= 1:
        return True
    reads = view.window().increase("l3_read_tokens")
    return reads is not None and reads > 0


def _budget_bound(view: View) -> Interval:  # noqa: PLR0911  one return for each proof or refutation
    """SGLang's other way to be full: the budget of tokens that running requests may still generate is used up.

    Only the ratio of the reserve is exported, so it is proven by elimination, and refuted when the room exceeds all that could be
    charged (mem_cache/prefill_budget.py, managers/schedule_policy.py).
    """
    state = view.state
    if state.engine != "sglang":
        return ZERO
    queued = waiting.of(view).compare(">", 0)
    pool = _full(view)
    if queued is False:
        return ZERO
    charge = (state.running.hi + 1) * CLIP_NEW_TOKENS + _longest_prompt(view)
    if pool is not None and pool.unit == "tokens" and pool.reclaimable.known and pool.reclaimable.lo > charge:
        return ZERO
    if queued is None or _other_wait(view):
        return MAYBE
    window = view.window().frames
    known = [r for f in window if (r := f.state.running.exact) is not None]
    if state.running.exact is None or len(known) < 2:
        return MAYBE
    now, earlier, most = known[-1], known[:-1], max(known)
    cap = view.gauge("running_cap").exact
    if cap is None:
        # What once ran is no more than the cap; a dip of a few below it is the moment between two admissions, not proof of another limit.
        return TRUE if now <= most - max(2.0, CLEAR_DIP * most) or _reserve_stays_high(view) else MAYBE
    not_just_grown = now < most or max(earlier) == most
    return TRUE if not_just_grown and now < cap else MAYBE


def _reserve_stays_high(view: View) -> bool:
    """The last admission ratio decays within seconds of decoding, so one that stays high is a setting or follows retractions."""
    span = view.recent(ADMISSION_RATIO_SECONDS)
    return span.seconds >= ADMISSION_RATIO_SECONDS and all(
        f.state.gauges.get("new_token_ratio", UNKNOWN).lo >= HIGH_ADMISSION_RATIO and f.state.waiting.lo > 0 for f in span.frames
    )


def _evicted_ratio(view: View) -> Interval:
    pool, evicted = _full(view), view.window().increase("l1_evicted_tokens")
    if pool is None or pool.capacity.lo == 0 or evicted is None:
        return UNKNOWN
    return exactly(evicted) / pool.capacity


def _hit_ratio(view: View) -> Interval:
    queried, hit = view.window().increase("l1_queried_tokens"), view.window().increase("l1_hit_tokens")
    return UNKNOWN if queried is None or hit is None or queried <= 0 else exactly(min(1.0, hit / queried))


def _hit_change(view: View) -> Interval:
    return hit_ratio.of(view) / view.baseline.hit_ratio()


def _session_ratio(view: View) -> Interval:
    pool = _full(view)
    if pool is None or pool.capacity.lo == 0 or not pool.measured:
        return UNKNOWN
    sessions = view.state.gauges.get("session_held_tokens", ZERO)  # exported with --enable-streaming-session only
    return ((pool.held + sessions) / pool.capacity).capped(1.0)


used_ratio = Signal("l1_used_ratio", "ratio", "used share of the binding pool in HBM", _used_ratio, kept=True)
full_used_ratio = Signal("l1_full_used_ratio", "ratio", "used share of the full-attention pool in HBM", _full_used_ratio)
side_used_ratio = Signal(
    "l1_side_used_ratio", "ratio", "used share of the fullest sliding-window or state pool, if there is one", _side_used_ratio
)
reclaimable_ratio = Signal("l1_reclaimable_ratio", "ratio", "share of the binding pool that admission can still get", _reclaimable_ratio)
resident_ratio = Signal("l1_resident_ratio", "ratio", "share of the pool in HBM that holds data", _resident_ratio, kept=True, bounded=True)
evictable_ratio = Signal("l1_evictable_ratio", "ratio", "share of the pool in HBM that is reusable cache", _evictable_ratio, bounded=True)
shortfall = Signal(
    "l1_shortfall_tokens",
    "tokens",
    "what the next request lacks, by the window's mean prompt, if prompts are told",
    _shortfall,
)
waiting = Signal("requests_waiting", "requests", "requests that wait for capacity", _waiting, kept=True)
preempting = Signal("preempting", "condition", "a running request just lost its KV under pressure", _preempting)
budget_bound = Signal("budget_bound", "condition", "SGLang's admission budget is used up although the pool is not", _budget_bound)
evicted_ratio = Signal("l1_evicted_share", "ratio", "tokens evicted from HBM in the window, as a share of its capacity", _evicted_ratio)
hit_ratio = Signal("prefix_hit_ratio", "ratio", "share of looked-up prompt tokens found in HBM in the window", _hit_ratio)
hit_change = Signal("prefix_hit_change", "times", "share of looked-up prompt tokens found in HBM, against its calm value", _hit_change)
session_ratio = Signal("l1_session_ratio", "ratio", "share of the pool in HBM held by sessions", _session_ratio)

saturated = Condition(
    "l1_saturated", "the next request does not fit the pool in HBM", "any",
    (replace(used_ratio >= 0.95, rest=reclaimable_ratio.name), replace(reclaimable_ratio <= 0.05, rest=used_ratio.name), shortfall > 0),
)  # fmt: skip
bound = Condition(
    "l1_bound", "requests wait and the pool in HBM is why", "any",
    (saturated, budget_bound.is_(1), preempting.is_(1)),
    labels=("saturated", "budget", "preempting"),
    also=(waiting > 0,),
)  # fmt: skip
unbound = Condition("l1_unbound", "the pool in HBM is proven not to bound admission", "none", (bound,))
full_or_preempting = Condition("l1_memory_bound", "the pool in HBM is full or preempts", "any", (saturated, preempting.is_(1)))

SIGNALS = (used_ratio, full_used_ratio, side_used_ratio, reclaimable_ratio, resident_ratio, evictable_ratio, shortfall, waiting, preempting,
           budget_bound, evicted_ratio, hit_ratio, hit_change, session_ratio)  # fmt: skip
CONDITIONS = (saturated, bound, unbound, full_or_preempting)
