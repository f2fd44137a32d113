"""Imports the `models.config` of TensorFlow Serving: names, labels, and a route to the old server.

The gateway runs no SavedModel: the server keeps running on other ports, behind the gateway.

Source: TensorFlow Serving, "Configuring the model server"; docs/protocols/tensorflow-serving.md,
"11. Configuration".
"""

from pathlib import Path
from typing import Any, Final

from gateway.migration.importers.imported import Imported, Unmapped, before_server, shifted_port
from gateway.migration.importers.text_format import MalformedText, TextField, parse_fields

_PORTS: Final = (8501, 8500)
# What stays with the server that keeps running.
_OF_THE_SERVER: Final = frozenset({"base_path", "model_platform", "model_version_policy"})
_LABELS: Final = "version_labels"
_REST: Final = "tensorflow_http"


def import_models(path: Path) -> Imported:
    """Return a configuration with the models of a file, before the server that has them.

    Raises:
        OSError: The file cannot be read.
        ValueError: It is not in text format, or has no list of models.
    """
    try:
        config = parse_fields(path.read_text())
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8") from error
    except MalformedText as error:
        raise ValueError(f"{path}: {error}") from error
    lists = config.all("model_config_list")
    if not lists:
        raise ValueError(f"{path} has no model_config_list")
    found = Imported()
    models: dict[str, Any] = {}
    for entry in [each for one in lists for each in one.all("config")]:
        _add(entry, models, found, str(path))
    for each in config.fields:
        if each.name != "model_config_list":
            found.unmapped.append(_unmapped(str(path), each))
    if models:
        http, grpc = (shifted_port(port) for port in _PORTS)
        upstream = {"url": f"tfs+grpc://127.0.0.1:{grpc}"}
        found.config = before_server(_PORTS, "tensorflow", upstream, sorted(models))
        # What only the server knows, such as signatures to classify, passes over its own carrier.
        found.config["upstreams"][_REST] = {"url": f"tfs+http://127.0.0.1:{http}"}
        match = {"protocol": "tfs.http", "model": sorted(models)}
        found.config["routes"].insert(0, {"match": match, "targets": [{"upstream": _REST}]})
        found.config["models"] = models
    return found


def _add(entry: TextField, models: dict[str, Any], found: Imported, file: str) -> None:
    name = entry.text("name")
    if not name:
        found.unmapped.append(Unmapped(file, entry.line, "model left out: it has no name"))
        return
    labels = {each.text("key"): each.integer("value", 0) for each in entry.all(_LABELS)}
    models[name] = {"protocols": {"tfs": {"labels": labels}}}
    for each in entry.fields:
        if each.name not in _OF_THE_SERVER | {"name", _LABELS}:
            found.unmapped.append(_unmapped(file, each))


def _unmapped(file: str, setting: TextField) -> Unmapped:
    return Unmapped(file, setting.line, f"{setting.name!r} has no equivalent")
