"""What rendered manifests mean: what selectors select, where ports lead, and what names name.

A schema accepts a budget that protects no pod. Each rule here follows one kind of reference, within
the documents of one set, and yields what leads nowhere. `charts.py` renders, and applies the rules.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from gateway.config.load import load_text
from gateway.config.models import Config

Document = Mapping[str, Any]
Container = Mapping[str, Any]

CONFIG: Final = "/etc/gateway/gateway.yaml"
MODELS: Final = "/mnt/models"
PROBES: Final = ("startupProbe", "livenessProbe", "readinessProbe")
# KServe mounts models in these two alone, and sends calls to the second one, if there is one.
# Source: kserve, storage_initializer_injector.go, "CommonStorageInitialization", and
# service_reconciler.go, "createDefaultSvc".
KSERVE: Final = ("kserve-container", "transformer-container")

_METRIC: Final = re.compile(r"\b(?:gateway|nv)_[a-z0-9_]+\b")
_SUFFIX: Final = re.compile(r"_(bucket|sum|count)$")
_VARIABLE: Final = re.compile(r"\$\{env:(\w+)\}")
_LONGEST_PORT_NAME: Final = 15


@dataclass(frozen=True)
class Pod:
    """A pod that a document makes.

    Attributes:
        owner: The kind and the name of the document.
        labels: Of the pod.
        spec: Of the pod.
    """

    owner: str
    labels: Mapping[str, str]
    spec: Mapping[str, Any]

    @property
    def containers(self) -> list[Container]:
        """All containers, in the order in which they start."""
        return [*self.spec.get("initContainers", ()), *self.spec["containers"]]

    @property
    def gateways(self) -> list[Container]:
        """The containers that serve calls with the gateway."""
        return [
            each
            for each in self.spec["containers"]
            if "tensor-gateway" in each["image"] and each["args"][0] in {"serve", "kserve"}
        ]

    def ports(self) -> dict[str | int, int]:
        """Return the numbers of the ports that the pod declares, by name and by number."""
        found: dict[str | int, int] = {}
        for container in self.containers:
            for port in container.get("ports", ()):
                number = port["containerPort"]
                found |= {number: number, port.get("name", number): number}
        return found


class Rendered:
    """The documents of one set.

    Args:
        documents: What is applied together.
        theirs: Names of ConfigMaps and Secrets that the user brings, as the documentation says.
    """

    def __init__(self, documents: Iterable[Document], theirs: Iterable[str] = ()) -> None:
        self.documents = list(documents)
        self.theirs = frozenset(theirs)
        self.pods = [pod for each in self.documents if (pod := _pod_of(each)) is not None]

    def of(self, *kinds: str) -> Iterator[Document]:
        """Yield the documents of some kinds."""
        return (each for each in self.documents if each["kind"] in kinds)

    def names(self, *kinds: str) -> set[str]:
        """Return the names of the documents of some kinds."""
        return {each["metadata"]["name"] for each in self.of(*kinds)}

    def selected(self, selector: Mapping[str, Any] | None) -> list[Pod]:
        """Return the pods that a selector selects; an empty one is taken to select none."""
        return [pod for pod in self.pods if _matches(selector, pod.labels)]

    def config(self) -> Config | None:
        """Return the configuration in the set; None where the arguments or the user have it."""
        for each in self.of("ConfigMap"):
            if "gateway.yaml" in each["data"]:
                return _config_of(each["data"]["gateway.yaml"])
        return None


@cache  # each rule asks, and most sets of a run have the same one
def _config_of(text: str) -> Config:
    variables = dict.fromkeys(_VARIABLE.findall(text), "x" * 32)
    return load_text(text, environment=variables).config


def problems(documents: Iterable[Document], theirs: Iterable[str] = ()) -> Iterator[str]:
    """Yield what leads nowhere in a set of documents."""
    rendered = Rendered(documents, theirs)
    for rule in RULES:
        for problem in rule(rendered):
            yield f"{rule.__name__}: {problem}"


def _pod_of(document: Document) -> Pod | None:
    spec = document.get("spec") or {}
    name = f"{document['kind']} {document['metadata']['name']}"
    if "template" in spec:
        labels = spec["template"].get("metadata", {}).get("labels", {})
        return Pod(name, labels, spec["template"]["spec"])
    if document["kind"] == "ClusterServingRuntime":
        return Pod(name, {}, spec)
    for component in ("predictor", "transformer"):
        if "containers" in spec.get(component, {}) and document["kind"] == "InferenceService":
            return Pod(name, {}, spec[component])
    return None


def _matches(selector: Mapping[str, Any] | None, labels: Mapping[str, str]) -> bool:
    wanted = (selector or {}).get("matchLabels", {})
    return bool(wanted) and wanted.items() <= labels.items()


def _name(document: Document) -> str:
    return f"{document['kind']} {document['metadata']['name']}"


# --- selectors ---


def selectors_select_pods(rendered: Rendered) -> Iterator[str]:
    """Check that budgets, Services and policies select pods of the set."""
    for each in rendered.of("PodDisruptionBudget"):
        if not rendered.selected(each["spec"].get("selector")):
            yield f"{_name(each)} protects no pod"
    for each in rendered.of("Service"):
        if not rendered.selected({"matchLabels": each["spec"].get("selector", {})}):
            yield f"{_name(each)} leads to no pod"
    for each in rendered.of("NetworkPolicy"):
        if not rendered.selected(each["spec"]["podSelector"]):
            yield f"{_name(each)} holds for no pod"


def workloads_select_their_own_pods(rendered: Rendered) -> Iterator[str]:
    """Check that a Deployment selects, and spreads, the pods that it makes."""
    for each in rendered.of("Deployment"):
        labels = each["spec"]["template"]["metadata"]["labels"]
        if not _matches(each["spec"]["selector"], labels):
            yield f"{_name(each)} does not select its own pods"
        for constraint in each["spec"]["template"]["spec"].get("topologySpreadConstraints", ()):
            if not _matches(constraint["labelSelector"], labels):
                yield f"{_name(each)} spreads other pods than its own"


def monitors_find_one_service(rendered: Rendered) -> Iterator[str]:
    """Check that a ServiceMonitor selects one Service, which has the port."""
    for each in rendered.of("ServiceMonitor"):
        found = [
            service
            for service in rendered.of("Service")
            if _matches(each["spec"]["selector"], service["metadata"].get("labels", {}))
        ]
        if len(found) != 1:
            yield f"{_name(each)} selects {len(found)} Services; expected 1"
            continue
        names = {port.get("name") for port in found[0]["spec"]["ports"]}
        for endpoint in each["spec"]["endpoints"]:
            if endpoint["port"] not in names:
                yield f"{_name(each)}: {_name(found[0])} has no port {endpoint['port']!r}"


def scalers_scale_a_workload(rendered: Rendered) -> Iterator[str]:
    """Check that the target exists, sets no `replicas`, and requests what is measured."""
    for each in rendered.of("HorizontalPodAutoscaler", "ScaledObject"):
        target = each["spec"]["scaleTargetRef"]["name"]
        found = [one for one in rendered.of("Deployment") if one["metadata"]["name"] == target]
        if not found:
            yield f"{_name(each)} scales {target!r}, which does not exist"
        for workload in found:
            if "replicas" in workload["spec"]:
                yield f"{_name(workload)} sets `replicas`, which {_name(each)} decides"
            for container in workload["spec"]["template"]["spec"]["containers"]:
                if "cpu" not in container.get("resources", {}).get("requests", {}):
                    yield f"{_name(workload)}: {container['name']} requests no cpu"


# --- ports ---


def services_reach_ports(rendered: Rendered) -> Iterator[str]:
    """Check that each port of a Service is one of its pods, and has a name of its own."""
    for each in rendered.of("Service"):
        ports = each["spec"]["ports"]
        if len({port.get("name") for port in ports}) < len(ports):
            yield f"{_name(each)} has two ports of one name"
        for pod in rendered.selected({"matchLabels": each["spec"].get("selector", {})}):
            for port in ports:
                if port.get("targetPort", port["port"]) not in pod.ports():
                    yield f"{_name(each)}: {pod.owner} has no port {port['targetPort']!r}"


def policies_name_ports(rendered: Rendered) -> Iterator[str]:
    """Check that the ports of a NetworkPolicy are those of its pods, and all of them."""
    for each in rendered.of("NetworkPolicy"):
        named = {port["port"] for rule in each["spec"]["ingress"] for port in rule["ports"]}
        for pod in rendered.selected(each["spec"]["podSelector"]):
            ports = pod.ports()
            for port in sorted(map(str, named - ports.keys())):
                yield f"{_name(each)}: {pod.owner} has no port {port!r}"
            if set(ports.values()) - {ports[port] for port in named & ports.keys()}:
                yield f"{_name(each)} shuts a port of {pod.owner}"


def routes_reach_services(rendered: Rendered) -> Iterator[str]:
    """Check that routes of Gateway API have a parent, and lead to a Service of the set."""
    served = {
        (each["metadata"]["name"], port["port"])
        for each in rendered.of("Service")
        for port in each["spec"]["ports"]
    }
    for each in rendered.of("HTTPRoute", "GRPCRoute"):
        if not each["spec"].get("parentRefs"):
            yield f"{_name(each)} has no parent"
        for rule in each["spec"]["rules"]:
            for backend in rule["backendRefs"]:
                if (backend["name"], backend["port"]) not in served:
                    yield f"{_name(each)}: no Service {backend['name']}:{backend['port']}"


def ports_have_names_of_their_own(rendered: Rendered) -> Iterator[str]:
    """Check that no two ports of a pod share a name or a number, and that names are short."""
    for pod in rendered.pods:
        ports = [port for each in pod.containers for port in each.get("ports", ())]
        for key in ("name", "containerPort"):
            values = [port[key] for port in ports if key in port]
            if len(set(values)) < len(values):
                yield f"{pod.owner} has two ports with the same {key}"
        for port in ports:
            if len(port.get("name", "")) > _LONGEST_PORT_NAME:
                yield f"{pod.owner}: the name {port['name']!r} is too long"


def probes_ask_ports(rendered: Rendered) -> Iterator[str]:
    """Check that each probe asks a port where its container listens, by its scheme."""
    config = rendered.config()
    for pod, container in _gateways(rendered):
        own = {port.get("name"): port["containerPort"] for port in container.get("ports", ())}
        served = _addresses(container, config)
        for name in PROBES:
            if name not in container:
                if container["args"][0] == "serve":
                    yield f"{pod.owner}: {container['name']} has no {name}"
                continue
            probe = container[name].get("httpGet") or container[name]["tcpSocket"]
            number = own.get(probe["port"], probe["port"])
            if served is not None and number not in served:
                yield f"{pod.owner}: {name} asks {number}, where nothing listens"
        if config is None or "httpGet" not in container.get("livenessProbe", {}):
            continue
        has_tls = config.admin is not None and config.admin.tls is not None
        for name in PROBES:
            if has_tls != (container[name]["httpGet"].get("scheme") == "HTTPS"):
                yield f"{pod.owner}: {name} has the wrong scheme for the admin port"


def ports_are_those_of_the_configuration(rendered: Rendered) -> Iterator[str]:
    """Check that a container declares the ports on which it listens, and no others."""
    config = rendered.config()
    for pod, container in _gateways(rendered):
        served = _addresses(container, config)
        declared = {port["containerPort"] for port in container.get("ports", ())}
        for port in sorted(declared - (served or declared)):
            yield f"{pod.owner}: {container['name']} declares {port}, and does not listen there"
        if config is not None:
            for port in sorted((served or set()) - declared):
                yield f"{pod.owner}: {container['name']} does not declare {port}"


def metrics_are_not_published(rendered: Rendered) -> Iterator[str]:
    """Check that no Service has ports of clients and of the admin pages: it publishes all."""
    for each in rendered.of("Service"):
        names = {str(port["targetPort"]) for port in each["spec"]["ports"]}
        if names & {"metrics", "admin"} and (
            each["spec"].get("type", "ClusterIP") != "ClusterIP" or names - {"metrics", "admin"}
        ):
            yield f"{_name(each)} publishes the metrics with the ports of clients"


def _gateways(rendered: Rendered) -> Iterator[tuple[Pod, Container]]:
    return ((pod, each) for pod in rendered.pods for each in pod.gateways)


def _addresses(container: Container, config: Config | None) -> set[int] | None:
    """Return the ports on which a container listens for other machines; None for unknown ones."""
    if CONFIG not in container["args"]:
        text = " ".join(container["args"])
        return {
            int(port)
            for port in re.findall(r"--(?:http|grpc|admin|http_port)=\S*?(\d+)\b(?!\S)", text)
        }
    if config is None:
        return None
    found = [
        address for each in config.listeners for address in (each.http, each.grpc, each.address)
    ]
    found += [stream.address.tcp for each in config.listeners for stream in each.streams]
    if config.admin is not None:
        found.append(config.admin.metrics)
        found.append(None if config.admin.address is None else config.admin.address.tcp)
    return {each.port for each in found if each is not None and not each.is_loopback}


# --- names and files ---


def volumes_exist(rendered: Rendered) -> Iterator[str]:
    """Check that each mount has a volume, each volume a mount, and each mount its path."""
    for pod in rendered.pods:
        volumes = {each["name"] for each in pod.spec.get("volumes", ())}
        mounted = set()
        for container in pod.containers:
            mounts = container.get("volumeMounts", ())
            mounted |= {each["name"] for each in mounts}
            paths = [each["mountPath"] for each in mounts]
            if len(set(paths)) < len(paths):
                yield f"{pod.owner}: {container['name']} mounts two volumes at one path"
        for name in sorted(mounted - volumes):
            yield f"{pod.owner} mounts {name!r}, which is no volume"
        for name in sorted(volumes - mounted):
            yield f"{pod.owner} has the volume {name!r}, which nothing mounts"


def references_exist(rendered: Rendered) -> Iterator[str]:
    """Check that ConfigMaps, Secrets and accounts of pods are in the set, or the user's."""
    maps = rendered.names("ConfigMap") | rendered.theirs
    secrets = {each["spec"]["secretName"] for each in rendered.of("Certificate")}
    secrets |= rendered.names("Secret") | rendered.theirs
    for pod in rendered.pods:
        for kind, name in _references(pod):
            if name not in (secrets if kind == "Secret" else maps):
                yield f"{pod.owner} needs the {kind} {name!r}, which does not exist"
        account = pod.spec.get("serviceAccountName")
        if (
            account is not None
            and account not in rendered.names("ServiceAccount") | rendered.theirs
        ):
            yield f"{pod.owner} has the account {account!r}, which does not exist"


