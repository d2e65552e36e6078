"""The verdict for people: what is wrong first, bars that show what is proven, and no sentence with a hole."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvwatch.model import GpuReading, GpuState, Note, NvmlState, Outcome
from kvwatch.pool import Guess, Pool
from kvwatch.quantity import UNKNOWN, Interval, at_least, exactly
from kvwatch.target import Target
from kvwatch.text import AVAILABLE, BAR, EVICTABLE, HELD, UNSURE, USED, bar, folded, to_text
from kvwatch.units import parse_duration
from kvwatch.wording import duration, fill, number, places, prose, show, without_places
from tests.recorded import NAMES, verdicts
from tests.samples import TARGET, hbm, host, lost, said, sample, turn


def full(target: str = "t", rank: str = "0") -> Outcome:
    """A turn of an engine in trouble."""
    return turn(sample(0.0, target=target, rank=rank, pools=[hbm(990)], waiting=5, running=3, preemptions=0))


@pytest.mark.parametrize("name", NAMES)
def test_whatever_was_recorded_reads_well(name: str) -> None:
    """The status and the summary come first; no place is left unfilled, nothing is None, no bar is short."""
    for spoken in verdicts(name):
        text = to_text(spoken)
        first, *lines = text.splitlines()
        assert first == f"{spoken.status.upper()}  {spoken.summary}"
        assert not re.search(r"[{}]|\bNone\b|\binf\b|\bnan\b|Interval", text)
        assert all(line == line.rstrip() for line in lines)
        assert text.endswith("\n")
        assert not text.endswith("\n\n")
        bars = re.findall(r"\[([^\]]*[█▒·?▚][^\]]*)\]", text)
        assert {len(drawn) for drawn in bars} <= {BAR}
        for f in spoken.findings:
            assert (f.rule in text) is (f.status != "unknown")


@pytest.mark.parametrize("columns", [1, 60, 80, 100, 500])
def test_on_a_terminal_lines_are_folded(columns: int) -> None:
    """To its width, between 48 and 120 columns; the later pieces hang, nothing is lost, bars shrink before they break."""
    spoken = verdicts("sglang-hicache")[-1]
    whole, lines = to_text(spoken), to_text(spoken, columns).splitlines()
    assert max(map(len, lines)) <= max(48, min(columns, 120))
    words = [[w for w in text.split() if not w.startswith("[")] for text in (whole, "\n".join(lines))]
    assert words[0] == words[1]
    bars = [line for line in lines if re.search("[█▒·?]{4}", line)]
    assert all(re.search(r"\[[█▒·?]{10,40}\] \d", line) for line in bars)
    at = next(i for i, line in enumerate(lines) if line.startswith("  Why: "))
    assert re.match(r" {6}\S", lines[at + 1])


@pytest.mark.parametrize("together", ["--max-num-batched-tokens", "/models/llama-3.1/config.json", "0.35 s", "98 %", "33.5 GiB", "about 9"])
@given(st.integers(0, 60))
def test_what_is_read_or_copied_as_one_is_not_broken(together: str, at: int) -> None:
    """Flags, paths, numbers with their units and with the word before them, wherever the fold falls."""
    pieces = folded(f"  {'x ' * at}{together} {'y ' * 60}".rstrip(), 60)
    assert len(pieces) > 1
    assert sum(together in piece for piece in pieces) == 1


def test_a_finding_is_told_once_with_all_it_needs() -> None:
    """Severity, rule, status, age, reason and subject; why, what was seen, what to do, and where there is more."""
    text = to_text(said(full(), l1_saturated=0.0))
    lines = text.splitlines()
    at = lines.index("CRITICAL l1-saturated (firing, for 0 s, reason saturated)  t  vllm")
    assert lines[at + 1] == "  Requests queue: the KV pool in HBM (L1) admits no more"
    assert lines[at + 2].startswith("  Why: With 5 waiting, 99 % of the pool in HBM (L1) is used")
    assert "  Seen: l1_used_ratio = 99 % (>= 95 %)" in lines
    assert "  Seen: requests_waiting = 5 (> 0)" in lines
    assert any(line.startswith("  Do 1: raise --gpu-memory-utilization (") for line in lines)
    assert "  More: kvwatch explain l1-saturated" in lines


def test_effects_stand_below_their_root() -> None:
    """Indented, in two lines: the root's advice is theirs."""
    turns = [turn(sample(at, pools=[hbm(990)], waiting=5, running=3, preemptions=at)) for at in (0.0, 5.0)]
    lines = to_text(said(*turns)).splitlines()
    at = next(i for i, line in enumerate(lines) if "preemption-storm" in line)
    assert lines[at] == "    WARNING preemption-storm (pending, for 0 s)  t  vllm"
    assert lines[at + 1].endswith("(caused by l1-saturated)")
    assert lines[at + 2] == ""


