"""What rendered manifests mean: nothing leads nowhere, and an upgrade restarts what needs it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from gateway.app.run.reload import check_restart, restart_keys
from gateway.cli.commands import command_line
from gateway.config.load import ConfigError, load_text
from gateway.config.models import Config
from tests.integration.charts_kit import (
    Documents,
    charts,
    config_of,
    of_kind,
    render_all,
    render_chart,
)
from tests.unit.release.loading import load

meanings = load("rendered")
pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def rendered() -> Documents:
    return render_all()


def test_nothing_leads_nowhere(rendered: Documents) -> None:
    """Selectors select, ports lead somewhere, and names exist: in each set, and in each example."""
    sets = {**rendered, **{path.name: [document] for path, document in charts.examples()}}
    assert [] == [
        f"{name}: {problem}"
        for name, documents in sets.items()
        for problem in meanings.problems(documents, charts.THEIRS.get(name, ()))
    ]


Change = Callable[[list[dict[str, Any]]], object]


def pod(documents: list[dict[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = of_kind(documents, "Deployment")["spec"]["template"]["spec"]
    return found


def gateway(documents: list[dict[str, Any]]) -> dict[str, Any]:
    return next(each for each in pod(documents)["containers"] if each["name"] == "gateway")


def configured(old: str, new: str) -> Change:
    def change(documents: list[dict[str, Any]]) -> None:
        for each in documents:
            if "gateway.yaml" in each.get("data", {}):
                assert old in each["data"]["gateway.yaml"]
                each["data"]["gateway.yaml"] = each["data"]["gateway.yaml"].replace(old, new)

    return change


def without_telemetry(documents: list[dict[str, Any]]) -> None:
    data = of_kind(documents, "ConfigMap", "inference")["data"]
    config = yaml.safe_load(data["gateway.yaml"])
    del config["telemetry"]
    data["gateway.yaml"] = yaml.safe_dump(config)


ALL, STRICT, BASE = "helm all-values", "helm strict", "kustomize base"
# What was seen is first; each rule finds at least one mutation.
MUTATIONS: list[tuple[str, str, Change]] = [
    (
        BASE,
        "protects no pod",
        lambda found: of_kind(found, "PodDisruptionBudget")["spec"].pop("selector"),
    ),
    (
        ALL,
        "PodDisruptionBudget inference protects no pod",
        lambda found: of_kind(found, "PodDisruptionBudget")["spec"]["selector"].update(
            matchLabels={"app.kubernetes.io/name": "gateway"}
        ),
    ),
    (
        BASE,
        "Service gateway leads to no pod",
        lambda found: of_kind(found, "Service", "gateway")["spec"].update(selector={"app": "x"}),
    ),
    (
        ALL,
        "holds for no pod",
        lambda found: of_kind(found, "NetworkPolicy")["spec"].update(podSelector={}),
    ),
    (
        BASE,
        "does not select its own pods",
        lambda found: of_kind(found, "Deployment")["spec"].update(selector={"matchLabels": {}}),
    ),
    (
        ALL,
        "selects 2 Services",
        lambda found: of_kind(found, "ServiceMonitor")["spec"]["selector"]["matchLabels"].pop(
            "app.kubernetes.io/component"
        ),
    ),
    (
        "kustomize routing",
        "sets `replicas`",
        lambda found: of_kind(found, "Deployment")["spec"].update(replicas=2),
    ),
    (
        BASE,
        "has no port 'web'",
        lambda found: of_kind(found, "Service", "gateway")["spec"]["ports"][0].update(
            targetPort="web"
        ),
    ),
    (
        ALL,
        "shuts a port",
        lambda found: of_kind(found, "NetworkPolicy")["spec"]["ingress"].pop(),
    ),
    (
        ALL,
        "no Service inference:80",
        lambda found: of_kind(found, "HTTPRoute")["spec"]["rules"][0]["backendRefs"][0].update(
            port=80
        ),
    ),
    (
        BASE,
        "two ports with the same name",
        lambda found: gateway(found)["ports"][0].update(name="grpc"),
    ),
    (
        STRICT,
        "wrong scheme",
        lambda found: gateway(found)["livenessProbe"]["httpGet"].pop("scheme"),
    ),
    (
        BASE,
        "asks 8080, where nothing listens",
        lambda found: gateway(found)["readinessProbe"]["httpGet"].update(port=8080),
    ),
    (BASE, "does not declare 8500", configured("0.0.0.0:8000", "0.0.0.0:8500")),
    (
        ALL,
        "publishes the metrics",
        lambda found: of_kind(found, "Service", "inference")["spec"]["ports"].append(
            {"name": "metrics", "port": 8002, "targetPort": "metrics"}
        ),
    ),
    (BASE, "which is no volume", lambda found: pod(found).update(volumes=[])),
    (
        STRICT,
        "needs the Secret 'test-tls', which does not exist",
        lambda found: found.remove(of_kind(found, "Certificate")),
    ),
    (
        BASE,
        "finds no /etc/gateway/gateway.yaml",
        lambda found: gateway(found)["volumeMounts"][0].update(mountPath="/config"),
    ),
    (
        STRICT,
        "finds no /elsewhere/tls.key",
        configured("/etc/gateway-tls/tls.key", "/elsewhere/tls.key"),
    ),
    (ALL, "has another env", lambda found: pod(found)["initContainers"][-1].pop("env")),
    (
        STRICT,
        "everybody reads the volume 'tls'",
        lambda found: pod(found)["volumes"][1]["secret"].pop("defaultMode"),
    ),
    (
        "kustomize migration",
        "names no namespace",
        lambda found: of_kind(found, "RoleBinding")["subjects"][0].pop("namespace"),
    ),
    (BASE, "uses one address of models-headless", configured("resolve: all", "resolve: first")),
    (
        BASE,
        "is killed after 30 s",
        lambda found: pod(found).update(terminationGracePeriodSeconds=30),
    ),
    (
        "kustomize sidecar",
        "model-server ends before gateway",
        lambda found: pod(found)["containers"].append(pod(found)["initContainers"].pop()),
    ),
    (
        "kustomize kserve",
        "KServe mounts no models in triton",
        lambda found: of_kind(found, "ClusterServingRuntime")["spec"]["containers"][0].update(
            name="triton"
        ),
    ),
    (
        "kustomize kserve",
        "calls go to kserve-container",
        lambda found: of_kind(found, "ClusterServingRuntime")["spec"]["containers"][1].update(
            name="gateway"
        ),
    ),
    (
        ALL,
        "adds up other releases",
        lambda found: of_kind(found, "ScaledObject")["spec"]["triggers"][1]["metadata"].update(
            query='sum(gateway_route_in_flight{namespace="inference"})'
        ),
    ),
    (ALL, "needs `compat: [triton]`", without_telemetry),
    (
        ALL,
        "uses gateway_nonsense_total",
        lambda found: of_kind(found, "ConfigMap", "inference-alerts")["data"].update(
            {"alerts.yaml": "sum(gateway_nonsense_total)"}
        ),
    ),
]


@pytest.mark.parametrize(("name", "text", "change"), MUTATIONS, ids=[each[1] for each in MUTATIONS])
def test_what_leads_nowhere_is_found(
    rendered: Documents, name: str, text: str, change: Change
) -> None:
    """Each rule finds what it is for."""
    documents = deepcopy(rendered[name])
    change(documents)
    found = list(meanings.problems(documents, charts.THEIRS.get(name, ())))
    assert any(text in each for each in found), found


# --- values of users ---


def test_an_upstream_was_added_to_the_default_one() -> None:
    """Upstreams and models of the user replace it, so that no dead server takes calls of theirs."""
    own = render_chart("--set", "config.upstreams.mine.url=oip+grpc://mine:8001")
    model = render_chart("--set", "config.models.digits.backend=onnx")
    default = render_chart("--set", "upstream.url=oip+grpc://triton:8001")
    found = [yaml.safe_load(config_of(each) or "") for each in (own, model, default)]
    assert [{"mine": {"url": "oip+grpc://mine:8001"}}, None] == [
        each.get("upstreams") for each in found[:2]
    ]
    expected = {"models": {"url": "oip+grpc://triton:8001", "resolve": "all"}}
    assert expected == found[2]["upstreams"]


@pytest.mark.parametrize("kind", ["ClusterIP", "NodePort", "LoadBalancer"])
def test_a_load_balancer_published_the_metrics(kind: str) -> None:
    """Only the ports of clients have the type of the Service."""
    documents = render_chart("--set", f"service.type={kind}")
    services = {
        each["metadata"]["name"]: each["spec"] for each in documents if each["kind"] == "Service"
    }
    ports = {name: [port["port"] for port in spec["ports"]] for name, spec in services.items()}
    assert {"test": [8000, 8001], "test-metrics": [8002]} == ports
    assert (kind, "ClusterIP") == (services["test"]["type"], services["test-metrics"]["type"])


@pytest.mark.parametrize(
    "admin",
    [
        '{"address": "off"}',
        '{"address": "127.0.0.1:9901"}',
        '{"address": "unix:/run/admin"}',
        '{"open": ["metrics"]}',
        '{"tls": {"cert": "c", "key": "k", "ca": "ca"}}',
    ],
)
def test_pods_are_live_where_probes_cannot_read_the_admin_port(admin: str) -> None:
    """They are live and ready while the first port of clients takes connections."""
    documents = render_chart("--set-json", f"config.admin={admin}")
    (container,) = pod(documents)["containers"]
    probes = [container[name] for name in meanings.PROBES]
    assert [{"port": "http"}] * 3 == [each.get("tcpSocket") for each in probes]


@pytest.mark.parametrize("address", ["127.0.0.1:7000", "localhost:7000", "[::1]:7000", "7000"])
def test_a_listener_of_the_pod_alone_had_a_port_of_the_service(address: str) -> None:
    """Nobody reaches it there, and probes of it would end each pod."""
    own = {"name": "own", "http": address}
    listeners = json.dumps([own, {"name": "main", "http": "0.0.0.0:8000"}])
    documents = render_chart("--set-json", f"config.listeners={listeners}")
    ports = of_kind(documents, "Service", "test")["spec"]["ports"]
    assert [8000] == [each["port"] for each in ports]
    assert [] == list(meanings.problems(documents, ()))
    with pytest.raises(ValueError, match="no listener has a port that other pods reach"):
        render_chart("--set-json", f"config.listeners={json.dumps([own])}")


# --- upgrades ---

KEYS: dict[str, Any] = {
    "version": 1,
    "workers": 1,
    "listeners": [{"http": "0.0.0.0:8000"}],
    "admin": {"address": "0.0.0.0:9901", "token": "0123456789abcdef"},
    "upstreams": {"a": {"url": "oip+http://a:1"}},
    "lifecycle": {"pre_stop": "5s", "reload": {"watch": True}},
}
CHANGES: list[tuple[str, Any]] = [
    ("workers", 2),
    ("listeners", [{"http": "0.0.0.0:8000", "authentication": "off"}]),
    ("listeners", [{"http": "0.0.0.0:8000", "limits": {"headers_bytes": "8KiB"}}]),
    ("listeners", [{"http": "0.0.0.0:8000", "messages": {"tensors": 3}}]),
    ("listeners", [{"http": "0.0.0.0:8500"}]),
    ("listeners", [{"http": "0.0.0.0:8000"}, {"name": "b", "grpc": "0.0.0.0:8001"}]),
    ("admin.address", "0.0.0.0:9902"),
    ("admin.metrics", "0.0.0.0:8002"),
    ("admin.audit", "audit.log"),
    ("admin.tls", {"cert": "c", "key": "k"}),
    ("admin.token", "fedcba9876543210"),
    ("admin.tokens", [{"name": "a", "roles": ["read"], "token": "fedcba9876543210"}]),
    ("admin.local", ["read"]),
    ("admin.open", ["probes"]),
    ("admin.hosts", ["gateway.example"]),
    ("security.strict", True),
    ("security.keys", {"file": "keys.yaml"}),
    ("security.rules", [{"operations": "inference", "clients": "b"}]),
    ("clients", {"b": {"tier": "gold"}}),
    ("quotas", {"q": {"clients": "b", "limits": {"calls": "10/day"}}}),
    ("upstreams.a.url", "oip+http://b:1"),
    ("upstreams.a.limits", {"connections": 3}),
    ("upstreams.a.nonsense", 1),
    ("upstreams.b", {"url": "oip+http://b:1"}),
    ("models", {"m": {"backend": "python", "options": {"callable": "a:b"}}}),
    ("pipelines", {}),
    ("routes", [{"name": "r", "targets": [{"upstream": "a"}], "timeout": "3s"}]),
    ("policies.timeout", "3s"),
    ("policies.retry", {"on": ["unsent"]}),
    ("telemetry.log.format", "text"),
    ("telemetry.log.level", "debug"),
    ("telemetry.metrics", {"compat": ["triton"]}),
    ("telemetry.otlp", {"endpoint": "http://otel:4317"}),
    ("lifecycle.online", False),
    ("lifecycle.hand_over", True),
    ("lifecycle.pre_stop", "6s"),
    ("lifecycle.drain", "6s"),
    ("lifecycle.ready", "all"),
    ("lifecycle.reload.timeout", "9s"),
    ("state", {"directory": "/var/lib/gateway"}),
    ("shared_regions", 7),
    ("in_flight_bytes", "1GiB"),
    ("in_flight_bytes_per_address", "1MiB"),
    ("hand_over_bytes", "64MiB"),
    ("hand_over_group", "triton"),
    ("nonsense", 1),
]


def changed(path: str, value: Any) -> dict[str, Any]:
    config = deepcopy(KEYS)
    *folders, last = path.split(".")
    section = config
    for each in folders:
        section = section.setdefault(each, {})
    section[last] = value
    return config


def needs_restart(config: dict[str, Any]) -> bool:
    """Return whether the gateway refuses to go on with a configuration, or refuses it at all."""
    try:
        check_restart(load_text(yaml.safe_dump(KEYS)).config, load_text(yaml.safe_dump(config)))
    except ConfigError:
        return True
    return False


PROBE = """
{{- range $name, $config := .Values.global.cases }}
---
{{ $name | quote }}: {{ include "gateway.restartHash" (dict "Values" (dict "config" $config "upstream" dict) "Files" $.Files) }}
{{- end }}
"""


def hashes(configs: dict[str, Any], folder: Path) -> dict[str, str]:
    """Return the annotation of the pods for each configuration."""
    render_all()
    chart = folder / "chart"
    shutil.copytree(charts.CHART, chart)
    (chart / "templates" / "probe.yaml").write_text(PROBE)
    values = folder / "values.yaml"
    values.write_text(json.dumps({"global": {"cases": configs}}))
    helm = [str(charts.TOOLS / "helm"), "template", "x", str(chart), "--values", str(values)]
    found: dict[str, str] = {}
    for each in charts.render([*helm, "--show-only", "templates/probe.yaml"]):
        found |= each
    return found


def test_an_upgrade_of_a_key_that_needs_a_restart_changed_nothing(tmp_path: Path) -> None:
    """The pods are replaced for such a key and for one that the file must not have, and for no other."""
    configs = {f"{path} {value}": changed(path, value) for path, value in CHANGES}
    found = hashes({"": KEYS, **configs}, tmp_path)
    wrong = {
        name
        for name, config in configs.items()
        if needs_restart(config) != (found[name] != found[""])
    }
    assert set() == wrong
    # Each key that needs a restart, and each section of the file, is tried.
    tried = {path.split(".")[0] for path, _ in CHANGES}
    extended = {"quota_store", "stock", "capture", "migrations", "events", "residency", "version"}
    assert Config.model_fields.keys() - extended <= tried
    assert {path[0] for path in restart_keys()} - extended <= tried


def test_all_keys_need_a_restart_where_nothing_watches_the_file(tmp_path: Path) -> None:
    """So does the first sink of events, and another protocol behind a listener."""
    unwatched = changed("lifecycle.reload", {})
    timeout = deepcopy(unwatched)
    timeout["policies"] = {"timeout": "3s"}
    sink, more = (
        changed("events", {"a": {"url": "http://a"}}),
        changed("events", {"b": {"url": "http://b"}}),
    )
    passing = changed("listeners", [{"http": "0.0.0.0:8000", "passthrough": "a"}])
    other, same = deepcopy(passing), deepcopy(passing)
    other["upstreams"]["a"]["url"] = "tfs+http://a:1"
    same["upstreams"]["a"]["url"] = "oip+http://b:1"
    cases = [KEYS, unwatched, timeout, sink, more, passing, other, same]
    found = hashes({str(number): each for number, each in enumerate(cases)}, tmp_path)
    (
        base,
        unwatched_hash,
        timeout_hash,
        sink_hash,
        more_hash,
        passing_hash,
        other_hash,
        same_hash,
    ) = (found[str(number)] for number in range(len(cases)))
    assert unwatched_hash != timeout_hash
    assert base != sink_hash == more_hash
    assert passing_hash != other_hash
    assert passing_hash == same_hash


def test_pods_have_the_hash_of_the_keys_that_need_a_restart() -> None:
    """It is in the template of the pods, beside annotations of the user."""
    before, after, reloaded = (
        of_kind(render_chart(*words), "Deployment")["spec"]["template"]["metadata"]["annotations"]
        for words in (
            ("--set", "podAnnotations.a=b"),
            ("--set", "podAnnotations.a=b", "--set", "config.workers=2"),
            ("--set", "podAnnotations.a=b", "--set", "config.policies.timeout=3s"),
        )
    )
    assert before == reloaded
    assert before != after
    assert before["a"] == after["a"] == "b"


def hook(documents: list[dict[str, Any]], folder: Path) -> list[str]:
    """Return the command of the hook before an upgrade, with its file in a folder."""
    found = [
        each for each in documents if "helm.sh/hook" in each["metadata"].get("annotations", {})
    ]
    config, job = sorted(found, key=lambda each: str(each["kind"]))
    assert ["pre-upgrade"] * 2 == [
        each["metadata"]["annotations"]["helm.sh/hook"] for each in found
    ]
    (folder / "gateway.yaml").write_text(config["data"]["gateway.yaml"])
    (container,) = job["spec"]["template"]["spec"]["containers"]
    (volume,) = job["spec"]["template"]["spec"]["volumes"]
    assert config["metadata"]["name"] == volume["configMap"]["name"]
    words: list[str] = container["args"]
    return [each.replace("/etc/gateway", str(folder)) for each in words]


RULES = '{"rules": [{"tiers": ["fre"], "operations": "all"}]}'


@pytest.mark.parametrize(
    ("change", "is_strict", "error"),
    [
        ('policies={"timeout": "3s"}', True, ""),
        ('policies={"timeout": "soon"}', False, "policies.timeout"),
        (f"security={RULES}", False, ""),
        (f"security={RULES}", True, "fre"),
    ],
)
def test_a_wrong_value_of_a_key_that_reloads_fails_the_upgrade(
    tmp_path: Path, change: str, is_strict: bool, error: str
) -> None:
    """A hook checks the new file before anything is changed; warnings count if that is set."""
    strict = ("--set", "validation.strict=true") if is_strict else ()
    documents = render_chart("--set-json", f"config.{change}", *strict)
    found = CliRunner().invoke(command_line(["validate"]), hook(documents, tmp_path))
    assert (bool(error), True) == (found.exit_code != 0, error in found.output), found.output