def _references(pod: Pod) -> Iterator[tuple[str, str]]:
    for each in pod.spec.get("volumes", ()):
        if "configMap" in each:
            yield "ConfigMap", each["configMap"]["name"]
        if "secret" in each:
            yield "Secret", each["secret"]["secretName"]
    for container in pod.containers:
        sources = [each.get("valueFrom", {}) for each in container.get("env", ())]
        for each in (*sources, *container.get("envFrom", ())):
            for key, found in each.items():
                if key.startswith(("secret", "configMap")):
                    yield "Secret" if key.startswith("secret") else "ConfigMap", found["name"]


def files_are_mounted(rendered: Rendered) -> Iterator[str]:
    """Check that the configuration, and the files that it names, lie in volumes."""
    has_file = {
        each["metadata"]["name"]
        for each in rendered.of("ConfigMap")
        if "gateway.yaml" in each["data"]
    }
    config = rendered.config()
    for pod in rendered.pods:
        sources = {
            each["name"]: each.get("configMap", {}).get("name")
            for each in pod.spec.get("volumes", ())
        }
        for container in pod.containers:
            if CONFIG not in container.get("args", ()):
                continue
            mounts = {each["mountPath"]: each["name"] for each in container.get("volumeMounts", ())}
            source = sources.get(mounts.get(str(Path(CONFIG).parent), ""))
            if source not in has_file | rendered.theirs:
                yield f"{pod.owner}: {container['name']} finds no {CONFIG}"
            reads_files = not {"serve", "--here"}.isdisjoint(container["args"])
            for path in _files(config) if reads_files and config is not None else ():
                if not any(path.startswith(f"{folder}/") or path == folder for folder in mounts):
                    yield f"{pod.owner}: {container['name']} finds no {path}"


