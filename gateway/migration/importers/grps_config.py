"""Imports `inference.yml` and `server.yml` of a grps server as a configuration.

TorchScript models run in the gateway. All other models stay at their server, behind the gateway.

Source: NetEase-Media/grps 1.1.0, template/py_template/conf and server/cpp_server/conf.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from gateway.config.yaml_tree import YamlTree
from gateway.migration.importers.imported import Imported, Unmapped, shifted_port
from gateway.migration.importers.yaml_setting import read_documents
from gateway.protocols.grps.options import DEFAULT_DAG

_INFERENCE, _SERVER = "inference.yml", "server.yml"
_HTTP, _RPC = "7080", "7081"
_OLD: Final = "old"
"""The upstream that is the old server."""

_DEVICES: Final[Mapping[str, str]] = {"cpu": "cpu", "cuda": "cuda", "gpu": "cuda", "original": ""}
_MODEL_KEYS: Final = frozenset(
    {"name", "version", "device", "inferer_type", "inferer_path", "converter_type", "batching"}
)
_STREAMING: Final[Mapping[str, str]] = {
    "ctrl_mode": "mode",
    "ctrl_key": "key",
    "res_content_type": "content_type",
}


def import_grps(directory: Path) -> Imported:
    """Import the configuration of a grps server from its directory `conf`.

    Raises:
        OSError: A file cannot be read.
        ValueError: A file is not YAML.
    """
    trees = [read_documents(directory / name)[0].tree for name in (_INFERENCE, _SERVER)]
    return _GrpsImport(directory, *trees).run()


class _GrpsImport:
    """The import of one server."""

    def __init__(self, directory: Path, inference: YamlTree, server: YamlTree) -> None:
        self._directory = directory
        self._inference = inference
        self._server = server
        self._found = Imported()
        self._models: dict[str, dict[str, Any]] = {}
        self._keys: dict[str, str] = {}
        self._names: dict[str, str] = {}
        self._staying: dict[str, str] = {}
        self._listener: dict[str, Any] = {"name": "main"}
        self._options: dict[str, Any] = {}

    def run(self) -> Imported:
        self._interface()
        for place, model in enumerate(_list(self._inference.value.get("models"))):
            self._model(place, _mapping(model))
        self._dag(_mapping(self._inference.value.get("dag")))
        self._server_settings()
        if self._names:
            self._options["models"] = self._names
        if self._options:
            self._listener["options"] = {"grps": self._options}
        config: dict[str, Any] = {"version": "1", "listeners": [self._listener]}
        if self._staying or not self._models:
            port = int(str(self._listener["http"]).rpartition(":")[2])
            keys = {"options": {"keys": self._keys}} if self._keys else {}
            config["upstreams"] = {
                _OLD: {"url": f"grps+http://127.0.0.1:{shifted_port(port)}", **keys}
            }
        if self._models:
            config["models"] = self._models
        self._found.config = config | self._found.config
        return self._found

    def _leave(self, file: str, path: Sequence[str | int], text: str) -> None:
        tree = self._inference if file == _INFERENCE else self._server
        line = tree.position(tuple(path), of_key=True)[0]
        self._found.unmapped.append(Unmapped(str(self._directory / file), line, text))

    def _interface(self) -> None:
        interface = _mapping(self._server.value.get("interface"))
        host = _text(interface.get("host")) or "0.0.0.0"  # noqa: S104  # as the server itself
        ports = [*_text(interface.get("port")).replace(" ", "").split(","), "", ""]
        http, rpc = ports[0] or _HTTP, ports[1] or _RPC
        framework = _text(interface.get("framework")) or "http"
        if not (http.isdecimal() and rpc.isdecimal()):
            raise ValueError(f"interface.port is {interface.get('port')!r}; expected numbers")
        self._listener["http"] = f"{host}:{http}"
        if framework == "http+grpc":
            self._listener["grpc"] = f"{host}:{rpc}"
        elif framework == "http+brpc":
            self._listener["streams"] = [{"protocol": "grps", "address": f"{host}:{rpc}"}]
        self._customized(_mapping(interface.get("customized_predict_http")))

    def _customized(self, customized: dict[str, Any]) -> None:
        path = ["interface", "customized_predict_http"]
        streaming = _mapping(customized.get("streaming_ctrl"))
        values = {new: _text(streaming[old]) for old, new in _STREAMING.items() if old in streaming}
        values = {key: value for key, value in values.items() if value}
        if values:
            self._options["streaming"] = values
        if "path" in customized:
            self._leave(
                _SERVER,
                [*path, "path"],
                "'customized_predict_http.path': describe the body in listeners[].options.grps."
                "customized",
            )

    def _model(self, place: int, model: dict[str, Any]) -> None:
        name, version = _text(model.get("name")), _text(model.get("version"))
        kind = _text(model.get("inferer_type"))
        path: list[str | int] = ["models", place]
        if not name:
            self._leave(_INFERENCE, path, "model left out: it has no name")
            return
        entry: dict[str, Any] = {}
        if kind == "torch" and _text(model.get("inferer_path")):
            entry = self._torch(path, model)
            self._names[f"{name}-{version}"] = name
        else:
            self._staying[name] = version
            self._keys[f"{name}/{version}" if version else name] = f"{name}-{version}"
            self._leave(
                _INFERENCE,
                [*path, "inferer_type"],
                f"'inferer_type: {kind}': no backend runs model {name!r}; its server stays, behind "
                f"the gateway, as upstream {_OLD!r}",
            )
        if entry:  # an old server batches itself
            self._batching(_mapping(model.get("batching")), entry)
            self._models[name] = entry
            self._rest(path, model)

    def _torch(self, path: list[str | int], model: dict[str, Any]) -> dict[str, Any]:
        file = Path(_text(model["inferer_path"]))
        entry: dict[str, Any] = {
            "backend": "torch",
            # Relative paths start at the folder of the deployed server, which has `conf`.
            "path": str(file if file.is_absolute() else (self._directory / ".." / file).resolve()),
        }
        device, _, index = _text(model.get("device")).partition(":")
        found = _DEVICES.get(device)
        if found:
            entry["options"] = {"device": found}
        if device and (found is None or not found or index not in {"", "0"}):
            self._leave(
                _INFERENCE, [*path, "device"], f"'device: {model['device']}' has no equivalent"
            )
        self._leave(
            _INFERENCE,
            path,
            f"model {model['name']!r} needs its inputs and outputs in 'signature': TorchScript "
            "and grps do not name them",
        )
        converter = _text(model.get("converter_type"))
        if converter not in {"", "none", "torch"}:
            self._leave(
                _INFERENCE,
                [*path, "converter_type"],
                f"'converter_type: {converter}' has no equivalent",
            )
        return entry

    def _batching(self, batching: dict[str, Any], entry: dict[str, Any]) -> None:
        if _text(batching.get("type")) != "dynamic":
            return
        size = _number(batching.get("max_batch_size")) or 16
        delay = _number(batching.get("batch_timeout_us")) or 1000
        entry["batching"] = {"max_batch_size": size, "max_delay": f"{delay}us"}
        entry.setdefault("options", {})["max_batch_size"] = size

    def _rest(self, path: list[str | int], model: dict[str, Any]) -> None:
        for key, value in model.items():
            if key not in _MODEL_KEYS and _has_value(value):
                self._leave(_INFERENCE, [*path, key], f"{key!r} has no equivalent")

    def _dag(self, dag: dict[str, Any]) -> None:
        nodes = [_text(_mapping(node).get("model")) for node in _list(dag.get("nodes"))]
        if not nodes:
            return
        if len(nodes) == 1 and nodes[0] in self._names:
            self._options["default_model"] = self._names[nodes[0]]
        elif any(node not in self._names for node in nodes):
            # A request without a model becomes one for this name, which is the DAG of the server.
            self._options["default_model"] = DEFAULT_DAG
            self._keys[DEFAULT_DAG] = ""
        else:
            self._leave(
                _INFERENCE,
                ["dag", "nodes"],
                f"'dag' with {len(nodes)} nodes: name the tensors between them in 'pipelines'",
            )

    def _server_settings(self) -> None:
        requests = _number(self._server.value.get("max_connections"))
        if requests:
            self._listener["limits"] = {"requests_in_flight": requests}
        running = _number(self._server.value.get("max_concurrency"))
        if running:
            self._found.config["policies"] = {"in_flight": running}
        for key in ("gpu", "log"):
            if _has_value(self._server.value.get(key)):
                reason = (
                    "the log goes to standard error" if key == "log" else "it has no equivalent"
                )
                self._leave(_SERVER, [key], f"'{key}': {reason}")


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _text(value: Any) -> str:
    return value.strip() if isinstance(value, str) else ""


def _number(value: Any) -> int:
    text = _text(value)
    return int(text) if text.isdecimal() else 0


def _has_value(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_has_value, value.values()))
    return value not in (None, "", [])