def test_one_incident_on_many_ranks_is_told_once() -> None:
    """With the ranks it shows on."""
    ranks = replace(full(), states=tuple(full(rank=r).states[0] for r in ("0", "1", "2")))
    text = to_text(said(ranks, l1_saturated=0.0))
    assert text.count("CRITICAL l1-saturated (") == 1
    assert "  The same on 2 more: t rank 1, t rank 2" in text.splitlines()


def test_what_is_not_known_is_listed_in_words() -> None:
    """Once for each signal, and only with trouble."""
    turns = [turn(sample(at, pools=[hbm(990)], waiting=5, running=3, facts={"l2_configured": "true"}, preemptions=0)) for at in (0.0, 9.0)]
    lines = to_text(said(*turns)).splitlines()
    at = lines.index("Not known, so what rests on it is neither said nor ruled out:")
    unknown = list(itertools.takewhile(bool, lines[at + 1 :]))
    assert "  share of the host tier that holds data" in unknown
    assert len(unknown) == len(set(unknown))


def test_of_several_targets_what_is_not_known_names_them() -> None:
    """Once for each signal still."""
    troubled = [full(target) for target in ("t", "u")]
    lines = to_text(said(*troubled, targets=[TARGET, Target("u", "http://u/metrics")])).splitlines()
    assert "  the window's p99 against the calm p99  (t, u)" in lines


def test_pools_are_told_by_what_they_are() -> None:
    """L1 by use, L2 by what is resident; unknown ones by their capacity, if that is known."""
    unseen = Pool.of("l3", "kv", "bytes", capacity=exactly(5 << 30))
    dark = Pool.of("l2", "mamba", "slots")
    text = to_text(said(turn(sample(pools=[hbm(310), host(Interval(100, 200)), unseen, dark], running=1, waiting=0))))
    assert re.search(r"L1 HBM +full +\[.*\] 31 % used of 1,000 tokens\n +used 310, evictable 0-690, available 0-690\n", text)
    assert re.search(r"L2 host +kv +\[.*\] 10-20 % resident of 1,000 tokens\n", text)
    assert re.search(r"L3 storage kv +unknown \(5 GiB in all\)\n", text)
    assert re.search(r"L2 host +mamba +unknown\n", text)
    share = Pool.of("l1", "full", "tokens", used_ratio=exactly(0.43))
    assert to_text(said(turn(sample(pools=[share])))).endswith("] 43 % used, size unknown\n")


def test_a_guess_is_told_as_one() -> None:
    """With what it stands on; where the split is exact there is nothing to guess."""
    pool = replace(hbm(310), guess=Guess(evictable=400.0, available=290.0, source="tokens computed since the start"))
    text = to_text(said(turn(sample(pools=[pool], running=1, waiting=0))))
    assert "available 0-690 (about 400 evictable, by tokens computed since the start)" in text


def test_held_is_told_where_there_is_any() -> None:
    """Most engines hold nothing."""
    assert ", held 100" in to_text(said(turn(sample(pools=[hbm(310, held=100)], running=1, waiting=0))))
    assert "held" not in to_text(said(turn(sample(pools=[hbm(310)], running=1, waiting=0))))


def test_a_server_has_no_requests() -> None:
    """Its counts would all be unknown."""
    text = to_text(said(turn(sample(engine="lmcache", model=None, pools=[host(300)]))))
    assert "running" not in text
    assert "t  lmcache  [serving]" in text


def test_stale_values_are_not_shown() -> None:
    """The engine is named, and the target says why."""
    text = to_text(said(turn(sample(pools=[hbm(990)], running=3)), lost("t", 31.0)))
    assert "[unknown]  no fresh values\n" in text
    assert "Target t: timeout: no answer in 10 s" in text
    assert "99 %" not in text