def _files(config: Config) -> Iterator[str]:
    servers = (*config.listeners, *((config.admin,) if config.admin is not None else ()))
    for tls in (each.tls for each in (*servers, *config.upstreams.values())):
        yield from (
            name for _, name in (() if tls is None else tls.files()) if name.startswith("/")
        )
    if config.security.keys is not None:
        yield config.security.keys.file
    if config.state is not None:
        yield config.state.directory


def checks_see_what_the_gateway_sees(rendered: Rendered) -> Iterator[str]:
    """Check that what validates has the image, variables and files of the gateway."""
    for pod in rendered.pods:
        for container in pod.spec.get("initContainers", ()):
            if container.get("args", ("",))[0] != "validate":
                continue
            for gateway in pod.gateways:
                for key in ("image", "env", "envFrom"):
                    if container.get(key) != gateway.get(key):
                        yield f"{pod.owner}: {container['name']} has another {key} than the gateway"
                config_mounts = [each for each in gateway["volumeMounts"] if each.get("readOnly")]
                if any(each not in container["volumeMounts"] for each in config_mounts):
                    yield f"{pod.owner}: {container['name']} does not see all files of the gateway"


def secrets_are_not_for_everybody(rendered: Rendered) -> Iterator[str]:
    """Check that files of secrets have a group, as `security.strict` requires."""
    for pod in rendered.pods:
        for each in pod.spec.get("volumes", ()):
            if "secret" in each and each["secret"].get("defaultMode", 0o644) & 0o007:
                yield f"{pod.owner}: everybody reads the volume {each['name']!r}"
            if "secret" in each and not pod.spec["securityContext"].get("fsGroup"):
                yield f"{pod.owner}: nobody but root reads the volume {each['name']!r}"


