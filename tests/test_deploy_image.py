"""The image, and everything on one machine by Compose."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvwatch import __version__
from kvwatch.config import load_file
from kvwatch.rules import active, names
from tests.daemon_child import serving
from tests.manifests import DEPLOY, ROOT

DOCKERFILE = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
STEPS: list[tuple[str, str]] = re.findall(r"^([A-Z]+) (.+)$", DOCKERFILE.replace("\\\n", ""), re.MULTILINE)
"""Every instruction with its arguments, in order; continued lines in one."""
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))
SERVICES: Mapping[str, Mapping[str, Any]] = COMPOSE["services"]
BESIDE_PYTHON = Path(sys.executable).parent


def tool(name: str) -> str:
    """A program on PATH or beside this Python; the test is skipped where there is none."""
    found = shutil.which(name) or shutil.which(name, path=str(BESIDE_PYTHON))
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


def last(instruction: str) -> str:
    """The arguments of an instruction that counts in the final stage."""
    return [arguments for name, arguments in STEPS if name == instruction][-1]


def health_check() -> list[str]:
    """The command of the image's health check."""
    command: list[str] = json.loads(last("HEALTHCHECK").partition(" CMD ")[2])
    return command


def test_hadolint_finds_nothing() -> None:
    """The Dockerfile keeps to hadolint's rules, informal ones included."""
    answer = subprocess.run([tool("hadolint"), "--no-color", str(DEPLOY / "Dockerfile")], capture_output=True, text=True, check=False)
    assert (answer.returncode, answer.stdout + answer.stderr) == (0, "")


def test_the_image_starts_without_a_shell_or_root() -> None:
    """Commands are lists, so that signals arrive; the user is a number, which `runAsNonRoot` can judge; a stop is SIGTERM."""
    assert json.loads(last("ENTRYPOINT")) == ["kvwatch"]
    assert json.loads(last("CMD")) == ["serve"]
    assert health_check()[0] == "python"
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", last("USER"))
    assert last("STOPSIGNAL") == "SIGTERM"


def test_the_image_is_built_from_what_the_context_lets_through() -> None:
    """Nothing that is copied is hidden by .dockerignore, and nothing that is let through is there for nothing."""
    wanted = {word for name, text in STEPS if name == "COPY" and not text.startswith("--") for word in text.split()[:-1]}
    lines = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert "*" in lines
    assert {line.removeprefix("!") for line in lines if line.startswith("!")} == wanted
    assert all((ROOT / name).exists() for name in wanted)


def test_the_base_is_pinned_and_has_the_c_library_of_nvidias_driver() -> None:
    """A full version of Python on Debian: musl could not load libnvidia-ml.so.1."""
    assert re.search(r"^ARG PYTHON=3\.\d+\.\d+-slim-[a-z]+$", DOCKERFILE, re.MULTILINE)
    assert {text.split(" AS ")[0] for name, text in STEPS if name == "FROM"} == {"python:${PYTHON}"}


def test_every_file_names_this_version() -> None:
    """The image's label and every mention of the image agree with the package."""
    assert f"ARG VERSION={__version__}\n" in DOCKERFILE
    texts = [path.read_text(encoding="utf-8") for path in DEPLOY.rglob("*") if path.is_file() and "files" not in path.parts]
    tags = {tag for text in texts for tag in re.findall(r"\bkvwatch:([0-9]+\.[^\s`\"]*[0-9])", text)}
    assert tags == {__version__}


def test_the_health_check_tells_a_daemon_that_answers_from_one_that_does_not(tmp_path: Path) -> None:
    """Exit code 0 while /healthz answers, and another after the daemon's end."""
    (tmp_path / "kvwatch.yaml").write_text("nvml: off\n", encoding="utf-8")
    with serving(tmp_path, "--config", str(tmp_path / "kvwatch.yaml")) as child:
        command = [sys.executable, *(word.replace("9477", str(child.pages.base_url.port)) for word in health_check()[1:])]
        assert subprocess.run(command, check=False, timeout=30).returncode == 0
    assert subprocess.run(command, check=False, timeout=30, stderr=subprocess.DEVNULL).returncode != 0


def test_compose_takes_the_file() -> None:
    """Compose itself has nothing against it."""
    command = [tool("docker-compose"), "--file", str(DEPLOY / "compose.yaml"), "config", "--quiet"]
    answer = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert answer.returncode == 0, answer.stderr


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_is_pinned_and_has_no_rights(name: str) -> None:
    """A version for an image, a read-only root, no capability, ports on loopback alone, and files that are there to be mounted."""
    service = SERVICES[name]
    assert re.fullmatch(r"[\w./-]+:v?\d+\.\d+\.\d+", service["image"])
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert not {"privileged", "network_mode", "pid", "devices", "cap_add"} & service.keys()
    assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ()))
    for mount in service["volumes"]:
        source, _, rest = mount.partition(":")
        if source.startswith("."):
            assert (DEPLOY / source).exists(), source
            assert rest.endswith(":ro")
        else:
            assert source in COMPOSE["volumes"]