def test_in_a_fleet_trouble_comes_first_and_the_others_are_a_line_each() -> None:
    """So that the proof is not below thirty healthy engines; up to four are told whole."""
    names = [f"t{n}" for n in range(6)]
    calm = [turn(sample(target=name, pools=[hbm(310)], running=1, waiting=0)) for name in names]
    lines = to_text(said(*calm[:4], full("t4"), calm[5], targets=[Target(name, f"http://{name}/metrics") for name in names])).splitlines()
    assert (lines[2], lines[3].startswith("  running 3, waiting 5")) == ("t4  vllm  m  [serving]", True)
    assert lines[7:12] == [f"{name}  vllm  m  [serving]  running 1, waiting 0  L1 31 % used" for name in (*names[:4], "t5")]
    assert lines[12] == ""
    assert lines[13].endswith("  t4  vllm")


def test_of_several_ranks_even_rank_0_is_named() -> None:
    """Else "this rank" could be any; of one rank alone it is noise."""
    ranks = replace(full(), states=(full().states[0], sample(0.0, rank="1", pools=[hbm(10)], waiting=0, running=0)))
    lines = to_text(said(ranks, rank_imbalance=0.0)).splitlines()
    assert lines[0].startswith("WARNING  t rank 0: ")
    assert lines[2] == "t rank 0  vllm  m  [serving]"
    assert any(line.startswith("WARNING rank-imbalance (") and line.endswith("  t rank 0  vllm") for line in lines)
    assert to_text(said(full())).splitlines()[2] == "t  vllm  m  [serving]"


def test_numbers_of_an_earlier_sample_say_how_old_they_are() -> None:
    """In a wobble a finding stays, told as it was last seen."""
    over = turn(sample(5.0, pools=[hbm(100)], waiting=0, running=0, preemptions=0))
    lines = to_text(said(full(), over)).splitlines()
    assert "CRITICAL l1-saturated (pending, for 5 s, last seen 5 s ago, reason saturated)  t  vllm" in lines


def test_what_is_proven_not_to_be_is_said_to_be_ruled_out() -> None:
    """And what is known from below has no equals sign."""

    def seen(*tokens: int) -> list[str]:
        made = zip((0.0, 90.0), tokens, strict=True)
        turns = [turn(sample(at, pools=[hbm(300)], running=2, waiting=3, generation_tokens=n, preemptions=0)) for at, n in made]
        return [line for line in to_text(said(*turns)).splitlines() if line.startswith("  Seen: ")]

    assert "  Seen: ruled out: requests wait and the pool in HBM is why" in seen(7, 7000)
    assert "  Seen: tokenless_seconds >= 90 s (>= 10 s)" in seen(7, 7)


def test_notes_are_told() -> None:
    """What was decided about odd data."""
    text = to_text(said(turn(replace(sample(running=1, waiting=0), notes=(Note("ambiguous-gauge", "two values"),)))))
    assert "  note ambiguous-gauge: two values\n" in text


def test_gpus_are_no_sign_of_pressure() -> None:
    """Engines reserve HBM at their start; a GPU that tells nothing says why, and a library that does not answer, too."""
    card = GpuState("h", 0, "GPU-0", "card", "ok", total=80 << 30, used=72 << 30, free=8 << 30)
    dark = GpuState("h", 1, "GPU-1", "card", "lost", detail="fell off the bus")
    text = to_text(said(turn(sample()), gpus=GpuReading(0.0, NvmlState("ok"), (card, dark))))
    assert "GPU 0 card GPU-0: 72 GiB of 80 GiB HBM used (engines reserve it at start; no sign of KV pressure)" in text
    assert "GPU 1 card GPU-1: lost: fell off the bus" in text
    without = to_text(said(turn(sample()), gpus=GpuReading(0.0, NvmlState("no-library", "install the driver"))))
    assert "GPU memory is not watched (no-library): install the driver" in without


def cells(pool: Pool) -> dict[str, int]:
    """How many cells of the bar each state has."""
    drawn = bar(pool)
    assert drawn[0] + drawn[-1] == "[]"
    return {sign: drawn[1:-1].count(sign) for sign in (USED, EVICTABLE, UNSURE, HELD, AVAILABLE)}


