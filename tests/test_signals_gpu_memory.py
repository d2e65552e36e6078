"""The GPU's memory around the pool as rules see it: only what is proven to be free, foreign, or to be gained."""

from __future__ import annotations

import pytest

from kvwatch.model import GpuProcess, GpuState
from kvwatch.quantity import UNKNOWN, ZERO, at_least, exactly
from kvwatch.signals import gpu_memory
from kvwatch.view import View
from tests.samples import CAPACITY, Amount, hbm, moment, sample


def card(  # noqa: PLR0913  one keyword for each thing NVML says
    *, free: int | None = 20, total: int | None = 100, state: str = "ok", coherent: bool = False,
    processes: tuple[GpuProcess, ...] | None = (), index: int = 0,
) -> GpuState:  # fmt: skip
    """A GPU."""
    return GpuState("h", index, f"GPU-{index}", "card", state, total=total, free=free, coherent=coherent, processes=processes)  # type: ignore[arg-type]


def on(*gpus: GpuState, **gauges: Amount) -> View:
    """An engine on these GPUs."""
    return moment(sample(pools=[hbm(800)], running=4, gauges=gauges), gpus=gpus or None)


def test_free_memory_is_that_of_the_tightest_gpu() -> None:
    """Unknown without proven GPUs, and where the board shares its memory, is not fine, or does not say."""
    assert gpu_memory.free.of(on(card(free=20), card(free=10))) == exactly(0.1)
    for gpus in ((), (card(), card(coherent=True)), (card(state="lost"),), (card(free=None),), (card(total=None),)):
        assert gpu_memory.free.of(on(*gpus)) == UNKNOWN


def test_another_process_is_foreign_only_when_proven() -> None:
    """Its bytes count; where one process's owner is unknown, nothing is claimed; where its memory is unknown, it is a lower bound."""
    mine, other = GpuProcess(1, 50, mine=True), GpuProcess(2, 30, mine=False)
    assert gpu_memory.foreign.of(on(card(processes=(mine, other)))) == exactly(30)
    assert gpu_memory.foreign.of(on(card(processes=(mine,)))) == ZERO
    assert gpu_memory.foreign.of(on(card(processes=(mine, GpuProcess(3, 9, mine=None))))) == UNKNOWN
    assert gpu_memory.foreign.of(on(card(processes=None))) == UNKNOWN
    assert gpu_memory.foreign.of(on(card(processes=(other, GpuProcess(3, None, mine=False))))) == at_least(30)
    assert gpu_memory.foreign.of(on()) == UNKNOWN
    assert gpu_memory.foreign.of(on(card(coherent=True, processes=(other,)))) == UNKNOWN


def test_what_raising_the_memory_fraction_buys() -> None:
    """Up to what is free less a reserve, at most 0.95; in tokens by the pool's own bytes a GPU, else by bytes per token of all GPUs."""
    by_pool = on(card(), memory_fraction=0.7, kv_pool_bytes=40)
    assert gpu_memory.next_fraction.of(by_pool) == exactly(0.87)
    assert gpu_memory.kv_growth.of(by_pool).exact == pytest.approx(17 * CAPACITY / 40)
    assert gpu_memory.more_sequences.of(by_pool).exact == pytest.approx(17 * CAPACITY / 40 / 200)
    unequal = on(card(), card(total=200, free=40, index=1), memory_fraction=0.7, kv_pool_bytes=40)
    assert gpu_memory.kv_growth.of(unequal).exact == pytest.approx(17 * CAPACITY / 40), "each gives what the smaller one can"
    by_token = on(card(index=0), card(index=1), memory_fraction=0.7, kv_bytes_per_token=0.5)
    assert gpu_memory.kv_growth.of(by_token).exact == pytest.approx(17 * 2 / 0.5)
    assert gpu_memory.next_fraction.of(on(card(free=60), memory_fraction=0.7)) == exactly(0.95)
    assert gpu_memory.next_fraction.of(on(card(free=2), memory_fraction=0.7)) == UNKNOWN, "there is nothing to raise"
    assert gpu_memory.kv_growth.of(on(card(), memory_fraction=0.7)) == UNKNOWN
    assert gpu_memory.kv_growth.of(on(memory_fraction=0.7)) == UNKNOWN


def test_the_memory_fraction_is_what_the_engine_was_given() -> None:
    """Unknown where it does not say."""
    assert gpu_memory.fraction.of(on()) == UNKNOWN
    assert gpu_memory.fraction.of(on(memory_fraction=0.9)) == exactly(0.9)
