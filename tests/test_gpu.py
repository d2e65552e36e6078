"""NVML: what each situation on a host looks like, and that no driver can stop the rest of the program."""

from __future__ import annotations

import logging
import sys
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvwatch.gpu import GpuWatcher
from kvwatch.gpu.library import Library, Misfit, import_library
from kvwatch.gpu.session import RETRY_SECONDS
from kvwatch.model import GpuProcess, GpuReading, GpuState
from tests.stubs.nvml import Card, FakeNvml

TIMEOUT = 0.2
ALL_ONES = (1 << 64) - 1


class Watched:
    """A watcher over a stand-in, with a clock that only the test moves."""

    def __init__(self, nvml: FakeNvml, *, sees_all: bool = True, timeout: float = 5.0) -> None:
        self.nvml, self.now = nvml, 1000.0
        self.watcher = GpuWatcher(timeout=timeout, clock=lambda: self.now, load=lambda: Library(nvml), sees_all=sees_all)

    def read(self, after: float = 15.0) -> GpuReading:
        """The next round, some seconds later."""
        self.now += after
        return self.watcher.read(self.now)


def read(*cards: Card, sees_all: bool = True, lacking: tuple[str, ...] = ()) -> tuple[GpuState, ...]:
    """One round over some cards."""
    watched = Watched(FakeNvml(*cards, lacking=lacking), sees_all=sees_all)
    reading = watched.read()
    watched.watcher.close()
    assert reading.nvml.state == "ok"
    return reading.gpus


def one(card: Card, *, sees_all: bool = True, lacking: tuple[str, ...] = ()) -> GpuState:
    """The row of one card."""
    (row,) = read(card, sees_all=sees_all, lacking=lacking)
    return row


def sizes(row: GpuState) -> tuple[int | None, ...]:
    """Total, used, free, reserved."""
    return row.total, row.used, row.free, row.reserved


def codes(row: GpuState) -> list[str]:
    """Codes of its notes."""
    return [note.code for note in row.notes]


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    """Keep what the watcher logs."""
    caplog.set_level(logging.INFO, logger="kvwatch")


# Memory


def test_newer_drivers_tell_what_they_reserve() -> None:
    """Used, free and reserved add up to total, and used is what was allocated."""
    row = one(Card("GPU-1"))
    assert (row.state, sizes(row), row.notes) == ("ok", (80, 60, 18, 2), ())
    assert row.uuid == "GPU-1"
    assert row.name == "NVIDIA H100"


@pytest.mark.parametrize("number", [13, 25])
def test_older_drivers_hide_it_in_used(number: int) -> None:
    """Without the second version of the call reserved is unknown and inside used; the choice is remembered for the device."""
    watched = Watched(FakeNvml(Card("GPU-1", v2=number), Card("GPU-2")))
    first, second = watched.read().gpus
    assert (sizes(first), codes(first)) == ((80, 62, 18, None), ["reserved-in-used"])
    assert (sizes(second), codes(second)) == ((80, 60, 18, 2), [])
    asked = watched.nvml.asked["nvmlDeviceGetMemoryInfo"]
    watched.read()
    assert watched.nvml.asked["nvmlDeviceGetMemoryInfo"] == asked + 2


def test_binding_without_the_newer_call_uses_the_older() -> None:
    """An old package has neither the constant nor the process calls nor instances: sizes still come, processes do not."""
    lacking = ("nvmlMemory_v2", "nvmlDeviceGetMigMode", "nvmlDeviceGetNumaNodeId", "nvmlDeviceGetComputeRunningProcesses_v3",
               "nvmlDeviceGetComputeRunningProcesses_v2", "nvmlDeviceGetGraphicsRunningProcesses_v3")  # fmt: skip
    row = one(Card("GPU-1"), lacking=lacking)
    assert (row.state, sizes(row), row.processes) == ("ok", (80, 62, 18, None), None)


@pytest.mark.parametrize(
    ("card", "state"),
    [
        (Card("GPU-1", name="NVIDIA GB10", memory=3), "unified"),
        (Card("GPU-1", name="NVIDIA GB10"), "unified"),
        (Card("GPU-1", name="Orin (nvgpu)", memory=(0, 0, 0, 0)), "unified"),
        (Card("GPU-1", name="NVIDIA Thor", memory=3), "unified"),
        (Card("GPU-1", name="new board", memory=3, addressing=2), "unified"),
        (Card("GPU-1", name="new board", memory=3, addressing=2, numa_node=1), "not-supported"),
        (Card("GPU-1", name="NVIDIA GB100", memory=3), "not-supported"),
        (Card("GPU-1", name="H100", memory=(0, 0, 0, 0)), "not-supported"),
        (Card("GPU-1", name="H100", memory=(ALL_ONES,) * 4), "not-supported"),
    ],
)
def test_boards_without_memory_of_their_own_have_no_numbers(card: Card, state: str) -> None:
    """Unified boards are never 0 of 0 and never the host's memory; any other board is only not supported."""
    row = one(card)
    assert (row.state, sizes(row)) == (state, (None,) * 4)