def test_an_image_is_built_by_one_service() -> None:
    """Builds side by side that end in the same tag fail by chance; whoever else runs the image waits for the one."""
    built = [service["image"] for service in SERVICES.values() if "build" in service]
    assert built == [f"kvwatch:{__version__}"]
    assert len([service for service in SERVICES.values() if service["image"] in built]) > 1


def test_services_wait_for_those_they_need_to_be_well() -> None:
    """Whoever is waited for has a health check: its own, or the image's."""
    needed = {(needed, how["condition"]) for service in SERVICES.values() for needed, how in service.get("depends_on", {}).items()}
    assert needed == {("kvwatch", "service_healthy"), ("alertmanager", "service_healthy"), ("prometheus", "service_healthy")}
    assert all("healthcheck" in SERVICES[name] or "build" in SERVICES[name] for name, _ in needed)


def test_prometheus_takes_its_configuration_with_all_alerts(tmp_path: Path) -> None:
    """Laid out as Compose mounts it: promtool loads the file and every rule file."""
    mounts = dict(mount.split(":")[:2] for mount in SERVICES["prometheus"]["volumes"])
    for source, target in mounts.items():
        if target.startswith("/etc/prometheus/"):
            (tmp_path / Path(target).name).symlink_to((DEPLOY / source).resolve())
    answer = subprocess.run(
        [tool("promtool"), "check", "config", str(tmp_path / "prometheus.yml")], capture_output=True, text=True, check=False, timeout=60
    )
    assert answer.returncode == 0, answer.stderr
    assert f"SUCCESS: {len(list((ROOT / 'alerts').glob('*.rules.yaml')))} rule files found" in answer.stdout


def test_grafana_finds_the_dashboards_and_prometheus() -> None:
    """The provisioned folder is the one that the dashboards are mounted at, and the data source is the service of that name."""
    provisioning = DEPLOY / "grafana/provisioning"
    (provider,) = yaml.safe_load((provisioning / "dashboards/kvwatch.yaml").read_text(encoding="utf-8"))["providers"]
    assert f"../dashboards:{provider['options']['path']}:ro" in SERVICES["grafana"]["volumes"]
    (source,) = yaml.safe_load((provisioning / "datasources/prometheus.yaml").read_text(encoding="utf-8"))["datasources"]
    assert source["type"] == "prometheus"
    assert source["url"] == "http://prometheus:9090"
    assert any((ROOT / "dashboards").glob("*.json"))


def test_kvwatch_watches_the_recorded_engines_where_they_are() -> None:
    """Every target of the configuration is a service that answers at that port."""
    config = load_file(str(DEPLOY / "compose/kvwatch.yaml"), names(), need_urls=True)
    recorded = {f"http://{name}:{s['command'][1]}/metrics" for name, s in SERVICES.items() if "/engine.py" in s.get("entrypoint", ())}
    assert {target.url for target in config.targets} == recorded


def test_the_alerts_see_a_root_end_here_although_its_hold_is_not_theirs() -> None:
    """What is quiet as long as the effects' alerts ask for still fires for a scrape, or an effect is told just when its root is over."""
    config = load_file(str(DEPLOY / "compose/kvwatch.yaml"), names(), need_urls=True)
    alerts = yaml.safe_load((ROOT / "alerts/kvwatch.rules.yaml").read_text(encoding="utf-8"))["groups"][0]["rules"]
    asked = re.compile(r'kvwatch_finding_quiet_seconds\{rule=~"([^"]*)"\} > (\S+)')
    ends = [(root, float(quiet)) for alert in alerts for roots, quiet in asked.findall(alert["expr"]) for root in roots.split("|")]
    held = {active_rule.rule.id: active_rule.clear_hold_for(None) for active_rule in active(config.thresholds)}
    assert {root for root, _ in ends} & {*config.thresholds}
    assert [root for root, quiet in ends if held[root] <= quiet + config.interval] == []


@pytest.mark.parametrize(("service", "engine"), [("vllm", "vllm"), ("sglang", "sglang")])
def test_a_recorded_engine_is_taken_for_the_real_one(service: str, engine: str) -> None:
    """The service's script answers with a recording, kvwatch recognises the engine, and SIGTERM ends it."""
    recording, _ = SERVICES[service]["command"]
    command = [sys.executable, str(DEPLOY / "compose/engine.py"), recording, "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().split()[-1]
            judged = [sys.executable, "-m", "kvwatch", "diagnose", url, "--for", "0", "--output", "json"]
            verdict = json.loads(subprocess.run(judged, capture_output=True, text=True, check=False, timeout=60).stdout)
        finally:
            process.terminate()
        assert process.wait(timeout=10) == 0
    assert {e["engine"] for e in verdict["engines"]} == {engine}
