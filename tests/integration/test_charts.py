"""The chart and the overlays: valid for Kubernetes, and their containers run with their arguments."""

from __future__ import annotations

import re
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
import trustme

from gateway.app.check.check import check
from gateway.config.load import load_text
from gateway.settings.units import parse_duration
from tests.integration.charts_kit import Documents, charts, config_of, render_all
from tests.integration.cli_kit import gateway, serving
from tests.integration.tls_kit import write_pair

pytestmark = pytest.mark.timeout(300)

CONFIG = "/etc/gateway/gateway.yaml"
SECRETS = ("UPSTREAM_TOKEN", "OPERATOR")
TOKEN = "0123456789abcdef"
PROBES = ("startup", "liveness", "readiness")
# Its configuration is a ConfigMap of the cluster.
WITHOUT_CONFIG = "helm existing-config"
RESTRICTED = {
    "runAsNonRoot": True,
    "runAsUser": 10001,
    "readOnlyRootFilesystem": True,
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "seccompProfile": {"type": "RuntimeDefault"},
}


@pytest.fixture(scope="module")
def rendered() -> Documents:
    return render_all()


def containers(documents: Documents) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Yield the gateways: where, the specification of the pod, and the container."""
    for name, parts in documents.items():
        for part in parts:
            spec = part.get("spec") or {}
            pod = spec.get("template", {}).get("spec", spec)
            for each in (*pod.get("initContainers", ()), *pod.get("containers", ())):
                if "tensor-gateway:" in each["image"]:
                    yield name, pod, each


def test_every_document_is_valid(rendered: Documents) -> None:
    """For each version of Kubernetes; resources of other projects match their own schemas."""
    assert len(rendered) >= 9
    distinct = {repr(part): (name, part) for name, parts in rendered.items() for part in parts}
    wrong = [
        f"{name}: {part['kind']}: {problem}"
        for name, part in distinct.values()
        for problem in charts.problems(part)
    ]
    assert [] == wrong
    kinds = {part["kind"] for part in rendered["helm all-values"]}
    assert {"ScaledObject", "Certificate", "HTTPRoute", "GRPCRoute", "ServiceMonitor"} <= kinds
    assert {"NetworkPolicy", "PodDisruptionBudget", "Role", "RoleBinding"} <= kinds
    assert "HorizontalPodAutoscaler" in {part["kind"] for part in rendered["helm autoscaling"]}


def test_every_example_is_valid() -> None:
    """The templates for other controllers, and the runtime of KServe with its examples."""
    found = list(charts.examples())
    assert set(charts.EXAMPLES) == {path.parent.name for path, _ in found}
    wrong = [
        f"{path.name}: {problem}"
        for path, document in found
        for problem in charts.problems(document)
    ]
    assert [] == wrong


def test_wrong_documents_are_found() -> None:
    """A misspelt key is a problem, in a resource of Kubernetes and in one of another project."""
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": {"container": []}}
    assert len(list(charts.problems(pod))) == len(charts.VERSIONS)
    route = {
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": "HTTPRoute",
        "spec": {"rule": []},
    }
    assert list(charts.problems(route))


@pytest.mark.parametrize("value", ["nonsense=1", "image.nonsense=x", "replicas=many"])
def test_unknown_values_are_refused(rendered: Documents, value: str) -> None:
    """The schema of the values knows all of them."""
    command = charts.sources()["helm"]
    with pytest.raises(ValueError, match="values don't meet the specifications"):
        charts.render([*command, "--set", value])


@pytest.mark.parametrize(
    ("lifecycle", "expected"),
    [
        ({}, 40),
        ({"drain": "2m"}, 130),
        ({"pre_stop": "1.5s", "drain": "90500ms"}, 97),
        ({"drain": "${env:DRAIN}"}, 40),
    ],
    ids=str,
)
def test_pods_have_the_time_that_their_configuration_needs(
    rendered: Documents, lifecycle: dict[str, str], expected: int
) -> None:
    """The grace is above `pre_stop` + `drain` of the values, in each unit."""
    words = [f"--set=config.lifecycle.{key}={value}" for key, value in lifecycle.items()]
    documents = charts.render([*charts.sources()["helm"], *words])
    (pod,) = (
        each["spec"]["template"]["spec"] for each in documents if each["kind"] == "Deployment"
    )
    assert expected == pod["terminationGracePeriodSeconds"]


def test_no_container_is_privileged(rendered: Documents) -> None:
    """Model servers beside a gateway, too: no root, no writable files, no capabilities."""
    found = 0
    for name, parts in rendered.items():
        for part in parts:
            spec = part.get("spec") or {}
            pod = spec.get("template", {}).get("spec", spec)
            for each in (*pod.get("initContainers", ()), *pod.get("containers", ())):
                found += 1
                restricted = {key: RESTRICTED[key] for key in RESTRICTED.keys() - {"runAsUser"}}
                assert restricted.items() <= each["securityContext"].items(), name
                assert {"cpu", "memory"} <= each["resources"]["requests"].keys(), name
    assert found > len(list(containers(rendered)))


def test_the_schema_has_every_value(rendered: Documents) -> None:
    """`ci/all-values.yaml` sets all values of the chart but those that exclude others."""
    values = charts.yaml.safe_load((charts.CHART / "values.yaml").read_text())
    everything = charts.yaml.safe_load((charts.CHART / "ci" / "all-values.yaml").read_text())
    apart = {"existingConfigMap", "resources", "strategy"}
    assert values.keys() - apart == everything.keys()


def test_containers_are_restricted(rendered: Documents) -> None:
    """No root, no writable files, no capabilities; requests, limits and three probes."""
    found = list(containers(rendered))
    assert len(found) >= 12
    for name, pod, each in found:
        # There it has the user of Triton, for tensors in shared memory.
        user = {"runAsUser": 1000} if "kserve" in name else {}
        assert {**RESTRICTED, **user} == each["securityContext"], name
        assert {"cpu", "memory"} <= each["resources"]["requests"].keys(), name
        assert "memory" in each["resources"]["limits"], name
        if each["args"][0] != "serve":
            continue
        ports = {port.get("name") for port in each["ports"]} | {9901}
        paths = {"startupProbe": "/livez", "livenessProbe": "/livez", "readinessProbe": "/readyz"}
        for probe, path in paths.items():
            assert path == each[probe]["httpGet"]["path"], name
            assert each[probe]["httpGet"]["port"] in ports, name
        if "kserve" not in name:  # there KServe makes the pod
            assert pod["topologySpreadConstraints"]
            assert pod["serviceAccountName"]


def test_config_maps_are_valid_and_reload(
    rendered: Documents, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gateway accepts them, watches them, and has the time to end before Kubernetes kills it."""
    for name in SECRETS:
        monkeypatch.setenv(name, TOKEN)
    found = 0
    for name, parts in rendered.items():
        text = config_of(parts)
        if text is None:
            continue
        found += 1
        loaded = load_text(text)
        if name != "helm strict":  # its files are those of a cluster
            assert [] == check(loaded), name
        lifecycle = loaded.config.lifecycle
        assert lifecycle.reload.watch, name
        for deployment in (part for part in parts if part["kind"] == "Deployment"):
            pod = deployment["spec"]["template"]
            grace = pod["spec"]["terminationGracePeriodSeconds"]
            assert grace > lifecycle.pre_stop + lifecycle.drain, name
            (volume,) = (each for each in pod["spec"]["volumes"] if each["name"] == "config")
            assert "items" not in volume["configMap"]
            # A checksum of the configuration here would restart all pods.
            assert "checksum" not in str(pod["metadata"].get("annotations", {}))
    assert found >= 6


