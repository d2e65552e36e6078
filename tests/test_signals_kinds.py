"""Terms and conditions: three-valued, with limits a configuration may replace, and evidence that proves what it is evidence of."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvwatch.quantity import MAYBE, TRUE, UNKNOWN, ZERO, Interval, Truth, exactly
from kvwatch.signals import CONDITIONS, HELP, SIGNALS, TARGET_CONDITIONS, TARGET_SIGNALS, UNITS
from kvwatch.signals.kinds import Condition, Node, Signal, TargetSignal, branches, evidence, holds, leaves, undecided
from kvwatch.view import View
from tests.samples import moment, sample

NAMES = ("a", "b", "c")
A, B, C = (Signal(name, "count", "", lambda _: UNKNOWN) for name in NAMES)


def with_values(**values: Interval) -> View:
    """A moment at which the signals have these values."""
    view = moment(sample())
    view.read.update(values)
    return view


def test_operators_make_terms() -> None:
    """A comparison of a signal reads as itself."""
    terms = (A >= 1.0, A > 1.0, A <= 1.0, A < 1.0, A.is_(1.0))
    assert [t.op for t in terms] == [">=", ">", "<=", "<", "=="]
    assert [holds(t, with_values(a=exactly(1)), {}) for t in terms] == [True, False, True, False, True]


def test_a_configured_limit_takes_the_place_of_the_rules() -> None:
    """For every term of that signal, inside conditions, too."""
    view = with_values(a=exactly(0.96), b=ZERO)
    assert holds(A >= 0.95, view, {"a": 0.97}) is False
    assert holds(Condition("x", "", "any", (A >= 0.95, B > 0)), view, {"a": 0.97}) is False
    assert holds(A >= 0.95, view, {"b": 0.97}) is True


def test_a_limit_of_0_proves_nothing_of_what_is_unknown() -> None:
    """Whoever sets it to see a rule fire sees it where there is a number; elsewhere it says what is lacking."""
    view = with_values(a=UNKNOWN, b=Interval(0, 5))
    assert [holds(signal >= 1.0, view, {"a": 0.0, "b": 0.0}) for signal in (A, B)] == [None, True]
    assert list(undecided(A >= 1.0, view, {"a": 0.0})) == ["a"]


def test_two_shares_of_one_whole_have_one_line() -> None:
    """Who moves the limit of the used share moves that of the free one, and the other way round; both set are both kept."""
    used, free = replace(A >= 0.95, rest="b"), replace(B <= 0.05, rest="a")
    assert [free.limit_in(limits) for limits in ({}, {"a": 0.97}, {"b": 0.1}, {"a": 0.97, "b": 0.1})] == [0.05, 0.03, 0.1, 0.1]
    assert [used.limit_in(limits) for limits in ({}, {"a": 0.97}, {"b": 0.1}, {"a": 0.97, "b": 0.1})] == [0.95, 0.97, 0.9, 0.97]


def test_a_signal_of_an_owner_is_none_of_a_target() -> None:
    """A rule that mixes the two is a defect and says so."""
    with pytest.raises(TypeError, match="signal of a target"):
        holds(TargetSignal("x", "count", "", lambda _: ZERO) > 0, with_values(), {})


truths = st.sampled_from([TRUE, ZERO, MAYBE])


@given(truths, truths, truths, st.sampled_from(["all", "any", "none"]), st.booleans())
def test_a_condition_is_true_only_for_every_possible_truth(a: Interval, b: Interval, c: Interval, how: str, with_also: bool) -> None:  # noqa: FBT001  hypothesis gives it
    """Whatever the unknown ones turn out to be, a proven condition keeps its truth; an open one could have gone either way."""
    condition = Condition("x", "", how, (A.is_(1), B.is_(1)), also=(C.is_(1),) if with_also else ())  # type: ignore[arg-type]
    said = holds(condition, with_values(a=a, b=b, c=c), {})
    worlds: set[Truth] = set()
    for x, y, z in itertools.product(*({q.lo, q.hi} for q in (a, b, c))):
        parts = {"all": x == y == 1, "any": 1 in (x, y), "none": 1 not in (x, y)}[how]
        worlds.add(parts and (z == 1 or not with_also))
    assert said is (worlds.pop() if len(worlds) == 1 else None)


@given(truths, truths, truths)
def test_evidence_satisfies_its_own_condition(a: Interval, b: Interval, c: Interval) -> None:
    """Of a true condition each piece is true with its whole interval; of any other there is none."""
    inner = Condition("inner", "", "any", (A.is_(1), B.is_(1)))
    node = Condition("outer", "", "all", (inner, C.is_(1)))
    view = with_values(a=a, b=b, c=c)
    found = list(evidence(node, view, {}))
    assert bool(found) is (holds(node, view, {}) is True)
    for piece in found:
        assert piece.value.compare(piece.op, piece.limit) is True  # type: ignore[arg-type]  # evidence carries an operator of terms


@given(truths, truths, truths)
def test_what_is_undecided_names_what_is_lacking(a: Interval, b: Interval, c: Interval) -> None:
    """Exactly where neither is proven, and only unknown signals are named."""
    node = Condition("outer", "", "all", (Condition("inner", "", "any", (A.is_(1), B.is_(1))), C.is_(1)))
    values = {"a": a, "b": b, "c": c}
    named = set(undecided(node, with_values(**values), {}))
    assert bool(named) is (holds(node, with_values(**values), {}) is None)
    assert named <= {name for name, value in values.items() if value == MAYBE}


def test_a_refuted_condition_is_its_own_evidence() -> None:
    """Where none of the parts may hold, each is shown as no."""
    none = Condition("none", "", "none", (Condition("bound", "", "any", (A > 1,)),))
    (piece,) = evidence(none, with_values(a=ZERO), {})
    assert (piece.signal, piece.value, piece.unit) == ("bound", ZERO, "condition")


def test_branches_hold_only_with_what_also_must() -> None:
    """Each labelled branch is the conjunction of itself and of what all of them need."""
    condition = Condition("x", "", "any", (A > 0, B > 0), labels=("a", "b"), also=(C > 0,))
    assert branches(condition, with_values(a=TRUE, b=ZERO, c=TRUE), {}) == {"a": TRUE, "b": ZERO}
    assert branches(condition, with_values(a=TRUE, b=ZERO, c=ZERO), {}) == {"a": ZERO, "b": ZERO}
    assert branches(condition, with_values(a=TRUE, b=ZERO, c=MAYBE), {}) == {"a": MAYBE, "b": ZERO}


def test_a_signal_is_read_once_a_moment() -> None:
    """However many terms look at it."""
    calls: list[View] = []

    def read(view: View) -> Interval:
        calls.append(view)
        return ZERO

    signal, view = Signal("once", "count", "", read), moment(sample())
    assert (signal.of(view), signal.of(view)) == (ZERO, ZERO)
    assert len(calls) == 1


def test_of_what_is_not_there_no_comparison_holds() -> None:
    """No tier is neither full nor empty, and nobody is asked what is missing; of what is only unknown it stays open."""
    absent = Signal("absent", "ratio", "", lambda _view: None)
    view = moment(sample())
    for term in (absent > 0, absent >= 0, absent < 1, absent <= 1, absent.is_(0)):
        assert holds(term, view, {}) is False
        assert not list(evidence(term, view, {}))
        assert not list(undecided(term, view, {}))
    assert absent.of(view) == UNKNOWN
    assert holds(Condition("either", "", "any", (absent > 0, A > 0)), with_values(a=UNKNOWN), {}) is None


ALL: tuple[Signal | TargetSignal, ...] = (*SIGNALS, *TARGET_SIGNALS)
EVERY = (*CONDITIONS, *TARGET_CONDITIONS)


def test_every_name_is_one_thing() -> None:
    """No two signals or conditions share an exported name, bounds included."""
    names = [s.name for s in ALL] + [c.name for c in EVERY]
    names += [f"{s.name}{end}" for s in ALL if s.bounded for end in ("_min", "_max")]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("name", HELP)
def test_names_and_help_read_well(name: str) -> None:
    """Lower case words, no reserved ending, a help that starts lower and ends without a stop."""
    assert re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", name)
    assert not name.endswith(("_total", "_sum", "_count", "_bucket", "_info", "_created"))
    assert HELP[name]
    assert not HELP[name].endswith(".")


@pytest.mark.parametrize("signal", ALL, ids=lambda s: s.name)
def test_a_unit_in_a_name_is_the_unit(signal: Signal | TargetSignal) -> None:
    """A name that ends in seconds, bytes, tokens or ratio is in that unit; requests count requests."""
    for ending, unit in (("_seconds", "seconds"), ("_bytes", "bytes"), ("_tokens", "tokens"), ("_ratio", "ratio")):
        if signal.name.endswith(ending):
            assert UNITS[signal.name] == unit


def test_every_condition_of_a_condition_rests_on_listed_signals() -> None:
    """What a rule reads is exported, however deep it stands."""
    listed = {s.name for s in ALL}
    nodes: tuple[Node, ...] = EVERY
    for node in nodes:
        assert {term.signal.name for term in leaves(node)} <= listed
