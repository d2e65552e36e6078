"""The split into evictable and available: the truth is inside whatever happens, and the guess is close on recordings."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from kvwatch.events.estimate import estimate
from kvwatch.events.ledger import Ledger
from kvwatch.events.memory import PoolMemory
from tests.block_pool import Engine

Events = st.sampled_from(["all", "none", "late", "lossy"])


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 10**9),
    every=st.integers(1, 40),
    events=Events,
    joins=st.integers(0, 120),
    disturb=st.floats(0, 0.05),
    load=st.floats(0.02, 0.6),
    ahead=st.sampled_from([0, 0, 0, 3, 9]),
)
def test_the_truth_is_inside_at_every_scrape(  # noqa: PLR0913, PLR0917  what hypothesis draws
    seed: int, every: int, events: str, joins: int, disturb: float, load: float, ahead: int
) -> None:
    """With all events, with late or lossy ones or none: available lies in its interval, whatever clients, operators and drafts do."""
    rng = random.Random(seed)
    engine = Engine(blocks=rng.choice((8, 24, 60)), slots=rng.choice((2, 5, 12)), budget=rng.choice((8, 24, 64)), seed=seed, ahead=ahead)
    prompts = [[rng.randrange(3) for _ in range(rng.randrange(1, 26))] for _ in range(6)]
    ledger, told, memory = Ledger(), 0, None
    for step in range(400):
        if rng.random() < load and step % 150 < 110:
            engine.submit(rng.choice(prompts), rng.randrange(1, 12))
        if rng.random() < disturb:
            rng.choice((lambda: engine.abort(rng.randrange(9)), lambda: engine.reset(force=rng.random() < 0.5)))()
        engine.step()
        for batch in engine.batches[told:]:
            if (events == "late" and step < joins) or (events == "lossy" and rng.random() < 0.03):
                ledger.lose(step)
            else:
                ledger.apply(batch, step)
        told = len(engine.batches)
        if step >= joins and step % every == 0:
            view = None if events == "none" else ledger.view(step)
            reading = engine.reading()
            memory = PoolMemory.begin(reading, view) if memory is None else memory.step(reading, view)
            result = estimate(memory, view)
            assert result.available.lo <= engine.available <= result.available.hi
            assert result.evictable.lo <= reading.free - engine.available <= result.evictable.hi
            if result.available_guess is not None:
                assert result.available.lo <= result.available_guess <= result.available.hi
