"""Imports deployments of Seldon Core 1: a gateway before the services of their predictors.

A chain of models whose tensors are declared becomes a pipeline. Calls of all other graphs go to
Seldon's own service orchestrator.

Source: seldon-core 1.18.2, operator/apis/machinelearning.seldon.io/v1 and operator/controllers.
"""

import hashlib
import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from gateway.config.yaml_tree import read_tree
from gateway.migration.importers.imported import Imported
from gateway.migration.importers.kubernetes_services import ServiceImport
from gateway.migration.importers.yaml_setting import YamlSetting

_KIND: Final = "SeldonDeployment"
_HTTP: Final = "http"
_GRPC: Final = "grpc"
_SELDON: Final = "seldon"
_PROTOCOLS: Final[Mapping[str, str]] = {
    _SELDON: _SELDON,
    "tensorflow": "tfs",
    "kfserving": "oip",
    "v2": "oip",
}
_PORTS: Final[Mapping[str, int]] = {_HTTP: 8000, _GRPC: 5001}
# The first port of the containers, each of which has the next one.
_NODE_PORTS: Final[Mapping[str, int]] = {_HTTP: 9000, _GRPC: 9500}
_LONGEST_NAME: Final = 63
# Implementations that are part of the orchestrator, and have no server.
_BUILT_IN: Final = frozenset({"SIMPLE_MODEL", "SIMPLE_ROUTER", "RANDOM_ABTEST", "AVERAGE_COMBINER"})
_TRUE: Final = "true"
_TENSORS: Final = (
    "env MODEL_METADATA with one input and one output that have name, datatype and shape (declare "
    "them and import again)"
)
_AXIS: Final = re.compile(r"-1|[0-9]{1,18}")


_Targets = list[dict[str, Any]]


class _Node(NamedTuple):
    """A model of a chain, with its only input and output."""

    name: str
    input: dict[str, Any]
    output: dict[str, Any]


def import_seldon(path: Path, http: str, grpc: str) -> Imported:
    """Import a file of resources as `ServiceImport` does; raises its errors for them, too."""
    imported = ServiceImport(path, [_KIND], http, grpc)
    names = [each.required("metadata", "name") for each in imported.resources]
    for place, each in enumerate(imported.resources):
        if names[place] in names[:place]:
            imported.leave(each, f"{names[place]!r} left out: another namespace has this name")
        else:
            _DeploymentImport(imported, each, names).run()
    if len(names) == 1:
        imported.found.config["listeners"][0]["default_model"] = names[0]
    return imported.found


