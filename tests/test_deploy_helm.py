"""The Helm chart, rendered by Helm's own engine."""

from __future__ import annotations

import json
import re
import shutil
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvwatch import __version__
from kvwatch.config import describe
from kvwatch.render import Site, render
from kvwatch.rules import active
from tests.manifests import DEPLOY, ROOT, Document, check, check_container, config_of, documents, kvwatch_in, named, pod_of, workloads

helm = pytest.importorskip("helm_python", reason="helm-python-sdk is not installed: no wheel for this machine", exc_type=ImportError)

CHART = DEPLOY / "helm/kvwatch"
EXAMPLES: Mapping[str, Mapping[str, Any]] = {
    path.stem.removeprefix("values-"): yaml.safe_load(path.read_text(encoding="utf-8")) for path in sorted(CHART.glob("values-*.yaml"))
}
VALUES: Mapping[str, Mapping[str, Any]] = {"nothing set": {}, **EXAMPLES}
"""What is rendered: the defaults and every documented file of values."""
BY_THE_OPERATOR = {"PodMonitor", "ServiceMonitor", "PrometheusRule"}


def rendered(values: Mapping[str, Any], name: str = "kvwatch") -> tuple[list[Document], str]:
    """The objects of a release, and its notes."""
    with helm.Chart.load(str(CHART)) as chart:
        files = chart.render(dict(values), name=name, namespace="chat")
    notes = files.pop(f"{CHART.name}/templates/NOTES.txt")
    return [thing for text in files.values() for thing in documents(text)], notes


def refused(values: Mapping[str, Any]) -> str:
    """Why the schema refuses values."""
    with helm.Chart.load(str(CHART)) as chart, pytest.raises(helm.HelmError) as caught:
        chart.validate_schema(dict(values))
    return str(caught.value)


@pytest.mark.parametrize("example", VALUES)
def test_helm_finds_nothing_to_complain_about(example: str) -> None:
    """No error and no warning; that charts like to have a picture is information."""
    report = helm.lint(str(CHART), dict(VALUES[example]), strict=True)
    assert [message for message in report["messages"] if message["severity"] > 1] == []
    assert report["errors"] == []


@pytest.mark.parametrize("example", VALUES)
def test_kubernetes_takes_what_is_rendered(example: str) -> None:
    """By the schemas of Kubernetes; of the Operator's objects, the selectors and ports are what its documentation asks for."""
    objects, _ = rendered(VALUES[example])
    for thing in objects:
        if thing["kind"] in BY_THE_OPERATOR:
            assert thing["apiVersion"] == "monitoring.coreos.com/v1"
        else:
            check(thing)
    keys = [(thing["kind"], thing["metadata"]["name"]) for thing in objects]
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize("example", [name for name in VALUES if name != "sidecar"])
def test_what_runs_has_probes_no_rights_and_a_good_configuration(example: str) -> None:
    """The container is as in the plain manifests, and the mounted configuration is one that kvwatch takes."""
    objects, _ = rendered(VALUES[example])
    (workload,) = workloads(objects)
    check_container(kvwatch_in(pod_of(workload)))
    assert pod_of(workload)["automountServiceAccountToken"] is False
    values = VALUES[example]
    targets = [*values.get("targets", ()), *values.get("extraTargets", ())]
    assert [target.name for target in config_of(pod_of(workload), objects).targets] == [target["name"] for target in targets]


@pytest.mark.parametrize(("example", "plain"), [("fleet", "deployment"), ("nvml", "daemonset"), ("sidecar", "sidecar-vllm")])
def test_the_chart_makes_the_container_of_the_plain_manifests(example: str, plain: str) -> None:
    """Both ways to install give the same; only files that the example mounts, and how the image is pulled, are the chart's own."""
    (there,) = workloads(documents((DEPLOY / f"kubernetes/{plain}.yaml").read_text(encoding="utf-8")))
    expected = dict(kvwatch_in(pod_of(there)))
    objects, notes = rendered(EXAMPLES[example])
    pods = [pod_of(workload) for workload in workloads(objects)] or [snippet(notes)["spec"] | {"containers": []}]
    found = dict(kvwatch_in(pods[0]))
    assert found.pop("imagePullPolicy") == "IfNotPresent"
    mounts = EXAMPLES[example].get("extraVolumeMounts", [])
    assert found == expected | {"volumeMounts": [*expected["volumeMounts"], *mounts]}


def snippet(notes: str) -> Document:
    """The part of a pod template that the notes of a sidecar release show."""
    lines = notes[notes.index("metadata:") :]
    part: Document = yaml.safe_load(lines)
    return part


