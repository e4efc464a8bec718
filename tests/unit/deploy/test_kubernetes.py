"""The manifests: held against Kubernetes' own schemas, and against what they name."""

from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from read_variables import variables_of

FOLDER = Path(__file__).parents[3] / "deploy" / "kubernetes"
RESOURCES: dict[tuple[str, str], dict[str, Any]] = {
    (resource["kind"], resource["metadata"]["name"]): resource
    for file in sorted(FOLDER.glob("*.yaml"))
    for resource in yaml.safe_load_all(file.read_text())
}
DEPLOYMENTS = {name: one for (kind, name), one in RESOURCES.items() if kind == "Deployment"}
LATEST = kubernetes_validate.latest_version()


def container_of(deployment: dict[str, Any]) -> dict[str, Any]:
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    return container


@pytest.mark.parametrize("version", ["1.28", LATEST])
def test_the_api_knows_every_field(version: str) -> None:
    assert {kind for kind, _ in RESOURCES} == {"Deployment", "PodDisruptionBudget", "Service"}
    for resource in RESOURCES.values():
        kubernetes_validate.validate(resource, version, strict=True)


def test_the_schemas_refuse_what_is_wrong() -> None:
    wrong = {**RESOURCES["Service", "headrace-gateway"], "spec": {"prots": []}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, LATEST, strict=True)


def test_selectors_find_the_pods() -> None:
    for (kind, name), resource in RESOURCES.items():
        selector = resource["spec"]["selector"]
        wanted = selector if kind == "Service" else selector["matchLabels"]
        labels = DEPLOYMENTS[name]["spec"]["template"]["metadata"]["labels"]
        assert wanted.items() <= labels.items(), (kind, name)


@pytest.mark.parametrize("name", DEPLOYMENTS)
def test_a_pod_is_probed_confined_and_given_time(name: str) -> None:
    pod = DEPLOYMENTS[name]["spec"]["template"]["spec"]
    container = container_of(DEPLOYMENTS[name])
    ports = {port["name"] for port in container["ports"]}
    for probe, path in (("livenessProbe", "/healthz"), ("readinessProbe", "/readyz")):
        assert container[probe]["httpGet"]["path"] == path
        assert container[probe]["httpGet"]["port"] in ports
    assert pod["securityContext"]["runAsNonRoot"]
    assert container["securityContext"]["readOnlyRootFilesystem"]
    command = name.removeprefix("headrace-")
    assert container["args"] == [command]
    environment = {entry["name"]: entry.get("value") for entry in container["env"]}
    assert set(environment) <= variables_of(command)
    grace = environment.get("HEADRACE_GRACE") or environment["HEADRACE_GATEWAY_GRACE"]
    assert pod["terminationGracePeriodSeconds"] > float(grace) + 5
    mounts = {mount["name"] for mount in container["volumeMounts"]}
    assert mounts == {volume["name"] for volume in pod["volumes"]}


def test_no_service_sets_variables_that_the_commands_read() -> None:
    for deployment in DEPLOYMENTS.values():
        assert deployment["spec"]["template"]["spec"]["enableServiceLinks"] is False
    assert "HEADRACE_GATEWAY_PORT" in variables_of("gateway"), "then the links may be on"


def test_what_scales_names_the_workers_and_their_model() -> None:
    scaled = yaml.safe_load((FOLDER / "keda" / "worker-scaling.yaml").read_text())
    target = DEPLOYMENTS[scaled["spec"]["scaleTargetRef"]["name"]]
    models = {
        entry["value"]
        for deployment in DEPLOYMENTS.values()
        for entry in container_of(deployment)["env"]
        if entry["name"] in ("HEADRACE_MODEL", "HEADRACE_GATEWAY_MODELS")
    }
    (model,) = models
    assert target["metadata"]["name"] == "headrace-worker"
    for trigger in scaled["spec"]["triggers"]:
        assert f'model="{model}"' in trigger["metadata"]["query"]
