"""Imports resources of KServe: a gateway before the services of each InferenceService.

Source: KServe 0.20, pkg/constants, pkg/apis/serving/v1beta1 and the reconcilers of services.
"""

from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple

from gateway.migration.importers.imported import Imported
from gateway.migration.importers.kubernetes_services import ServiceImport
from gateway.migration.importers.yaml_setting import YamlSetting

_SERVICE: Final = "InferenceService"
_KINDS: Final = (_SERVICE, "ServingRuntime", "ClusterServingRuntime")
_GROUP: Final = "serving.kserve.io/"
_SCHEMES: Final[Mapping[str, str]] = {
    "v1": "tfs+http",
    "grpc-v1": "tfs+grpc",
    "v2": "oip+http",
    "grpc-v2": "oip+grpc",
}
_PORT: Final = 80
_MESH: Final = ("modelmesh-serving", ("oip+grpc", 8033))
_SERVERS: Final = (
    *("sklearn", "tensorflow", "xgboost", "pytorch", "triton", "onnx", "huggingface", "pmml"),
    *("lightgbm", "paddle"),
)
# What has V2 where no version is named: keys of a predictor, formats of `model`, and runtimes by
# their annotation `server-type`, or by the name that KServe gives them.
_V2_SERVERS: Final = frozenset({"triton", "onnx", "huggingface"})
_V2_FORMATS: Final = frozenset({"triton", "vllm"})
_V2_RUNTIMES: Final = frozenset({"mlserver", "tritonserver"})
_TENSORFLOW: Final = "tensorflow"


class _Server(NamedTuple):
    """What a component runs.

    Attributes:
        setting: Its key in the file.
        kind: The format of its models, or "" for containers.
        protocol: Its protocol, as KServe calls it.
    """

    setting: YamlSetting
    kind: str
    protocol: str


def import_kserve(path: Path, http: str, grpc: str) -> Imported:
    """Import a file of resources as `ServiceImport` does; raises its errors for them, too."""
    imported = ServiceImport(path, _KINDS, http, grpc)
    runtimes = {
        each.required("metadata", "name"): each
        for each in imported.resources
        if each.text("kind") != _SERVICE
    }
    used: set[str] = set()
    for each in imported.resources:
        if each.text("kind") == _SERVICE:
            _ServiceImport(imported, each, runtimes).run()
            used.add(each.text("spec", "predictor", "model", "runtime"))
    _set_dialect(imported)
    for name, runtime in runtimes.items():
        if name not in used:
            imported.leave(runtime, f"runtime {name!r} left out: no {_SERVICE} names it")
    return imported.found


def _set_dialect(imported: ServiceImport) -> None:
    """Let the listener have V1 in the form of KServe, so that messages pass as they came."""
    config = imported.found.config
    of_v1 = {
        name: "options" in each
        for name, each in config["upstreams"].items()
        if each["url"].startswith("tfs+http")
    }
    if any(of_v1.values()):
        config["listeners"][0]["options"] = {"tfs": {"dialect": "kserve"}}
        for name, is_kserve in of_v1.items():
            if not is_kserve:
                text = "V1 here has the form of KServe, without signatures, labels and versions"
                imported.leave(imported.resources[0], f"upstream {name!r}: {text}")