def test_the_notes_of_a_sidecar_are_a_pod_that_the_monitor_finds() -> None:
    """What is to be copied completes an engine's pod: a valid one, with the release's ConfigMap and the labels of the selector."""
    objects, notes = rendered(EXAMPLES["sidecar"])
    part = snippet(notes)
    engine = {"name": "engine", "image": "engine:1", "ports": [{"name": "http", "containerPort": 8000}]}
    spec = part["spec"] | {"containers": [engine]}
    check({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "chat", **part["metadata"]}, "spec": spec})
    assert [target.url for target in config_of(spec, objects).targets] == ["http://127.0.0.1:8000/metrics"]
    (monitor,) = named(objects, "PodMonitor").values()
    assert monitor["spec"]["selector"]["matchLabels"] == part["metadata"]["labels"]
    assert not list(workloads(objects))


def test_a_sidecars_monitor_relabels_as_the_plain_one() -> None:
    """Targets are told apart by their pod, by the same rule in both."""
    objects, _ = rendered(EXAMPLES["sidecar"])
    plain = documents((DEPLOY / "kubernetes/podmonitor.yaml").read_text(encoding="utf-8"))
    (made,) = named(objects, "PodMonitor").values()
    assert made["spec"]["podMetricsEndpoints"] == named(plain, "PodMonitor")["kvwatch-sidecar"]["spec"]["podMetricsEndpoints"]


@pytest.mark.parametrize(("kind", "made"), [("pod", "PodMonitor"), ("service", "ServiceMonitor"), ("none", None)])
def test_one_monitor_finds_the_release(kind: str, made: str | None) -> None:
    """As asked for: pods or the Service of the release by their labels, at the port they have by that name."""
    objects, notes = rendered({"monitor": {"kind": kind}}, name="eyes")
    monitors = [thing for thing in objects if thing["kind"] in {"PodMonitor", "ServiceMonitor"}]
    assert [monitor["kind"] for monitor in monitors] == ([] if made is None else [made])
    assert ("Nothing scrapes it yet" in notes) is (made is None)
    (workload,) = workloads(objects)
    (service,) = named(objects, "Service").values()
    assert service["spec"]["selector"].items() <= workload["spec"]["template"]["metadata"]["labels"].items()
    for monitor in monitors:
        pods = workload["spec"]["template"]["metadata"]["labels"]
        labels = pods if kind == "pod" else service["metadata"]["labels"]
        assert monitor["spec"]["selector"]["matchLabels"].items() <= labels.items()
        (endpoint,) = monitor["spec"]["podMetricsEndpoints" if kind == "pod" else "endpoints"]
        assert endpoint["port"] == "kvwatch"
        assert "kvwatch" in monitor["metadata"]["name"], "the alert KvwatchDown knows the job by that"


def test_a_service_monitor_needs_a_service() -> None:
    """Where there is none, the release is refused instead of being watched by nobody."""
    with pytest.raises(helm.HelmError, match="mode daemonset has no Service; use pod"):
        rendered({"mode": "daemonset", "monitor": {"kind": "service"}})


@pytest.mark.parametrize("kind", ["pod", "service"])
def test_the_alert_about_kvwatch_knows_the_job_whatever_the_release_is_called(kind: str) -> None:
    """Prometheus names the job after the release; where that says nothing of kvwatch, the monitor does."""

    def endpoint(name: str) -> Document:
        objects, _ = rendered({"fullnameOverride": name, "monitor": {"kind": kind}})
        (monitor,) = [thing for thing in objects if thing["kind"] in {"PodMonitor", "ServiceMonitor"}]
        (found,) = monitor["spec"]["podMetricsEndpoints" if kind == "pod" else "endpoints"]
        return dict(found)

    assert endpoint("eyes")["relabelings"] == [{"targetLabel": "job", "replacement": "kvwatch"}]
    assert "relabelings" not in endpoint("kvwatch-eyes")


def test_an_image_may_be_named_by_its_digest() -> None:
    """The digest stands behind the tag, which is the version of the chart unless said."""
    digest = f"sha256:{'0123456789abcdef' * 4}"
    (workload,) = workloads(rendered({"image": {"repository": "registry.example/kvwatch", "digest": digest}})[0])
    assert kvwatch_in(pod_of(workload))["image"] == f"registry.example/kvwatch:{__version__}@{digest}"


def rule_files() -> Sequence[Path]:
    """The repository's rule files."""
    return sorted((ROOT / "alerts").glob("*.rules.yaml"))


def test_the_alerts_are_the_repositorys() -> None:
    """One PrometheusRule for each file, with exactly what is in it, braces and all."""
    objects, _ = rendered({"prometheusRule": {"enabled": True, "labels": {"release": "p"}}})
    rules = named(objects, "PrometheusRule")
    assert {name: rule["spec"] for name, rule in rules.items()} == {
        path.name.removesuffix(".rules.yaml"): yaml.safe_load(path.read_text(encoding="utf-8")) for path in rule_files()
    }
    assert all(rule["metadata"]["labels"]["release"] == "p" for rule in rules.values())