def test_the_grace_of_the_sidecar_suffices(rendered: Documents) -> None:
    """Its lifecycle is the default one."""
    defaults = load_text("version: 1\nlisteners: [{http: ':1'}]").config.lifecycle
    assert parse_duration("5s") <= defaults.pre_stop + defaults.drain < 40
    (pod,) = {
        id(pod): pod for name, pod, _ in containers(rendered) if name == "kustomize sidecar"
    }.values()
    assert pod["terminationGracePeriodSeconds"] == 40


def test_rollouts_lost_calls_as_the_model_server_ended_first(rendered: Documents) -> None:
    """Kubernetes ends native sidecars after other containers, so the server has to be one."""
    (pod,) = {
        id(pod): pod for name, pod, _ in containers(rendered) if name == "kustomize sidecar"
    }.values()
    assert [("model-server", "Always")] == [
        (each["name"], each["restartPolicy"]) for each in pod["initContainers"]
    ]
    assert ["gateway"] == [each["name"] for each in pod["containers"]]


def as_here(text: str, folder: Path) -> str:
    """Return a configuration, or an argument, with addresses and files of this machine."""
    text = re.sub(r"(0\.0\.0\.0|(?<=address: )):(\d+|\$\{env:PORT:-\d+\})", "127.0.0.1:0", text)
    for path in ("/var/lib/gateway", "/etc/gateway-tls", "/etc/gateway-keys"):
        text = text.replace(path, str(folder / Path(path).name))
    for name in SECRETS:  # the fork server has the environment from before this test
        text = text.replace(f"${{env:{name}}}", TOKEN)
    return text