def rights_belong_to_accounts(rendered: Rendered) -> Iterator[str]:
    """Check that a binding has a role and accounts, with the namespace that they need."""
    for each in rendered.of("RoleBinding"):
        if each["roleRef"]["name"] not in rendered.names("Role"):
            yield f"{_name(each)} is of a role that does not exist"
        for subject in each["subjects"]:
            if subject["name"] not in rendered.names("ServiceAccount"):
                yield f"{_name(each)} is for an account that does not exist"
            if not subject.get("namespace"):
                yield f"{_name(each)} names no namespace of {subject['name']!r}"


# --- what happens ---


def upstreams_use_all_addresses(rendered: Rendered) -> Iterator[str]:
    """Check that names of the cluster have `resolve: all`: `first` is one of several pods."""
    config = rendered.config()
    for name, each in () if config is None else config.upstreams.items():
        if each.resolve != "all" and not each.all_urls[0].is_loopback:
            yield f"upstream {name!r} uses one address of {each.all_urls[0].host}"


def pods_have_time_to_end(rendered: Rendered) -> Iterator[str]:
    """Check that pods have `pre_stop` and `drain`, and that model servers end afterwards."""
    config = rendered.config()
    lifecycle = (config or load_text("version: 1\nlisteners: [{http: ':1'}]").config).lifecycle
    needed_s = lifecycle.pre_stop + lifecycle.drain
    for pod, gateway in _gateways(rendered):
        grace_s = pod.spec.get("terminationGracePeriodSeconds")
        if grace_s is not None and grace_s <= needed_s:
            yield f"{pod.owner} is killed after {grace_s} s; {gateway['name']} needs {needed_s:g} s"
        for other in pod.spec["containers"]:
            hook = other.get("lifecycle", {}).get("preStop", {}).get("exec", {}).get("command", ())
            waits_s = float(hook[1]) if len(hook) == 2 and hook[0] == "sleep" else 0  # noqa: PLR2004
            if other is not gateway and waits_s < needed_s:
                yield f"{pod.owner}: {other['name']} ends before {gateway['name']}"
            if other is not gateway and grace_s is not None and grace_s <= waits_s:
                yield f"{pod.owner} is killed while {other['name']} waits"