class _DeploymentImport:
    """The import of one deployment."""

    def __init__(
        self, imported: ServiceImport, resource: YamlSetting, names: Collection[str]
    ) -> None:
        self._import = imported
        self._resource = resource
        self._names = names
        self._name = resource.required("metadata", "name")
        self._predictors = resource.all("spec", "predictors")
        if not self._predictors:
            raise resource.get("spec", "predictors").error("is missing: expected a predictor")
        kind = self._predictors[0].text("graph", "endpoint", "type")
        is_grpc = _GRPC in {resource.text("spec", "transport").lower(), kind.lower()}
        self._carrier = _GRPC if is_grpc else _HTTP
        self._protocol = _PROTOCOLS.get(resource.text("spec", "protocol") or _SELDON, "")

    def run(self) -> None:
        spec = self._resource.get("spec")
        if not self._protocol:
            text = f"protocol {spec.text('protocol')!r}; expected one of {', '.join(_PROTOCOLS)}"
            self._import.leave(spec.get("protocol"), f"{self._name!r} left out: {text}")
            return
        if spec.text("serverType") == "kafka":
            text = f"{self._name!r} left out: its server reads Kafka, and has no address"
            self._import.leave(spec.get("serverType"), text)
            return
        targets, of_grpc = self._targets(spec.get("predictors"))
        names = [self._name]
        root = self._predictors[0].required("graph", "name")
        # The protocols with names of models have that of the node in their paths.
        if self._protocol != _SELDON and root not in self._names:
            names.append(root)
        by_protocol = {} if of_grpc == targets else {f"{self._protocol}.{_GRPC}": of_grpc}
        self._import.route(self._import.claim(self._resource, names), targets, by_protocol)
        if self._protocol == _SELDON and any("upstream" in each for each in targets):
            # Else the gateway answers feedback, which a router learns from.
            forwarded = {_SELDON: {"feedback": "forward"}}
            self._import.found.config["listeners"][0]["options"] = forwarded
            self._import.leave(
                self._resource,
                f"model {self._name!r}: Seldon does not tell inputs and outputs; set "
                f"models.{self._name}.signature for clients of other protocols",
            )

    def _targets(self, predictors: YamlSetting) -> tuple[_Targets, _Targets]:
        """Return the targets over HTTP, and over gRPC, with the shares of the predictors."""
        live = []
        for each in self._predictors:
            if each.text("shadow") == _TRUE:
                text = f"predictor {each.text('name')!r} left out: it is a shadow"
                self._import.leave(each.get("shadow"), f"{text}; see migrations.NAME.mirror")
            else:
                live.append((each, each.number("traffic") or 0))
        pairs = [self._pair(each) for each, _ in live]
        if len(live) == 1:
            return [pairs[0][0]], [pairs[0][1]]
        total = sum(weight for _, weight in live)
        if total != 100:  # noqa: PLR2004  # percent, which Seldon checks, too
            raise predictors.error(f"traffic adds up to {total}: expected 100")
        weights = [{"weight": weight} for _, weight in live]
        http, grpc = [
            [pair[side] | weight for pair, weight in zip(pairs, weights, strict=True)]
            for side in (0, 1)
        ]
        return http, grpc

    def _pair(self, predictor: YamlSetting) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the targets of a predictor over HTTP and gRPC: a pipeline, or Seldon's service."""
        explainer = predictor.get("explainer")
        service = predictor.text("annotations", "seldon.io/svc-name") or self._service(predictor)
        if explainer.value is not None:
            text = f"'explainer' has no equivalent: call service {service}-explainer"
            self._import.leave(explainer, text)
        chain = self._chain(predictor, service)
        graph, root = predictor.get("graph"), predictor.required("graph", "name")
        if chain:
            pipeline = self._pipeline(predictor, service, chain)
            return pipeline, pipeline
        has_engine = predictor.text("annotations", "seldon.io/no-engine") != _TRUE
        is_alone = _is_model(graph) and not graph.all("children")
        if self._protocol != _SELDON and is_alone and predictor.get("ssl").value is None:
            # The orchestrator forwards few calls, and ends at one of its gRPC health.
            service = self._service(predictor, root) if has_engine else service
            has_engine = False
        ports = {
            carrier: port if has_engine else self._port(predictor, root, carrier)
            for carrier, port in _PORTS.items()
        }
        http = self._upstream(predictor, service, (_HTTP, ports[_HTTP]), root)
        if self._protocol != _SELDON and has_engine:
            text = "does not tell whether it is ready, and neither does the gateway"
            if self._protocol == "oip":
                self._import.leave(predictor, f"service {service} {text} before it")
            return http, http
        return http, self._upstream(predictor, service, (_GRPC, ports[_GRPC]), root)

    def _upstream(
        self, predictor: YamlSetting, service: str, door: tuple[str, int], node: str
    ) -> dict[str, Any]:
        """Add a service as an upstream, and return the target.

        Args:
            predictor: What it belongs to.
            service: Name of the service.
            door: Its carrier and port.
            node: Name of the model for protocols that name it.
        """
        carrier, port = door
        tls: dict[str, Any] = {}
        if predictor.get("ssl").value is not None:
            tls["tls"] = {}
            if carrier == _HTTP:
                self._import.leave(predictor.get("ssl"), "'ssl': set tls.ca of the upstream")
        suffix = f".{_GRPC}" if carrier == _GRPC else ""
        url = f"{self._protocol}+{carrier}", port
        name = self._import.upstream(self._resource, service, url, suffix, **tls)
        return {"upstream": name} | ({} if self._protocol == _SELDON else {"model": node})

    def _chain(self, predictor: YamlSetting, service: str) -> list[_Node]:
        """Return the models of a chain; none if it is one model, or the reason is noted."""
        nodes = list(_nodes(predictor.get("graph")))
        found = []
        is_chain = len(nodes) > 1
        for each in nodes:
            name, children = each.required("name"), len(each.all("children"))
            reason = ""
            if not _is_model(each):
                reason = f"is a {each.text('type') or each.text('implementation') or 'custom unit'}"
            elif children > 1:
                reason = f"has {children} children"
            elif is_chain:
                node = _declared(predictor, name)
                if node is None:
                    reason = f"has no {_TENSORS}"
                else:
                    found.append(node)
            if reason:
                text = f"node {name!r} {reason}, so the graph is no pipeline"
                self._import.leave(each, f"{text}: its calls go to service {service}")
        return found if len(found) == len(nodes) else []

    def _pipeline(self, predictor: YamlSetting, name: str, chain: list[_Node]) -> dict[str, Any]:
        """Add the pipeline of a chain, with an upstream and a route for each node."""
        config = self._import.found.config
        steps: dict[str, Any] = {}
        source = f"request.{chain[0].input['name']}"
        for node in chain:
            service = self._service(predictor, node.name)
            door = self._carrier, self._port(predictor, node.name, self._carrier)
            target = self._upstream(predictor, service, door, node.name)
            self._import.route(self._import.claim(self._resource, [service]), [target])
            signature = {"inputs": [node.input], "outputs": [node.output]}
            config.setdefault("models", {})[service] = {"signature": signature}
            steps[node.name] = {"model": service, "inputs": {node.input["name"]: source}}
            source = f"{node.name}.{node.output['name']}"
        pipeline = {"steps": steps, "outputs": {chain[-1].output["name"]: source}}
        config.setdefault("pipelines", {})[name] = pipeline
        return {"model": name}

    def _service(self, predictor: YamlSetting, *node: str) -> str:
        name = "-".join((self._name, predictor.required("name"), *node))
        if len(name) <= _LONGEST_NAME:
            return name
        return f"seldon-{hashlib.md5(name.encode(), usedforsecurity=False).hexdigest()}"

    def _port(self, predictor: YamlSetting, node: str, carrier: str) -> int:
        """Return the port of a node: that of the file, or the one that Seldon gives it."""
        graph = next(each for each in _nodes(predictor.get("graph")) if each.text("name") == node)
        container = _container(predictor, node)
        ports = container.all("ports") if container else []
        own = [each.number("containerPort") for each in ports if each.text("name") == carrier]
        names = [
            each.text("name")
            for one in self._predictors
            for each in (*_containers(one), *_nodes(one.get("graph")))
        ]
        place = list(dict.fromkeys(names)).index(node)
        number = graph.number("endpoint", f"{carrier}Port")
        return number or next(filter(None, own), _NODE_PORTS[carrier] + place)


