"""What the scheduler does: requests, tokens and preemptions."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping

from kvwatch.history import Track
from kvwatch.quantity import MAYBE, TRUE, UNKNOWN, ZERO, Interval, at_least, at_most, exactly, maybe, truth
from kvwatch.schema import EngineName
from kvwatch.signals import l1
from kvwatch.signals.kinds import Condition, Signal
from kvwatch.span import Frame
from kvwatch.view import View

FROZEN_SECONDS: Mapping[EngineName, float] = {"vllm": 60.0, "sglang": 90.0, "lmcache": 60.0}
"""How long values may stand still while requests run; SGLang publishes its gauges rarely when it is idle."""
PROGRESS = ("generation_tokens", "computed_prompt_tokens", "prompt_tokens")
ENDED = "finished_requests"
"""A scheduler that moves none of these moves nothing."""


def _running(view: View) -> Interval:
    return view.state.running


def _queued(view: View) -> Interval:
    return view.state.waiting


def _deferred(view: View) -> Interval:
    state = view.state
    known = [state.waiting_deferred, *(view.gauge(n) for n in ("waiting_grammar", "waiting_prefetch"))]
    return at_least(max(q.lo for q in known)) if any(q.known for q in known) else UNKNOWN


def _deferred_share(view: View) -> Interval:
    return deferred.of(view) / view.state.waiting


def _adapter_slots(view: View) -> Interval | None:
    return view.state.gauges.get("adapter_slots_ratio")


def _step_fill(view: View) -> Interval:
    """Mean tokens of a step against its budget."""
    return view.window().mean("step_tokens") / view.gauge("token_budget")


def _demand(view: View) -> Interval:
    state = view.state
    return state.running + state.waiting if state.running.known and state.waiting.known else UNKNOWN


def _token_rate(view: View) -> Interval:
    return view.window().rate("generation_tokens")


def _token_change(view: View) -> Interval:
    """The token rate of the last moments against calm time; unknown while a gap in the scrapes lies in it, and for a window after a restart."""
    span, born = view.recent(15.0), view.track.restarted_at
    steps = [b.at - a.at for a, b in itertools.pairwise(span.frames)]
    warming = born is not None and view.now - born < view.watch.window  # an engine that just began fills its batch first
    if warming or any(s > view.watch.stale_seconds for s in steps):
        return UNKNOWN
    return span.rate("generation_tokens") / view.baseline.token_rate()


def _moved(after: Frame, before: Frame) -> bool:
    now, then = after.counters, before.counters
    if any(now.get(n, 0.0) > then.get(n, 0.0) for n in PROGRESS):
        return True
    # What is counted for all ranks together moves with any of them.
    return not after.state.joined and (after.first_tokens > before.first_tokens or now.get(ENDED, 0.0) > then.get(ENDED, 0.0))


def tokenless_of(track: Track) -> Interval:
    """Seconds up to its newest sample in which no token was made or computed; at least the time watched when none was seen."""
    newest = track.frames[-1]
    if "generation_tokens" not in newest.state.counters:
        return UNKNOWN
    oldest = newest.at
    for after, before in itertools.pairwise(track.life()):
        if _moved(after, before):
            return exactly(newest.at - after.at)
        oldest = before.at
    return at_least(newest.at - oldest) if oldest < newest.at else UNKNOWN


def _tokenless(view: View) -> Interval:
    return tokenless_of(view.track)


def _running_change(view: View) -> Interval:
    return view.state.running / view.baseline.mean_running()


def _frozen(view: View) -> Interval:
    """Seconds since anything changed while requests run, against what this engine may take."""
    runs = view.state.running.compare(">", 0)
    if runs is not True:
        return UNKNOWN if runs is None else ZERO
    still = view.now
    for after, before in view.steps():
        if after.state.fingerprint != before.state.fingerprint:
            break
        still = before.at
    return exactly((view.now - still) / FROZEN_SECONDS[view.state.engine])


def _stale_loads(view: View) -> Interval | None:
    """The least age of the scheduler's own load report in two scrapes; None where there are not two, or nothing runs."""
    frames = [view.frame, *itertools.islice(view.before(math.inf), 1)]
    ages = [f.state.gauges["loads_age_seconds"].lo for f in frames if "loads_age_seconds" in f.state.gauges]
    if len(ages) < 2 or view.state.running.compare(">", 0) is not True:
        return None
    return exactly(min(ages))


