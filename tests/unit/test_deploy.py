"""Deployment files are valid for the gateway; they need no cluster and no container engine."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.app.check.check import check
from gateway.cli.calling.liveness import DEFAULT_ADMIN
from gateway.config.load import load_file, load_text
from tests.unit.test_console_blocks import flags_of

ROOT = Path(__file__).parents[2]


def documents(path: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(path.read_text()))


def test_the_configuration_of_the_image_is_valid() -> None:
    """The health check uses its admin port, the default one."""
    dockerfile = (ROOT / "Dockerfile").read_text()
    (source,) = re.findall(r"COPY (config/\S+) /etc/gateway/gateway.yaml", dockerfile)
    loaded = load_file(ROOT / source, {})
    assert [] == check(loaded)
    address = loaded.config.listeners[0].http
    assert address is not None
    assert 'CMD ["gateway", "health", "--live"]' in dockerfile
    assert loaded.config.admin is not None
    assert loaded.config.admin.address is not None
    tcp = loaded.config.admin.address.tcp
    assert tcp is not None
    assert f"127.0.0.1:{tcp.port}" == DEFAULT_ADMIN
    assert re.search(r"^USER 10001$", dockerfile, re.MULTILINE)


def test_the_image_installs_only_what_a_lock_names() -> None:
    """Packages come from a folder and not from a registry, and their hashes are checked."""
    dockerfile = (ROOT / "Dockerfile").read_text()
    installs = re.findall(r"bin/python install (.*?)(?: \\| >|$)", dockerfile, re.MULTILINE)
    assert len(installs) == 2
    assert all("--no-index" in each for each in installs)
    assert "--require-hashes --requirement /src/lock" in installs[0]
    assert "--no-deps /wheels/tensor_gateway-" in installs[1]
    variants = re.search(r"^VARIANTS \?= (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert variants is not None
    for variant in (*variants[1].split(), "kubernetes"):
        assert (ROOT / "requirements" / f"{variant}.lock").exists()


def test_the_build_of_the_image_sees_what_it_copies() -> None:
    """`.dockerignore` hides all files but those that the image is made of."""
    shown = [
        line.removeprefix("!")
        for line in (ROOT / ".dockerignore").read_text().splitlines()
        if line.startswith("!")
    ]
    copies = re.findall(r"^COPY (?!--)(.*) \S+$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    sources = [source for each in copies for source in each.split()]
    assert len(sources) > 4
    assert [] == [each for each in sources if not each.startswith(tuple(shown))]


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
    gates = {"confirm-traffic-increase": "gate", "confirm-promotion": "gate"}
    assert gates | {"rollback": "rollback", "rollout": "check"} == forms
    limit = metric["inconclusiveLimit"]
    assert limit < metric["count"], "undecided verdicts would pass"


@pytest.mark.migration
@pytest.mark.parametrize("name", ["replay", "diff"])
def test_jobs_have_commands_with_flags_that_exist(name: str) -> None:
    """The arguments of their containers are those of a command of the gateway."""
    (job,) = documents(ROOT / "deploy" / "kubernetes-jobs" / f"{name}.yaml")
    (container,) = job["spec"]["template"]["spec"]["containers"]
    verb, *words = container["args"]
    given = {word.partition("=")[0] for word in words if word.startswith("-")}
    assert (name, set()) == (verb, given - flags_of(verb))
    assert given


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


@pytest.mark.parametrize("folder", ["grafana", "prometheus"])
def test_the_chart_has_the_dashboards_and_alerts(folder: str) -> None:
    """A chart reads only files of its own, so it has copies: cp -r deploy/{grafana,prometheus} there."""
    chart = ROOT / "deploy" / "helm" / "tensor-gateway" / "files" / folder
    files = {path.name: path.read_text() for path in (ROOT / "deploy" / folder).iterdir()}
    assert files == {path.name: path.read_text() for path in chart.iterdir()}