def models_are_mounted(rendered: Rendered) -> Iterator[str]:
    """Check that KServe mounts models where they are read, and calls the gateway."""
    for pod in rendered.pods:
        if not pod.owner.startswith(("InferenceService", "ClusterServingRuntime")):
            continue
        containers = {each["name"]: each for each in pod.containers}
        for name, each in containers.items():
            if MODELS in " ".join(each["args"]) and name not in KSERVE:
                yield f"{pod.owner}: KServe mounts no models in {name}"
            if name != KSERVE[0] and any(
                one["name"] == "STORAGE_URI" for one in each.get("env", ())
            ):
                yield f"{pod.owner}: KServe reads STORAGE_URI of {KSERVE[0]}, not of {name}"
        if KSERVE[0] not in containers:
            yield f"{pod.owner} has no {KSERVE[0]}"
        called = containers.get(KSERVE[1], pod.spec["containers"][0])
        if "tensor-gateway" not in called["image"] or not called.get("ports"):
            yield f"{pod.owner}: calls go to {called['name']}, which is no gateway with a port"
        if sum(bool(each.get("ports")) for each in containers.values()) > 1:
            yield f"{pod.owner}: two containers have ports; Knative allows one"


def queries_are_of_this_release(rendered: Rendered) -> Iterator[str]:
    """Check that a scaler counts its own pods alone, by metrics that exist."""
    config = rendered.config()
    names = metric_names()
    for each in rendered.of("ScaledObject"):
        target = each["spec"]["scaleTargetRef"]["name"]
        for trigger in each["spec"]["triggers"]:
            query = trigger["metadata"]["query"]
            for metric in _METRIC.findall(query):
                if _SUFFIX.sub("", metric) not in names and metric not in names:
                    yield f"{_name(each)}: no metric {metric}"
                if (
                    metric.startswith("nv_")
                    and config
                    and "triton" not in config.telemetry.metrics.compat
                ):
                    yield f"{_name(each)}: {metric} needs `compat: [triton]`"
                selector = query.partition(metric)[2].partition("}")[0]
                if "namespace=" not in selector or f'pod=~"({target}-' not in selector:
                    yield f"{_name(each)}: {metric} adds up other releases"


