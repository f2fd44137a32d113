"""Deployment files are valid for the gateway; they need no cluster and no container engine."""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.app.check import check
from gateway.cli.sidecar import sidecar_config
from gateway.config.load import load_file, load_text

ROOT = Path(__file__).parents[2]
KUBERNETES = sorted((ROOT / "deploy" / "kubernetes").glob("*.yaml"))


def documents(path: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(path.read_text()))


def containers(document: dict[str, Any]) -> list[dict[str, Any]]:
    spec = document.get("spec", {})
    spec = spec.get("template", {}).get("spec", spec)
    found = [*spec.get("initContainers", []), *spec.get("containers", [])]
    return [each for each in found if each["name"] == "gateway"]


GATEWAYS = [
    (path.name, container)
    for path in KUBERNETES
    for document in documents(path)
    for container in containers(document)
]


def test_service_and_sidecar_have_manifests() -> None:
    """Both ways to run on Kubernetes have a manifest with the gateway."""
    assert ["service.yaml", "sidecar.yaml"] == sorted(name for name, _ in GATEWAYS)


@pytest.mark.parametrize(("name", "container"), GATEWAYS)
def test_containers_are_unprivileged(name: str, container: dict[str, Any]) -> None:
    """They run without root, writable files and capabilities, and with a memory limit."""
    security = container["securityContext"]
    assert security["runAsNonRoot"], name
    assert security["readOnlyRootFilesystem"]
    assert security["allowPrivilegeEscalation"] is False
    assert ["ALL"] == security["capabilities"]["drop"]
    assert "memory" in container["resources"]["limits"]


@pytest.mark.parametrize(("name", "container"), GATEWAYS)
def test_probes_use_ports_of_their_container(name: str, container: dict[str, Any]) -> None:
    """The port of each probe is declared by the container."""
    ports = {port["name"] for port in container["ports"]}
    for probe in ("livenessProbe", "readinessProbe"):
        assert container[probe]["httpGet"]["port"] in ports, name


def test_the_sidecars_flags_are_a_valid_configuration() -> None:
    """The command line accepts the flags of the manifest."""
    (container,) = [found for name, found in GATEWAYS if name == "sidecar.yaml"]
    verb, *flags = container["args"]
    values = dict(zip(flags[::2], flags[1::2], strict=True))
    settings = sidecar_config(
        [values["--upstream"]],
        http=values["--http"],
        grpc=values["--grpc"],
        admin=values["--admin"],
    )
    assert "serve" == verb
    assert [] == check(load_text(yaml.safe_dump(settings)))


def test_the_config_map_is_a_valid_configuration() -> None:
    """Its ports are those of the container."""
    parts = documents(ROOT / "deploy" / "kubernetes" / "service.yaml")
    (text,) = [part["data"]["gateway.yaml"] for part in parts if part["kind"] == "ConfigMap"]
    loaded = load_text(text)
    assert [] == check(loaded)
    listener = loaded.config.listeners[0]
    (container,) = [found for name, found in GATEWAYS if name == "service.yaml"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert listener.http is not None
    assert listener.grpc is not None
    assert (ports["http"], ports["grpc"]) == (listener.http.port, listener.grpc.port)


def test_the_configuration_of_the_image_is_valid() -> None:
    """The health check uses its HTTP port."""
    dockerfile = (ROOT / "Dockerfile").read_text()
    (source,) = re.findall(r"COPY (config/\S+) /etc/gateway/gateway.yaml", dockerfile)
    loaded = load_file(ROOT / source, {})
    assert [] == check(loaded)
    address = loaded.config.listeners[0].http
    assert address is not None
    assert f'"oip+http://127.0.0.1:{address.port}"' in dockerfile
    assert re.search(r"^USER 10001$", dockerfile, re.MULTILINE)


def test_the_extras_of_the_image_exist() -> None:
    """The default and the documented extras are declared by the project and passed to pip."""
    dockerfile = (ROOT / "Dockerfile").read_text()
    (default,) = re.findall(r"^ARG EXTRAS=(\S+)$", dockerfile, re.MULTILINE)
    (with_kubernetes,) = re.findall(r"--build-arg EXTRAS=(\S+)", dockerfile)
    assert '".[${EXTRAS}]"' in dockerfile
    assert f"EXTRAS={with_kubernetes}" in (ROOT / "deploy/kubernetes/cutover.yaml").read_text()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = {*default.split(","), *with_kubernetes.split(",")}
    assert extras <= project["optional-dependencies"].keys()
    assert "kubernetes" in extras


def test_compose_is_read_only() -> None:
    """The compose file runs the gateway without writable files and capabilities."""
    service = documents(ROOT / "deploy" / "compose.yaml")[0]["services"]["gateway"]
    assert service["read_only"]
    assert ["ALL"] == service["cap_drop"]


def test_other_controllers_request_the_verdict() -> None:
    """Argo Rollouts reads its three values, and each hook of Flagger has a form of its own."""
    (template,) = documents(ROOT / "deploy" / "argo" / "analysis-template.yaml")
    (metric,) = template["spec"]["metrics"]
    assert ('result == "holds"', 'result == "trips"', "{$.verdict}") == (
        metric["successCondition"],
        metric["failureCondition"],
        metric["provider"]["web"]["jsonPath"],
    )
    (canary,) = documents(ROOT / "deploy" / "flagger" / "canary.yaml")
    forms = {
        hook["type"]: hook["url"].partition("/verdict?as=")[2]
        for hook in canary["spec"]["analysis"]["webhooks"]
    }
    assert {"confirm-promotion": "gate", "rollback": "rollback", "rollout": "check"} == forms


SYSTEMD = shutil.which("systemd-analyze")


@pytest.mark.skipif(SYSTEMD is None, reason="systemd-analyze is not installed")
def test_the_units_of_systemd_are_valid_and_closed() -> None:
    """`verify` finds nothing, and the exposure is at most 1.5 of 10."""
    units = [str(ROOT / "deploy" / "systemd" / f"gateway.{kind}") for kind in ("service", "socket")]
    done = subprocess.run(
        ["systemd-analyze", "verify", *units], capture_output=True, text=True, check=False
    )
    assert (0, "") == (done.returncode, done.stderr)
    rating = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--threshold=15", units[0]],
        capture_output=True,
        text=True,
        check=False,
    )
    assert rating.returncode == 0, rating.stdout[-300:]


def test_the_unit_of_systemd_waits_for_the_gateway() -> None:
    """The time to stop is above the default `pre_stop` and `drain`, and SIGHUP reloads."""
    text = (ROOT / "deploy" / "systemd" / "gateway.service").read_text()
    values = dict(re.findall(r"^(\w+)=(.*)$", text, re.MULTILINE))
    lifecycle = load_text("version: 1\nlisteners: [{http: ':1'}]").config.lifecycle
    assert float(values["TimeoutStopSec"]) > lifecycle.pre_stop + lifecycle.drain
    assert "/bin/kill -HUP $MAINPID" == values["ExecReload"]
    assert ("notify", "main", "yes") == (
        values["Type"],
        values["NotifyAccess"],
        values["DynamicUser"],
    )