def _ceiling_share(view: View) -> Interval:
    """Ceiling against demand: below 1 not all requests can run at once."""
    return ceiling.of(view) / demand.of(view)


def _sequence_change(view: View) -> Interval:
    """Tokens of a running sequence against calm time."""
    return mean_sequence.of(view) / view.baseline.mean_sequence()


def _block_fill(view: View) -> Interval:
    """Tokens stored per token of the blocks in use: each running request leaves at most one block partly empty."""
    pool, block = view.state.pool("l1", "full"), view.gauge("block_size").exact
    if pool is None or pool.unit != "tokens" or pool.used.lo <= 0 or block is None:
        return UNKNOWN
    if block <= 1:
        return TRUE
    least = max(0.0, 1 - view.state.running.hi * block / pool.used.lo)
    logical = view.gauge("running_tokens")
    most = min(1.0, logical.hi / pool.used.lo) if logical.known else 1.0
    return Interval(min(least, most), most)


def _preemption_rate(view: View) -> Interval:
    return view.window().rate("preemptions")


def _preemptions(view: View) -> Interval:
    return maybe(view.window().increase("preemptions"))


def _preempted_share(view: View) -> Interval:
    return preemptions.of(view) / view.state.running


def _recompute_share(view: View) -> Interval:
    """Share of computed prompt tokens that were computed a second time: at most what preemptions threw away, since prefixes may still hit."""
    again, prompts = view.window().increase("recomputed_tokens"), view.window().increase("computed_prompt_tokens")
    if again is None or prompts is None or again + prompts <= 0:
        return UNKNOWN
    return at_most(again / max(again, prompts))


def _at_cap(view: View) -> Interval:
    cap = view.gauge("running_cap").exact
    return MAYBE if cap is None else truth(view.state.running.compare(">=", cap))


def _reserve_ratio(view: View) -> Interval:
    return view.gauge("new_token_ratio")


def _generated(view: View) -> Interval:
    return maybe(view.state.counters.get("generation_tokens"))


def _mean_sequence(view: View) -> Interval:
    """Resident tokens per running request; from finished requests while nothing runs."""
    pool, running = view.state.pool("l1", "full"), view.state.running.exact
    if pool is not None and pool.unit == "tokens" and pool.used.exact and running:
        return exactly(pool.used.exact / running)
    prompt, output = view.window().mean("prompt"), view.window().mean("generation")
    return prompt + output if prompt.exact is not None and output.exact is not None else UNKNOWN


def _ceiling(view: View) -> Interval:
    """How many sequences of the present mean length the pool in HBM holds at once."""
    pool = view.state.pool("l1", "full")
    return UNKNOWN if pool is None or pool.unit != "tokens" else pool.capacity / mean_sequence.of(view)


def _rejected(view: View) -> Interval:
    return maybe(view.window().increase("rejected_requests"))


