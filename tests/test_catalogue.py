"""The catalogue of findings: its sentences, flags and edges hold what they promise, and are shown as they are."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import kvwatch
from kvwatch.catalogue import as_json, plain_page, table
from kvwatch.rules import RULES, active, names
from kvwatch.rules.kinds import ActiveRule, Rule
from kvwatch.schema import COUNTERS, FACTS, GAUGES, HISTOGRAMS, EngineName
from kvwatch.signals import SIGNALS, TARGET_SIGNALS
from kvwatch.wording import places

LISTS = {file.stem.partition("-")[0]: set(file.read_text().split()) for file in (Path(__file__).parent / "data" / "flags").glob("*.txt")}
"""Names of the options of each engine at the release that the file is called for."""
FLAG = re.compile(r"--[a-z][a-z0-9-]+")
SETTING = re.compile(r"\b[a-z]+_[a-z_]+\b|\b[A-Z]+_?[A-Z_]{4,}\b")
REQUEST_FIELDS = {"max_tokens", "max_new_tokens", "ignore_eos"}
VALUES = {"page_first", "write_through", "best_effort", "fp8_e5m2", "total_tokens", "total_requests",
          "kv_connector_extra_config", "store_threshold"}  # fmt: skip
"""Values and inner settings that no list of options has."""
TARGET_WORDS = {"url", "failure_reason", "failure_detail", "missing_names", "missing_why", "missing_enable"}
KNOWN = {s.name for s in SIGNALS} | {s.name for s in TARGET_SIGNALS} | set(FACTS) | {"implausible_names"}
PACKAGE = Path(kvwatch.__file__).parent
each = pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
SIDE_POOLS = {"side-pool-binding", "l2-side-pool-full"}
"""Only SGLang keeps windows and states in pools of their own, so nothing of it is ever said to vLLM."""
ENGINES: tuple[EngineName, ...] = ("vllm", "sglang")


def sentences(rule: Rule) -> Iterator[tuple[str | None, str]]:
    """Everything a rule may say, with the engine it is said to."""
    yield None, rule.title
    yield None, rule.short
    for say in rule.explanation:
        yield say.engine, say.text
    for do in rule.remedy:
        yield from ((do.engine, text) for text in (do.do, do.because, do.exact))


@each
def test_every_place_in_a_sentence_can_be_filled(rule: Rule) -> None:
    """It is a signal, a fact of the engine, or a word of its scope: a typing error would silence the sentence for ever."""
    known = KNOWN | TARGET_WORDS if rule.scope == "target" else KNOWN
    for _, text in sentences(rule):
        assert set(places(text)) <= known, text


def test_what_engines_tell_is_read_by_somebody() -> None:
    """Each name of the schema stands somewhere beyond it and the engine files: what nobody reads is not kept."""
    readers = [f for f in PACKAGE.rglob("*.py") if f != PACKAGE / "schema.py" and PACKAGE / "engines" not in f.parents]
    nodes = [node for f in readers for node in ast.walk(ast.parse(f.read_text()))]
    named = {node.value for node in nodes if isinstance(node, ast.Constant)}
    placed = {name for rule in RULES.values() for _, text in sentences(rule) for name in places(text)}
    assert {*COUNTERS, *GAUGES, *HISTOGRAMS, *FACTS} <= named | placed


@each
def test_a_title_without_numbers_has_no_places(rule: Rule) -> None:
    """It is shown where no numbers are at hand."""
    assert rule.short
    assert not places(rule.short)
    assert "{" not in rule.short


@each
def test_every_flag_exists(rule: Rule) -> None:
    """In the release of the engine that the sentence is said to, in one of both where it is said to all, or in LMCache."""
    for engine, text in sentences(rule):
        options = LISTS["lmcache"].union(*(LISTS[name] for name in ([engine] if engine else ENGINES)))
        assert set(FLAG.findall(text)) <= options, text


@each
def test_every_flag_on_a_rules_page_exists(rule: Rule) -> None:
    """The runbook advises what can be set."""
    assert set(FLAG.findall(rule.page)) <= set().union(*LISTS.values())


@each
def test_every_setting_exists(rule: Rule) -> None:
    """Names with underscores in advice are settings of LMCache, fields of requests or values of a flag."""
    for do in rule.remedy:
        found = set(SETTING.findall(re.sub(r"\{\w+\}", "", do.do)))
        assert found <= LISTS["lmcache"] | REQUEST_FIELDS | VALUES, do.do


@each
def test_each_engine_it_applies_to_is_told_what_and_why_and_what_to_do(rule: Rule) -> None:
    """Whatever the reason; a rule without advice for an engine does not apply to it."""
    assert rule.title
    assert rule.page.strip()
    for engine in rule.engines or ENGINES:
        for reason in [None, *(r.name for r in rule.reasons)] if rule.reasons else [None]:
            if reason is None and rule.reasons and rule.reasons[-1].name == "unknown":
                continue  # one of its reasons always holds
            if engine == "vllm" and (rule.id in SIDE_POOLS or reason == "state-slots"):
                continue
            says = [s for s in rule.explanation if s.engine in {None, engine} and s.reason in {None, reason}]
            does = [d for d in rule.remedy if d.engine in {None, engine} and d.reason in {None, reason}]
            assert says, (engine, reason)
            assert does, (engine, reason)


@each
def test_reasons_are_used(rule: Rule) -> None:
    """A sentence or advice for a reason names one that the rule has."""
    reasons = {r.name for r in rule.reasons}
    assert {s.reason for s in rule.explanation} | {d.reason for d in rule.remedy} <= {None, *reasons}


@each
def test_sentences_read_like_sentences(rule: Rule) -> None:
    """An explanation ends with a stop, a title and advice do not; nothing has stray spaces."""
    for say in rule.explanation:
        assert say.text.endswith((".", "}")), say.text
    for text in (rule.title, rule.short, *(t for d in rule.remedy for t in (d.do, d.because))):
        assert not text.endswith("."), text
    for _, text in sentences(rule):
        assert text == " ".join(text.split()), text


@each
def test_advice_ends_in_no_parenthesis(rule: Rule) -> None:
    """The text puts its reason behind it in one."""
    for do in rule.remedy:
        assert not do.do.endswith(")"), do.do


@each
def test_a_page_repeats_no_limit(rule: Rule) -> None:
    """A site may set another; the page says what is meant, and the limits that count are listed below it."""
    for text in (rule.page, rule.short):
        assert not re.search(r"\b(half|third|quarter|fifth|tenths?|twice)\b|\d ?%|\d [KMG]iB", text), text


def test_causes_and_effects_are_rules_and_never_go_round() -> None:
    """A root has no cause in its own effects: the edges have an order."""
    edges: Mapping[str, tuple[str, ...]] = {rule.id: rule.causes for rule in RULES.values()}
    assert {effect for effects in edges.values() for effect in effects} <= set(RULES)
    assert set(TopologicalSorter(edges).static_order()) == set(RULES)


def test_standing_for_others_never_goes_round() -> None:
    """Nor does what a finding makes redundant."""
    edges = {rule.id: (*rule.supersedes, *(name for r in rule.reasons for name in r.supersedes)) for rule in RULES.values()}
    assert {general for all_of in edges.values() for general in all_of} <= set(RULES)
    assert set(TopologicalSorter(edges).static_order()) == set(RULES)


def test_what_stands_for_what() -> None:
    """The specific stands for the general, through all steps: a superseded one that is left out takes its own with it."""
    queue = {"admission-reserve-too-large", "queue-with-free-kv"}
    assert {rule.id: set(rule.supersedes) for rule in RULES.values() if rule.supersedes} == {
        "l1-saturated-l2-idle": {"l1-saturated", *queue},
        "l1-l2-saturated": {"l1-saturated", *queue},
        "l1-saturated": queue,
        "admission-reserve-too-large": {"queue-with-free-kv"},
        "l2-store-failing": {"l2-write-starved"},
        "pd-decode-pool-full": {"pd-handover-backlog"},
        "lockstep-freeze": {"queue-stalled"},
    }
    assert {(rule.id, r.name): r.supersedes for rule in RULES.values() for r in rule.reasons if r.supersedes} == {
        ("l1-saturated-l2-idle", "smaller-than-l1"): ("l2-smaller-than-l1",),
        ("l1-saturated-l2-idle", "write-starved"): ("l2-write-starved",),
        ("l1-saturated-l2-idle", "never-read"): ("l2-never-read",),
    }


def test_what_is_superseded_is_no_effect() -> None:
    """A finding cannot both be caused by another and be left out for it, except on other ranks, where only causes reach."""
    for rule in RULES.values():
        assert rule.spreads or not set(rule.supersedes) & set(rule.causes), rule.id


def test_what_stands_for_another_brings_about_what_that_one_does() -> None:
    """Its effects would else be told on their own as soon as the specific finding stands for their root."""
    for rule in RULES.values():
        general = {*rule.supersedes, *(name for r in rule.reasons for name in r.supersedes)}
        effects = {effect for name in general for effect in RULES[name].causes}
        assert effects <= {*rule.causes, *general}, rule.id


def test_side_pools_are_a_root_of_their_own() -> None:
    """Both are listed, and the side pool is why L1 is full."""
    assert "l1-saturated" in RULES["side-pool-binding"].causes
    assert "side-pool-binding" not in {general for rule in RULES.values() for general in rule.supersedes}


@pytest.mark.parametrize(
    ("effect", "roots"),
    [
        ("metrics-frozen", {"lockstep-freeze", "queue-stalled"}),
        ("queue-with-free-kv", {"l2-load-slow", "lockstep-freeze", "queue-stalled"}),
        ("admission-reserve-too-large", {"lockstep-freeze", "queue-stalled"}),
        (
            "load-shed",
            {
                "admission-reserve-too-large",
                "lockstep-freeze",
                "queue-stalled",
                "queue-with-free-kv",
                "l1-l2-saturated",
                "l1-saturated",
                "l1-saturated-l2-idle",
            },
        ),
        ("l2-store-failing", {"kv-held-by-sessions", "l1-l2-saturated"}),
    ],
)
def test_one_trouble_has_one_root(effect: str, roots: set[str]) -> None:
    """A dead scheduler reports nothing new and admits nobody, a queue at its limit is refused, and pins leave no room for stores."""
    assert {rule.id for rule in RULES.values() if effect in rule.causes} == roots


def test_nothing_that_judges_names_a_rule() -> None:
    """What is done because of a rule, the rule says as a property; only dashboards choose rules whose limits they draw."""
    core = [f for f in PACKAGE.rglob("*.py") if not {PACKAGE / "rules", PACKAGE / "render"} & set(f.parents)]
    assert not {node.value for f in core for node in ast.walk(ast.parse(f.read_text())) if isinstance(node, ast.Constant)} & RULES.keys()


def test_holds() -> None:
    """A minute, unless said: half of one for L1, storms and collapses, none for trust in the data."""
    half = {"l1-saturated", "l1-saturated-l2-idle", "l1-l2-saturated", "preemption-storm", "throughput-collapse"}
    none = {"target-down", "metrics-missing", "metrics-frozen", "implausible-metric", "scrape-slow", "l2-unobservable"}
    assert {rule.id for rule in RULES.values() if rule.hold == 30} == half
    assert {rule.id for rule in RULES.values() if rule.hold == 0} == none
    assert {rule.hold for rule in RULES.values() if rule.id not in half | none} == {60}
    assert {rule.id: dict(rule.holds) for rule in RULES.values() if rule.holds} == {"queue-stalled": {"sglang": 90.0}}


def test_for_a_full_l1_nobody_is_told_to_enlarge_l2_first() -> None:
    """Admission does not read L2: where both are full, room in L1 still comes first."""
    for rule_id in ("l1-saturated", "l1-saturated-l2-idle", "l1-l2-saturated"):
        for engine in ENGINES:
            first = next(d for d in RULES[rule_id].remedy if d.engine in {None, engine} and d.reason is None and not d.when)
            assert "raise --" in first.do
            assert not re.search("hicache|offload|L2", first.do)


def test_nobody_is_told_to_lower_the_memory_of_vllm() -> None:
    """A public runbook says so; vLLM's documentation says raise."""
    for rule in RULES.values():
        for do in rule.remedy:
            assert not re.search(r"(lower|reduce|decrease)[^,;]*--(gpu-memory-utilization|mem-fraction-static)", do.do), rule.id