def test_unified_board_still_lists_its_processes() -> None:
    """Per-process memory works there; pids that are none are dropped."""
    row = one(Card("GPU-1", name="NVIDIA GB10", memory=3, processes=[(0, 5), (0xFFFFFFFF, 5), (100, 7)]))
    assert row.processes == (GpuProcess(100, 7, None),)


def test_coherent_boards_are_noted() -> None:
    """A GPU with a NUMA node of its own may hold ordinary pages: the numbers are HBM, with a warning."""
    row = one(Card("GPU-1", name="NVIDIA GH200", addressing=2, numa_node=1))
    assert (row.state, row.coherent, codes(row), row.total) == ("ok", True, ["coherent-memory"], 80)
    assert not one(Card("GPU-1", numa_node=-1)).coherent


@pytest.mark.parametrize(
    ("number", "state"),
    [(15, "lost"), (16, "lost"), (4, "no-permission"), (10, "unavailable"), (27, "unavailable"), (999, "unavailable"), (77, "unavailable")],
)
def test_refused_memory_is_the_devices_trouble_only(number: int, state: str) -> None:
    """A device that refuses has a state, a reason and no numbers; its neighbour is read."""
    first, second = read(Card("GPU-1", memory=number), Card("GPU-2"))
    assert (first.state, sizes(first)) == (state, (None,) * 4)
    assert first.detail is not None
    assert f"refused {number}" in first.detail
    assert (second.state, second.used) == ("ok", 60)


# Losing and finding


def test_lost_gpu_keeps_its_name_and_no_numbers(caplog: pytest.LogCaptureFixture) -> None:
    """A GPU that falls off the bus is named as before; the others stay fresh; both transitions are logged once."""
    watched = Watched(FakeNvml(Card("GPU-1"), Card("GPU-2", name="A100")))
    watched.read()
    watched.nvml.cards[1].handle = 15
    for _ in range(2):
        first, second = watched.read().gpus
    assert (first.state, first.used) == ("ok", 60)
    assert (second.index, second.uuid, second.name, second.state, sizes(second)) == (1, "GPU-2", "A100", "lost", (None,) * 4)
    watched.nvml.cards[1].handle = None
    assert [row.state for row in watched.read().gpus] == ["ok", "ok"]
    assert [record.getMessage().split(":")[0] for record in caplog.records if "GPU-2" in record.getMessage()] == ["GPU 1 GPU-2"] * 2


def test_never_seen_lost_gpu_has_no_name() -> None:
    """Lost before the first round: a row without identity."""
    row = one(Card("GPU-1", handle=15))
    assert (row.state, row.uuid, row.index) == ("lost", "", 0)


def test_renumbered_cards_do_not_lend_each_other_their_names() -> None:
    """After a reset GPU 1 has index 0: what refuses at index 1 is not called GPU 1 too."""
    watched = Watched(FakeNvml(Card("GPU-0"), Card("GPU-1")))
    watched.read()
    watched.nvml.cards = [Card("GPU-1"), Card("", handle=15)]
    assert [row.uuid for row in watched.read().gpus] == ["GPU-1", ""]


# MIG


def test_instances_answer_where_the_card_refuses() -> None:
    """The card's size belongs to nobody here; each instance is a row with the card as its parent; empty slots are skipped."""
    card = Card(
        "GPU-a", memory=4,
        instances=[None, Card("MIG-b", name="NVIDIA A100 MIG 2g.20gb", memory=(20, 15, 5, 0), v2=13, gpu_instance=1),
                   Card("MIG-c", memory=(10, 1, 9, 0), gpu_instance=2, attributes=(1, 9728), processes=[(7, 1)])],
    )  # fmt: skip
    parent, first, second = read(card)
    assert (parent.uuid, parent.state, sizes(parent), parent.processes) == ("GPU-a", "no-permission", (None,) * 4, None)
    assert (first.uuid, first.parent, first.profile, first.state, first.total) == ("MIG-b", "GPU-a", "2g.20gb", "ok", 20)
    assert (second.profile, second.processes) == ("1g.10gb", (GpuProcess(7, 1, None),))


