"""SGLang: every release that is known reads as its golden, from 0.4.3 to 0.5.23.

``python -m tests.test_sglang`` writes the goldens anew; read the difference before you commit it.
"""

from __future__ import annotations

import json

import pytest

from kvwatch.engines import Engine, sglang
from kvwatch.exposition import parse
from kvwatch.schema import COUNTERS, FACTS, GAUGES, HISTOGRAMS
from tests import golden
from tests.sglang_bodies import BUSY, DATA, lines, loads, one, read, recorded

VERSIONS = ("0.4.3", "0.4.9-decode", "0.5.10-tp2", "0.5.15-dp-attention", "0.5.23-hicache", "0.5.23-dp2")


@pytest.mark.parametrize("version", VERSIONS)
def test_every_generation_reads_as_its_golden(version: str) -> None:
    """Bodies as the releases write them (0.5.23 recorded, the older ones made by their label tables): every number of the schema."""
    assert golden.reading(read(recorded(version))) == json.loads((DATA / f"{version}.json").read_text())


@pytest.mark.parametrize("version", VERSIONS)
def test_only_known_names_leave_the_file(version: str) -> None:
    """Counters, gauges, histograms and facts have the names the rules read them by."""
    for state in read(recorded(version), loads(0.1)).states:
        assert state.counters.keys() <= COUNTERS.keys()
        assert state.gauges.keys() <= GAUGES.keys()
        assert state.histograms.keys() <= HISTOGRAMS.keys()
        assert state.facts.keys() <= FACTS.keys()


def test_the_module_is_an_engine() -> None:
    """It offers what the registry calls, and never asks /health, which would start a generation on an idle server."""
    offered: Engine = sglang
    assert offered.NAME == "sglang"
    assert [(page.path, page.fallback) for page in offered.SIDE] == [
        ("/v1/loads?include=all", None),
        ("/server_info", "/get_server_info"),
    ]


def test_what_begins_with_its_prefix_is_its() -> None:
    """The prefix is SGLang's alone; another engine's body is not recognised."""
    assert sglang.recognise(parse(lines(BUSY).encode(), sglang.select))
    assert not sglang.recognise(parse(b'vllm:num_requests_running{engine="0"} 1\n', sglang.select))


def test_a_counter_without_its_suffix_is_the_same_counter() -> None:
    """Some pipelines cut ``_total``; a body with both spellings has one counter, not two."""
    both = lines({"num_retracted_requests_total": 4, "num_retracted_requests": 4, **BUSY})
    assert one(both).counters["preemptions"] == one(lines({"num_retracted_requests": 4, **BUSY})).counters["preemptions"] == 4


if __name__ == "__main__":
    for made in VERSIONS:
        (DATA / f"{made}.json").write_text(json.dumps(golden.reading(read(recorded(made))), indent=1) + "\n")