@pytest.mark.parametrize("config", [{}, {"thresholds": {"l1-saturated": {"hold": "60s"}}}, {"window": "2m"}])
@pytest.mark.parametrize("enabled", [False, True])
def test_the_notes_say_when_alerts_and_verdict_may_have_different_limits(config: Document, *, enabled: bool) -> None:
    """Whoever sets thresholds or the window and takes the chart's alerts is told how to have them agree; nobody else is."""
    objects, notes = rendered({"config": config, "prometheusRule": {"enabled": enabled}}, name="eyes")
    assert ("kvwatch render alerts --config kvwatch.yaml --output ." in notes) is (enabled and bool(config))
    asked = re.findall(r"kubectl -n chat get configmap (\S+) -o 'jsonpath=\{\.data\.kvwatch\\\.yaml\}' > kvwatch\.yaml", notes)
    assert all("kvwatch.yaml" in named(objects, "ConfigMap")[name]["data"] for name in asked)
    assert len(asked) == (enabled and bool(config))


def test_alerts_lead_to_the_runbook_where_people_reach_it() -> None:
    """Every link is moved, and nothing else changes."""
    moved = "https://kvwatch.example.com/runbook/"
    objects, _ = rendered({"prometheusRule": {"enabled": True, "runbookUrl": moved}})
    urls = re.findall(r"http[^'\"]*/runbook/", json.dumps([thing["spec"] for thing in named(objects, "PrometheusRule").values()]))
    here = re.findall(r"runbook_url: (\S+/)", "".join(path.read_text(encoding="utf-8") for path in rule_files()))
    assert urls == [moved] * len(here)
    assert here


def test_the_dashboards_are_the_repositorys() -> None:
    """One ConfigMap for each, with the label that Grafana's sidecar looks for, byte for byte and below what a ConfigMap holds."""
    objects, _ = rendered({"dashboards": {"enabled": True}})
    maps = [thing for thing in named(objects, "ConfigMap").values() if thing["metadata"]["labels"].get("grafana_dashboard") == "1"]
    files = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / "dashboards").glob("*.json")}
    assert files
    assert {name: json.loads(text) for thing in maps for name, text in thing["data"].items()} == {
        name: json.loads(text) for name, text in files.items()
    }
    assert all(len(text.encode()) < 1 << 20 for text in files.values())


@pytest.mark.parametrize("url", ["https://kvwatch.example.com/runbook/", "https://wiki.example.com/kv.md#"])
def test_dashboards_lead_where_the_alerts_do(url: str) -> None:
    """What the chart makes of an address is what `kvwatch render` makes of it."""
    objects, _ = rendered({"dashboards": {"enabled": True}, "prometheusRule": {"runbookUrl": url}})
    maps = [thing["data"] for thing in named(objects, "ConfigMap").values() if "grafana_dashboard" in thing["metadata"]["labels"]]
    expected = render(["dashboards"], Site(active(), ROOT, url))
    assert {name: json.loads(text) for data in maps for name, text in data.items()} == {
        Path(path).name: json.loads(text) for path, text in expected.items()
    }


def test_a_package_has_the_files_that_the_chart_links_to(tmp_path: Path) -> None:
    """Whoever gets the archive gets alerts and dashboards, and not the parts that are for others."""
    archive = helm.package(str(CHART), destination=str(tmp_path))
    with tarfile.open(archive) as packed:
        names = {member.name for member in packed if member.isfile()}
    files = [f"files/alerts/{path.name}" for path in rule_files()]
    files += [f"files/dashboards/{path.name}" for path in (ROOT / "dashboards").glob("*.json")]
    assert {name.removeprefix("kvwatch/") for name in names if "/files/" in name} == set(files)


@pytest.mark.parametrize("wanted", ["prometheusRule", "dashboards"])
def test_a_chart_without_its_files_is_refused(tmp_path: Path, wanted: str) -> None:
    """A copy that lost the links is no chart without alerts: what was asked for and is not there is said."""
    copy = tmp_path / CHART.name
    shutil.copytree(CHART, copy, ignore=shutil.ignore_patterns("files"))
    with helm.Chart.load(str(copy)) as chart:
        chart.render({}, name="kvwatch", namespace="chat")
        with pytest.raises(helm.HelmError, match="links were not followed: install what `helm package` makes"):
            chart.render({wanted: {"enabled": True}}, name="kvwatch", namespace="chat")


def test_a_changed_configuration_restarts_the_pod() -> None:
    """The pod template carries a checksum of the configuration: another target, another checksum; the same values, the same."""

    def checksum(url: str) -> str:
        (workload,) = workloads(rendered({"targets": [{"url": url}]})[0])
        return str(workload["spec"]["template"]["metadata"]["annotations"]["checksum/config"])

    assert checksum("http://a:8000") == checksum("http://a:8000") != checksum("http://b:8000")