def test_compute_instances_of_one_slice_are_counted_once() -> None:
    """Two rows of one GPU instance are the same bytes."""
    card = Card("GPU-a", instances=[Card("MIG-b", gpu_instance=1), Card("MIG-c", gpu_instance=1)])
    parent, first, second = read(card)
    assert (parent.state, parent.total, parent.processes) == ("ok", 80, None)
    assert (first.total, second.total, second.state, second.detail) == (80, None, "ok", "shares the memory of MIG-b")


# Processes


def test_processes_by_pid() -> None:
    """A process in both lists is one; a size the driver does not know is None, never 0 and never all ones."""
    row = one(Card("GPU-1", processes=[(1, 10), (2, None), (3, 0), (4, ALL_ONES)], graphics=[(1, 4), (9, 5)]))
    assert row.processes == tuple(GpuProcess(pid, used, None) for pid, used in ((1, 10), (2, None), (3, None), (4, None), (9, 5)))


def test_empty_list_proves_nothing_in_a_container() -> None:
    """Without the host's pids an empty list is unknown; with them it means that nobody is there; a refusal is unknown too."""
    assert one(Card("GPU-1"), sees_all=False).processes is None
    assert one(Card("GPU-1"), sees_all=True).processes == ()
    assert one(Card("GPU-1", processes=[(1, None)]), sees_all=False).processes == (GpuProcess(1, None, None),)
    assert one(Card("GPU-1", processes=4)).processes is None


def test_older_process_calls_are_used_and_a_list_that_grew_is_asked_again() -> None:
    """A driver without the third version has the second; error 7 is answered by asking once more."""
    lacking = ("nvmlDeviceGetComputeRunningProcesses_v3",)
    assert one(Card("GPU-1", processes=[(1, 2)]), lacking=lacking).processes == (GpuProcess(1, 2, None),)
    nvml = FakeNvml(Card("GPU-1", processes=[(1, 2)]))
    nvml.broken_calls["nvmlDeviceGetComputeRunningProcesses_v3"] = 7
    assert Watched(nvml).read().gpus[0].processes == (GpuProcess(1, 2, None),)


# The library


@pytest.mark.parametrize(
    ("number", "state", "says"),
    [
        (12, "no-library", "libnvidia-ml"),
        (9, "no-driver", "driver is not loaded"),
        (18, "driver-mismatch", "restart kvwatch"),
        (999, "unavailable", "999"),
        (4, "unavailable", "refused 4"),
    ],
)
def test_library_that_does_not_start(number: int, state: str, says: str, caplog: pytest.LogCaptureFixture) -> None:
    """Each way to fail has its state and one sentence, logged once; it is left alone for minutes and found when it appears."""
    watched = Watched(FakeNvml(Card("GPU-1"), init=number))
    for _ in range(3):
        reading = watched.read()
        assert (reading.nvml.state, reading.gpus) == (state, ())
        assert reading.nvml.detail is not None
        assert says in reading.nvml.detail
    assert watched.nvml.asked["nvmlInit"] == 1
    assert len(caplog.records) == 1
    watched.nvml.init = None
    assert watched.read(RETRY_SECONDS).nvml.state == "ok"


def test_driver_upgraded_under_us() -> None:
    """A call that finds another driver takes all GPUs away, with the remedy; nothing is asked for minutes."""
    watched = Watched(FakeNvml(Card("GPU-1")))
    watched.read()
    watched.nvml.broken_calls["nvmlDeviceGetMemoryInfo"] = 18
    reading = watched.read()
    assert (reading.nvml.state, reading.gpus) == ("driver-mismatch", ())
    assert watched.read().nvml.state == "driver-mismatch"
    assert watched.nvml.asked["nvmlInit"] == 1


def test_library_that_somebody_shut_down_is_started_again_at_once() -> None:
    """Uninitialized in the middle of life is repaired within the round."""
    watched = Watched(FakeNvml(Card("GPU-1")))
    watched.read()
    watched.nvml.ready = False
    assert watched.read().gpus[0].used == 60
    watched.nvml.ready, watched.nvml.init = False, 18
    assert watched.read().nvml.state == "driver-mismatch"


# Waiting


@pytest.fixture
def let_go() -> Iterator[threading.Event]:
    """What a stuck call waits for; set at the end, so that no thread outlives the test."""
    event = threading.Event()
    yield event
    event.set()