def test_the_bar_shows_only_what_is_proven() -> None:
    """Between what is used and what is free there may be a stretch nobody knows."""
    assert cells(hbm(500)) == {USED: 20, EVICTABLE: 0, UNSURE: 20, HELD: 0, AVAILABLE: 0}
    assert cells(hbm(500, evictable=250)) == {USED: 20, EVICTABLE: 10, UNSURE: 0, HELD: 0, AVAILABLE: 10}
    assert cells(hbm(500, evictable=250, held=100)) == {USED: 20, EVICTABLE: 10, UNSURE: 0, HELD: 4, AVAILABLE: 6}
    assert cells(host(250)) == {USED: 0, EVICTABLE: 0, UNSURE: 10, HELD: 0, AVAILABLE: 30}
    assert cells(hbm(0)) == {USED: 0, EVICTABLE: 0, UNSURE: 40, HELD: 0, AVAILABLE: 0}
    assert cells(Pool.of("l1", "full", "tokens", used_ratio=exactly(0.5))) == {USED: 20, EVICTABLE: 0, UNSURE: 20, HELD: 0, AVAILABLE: 0}


parts = st.integers(0, 10_000)


@given(parts, parts, parts, parts)
def test_an_exact_bar_is_whole_and_true_to_a_cell(used: int, evictable: int, available: int, held: int) -> None:
    """It has its width, no cell is unsure, and each state has its share, rounded."""
    capacity = used + evictable + available + held
    if not capacity:
        return
    drawn = cells(hbm(used, capacity=capacity, evictable=evictable, available=available, held=held))
    assert sum(drawn.values()) == BAR
    assert drawn[UNSURE] == 0
    for sign, part in ((USED, used), (EVICTABLE, evictable), (HELD, held), (AVAILABLE, available)):
        assert abs(drawn[sign] - BAR * part / capacity) <= 2, sign


@pytest.mark.parametrize(
    ("value", "unit", "shown"),
    [
        (exactly(7920), "tokens", "7,920"), (Interval(0, 80), "tokens", "0-80"), (at_least(7920), "tokens", ">= 7,920"),
        (UNKNOWN, "tokens", "unknown"), (exactly(0.97), "ratio", "97 %"), (Interval(0.1, 0.2), "ratio", "10-20 %"),
        (exactly(0.004), "ratio", "0.4 %"), (exactly(0.0004), "ratio", "0.04 %"), (exactly(0), "ratio", "0 %"),
        (exactly(1 << 30), "bytes", "1 GiB"), (exactly(512), "bytes", "512 B"), (exactly(0.35), "seconds", "0.35 s"),
        (exactly(38), "seconds", "38 s"), (exactly(240), "seconds", "4 min"), (exactly(8000), "seconds", "2.2 h"),
        (exactly(2.5), "times", "2.5x"), (exactly(0.3), "per second", "0.3/s"), (exactly(812), "tokens/s", "812 tokens/s"),
        (exactly(31.9), "requests", "31"), (Interval(0.99, 0.991), "ratio", "99 %"), (exactly(0.9), "fraction", "0.90"),
        (Interval(0, 33.5 * (1 << 30)), "bytes", "0-33.5 GiB"), (Interval(1 << 20, 3 << 20), "bytes", "1-3 MiB"),
        (Interval(1 << 20, 1 << 30), "bytes", "1 MiB-1 GiB"), (Interval(10, 240), "seconds", "10 s-4 min"),
        (Interval(2.5, 3), "times", "2.5-3x"), (exactly(2731), "tokens/s", "2,731 tokens/s"), (at_least(105), "seconds", ">= 105 s"),
    ],
)  # fmt: skip
def test_numbers_are_written_as_their_unit_is_read(value: Interval, unit: str, shown: str) -> None:
    """Exact, bounded, from below or unknown; requests are never rounded up."""
    assert show(value, unit) == shown


@given(st.integers(1, 500))
def test_durations_can_be_read_back(seconds: int) -> None:
    """To a half of their last digit, below an hour."""
    text = duration(float(seconds)).replace(" min", "m").replace(" s", "s")
    assert abs(parse_duration(text) - seconds) <= max(0.5, 0.17 * seconds if seconds >= 180 else 0.5)


def test_a_sentence_says_at_least() -> None:
    """Signs are for tables."""
    assert prose(at_least(105), "seconds") == "at least 105 s"
    assert prose(Interval(0.1, 0.2), "ratio") == "10-20 %"


def test_a_sentence_with_an_unknown_place_is_not_said() -> None:
    """And as general advice it loses what only leads to a number."""
    assert fill("{a} of {b}", {"a": "1", "b": "2"}) == "1 of 2"
    assert fill("{a} of {b}", {"a": "1"}) is None
    assert places("{a} of {b}") == ("a", "b")
    assert without_places("lower --max-num-seqs to about {n}") == "lower --max-num-seqs"
    assert number(3.0, "anything") == "3"
