"""The manual says what is so: its commands parse, its example is what kvwatch prints, its links lead somewhere, nothing is left out."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from kvwatch.command_line import build_parser
from kvwatch.config import ENVIRONMENT, describe, load
from kvwatch.metrics import families
from kvwatch.model import GpuReading, NvmlState
from kvwatch.report import verdict
from kvwatch.rules import RULES, active, names
from kvwatch.signals import SIGNALS
from kvwatch.store import Store
from kvwatch.view import Watch
from tests.terminal import on_a_terminal

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(language: str) -> list[str]:
    """The fenced blocks of one language."""
    return [text for found, text in BLOCKS.findall(README) if found == language]


def shell_lines() -> list[str]:
    """Every command line: those of shell blocks, those behind a prompt, and those quoted in the text; continued lines in one."""
    lines = "\n".join(blocks("sh")).replace("\\\n", " ").splitlines()
    lines += [line.removeprefix("$ ") for text in blocks("console") for line in text.splitlines() if line.startswith("$ ")]
    lines += re.findall(r"`(kvwatch [^`]+)`", BLOCKS.sub("", README))
    return [line for line in lines if not line.startswith("#")]


@pytest.mark.parametrize("line", sorted({line for line in shell_lines() if line.startswith("kvwatch ")}))
def test_every_command_parses(line: str) -> None:
    """No flag in the manual is one that kvwatch does not have."""
    words = shlex.split(line, comments=True)[1:]
    words = words[: next((i for i, word in enumerate(words) if word in {"|", ">", "&&", ";"}), len(words))]
    build_parser().parse_args(words)


def test_the_example_is_what_kvwatch_prints(tmp_path: Path) -> None:
    """The manual's own recording gives the manual's own output, on a terminal as wide as it says, and the exit code it names."""
    (making,) = (text for text in blocks("sh") if "mkdir -p incident" in text)
    subprocess.run(
        ["bash", "-euc", making.replace("kvwatch/demo", str(ROOT / "kvwatch/demo")).split("\nkvwatch ")[0]], cwd=tmp_path, check=True
    )
    (columns,) = re.findall(r"a terminal of (\d+) columns", README)
    code, output = on_a_terminal([sys.executable, "-m", "kvwatch", "diagnose", "incident"], tmp_path, int(columns))
    ((_, shown),) = (text.split("\n", 1) for text in blocks("console") if text.startswith("$ kvwatch diagnose incident"))
    beginning, more, rest = shown.rpartition("  ...\n")
    assert (more, rest) == ("  ...\n", "")
    assert output[: len(beginning)] == beginning
    assert code == 2


@pytest.mark.parametrize("text", [text for text in blocks("yaml") if re.search("^targets:", text, re.MULTILINE)])
def test_every_configuration_is_valid(text: str) -> None:
    """A configuration copied from the manual is accepted."""
    load(text, "README.md", names(), need_urls=True)


def test_no_setting_is_left_out() -> None:
    """Every key of the configuration and every environment variable that counts is in the manual, as code."""
    named = [f"`{key.name}`" for key in (*describe(), *ENVIRONMENT)]
    assert [name for name in named if name not in README] == []


def test_no_series_is_left_out() -> None:
    """Every family that /metrics may have is in the manual; those of the ends of a range stand beside what they are the ends of."""
    store = Store([], Watch(), active())
    store.set_gpus(GpuReading(0.0, NvmlState("ok")))
    found = {family.name for family in families(verdict(store.snapshot(0.0), active()), gpu_processes=True)}
    ends = {f"kvwatch_{s.name}_{end}" for s in SIGNALS if s.bounded for end in ("min", "max")}
    named = {name.removesuffix("_total") for name in re.findall(r"`(kvwatch_\w+)", README)}
    assert found - ends <= named
    assert named <= found, "a series that is not exported"


def test_no_rule_is_invented() -> None:
    """What the manual asks to be explained can be."""
    assert {*re.findall(r"kvwatch explain ([\w-]+)", README)} <= {*RULES}


def test_every_module_has_its_place_in_the_house() -> None:
    """The picture for those who work on kvwatch names each once, and none that is not there."""
    (picture,) = (text for _, text in BLOCKS.findall((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")))
    named = [word.removesuffix("/") for line in picture.splitlines() for word in line[:42].split()]
    modules = [p.stem for p in (ROOT / "kvwatch").iterdir() if (p.suffix == ".py" and p.stem[0] != "_") or (p / "__init__.py").is_file()]
    assert sorted(named) == sorted(modules)


def test_every_link_leads_somewhere() -> None:
    """Files and folders that the manual links to are there, and so are the headings."""
    text = BLOCKS.sub("", README)
    headings = {re.sub(r"[^\w\- ]", "", title).strip().lower().replace(" ", "-") for title in re.findall(r"^#+ (.*)$", text, re.MULTILINE)}
    links = re.findall(r"\]\(([^)\s]+)\)", text)
    assert links
    missing = [
        link for link in links
        if "://" not in link and (link[1:] not in headings if link.startswith("#") else not (ROOT / link.partition("#")[0]).exists())
    ]  # fmt: skip
    assert missing == []
