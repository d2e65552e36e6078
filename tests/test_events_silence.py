"""A publisher that is no longer heard while its engine fills blocks: what it told last is not believed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvwatch.events.ledger import LedgerView
from kvwatch.events.memory import PoolReading
from kvwatch.events.silence import Quiet, silenced
from kvwatch.model import Outcome
from kvwatch.quantity import UNKNOWN, Interval, exactly
from kvwatch.refine import Refiner
from tests.states import hbm
from tests.vllm_bodies import OWNER, config, engine, one, series

VIEW = LedgerView(0, 0, open=False, gpu=exactly(50), recent=exactly(50), cpu=exactly(5), batches=7)
THEN = PoolReading(
    blocks=100, used=10, running=2, waiting=3, block_size=16, first_tokens=4, generated_tokens=1000, computed_tokens=3000, preemptions=0
)
QUIET = Quiet.after(None, THEN, VIEW)


def later(generated: float, **changes: object) -> PoolReading:
    """A scrape that many generated tokens later."""
    return replace(THEN, generated_tokens=1000 + generated, computed_tokens=3000 + generated, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("reading", "lost"),
    [
        (later(34), False),  # two requests, each with 16 tokens and one that is not written yet
        (later(35), True),
        (later(35, first_tokens=5), False),  # a third one began meanwhile
        (later(52, first_tokens=5), True),
        (later(52, preemptions=1), False),  # who waits may have run before
        (later(86, preemptions=1), True),
        (later(52, preemptions=None), False),
        (later(9999, caching=False), False),
        (later(9999, first_tokens=None), False),
        (replace(THEN, computed_tokens=3000 + 16 * 14, first_tokens=6), False),  # ten held blocks and two unfinished ones, two new ones
        (replace(THEN, computed_tokens=3001 + 16 * 14, first_tokens=6), True),
        (replace(THEN, computed_tokens=99999, first_tokens=6, caching=False), False),
        (replace(THEN, generated_tokens=None), False),
    ],
)
def test_a_block_that_was_surely_filled_was_published(reading: PoolReading, *, lost: bool) -> None:
    """More tokens than the requests could generate without filling a block prove that a message is missing; one fewer does not."""
    assert QUIET.contradicts(reading) == lost


def test_a_prompt_that_was_preempted_may_have_been_told_before() -> None:
    """Who waits after a preemption had filled blocks that are counted when its prompt is complete, however many."""
    preempted = replace(THEN, preemptions=1)
    prompts = {"computed_tokens": 99999.0, "first_tokens": 6.0}
    assert not Quiet.after(None, preempted, VIEW).contradicts(replace(preempted, **prompts))  # type: ignore[arg-type]
    assert Quiet.after(None, replace(preempted, waiting=0), VIEW).contradicts(replace(preempted, **prompts))  # type: ignore[arg-type]


def test_silence_lasts_until_the_publisher_is_heard_or_another() -> None:
    """It is measured from the first scrape after the last message, and not across a restart of the engine or of the publisher."""
    assert Quiet.after(QUIET, later(5), VIEW) is QUIET
    assert Quiet.after(QUIET, later(5), replace(VIEW, batches=8)).since == later(5)
    assert Quiet.after(QUIET, later(5), replace(VIEW, epoch=1)).since == later(5)
    assert Quiet.after(QUIET, later(-5), VIEW).since == later(-5)


def test_a_silenced_view_knows_nothing_of_the_caches() -> None:
    """It is as one that waits for messages."""
    view = silenced(VIEW)
    assert view.open
    assert (view.gpu, view.recent, view.cpu) == (UNKNOWN, UNKNOWN, UNKNOWN)


def test_an_engine_that_is_no_longer_heard_keeps_no_old_split() -> None:
    """Fifty of a hundred blocks were cached when its events ended; what it generates since has changed that."""
    refiner = Refiner()

    def available(generated: int) -> Interval:
        body = engine(0.1, running=2) + config(num_gpu_blocks=101) + series("generation_tokens_total", generated)
        body += "".join(series(f"time_to_first_token_seconds{end}", 4, f'{OWNER},le="+Inf"') for end in ("_bucket", "_sum", "_count"))
        body += series("num_preemptions_total", 0)
        outcome = Outcome("t", 10.0, None, 0.0, states=(one(body),))
        return hbm(refiner.refine(outcome, lambda _rank, _at: VIEW).states[0]).available * exactly(1 / 16)

    assert [available(generated).hi for generated in (1000, 1034, 1035, 2000)] == [50, 50, 90, 90]