class _ServiceImport:
    """The import of one InferenceService."""

    def __init__(
        self, imported: ServiceImport, resource: YamlSetting, runtimes: Mapping[str, YamlSetting]
    ) -> None:
        self._import = imported
        self._resource = resource
        self._runtimes = runtimes
        self._name = resource.required("metadata", "name")
        self._predictor = resource.get("spec", "predictor")
        if self._predictor.value is None:
            raise self._predictor.error(f"is missing: expected {_GROUP}v1beta1")

    def run(self) -> None:
        server = self._server(self._predictor)
        if server.protocol not in _SCHEMES:
            text = f"protocol {server.protocol!r}; expected one of {', '.join(_SCHEMES)}"
            self._import.leave(server.setting, f"{_SERVICE} {self._name!r} left out: {text}")
            return
        name = _model_name(server.setting) or self._name
        if not self._import.claim(self._resource, [name]):
            return
        targets = self._targets(server)
        timeout = self._predictor.number("timeout")
        settings: dict[str, Any] = {"timeout": f"{timeout}s"} if timeout else {}
        self._import.route([name], targets, **settings)
        self._leave_rest(server, name, len(targets))

    def _server(self, component: YamlSetting) -> _Server:
        for kind in _SERVERS:
            server = component.get(kind)
            if server.value is not None:
                default = "v2" if kind in _V2_SERVERS else "v1"
                return _Server(server, kind, server.text("protocolVersion") or default)
        model = component.get("model")
        if model.value is not None:
            kind = model.text("modelFormat", "name")
            return _Server(model, kind, model.text("protocolVersion") or self._default(model, kind))
        containers = component.all("containers")
        if not containers:
            raise component.error("has no server: expected 'model' or 'containers'")
        first = next(
            (each for each in containers if each.text("name") == "transformer-container"),
            containers[0],
        )
        values = (
            each.text("value") for each in first.all("env") if each.text("name") == "PROTOCOL"
        )
        return _Server(first, "", next(values, "v1"))

    def _default(self, model: YamlSetting, kind: str) -> str:
        name = model.text("runtime")
        runtime = self._runtimes.get(name)
        server = runtime and runtime.text("metadata", "annotations", f"{_GROUP}server-type")
        if (server or name.removeprefix("kserve-")) in _V2_RUNTIMES or kind in _V2_FORMATS:
            return "v2"
        if runtime is not None:
            versions = [each.text() for each in runtime.all("spec", "protocolVersions")]
            found = (each for each in versions if each in ("v1", "v2"))
            return next(found, (versions or ["v1"])[0])
        if name and not name.startswith("kserve-"):
            text = f"runtime {name!r} is not in the file, so its protocol counts as v1"
            self._import.leave(model.get("runtime"), text)
        return "v1"

    def _targets(self, server: _Server) -> list[dict[str, Any]]:
        """Return the targets: the services among which KServe splits the calls."""
        if self._resource.text("metadata", "annotations", _GROUP + "deploymentMode") == "ModelMesh":
            return [{"upstream": self._import.upstream(self._resource, *_MESH)}]
        transformer = self._resource.get("spec", "transformer")
        if transformer.value is not None:
            # Its own port is that of HTTP, whatever it speaks to the predictor.
            own = server._replace(protocol=server.protocol.removeprefix("grpc-"))
            return [self._target(f"{self._name}-transformer", own)]
        service = "-".join(filter(None, (self._name, self._predictor.text("name"), "predictor")))
        tags = self._resource.all("status", "components", "predictor", "traffic")
        if len(tags) > 1 and all(each.text("tag") for each in tags):
            return [
                self._target(f"{each.text('tag')}-{service}", server, each.number("percent") or 0)
                for each in tags
            ]
        canaries = self._resource.all("spec", "canary")
        if not canaries:
            return [self._target(service, server)]
        rest = 100 - sum(each.number("trafficPercent") or 0 for each in canaries)
        if rest < 0:
            raise self._resource.get("spec", "canary").error(f"has {100 - rest} %; expected 100")
        return [
            self._target(service, server, rest),
            *(
                self._target(
                    f"{self._name}-{each.required('predictor', 'name')}-predictor",
                    self._server(each.get("predictor")),
                    each.number("trafficPercent") or 0,
                )
                for each in canaries
            ),
        ]

    def _target(self, service: str, server: _Server, weight: int | None = None) -> dict[str, Any]:
        options: dict[str, Any] = {}
        if server.protocol == "v1" and server.kind != _TENSORFLOW:
            options = {"options": {"dialect": "kserve"}}
        scheme = _SCHEMES[server.protocol]
        name = self._import.upstream(self._resource, service, (scheme, _PORT), **options)
        return {"upstream": name} | ({} if weight is None else {"weight": weight})

    def _leave_rest(self, server: _Server, name: str, targets: int) -> None:
        explainer = self._resource.get("spec", "explainer")
        if explainer.value is not None:
            service = f"{self._name}-explainer"
            self._import.leave(explainer, f"'explainer' has no equivalent: call service {service}")
        canary = self._predictor.get("canaryTrafficPercent")
        if canary.value is not None and targets == 1:
            self._import.leave(
                canary,
                "'canaryTrafficPercent': KServe splits the calls; for weights here, set "
                f"{_GROUP}enable-tag-routing, and import the resource with its status",
            )
        if server.kind == "triton":
            text = f"model {name!r}: Triton has the names of its folders; set them in match.model"
            self._import.leave(server.setting, text)
        if server.protocol == "v1" and server.kind != _TENSORFLOW:
            self._import.leave(
                server.setting,
                f"model {name!r}: V1 does not tell inputs and outputs; set "
                f"models.{name}.signature for CloudEvents and clients of other protocols",
            )


def _model_name(server: YamlSetting) -> str:
    """Return the name in the arguments of a server, or ""."""
    words = [word for each in server.all("args") for word in each.text().split("=", 1)]
    for option, value in pairwise(words):
        if option in {"--model_name", "--model-name"} and "{{" not in value:
            return value
    return ""