def test_limits_that_can_be_set_are_those_of_the_terms() -> None:
    """By the names that a configuration uses."""
    for rule_id, signals in names().items():
        assert signals == {term.signal.name for term in RULES[rule_id].terms()}


def test_a_configuration_replaces_a_limit_and_a_hold() -> None:
    """Of one rule; the others keep theirs."""
    changed = {r.rule.id: r for r in active({"l1-saturated": {"l1_used_ratio": 0.97, "hold": 45.0}})}
    assert changed["l1-saturated"].limits == {"l1_used_ratio": 0.97}
    assert changed["l1-saturated"].hold_for("vllm") == 45.0
    assert changed["l1-saturated-l2-idle"].limits == {}
    assert changed["l1-saturated-l2-idle"].hold_for("vllm") == 30.0
    assert "l1_used_ratio >= 97 %" in table(tuple(changed.values()))


@each
def test_a_rules_page_has_all_of_it(rule: Rule) -> None:
    """Severity and hold, what it means, what it rests on, its edges and its advice, without markup or places."""
    page = plain_page(ActiveRule(rule, {}))
    assert page.startswith(f"{rule.id}\n\n{rule.severity}, fires ")
    for word in (*(term.signal.help for term in rule.terms()), *rule.causes, *rule.supersedes, *(r.name for r in rule.reasons)):
        assert word in page
    assert not re.search(r"[{}`#]|\*\*", page)
    assert page.partition("What to do:")[2].count("\n- ") == len({(d.do, d.because, d.engine, d.reason) for d in rule.remedy}), (
        "each advice once"
    )