def test_call_that_never_returns_is_stuck_within_the_timeout(let_go: threading.Event, caplog: pytest.LogCaptureFixture) -> None:
    """The asked GPU is lost, what was read before stays for three rounds, no second call is made, and the way back is found."""
    watched = Watched(FakeNvml(Card("GPU-1"), Card("GPU-2"), Card("GPU-3")), timeout=TIMEOUT)
    assert watched.read().nvml.state == "ok"
    watched.nvml.cards[1].hangs = let_go
    states = [tuple((row.uuid, row.state) for row in watched.read().gpus) for _ in range(4)]
    around = (("GPU-1", "ok"), ("GPU-2", "lost"), ("GPU-3", "ok"))
    assert states == [around, around, around, (("GPU-2", "lost"),)]
    asked = watched.nvml.asked["nvmlDeviceGetCount"]
    reading = watched.read()
    assert (reading.nvml.state, reading.gpus[0].used) == ("stuck", None)
    assert reading.nvml.detail is not None
    assert "not returned for 60 s" in reading.nvml.detail
    assert watched.nvml.asked["nvmlDeviceGetCount"] == asked == 2
    assert len([r for r in caplog.records if r.levelno == logging.WARNING]) == 2
    let_go.set()
    recovered = _until_ok(watched)
    assert [row.state for row in recovered.gpus] == ["ok"] * 3


def test_first_call_that_never_returns(let_go: threading.Event) -> None:
    """Stuck in the first round: the GPU being asked is named, the rest was never seen."""
    watched = Watched(FakeNvml(Card("GPU-1", hangs=let_go), Card("GPU-2")), timeout=TIMEOUT)
    reading = watched.read()
    assert reading.nvml.state == "stuck"
    assert [(row.uuid, row.state, row.detail) for row in reading.gpus] == [("GPU-1", "lost", "NVML call did not return")]


def test_start_that_never_returns(let_go: threading.Event) -> None:
    """Stuck before any GPU is known: the state says so and no GPU is blamed. Closing does not wait for it."""

    def load() -> Library:
        let_go.wait()
        return Library(FakeNvml())

    watcher = GpuWatcher(timeout=TIMEOUT, clock=lambda: 0.0, load=load, sees_all=True)
    reading = watcher.read(0.0)
    assert (reading.nvml.state, reading.gpus) == ("stuck", ())
    watcher.close()


def _until_ok(watched: Watched) -> GpuReading:
    """Read until the call that was let go has come back: its own answer is too old to be used."""
    for _ in range(200):
        reading = watched.read()
        if reading.nvml.state == "ok":
            return reading
        threading.Event().wait(0.01)
    pytest.fail("the watcher did not recover")


def test_closing_gives_the_library_back() -> None:
    """NVML is shut down in its own thread when nobody watches any more."""
    watched = Watched(FakeNvml(Card("GPU-1")))
    watched.read()
    watched.watcher.close()
    assert not watched.nvml.ready


# The binding


@pytest.fixture
def binding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that ``import pynvml`` finds."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "pynvml", raising=False)
    return tmp_path / "pynvml.py"


WORKING = "def nvmlInit(): ...\nnvmlDeviceGetCount = nvmlDeviceGetHandleByIndex = nvmlDeviceGetUUID = nvmlDeviceGetMemoryInfo = nvmlInit\n"


def test_binding_that_warns_is_used(binding: Path) -> None:
    """A FutureWarning of a package does not end the program, even where warnings are errors."""
    binding.write_text('import warnings\nwarnings.warn("use the other package", FutureWarning)\n' + WORKING)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert import_library().call("nvmlInit") is None


@pytest.mark.parametrize("text", ["raise RuntimeError('no good')", "import not_there_at_all", "version = 8"])
def test_binding_that_is_none_is_named(binding: Path, text: str) -> None:
    """A module that cannot be imported, or is no NVML, turns GPU watching off and names what is installed."""
    binding.write_text(text)
    with pytest.raises(Misfit, match=r"nvidia-ml-py \d.*install nvidia-ml-py alone"):
        import_library()
    watcher = GpuWatcher(timeout=5.0, clock=lambda: 0.0, sees_all=True)
    assert watcher.read(0.0).nvml.state == "unavailable"
    watcher.close()


def test_real_binding_without_a_driver() -> None:
    """The real package on a machine without the library says so; with a GPU it works."""
    watcher = GpuWatcher(timeout=5.0, clock=lambda: 0.0)
    assert watcher.read(0.0).nvml.state in ("ok", "no-library", "no-driver", "driver-mismatch", "unavailable")
    watcher.close()