def rules_use_metrics_that_exist(rendered: Rendered) -> Iterator[str]:
    """Check that alerts, recordings and dashboards name metrics of the gateway."""
    names = metric_names()
    for each in rendered.of("ConfigMap"):
        for file, text in each["data"].items():
            found = set() if file == "gateway.yaml" else set(_METRIC.findall(text))
            for metric in sorted(found):
                if _SUFFIX.sub("", metric) not in names and metric not in names:
                    yield f"{_name(each)}: {file} uses {metric}, which does not exist"


def metric_names() -> frozenset[str]:
    """Return the names of all metrics, from the page that is generated from their declarations."""
    page = (Path(__file__).parents[1] / "docs" / "metrics.md").read_text("utf-8")
    return frozenset(_METRIC.findall(page))


Rule = Callable[[Rendered], Iterator[str]]
RULES: Final[tuple[Rule, ...]] = (
    selectors_select_pods,
    workloads_select_their_own_pods,
    monitors_find_one_service,
    scalers_scale_a_workload,
    services_reach_ports,
    policies_name_ports,
    routes_reach_services,
    ports_have_names_of_their_own,
    probes_ask_ports,
    ports_are_those_of_the_configuration,
    metrics_are_not_published,
    volumes_exist,
    references_exist,
    files_are_mounted,
    checks_see_what_the_gateway_sees,
    secrets_are_not_for_everybody,
    rights_belong_to_accounts,
    upstreams_use_all_addresses,
    pods_have_time_to_end,
    models_are_mounted,
    queries_are_of_this_release,
    rules_use_metrics_that_exist,
)
