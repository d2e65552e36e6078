"""The plain manifests for Kubernetes."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml

from tests.manifests import (
    DEPLOY,
    Document,
    check,
    check_container,
    config_of,
    documents,
    kvwatch_in,
    mebibytes,
    named,
    pod_of,
    workloads,
)

FOLDER = DEPLOY / "kubernetes"
FILES: Mapping[str, list[Document]] = {path.stem: documents(path.read_text(encoding="utf-8")) for path in sorted(FOLDER.glob("*.yaml"))}
SIDECARS = ("sidecar-vllm", "sidecar-sglang")
SHAPES = (*SIDECARS, "deployment", "daemonset")


def pod(shape: str) -> Document:
    """The pod of a file's only workload."""
    (workload,) = workloads(FILES[shape])
    return pod_of(workload)


def test_no_yaml_says_a_thing_twice() -> None:
    """What a YAML reader lets pass, keys given twice above all, is found by yamllint in every file but the chart's templates."""
    rules = "{extends: relaxed, ignore: ['**/templates/*'], rules: {line-length: {max: 140}}}"
    command = [sys.executable, "-m", "yamllint", "--strict", "-d", rules, str(DEPLOY)]
    answer = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (answer.returncode, answer.stdout + answer.stderr) == (0, "")


@pytest.mark.parametrize("shape", SHAPES)
def test_kubernetes_takes_every_object(shape: str) -> None:
    """No unknown field and no wrong type, by the schemas of the oldest release the manifests are for and of the newest."""
    for thing in FILES[shape]:
        check(thing)


@pytest.mark.parametrize("shape", SHAPES)
def test_kvwatch_has_probes_and_no_rights(shape: str) -> None:
    """Wherever it runs: its own health is asked, its root is read-only, it has no capability, token or cluster right."""
    check_container(kvwatch_in(pod(shape)))
    assert pod(shape)["automountServiceAccountToken"] is False
    assert not [thing for thing in FILES[shape] if "Role" in thing["kind"]]
    assert not pod(shape).get("hostNetwork", False)


@pytest.mark.parametrize("shape", SHAPES)
def test_kvwatch_takes_the_configuration_that_is_mounted(shape: str) -> None:
    """The arguments lead to a mounted ConfigMap of the same file, and what is in there is right."""
    config = config_of(pod(shape), FILES[shape])
    assert bool(config.targets) is (shape != "daemonset")


@pytest.mark.parametrize("shape", SIDECARS)
def test_a_sidecar_outlives_the_engines_start_and_end(shape: str) -> None:
    """A native sidecar of at most 100 MiB that watches its own pod's engine, at the port where that listens, every 5 s."""
    (container,) = pod(shape)["initContainers"]
    assert container["restartPolicy"] == "Always"
    assert mebibytes(container["resources"]["limits"]["memory"]) <= 100
    (engine,) = pod(shape)["containers"]
    config = config_of(pod(shape), FILES[shape])
    assert [target.url for target in config.targets] == [f"http://127.0.0.1:{engine['ports'][0]['containerPort']}/metrics"]
    assert config.interval == 5


def test_sglang_is_told_to_export_metrics() -> None:
    """Without that flag there is nothing to scrape."""
    (engine,) = pod("sidecar-sglang")["containers"]
    assert "--enable-metrics" in engine["args"]


def test_every_kvwatch_is_the_same_container() -> None:
    """Files differ in size, environment and kind of container, and in nothing else."""
    own = {"resources", "env", "restartPolicy"}
    first, *others = [{key: value for key, value in kvwatch_in(pod(shape)).items() if key not in own} for shape in SHAPES]
    assert all(other == first for other in others)


def test_the_gpus_of_a_node_are_seen_and_none_is_taken() -> None:
    """NVIDIA's runtime, all devices, the driver's tools alone; a node with GPUs is chosen and its taint tolerated."""
    spec = pod("daemonset")
    assert spec["runtimeClassName"] == "nvidia"
    environment = {variable["name"]: variable["value"] for variable in kvwatch_in(spec)["env"]}
    assert environment == {"NVIDIA_VISIBLE_DEVICES": "all", "NVIDIA_DRIVER_CAPABILITIES": "utility"}
    assert config_of(spec, FILES["daemonset"]).nvml
    assert {toleration["key"] for toleration in spec["tolerations"]} == {"nvidia.com/gpu"}
    assert not spec.get("hostPID", False)


