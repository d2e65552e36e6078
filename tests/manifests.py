"""What the deployment files hold, for the tests that read them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import kubernetes_validate
import yaml

from kvwatch.config import Config, load
from kvwatch.rules import names

ROOT = Path(__file__).parent.parent
DEPLOY = ROOT / "deploy"
RELEASES = ("1.29", kubernetes_validate.latest_version())
"""The oldest Kubernetes that the manifests are for, and the newest whose schema is at hand."""

Document = Mapping[str, Any]
"""A Kubernetes object, as YAML gives it."""


def documents(text: str) -> list[Document]:
    """The objects of a YAML stream."""
    return [document for document in yaml.safe_load_all(text) if document is not None]


def named(objects: Sequence[Document], kind: str) -> Mapping[str, Document]:
    """All objects of a kind by name."""
    return {thing["metadata"]["name"]: thing for thing in objects if thing["kind"] == kind}


def check(thing: Document) -> None:
    """Hold an object against the schemas of Kubernetes, in which no unknown field is allowed."""
    for release in RELEASES:
        kubernetes_validate.validate(thing, release, strict=True)


def workloads(objects: Sequence[Document]) -> Iterator[Document]:
    """Objects that have pods."""
    return (thing for thing in objects if thing["kind"] in {"Deployment", "DaemonSet"})


def pod_of(workload: Document) -> Document:
    """The specification of a workload's pods."""
    pod: Document = workload["spec"]["template"]["spec"]
    return pod


def kvwatch_in(pod: Document) -> Document:
    """The one container of a pod that is kvwatch."""
    found: list[Document] = [c for c in (*pod.get("initContainers", ()), *pod["containers"]) if c["name"] == "kvwatch"]
    (container,) = found
    return container


def config_of(pod: Document, objects: Sequence[Document]) -> Config:
    """The configuration that a pod's kvwatch is started with, from the ConfigMap that is mounted there; raises ConfigError."""
    container = kvwatch_in(pod)
    serve, config, path = container["args"]
    assert (serve, config) == ("serve", "--config")
    (mount,) = [m for m in container["volumeMounts"] if m["mountPath"] == str(Path(path).parent)]
    (volume,) = [v for v in pod["volumes"] if v["name"] == mount["name"]]
    text = named(objects, "ConfigMap")[volume["configMap"]["name"]]["data"][Path(path).name]
    return load(text, path, names(), need_urls=True)


def check_container(container: Document) -> None:
    """What every kvwatch in Kubernetes is promised: probes of its own health, no rights, a read-only root, bounded memory."""
    probes = {kind: container[f"{kind}Probe"]["httpGet"] for kind in ("startup", "liveness", "readiness")}
    port = "kvwatch"
    assert probes == {kind: {"path": "/readyz" if kind == "readiness" else "/healthz", "port": port} for kind in probes}
    assert container["ports"] == [{"name": port, "containerPort": 9477}]
    assert patience(container, "liveness") < patience(container, "readiness"), "a stuck kvwatch is restarted before its pod is unready"
    rights = container["securityContext"]
    assert rights["runAsNonRoot"] is True
    assert rights["runAsUser"] > 0
    assert rights["readOnlyRootFilesystem"] is True
    assert rights["allowPrivilegeEscalation"] is False
    assert rights["capabilities"] == {"drop": ["ALL"]}
    assert rights["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not rights.get("privileged", False)
    assert mebibytes(container["resources"]["requests"]["memory"]) >= 75
    assert mebibytes(container["resources"]["requests"]["memory"]) <= mebibytes(container["resources"]["limits"]["memory"])
    assert "nvidia.com/gpu" not in container["resources"]["limits"], "that would take a card from the engine"


def patience(container: Document, kind: str) -> int:
    """Seconds without an answer until a probe has failed for good; 10 s apart unless said."""
    probe = container[f"{kind}Probe"]
    return int(probe.get("periodSeconds", 10) * probe["failureThreshold"])


def mebibytes(text: str) -> int:
    """A memory quantity that is written in Mi."""
    return int(text.removesuffix("Mi"))