def test_a_name_of_ones_own_is_everywhere() -> None:
    """Two releases in a namespace do not meet: every object bears the release's name."""
    objects, _ = rendered(EXAMPLES["fleet"], name="eyes")
    assert all(thing["metadata"]["name"].startswith("eyes-kvwatch") for thing in objects)


@pytest.mark.parametrize("long", [{"fullnameOverride": "f" * 63}, {"nameOverride": "n" * 80}])
def test_a_long_name_is_still_a_name_for_each_object(long: Mapping[str, Any]) -> None:
    """However long a release's name is, no two objects share one: what is made from files would else replace the configuration."""
    objects, _ = rendered({**long, "prometheusRule": {"enabled": True}, "dashboards": {"enabled": True}})
    keys = [(thing["kind"], thing["metadata"]["name"]) for thing in objects]
    assert len(set(keys)) == len(keys)
    for thing in objects:
        if thing["kind"] not in BY_THE_OPERATOR:
            check(thing)


def test_two_sidecar_releases_do_not_watch_each_others_pods() -> None:
    """Each release's monitor looks for the labels that its own notes show; labels of one's own take their place."""

    def found_by(values: Mapping[str, Any], name: str) -> Mapping[str, str]:
        objects, notes = rendered({**EXAMPLES["sidecar"], **values}, name=name)
        (monitor,) = named(objects, "PodMonitor").values()
        labels: Mapping[str, str] = monitor["spec"]["selector"]["matchLabels"]
        assert labels == snippet(notes)["metadata"]["labels"]
        return labels

    vllm, sglang = found_by({}, "vllm"), found_by({}, "sglang")
    assert not vllm.items() <= sglang.items()
    assert found_by({"sidecar": {"podLabels": {"team": "chat"}}}, "vllm") == {"team": "chat"}


@pytest.mark.parametrize("values", [{}, {"targets": None}, {"targets": None, "extraTargets": None, "config": None}])
def test_a_list_without_entries_is_no_target(values: Mapping[str, Any]) -> None:
    """Entries that are all commented out leave null behind: that is as none, and the notes say what is to be done."""
    objects, notes = rendered(values)
    (workload,) = workloads(objects)
    assert config_of(pod_of(workload), objects).targets == ()
    assert "No target is configured yet" in notes


def test_no_example_looks_into_the_hosts_processes() -> None:
    """GPUs are read without: nobody is given the host's pids who did not ask for them."""
    for values in VALUES.values():
        assert not any(pod_of(workload).get("hostPID", False) for workload in workloads(rendered(values)[0]))


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ({"mode": "statefulset"}, "mode"),
        ({"replicas": 2}, "replicas"),
        ({"image": {"repository": ""}}, "image"),
        ({"targets": [{"name": "a"}]}, "url"),
        ({"targets": [{"url": "http://a:8000", "engin": "vllm"}]}, "engin"),
        ({"config": {"targets": []}}, "targets"),
        ({"config": {"listen": "127.0.0.1:9477"}}, "listen"),
        ({"config": {"intervall": "5s"}}, "intervall"),
        ({"image": {"repository": "kvwatch", "digest": "0123"}}, "digest"),
        ({"service": {"port": 0}}, "port"),
        ({"prometheusRule": {"runbookUrl": "kvwatch.example.com"}}, "runbookUrl"),
    ],
)
def test_wrong_values_are_refused_by_name(values: Mapping[str, Any], complaint: str) -> None:
    """A value that the chart would not use, or not well, is named instead of being passed over."""
    assert complaint in refused(values)


def test_the_schema_knows_every_value_and_no_other() -> None:
    """What values.yaml documents is what may be set."""
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    values = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    assert schema["properties"].keys() - {"global"} == values.keys()
    for key, section in schema["properties"].items():
        if section.get("additionalProperties") is False and key != "config":
            assert section["properties"].keys() == values[key].keys(), key


def test_the_schema_knows_every_setting_and_no_other() -> None:
    """The keys of kvwatch.yaml and of a target, as kvwatch has them; targets stand beside, and the probes need the default address."""
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    settings = [key.name for key in describe()]
    assert schema["properties"]["config"]["properties"].keys() == {re.split(r"[.[]", name)[0] for name in settings} - {"targets", "listen"}
    inside = {name.removeprefix("targets[].").split(".")[0] for name in settings if name.startswith("targets[].")}
    assert schema["definitions"]["target"]["properties"].keys() == inside


def test_the_chart_is_for_this_version() -> None:
    """Chart, application and package are released together."""
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    assert (chart["version"], chart["appVersion"]) == (__version__, __version__)