def _nodes(graph: YamlSetting) -> Iterator[YamlSetting]:
    yield graph
    for each in graph.all("children"):
        yield from _nodes(each)


def _is_model(node: YamlSetting) -> bool:
    is_built_in = node.text("implementation") in _BUILT_IN
    return not is_built_in and node.text("type") in {"", "MODEL"} and not node.all("methods")


def _containers(predictor: YamlSetting) -> list[YamlSetting]:
    specs = predictor.all("componentSpecs")
    return [each for spec in specs for each in spec.all("spec", "containers")]


def _container(predictor: YamlSetting, name: str) -> YamlSetting | None:
    return next((each for each in _containers(predictor) if each.text("name") == name), None)


def _declared(predictor: YamlSetting, name: str) -> _Node | None:
    """Return a node whose container declares one input and one output, as Open Inference does."""
    container = _container(predictor, name)
    for each in container.all("env") if container else ():
        if each.text("name") == "MODEL_METADATA":
            value = each.get("value")
            tree = read_tree(value.text(), {}, Path())
            metadata = YamlSetting(value.file, tree, value.line, tree.value)
            sides = [metadata.all(side) for side in ("inputs", "outputs")]
            tensors = [_tensor(tensor) for side in sides for tensor in side]
            if [len(side) for side in sides] == [1, 1] and all(tensors):
                return _Node(name, *tensors)
    return None


def _tensor(setting: YamlSetting) -> dict[str, Any]:
    """Return a tensor of the metadata, or nothing for one in the style of Seldon."""
    shape = [each.text() for each in setting.all("shape")]
    names = {key: setting.text(key) for key in ("name", "datatype")}
    if not (shape and all(names.values()) and all(map(_AXIS.fullmatch, shape))):
        return {}
    return {**names, "shape": [int(each) for each in shape]}