def write_files(folder: Path) -> None:
    """Write what the Secrets of a cluster have."""
    for name in ("gateway-tls", "gateway-keys"):
        (folder / name).mkdir()
    write_pair(folder / "gateway-tls", trustme.CA(), "127.0.0.1", stem="tls")
    (folder / "gateway-tls" / "tls.pem").rename(folder / "gateway-tls" / "tls.crt")
    added = gateway("keys", "add", "team", "--file", str(folder / "gateway-keys" / "keys.yaml"))
    assert added.returncode == 0, added
    for path in folder.glob("gateway-*/*"):
        path.chmod(0o440)


def status_of(url: str) -> int:
    context = ssl._create_unverified_context()  # noqa: S323  # as probes do
    try:
        with urlopen(url, timeout=60, context=context) as response:  # noqa: S310  # this machine
            return int(response.status)
    except HTTPError as error:
        return error.code


def port_of_probes(container: dict[str, Any]) -> tuple[str, int]:
    """Return the scheme and the number of the port that the probes of a container ask."""
    named = {port.get("name"): port["containerPort"] for port in container["ports"]}
    probes = [container[f"{kind}Probe"]["httpGet"] for kind in PROBES]
    (found,) = {
        (each.get("scheme", "HTTP").lower(), named.get(each["port"], each["port"]))
        for each in probes
    }
    return found


@pytest.mark.parametrize("name", [name for name in charts.sources() if name != WITHOUT_CONFIG])
def test_commands_run_and_their_probes_respond(
    rendered: Documents, name: str, tmp_path: Path
) -> None:
    """Containers start with their arguments here: live, and not ready without their model server."""
    text = config_of(rendered[name])
    path = tmp_path / "gateway.yaml"
    if text is not None:
        path.write_text(as_here(text, tmp_path))
        write_files(tmp_path)
    served = 0
    for where, _, each in containers(rendered):
        if where != name:
            continue
        arguments = [str(path) if word == CONFIG else word for word in each["args"]]
        if each["args"][0] != "serve":
            assert each["args"][0] == "validate"
            done = gateway(*arguments)
            assert (0, "ok") == (done.returncode, done.stdout.strip().splitlines()[-1]), done
            continue
        served += 1
        scheme, port = port_of_probes(each)
        assert f":{port}" in (text or " ".join(each["args"]))
        with serving(*(as_here(word, tmp_path) for word in arguments[1:])) as running:
            admin = running.url("", "admin").replace("http:", f"{scheme}:")
            assert 200 == status_of(f"{admin}{each['livenessProbe']['httpGet']['path']}")
            assert status_of(f"{admin}{each['readinessProbe']['httpGet']['path']}") in {200, 503}
            assert 200 == status_of(f"{admin}/metrics")
    assert 1 == served