@pytest.mark.parametrize("shape", ["deployment", "daemonset"])
def test_selectors_and_ports_lead_to_the_pods(shape: str) -> None:
    """What selects pods finds those of the file, and a port by name is one that the container has."""
    (workload,) = workloads(FILES[shape])
    labels = workload["spec"]["template"]["metadata"]["labels"].items()
    assert workload["spec"]["selector"]["matchLabels"].items() <= labels
    (policy,) = named(FILES[shape], "NetworkPolicy").values()
    assert policy["spec"]["podSelector"]["matchLabels"].items() <= labels
    assert [port["port"] for rule in policy["spec"]["ingress"] for port in rule["ports"]] == ["kvwatch"]
    for service in named(FILES[shape], "Service").values():
        assert service["spec"]["selector"].items() <= labels
        assert [port["targetPort"] for port in service["spec"]["ports"]] == ["kvwatch"]


def test_a_fleet_may_be_reached_through_its_policy() -> None:
    """The ports of the example's engines are among those the policy lets out to, and so are names."""
    (policy,) = named(FILES["deployment"], "NetworkPolicy").values()
    out = {port["port"] for rule in policy["spec"]["egress"] for port in rule["ports"]}
    urls = [target.url for target in config_of(pod("deployment"), FILES["deployment"]).targets]
    assert {int(re.findall(r":(\d+)/", url)[0]) for url in urls} | {53} <= out


def test_prometheus_finds_every_shape() -> None:
    """Each workload's pods carry labels that one PodMonitor looks for, and the monitors' names make jobs that the alerts know."""
    monitors = named(FILES["podmonitor"], "PodMonitor")
    assert all("kvwatch" in name for name in monitors)
    (one_of,) = monitors["kvwatch"]["spec"]["selector"]["matchExpressions"]
    sidecars = monitors["kvwatch-sidecar"]["spec"]["selector"]["matchLabels"].items()
    for shape in SHAPES:
        (workload,) = workloads(FILES[shape])
        labels = workload["spec"]["template"]["metadata"]["labels"]
        assert (sidecars <= labels.items()) is (shape in SIDECARS)
        assert (labels[one_of["key"]] in one_of["values"]) is (shape not in SIDECARS)
    for monitor in monitors.values():
        (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
        assert endpoint["port"] == "kvwatch"


def test_targets_of_sidecars_are_told_apart_by_their_pod() -> None:
    """Relabelled, one name in two pods is two; a series without a target gets none."""
    (endpoint,) = named(FILES["podmonitor"], "PodMonitor")["kvwatch-sidecar"]["spec"]["podMetricsEndpoints"]
    (rule,) = endpoint["metricRelabelings"]

    def target(labels: Mapping[str, str]) -> str | None:
        """The label after relabelling, as Prometheus does it: the joined labels must match as a whole, and the first group replaces."""
        match = re.fullmatch(rule["regex"], rule["separator"].join(labels.get(name, "") for name in rule["sourceLabels"]))
        return labels.get(rule["targetLabel"]) if match is None else match[1]

    assert target({"pod": "chat-a", "target": "vllm"}) == "chat-a/vllm"
    assert target({"pod": "chat-b", "target": "vllm"}) == "chat-b/vllm"
    assert target({"pod": "chat-a", "gpu": "0"}) is None


def test_the_manual_shows_the_sidecar_as_it_is() -> None:
    """The part to take over, in the manual, is the one in the whole example."""
    manual = (DEPLOY / "README.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^```yaml\n(.*?)^```$", manual, re.MULTILINE | re.DOTALL)
    assert yaml.safe_load(block)["initContainers"] == pod("sidecar-vllm")["initContainers"]


def test_links_of_the_manual_lead_somewhere() -> None:
    """Every relative link is a file or folder that is there; every one within the page is a heading."""
    manual = (DEPLOY / "README.md").read_text(encoding="utf-8")
    headings = {
        re.sub(r"[^\w\- ]", "", line.lstrip("# ")).lower().replace(" ", "-") for line in manual.splitlines() if line.startswith("#")
    }
    for link in re.findall(r"\]\(([^)]+)\)", manual):
        file, _, heading = link.partition("#")
        assert (DEPLOY / Path(file)).exists(), link
        assert file or heading in headings, link