running_change = Signal("running_change", "times", "running requests against calm time", _running_change)
frozen = Signal(
    "frozen_use",
    "times",
    f"time without any change while requests run, against {FROZEN_SECONDS['vllm']:g} s (SGLang {FROZEN_SECONDS['sglang']:g} s)",
    _frozen,
)
stale_loads = Signal(
    "loads_stale_seconds", "seconds", "least age of the scheduler's own load report in two scrapes, while requests run", _stale_loads
)
block_fill = Signal("block_fill_ratio", "ratio", "tokens stored per token of the blocks in use", _block_fill, bounded=True)
running = Signal("requests_running", "requests", "requests in the batch", _running, kept=True)
queued = Signal("requests_queued", "requests", "requests that wait, for whatever reason", _queued)
deferred = Signal(
    "requests_deferred", "requests", "requests put aside for a grammar, an adapter or KV from a lower tier", _deferred, bounded=True
)
deferred_share = Signal("deferred_share", "ratio", "share of the waiting requests that were put aside", _deferred_share, bounded=True)
adapter_slots = Signal("adapter_slots_ratio", "ratio", "share of the engine's slots for adapters that are taken", _adapter_slots)
step_fill = Signal("step_fill_ratio", "ratio", "tokens of a step against its budget", _step_fill)
demand = Signal("demand_requests", "requests", "running and waiting together", _demand)
token_rate = Signal("token_rate", "tokens/s", "tokens generated per second in the window", _token_rate, kept=True)
token_change = Signal("token_rate_change", "times", "tokens per second of the last 15 s against calm time", _token_change, bounded=True)
tokenless = Signal("tokenless_seconds", "seconds", "time in which no token was made", _tokenless, bounded=True)
preemption_rate = Signal(
    "preemption_rate", "per second", "requests preempted or retracted per second in the window", _preemption_rate, kept=True
)
preemptions = Signal("preemptions_in_window", "count", "requests preempted or retracted in the window", _preemptions)
preempted_share = Signal("preempted_share", "ratio", "requests preempted in the window against the running ones", _preempted_share)
recompute_share = Signal(
    "recompute_share", "ratio", "share of computed tokens that were computed again after a preemption", _recompute_share, bounded=True
)
at_cap = Signal("running_at_cap", "condition", "as many requests run as the engine allows", _at_cap)
reserve_ratio = Signal("admission_reserve_ratio", "ratio", "share of the remaining output SGLang's last admission reserved", _reserve_ratio)
generated = Signal("generated_tokens", "tokens", "tokens generated since the engine's start", _generated)
mean_sequence = Signal("mean_sequence_tokens", "tokens", "tokens one running sequence holds in HBM", _mean_sequence)
ceiling = Signal("concurrency_ceiling_requests", "requests", "sequences of the present length the pool in HBM holds at once", _ceiling)
ceiling_share = Signal("ceiling_per_demand", "times", "sequences the pool in HBM holds against running and waiting ones", _ceiling_share)
sequence_change = Signal("sequence_change", "times", "tokens one running sequence holds against calm time", _sequence_change)
rejected = Signal("rejected_requests", "requests", "requests refused for capacity in the window", _rejected)

heavy_preemption = Condition(
    "preemption_heavy", "preemptions come fast, or hit many of the running requests", "any",
    (
        preemption_rate > 0.1,
        Condition("preemptions_many", "several preemptions, of many of the running requests", "all", (preemptions >= 3, preempted_share >= 0.1)),
    ),
)  # fmt: skip
put_aside = Condition(
    "requests_put_aside", "most of the queue waits for something else than KV, or no slot for an adapter is free", "any",
    (deferred_share >= 0.5, adapter_slots >= 1.0),
)  # fmt: skip
SIGNALS = (running, queued, deferred, deferred_share, adapter_slots, step_fill, demand, token_rate, token_change, tokenless, preemption_rate, preemptions, preempted_share,
           recompute_share, at_cap, reserve_ratio, generated, mean_sequence, ceiling, rejected, running_change, frozen,
           stale_loads, block_fill, ceiling_share, sequence_change)  # fmt: skip
crowded = Condition("pool_crowded", "the pool is nearly full, or requests were preempted", "any", (l1.used_ratio >= 0.9, preemptions > 0))
loaded = Condition("engine_loaded", "as many requests run as in calm time, or some wait", "any", (running_change >= 1.0, l1.waiting > 0))
unchanging = Condition("unchanging", "nothing the engine reports changes while requests run", "any", (frozen >= 1.0, stale_loads > 5))

CONDITIONS = (heavy_preemption, put_aside, crowded, loaded, unchanging)