def test_a_page_tells_the_limits_in_force() -> None:
    """Those of the configuration, whose hold is that of every engine."""
    usual, changed = (
        next(plain_page(r) for r in active(limits) if r.rule.id == "queue-stalled")
        for limits in ({}, {"queue-stalled": {"hold": 90.0, "tokenless_seconds": 20.0}})
    )
    assert "critical, fires after 60 s, for sglang 90 s\n" in usual
    assert "- tokenless_seconds >= 10 s: " in usual
    assert "critical, fires after 90 s\n" in changed
    assert "- tokenless_seconds >= 20 s: " in changed


def test_the_table_has_a_row_for_each_rule() -> None:
    """With its severity, hold and conditions, in a line that does not wrap into the next."""
    lines = table(active()).splitlines()
    rows = {line.split()[0]: line for line in lines if not line.startswith(" ")}
    assert set(rows) == set(RULES)
    assert rows["l1-saturated"].split()[1:] == ["critical", "30", "s", "l1_bound", "and", "pain"]
    assert rows["scrape-slow"].split()[1:] == ["warning", "0", "s", "scrape_share", ">", "0.5x"]


def test_the_same_for_programs() -> None:
    """One object a rule, with numbers as numbers."""
    rows = as_json(active({"l1-saturated": {"hold": 45.0}}))
    by_rule = {row["rule"]: row for row in rows if isinstance(row, dict)}
    assert set(by_rule) == set(RULES)
    assert by_rule["l1-saturated"]["hold_seconds"] == 45
    assert by_rule["l2-smaller-than-l1"]["thresholds"] == {"l2_present": 1, "l2_capacity_share": 1}


def test_what_would_bring_a_missing_series_can_be_set() -> None:
    """The flags that engine files advise exist, too."""
    folder = Path(__file__).parents[1] / "kvwatch" / "engines"
    options = set().union(*LISTS.values())
    for file in folder.glob("*.py"):
        assert set(FLAG.findall(file.read_text())) <= options, file.name
