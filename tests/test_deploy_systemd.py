"""The unit for machines without containers."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kvwatch.__main__ import TERMINATED
from kvwatch.command_line import WRONG_USAGE, build_parser
from tests.manifests import DEPLOY

FILE = DEPLOY / "systemd/kvwatch.service"
TEXT = FILE.read_text(encoding="utf-8")
HIGHEST_EXPOSURE = 20
"""Of 100, by systemd's own count; a service without any restriction has 96."""


def service() -> dict[str, str]:
    """The settings of the service; of one that is given twice, the last."""
    section = TEXT.partition("[Service]\n")[2].partition("[Install]\n")[0]
    pairs = (line.partition("=") for line in section.splitlines() if line and not line.startswith("#"))
    return {key: value for key, _, value in pairs}


@pytest.fixture
def unit(tmp_path: Path) -> str:
    """The unit as a file that systemd would start something with on this machine; skipped where there is no systemd."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    program = service()["ExecStart"].split()[0]
    file = tmp_path / FILE.name
    file.write_text(TEXT.replace(f"ExecStart={program}", f"ExecStart={sys.executable}"), encoding="utf-8")
    return str(file)


def test_systemd_takes_the_unit(unit: str) -> None:
    """No unknown setting, no value that cannot be read."""
    answer = subprocess.run(["systemd-analyze", "verify", "--man=no", unit], capture_output=True, text=True, check=False, timeout=60)
    assert [line for line in answer.stderr.splitlines() if FILE.name in line] == []
    assert answer.returncode == 0, answer.stderr


def test_the_service_is_exposed_little(unit: str) -> None:
    """What systemd itself says about the restrictions together."""
    command = ["systemd-analyze", "security", "--offline=true", f"--threshold={HIGHEST_EXPOSURE}", "--no-pager", unit]
    answer = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert answer.returncode == 0, answer.stdout[-500:]


def test_the_service_is_bounded_and_has_no_rights() -> None:
    """A user of its own, a file system it cannot write, a memory limit."""
    wanted = {"DynamicUser": "yes", "ProtectSystem": "strict", "NoNewPrivileges": "yes", "CapabilityBoundingSet": ""}
    assert wanted.items() <= service().items()
    assert "MemoryMax" in service()


def test_the_service_reloads_and_ends_as_kvwatch_does() -> None:
    """SIGHUP reloads; a stop has more than the 5 s that kvwatch needs; a wrong configuration is not tried again; the arguments parse."""
    assert service()["ExecReload"].split()[1:] == ["-HUP", "$MAINPID"]
    assert int(service()["TimeoutStopSec"].removesuffix("s")) > 5
    assert service()["Restart"] == "always", "a SIGHUP in its first moments ends it, and systemd takes that for a wish"
    assert service()["RestartPreventExitStatus"] == str(WRONG_USAGE)
    assert service()["SuccessExitStatus"] == str(TERMINATED), "whoever stops it in its first moments sees no failed service"
    build_parser().parse_args(service()["ExecStart"].split()[1:])


def test_what_its_first_lines_say_can_be_done() -> None:
    """From the root of a checkout: the unit is where it is installed from, and the program is the one that the service starts."""
    orders = TEXT.partition("[Unit]")[0]
    program = service()["ExecStart"].split()[0]
    assert f"install -m 644 {FILE.relative_to(DEPLOY.parent)} /etc/systemd/system/" in orders
    assert set(re.findall(r"\S*kvwatch(?= check-config)", orders)) == {program}
    assert f"{Path(program).parent}/pip install" in orders


def test_nvml_reaches_the_devices_and_nothing_else_does() -> None:
    """Only NVIDIA's devices are let through; a private /dev would hide them."""
    assert service()["DevicePolicy"] == "closed"
    assert {line.split("=")[1] for line in TEXT.splitlines() if line.startswith("DeviceAllow=")} == {"/dev/nvidiactl rw", "char-nvidia* rw"}
    assert "PrivateDevices" not in service()
