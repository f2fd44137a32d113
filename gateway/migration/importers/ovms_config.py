"""Imports the `config.json` of OpenVINO Model Server: names of models, and graphs as pipelines.

The server keeps its models, behind the gateway. It has no graphs from 2026.4 on.

Source: OpenVINO Model Server 2026.3, src/schema.cpp and "Directed Acyclic Graph (DAG) Scheduler".
"""

from pathlib import Path
from typing import Any, Final

from gateway.migration.importers.imported import Imported, before_server, shifted_port
from gateway.migration.importers.triton_ensembles import without_missing
from gateway.migration.importers.yaml_setting import YamlSetting, read_documents

# The ports of the manual: a file names none.
_PORTS: Final = (8000, 9000)
_MODEL_NODE: Final = "DL model"
# Keys of a graph and of a node that branch and join.
_BRANCHES: Final = ("demultiply_count", "gather_from_node")
_KEYS: Final = frozenset({"model_config_list", "pipeline_config_list", "mediapipe_config_list"})
# What stays with the server that keeps running, or belongs to its graphs.
_OF_THE_SERVER: Final = frozenset({"monitoring", "custom_loader_config_list"})


class _Left(Exception):
    """A graph has no equivalent."""

    def __init__(self, setting: YamlSetting, text: str) -> None:
        super().__init__(text)
        self.setting = setting


def import_ovms(path: Path) -> Imported:
    """Return a configuration with the models and graphs of a file, before the server that has them.

    Raises:
        OSError: The file cannot be read.
        ValueError: It is not JSON, or has another form.
    """
    document = read_documents(path)[0]
    if document.get("model_config_list").value is None:
        raise ValueError(f"{path} has no model_config_list")
    models = [each.required("config", "name") for each in document.all("model_config_list")]
    media = [each.required("name") for each in document.all("mediapipe_config_list")]
    found = Imported()
    pipelines: dict[str, dict[str, Any]] = {}
    graphs = {each.required("name"): each for each in document.all("pipeline_config_list")}
    for name, graph in graphs.items():
        if name in models or name in media:
            found.unmapped.append(graph.unmapped(f"graph {name!r} left out: a model has its name"))
            continue
        try:
            pipelines[name] = _pipeline(graph)
        except _Left as left:
            found.unmapped.append(left.setting.unmapped(f"graph {name!r} left out: {left}"))
    kept, missing = without_missing(
        {
            name: {step["model"] for step in pipeline["steps"].values()}
            for name, pipeline in pipelines.items()
        },
        models,
    )
    for name, model in missing.items():
        text = f"graph {name!r} left out: model_config_list has no model {model!r}"
        found.unmapped.append(graphs[name].unmapped(text))
    for key in document.value:
        if key not in _KEYS | _OF_THE_SERVER:
            found.unmapped.append(document.get(key).unmapped(f"{key!r} has no equivalent"))
    names = list(dict.fromkeys([*models, *media]))
    if names:
        url = f"oip+grpc://127.0.0.1:{shifted_port(_PORTS[1])}"
        upstream = {"url": url, "options": {"dialect": "ovms"}}
        found.config = before_server(_PORTS, "openvino", upstream, names)
    for name in kept:
        found.config["routes"].append({"match": {"model": [name]}, "targets": [{"model": name}]})
        found.config.setdefault("pipelines", {})[name] = pipelines[name]
    return found


def _pipeline(graph: YamlSetting) -> dict[str, Any]:
    """Return the pipeline of a graph.

    Raises:
        _Left: It branches, or has a node that is no model.
        ValueError: It has another form.
    """
    nodes = graph.all("nodes")
    for each in (graph, *nodes):
        for key in _BRANCHES:
            if each.get(key).value is not None:
                raise _Left(each.get(key), f"{key!r} has no equivalent")
    sources = {("request", each.text()): f"request.{each.text()}" for each in graph.all("inputs")}
    for node in nodes:
        if node.text("type") != _MODEL_NODE:
            text = f"node {node.text('name')!r} is of type {node.text('type')!r}"
            raise _Left(node.get("type"), text)
        name = node.required("name")
        for output in node.all("outputs"):
            source = f"{_step_name(name)}.{output.required('data_item')}"
            sources[name, output.required("alias")] = source
    steps: dict[str, dict[str, Any]] = {}
    for node in nodes:
        step = steps[_step_name(node.required("name"))] = {"model": node.required("model_name")}
        version = node.text("version")
        if version:
            step["version"] = version
        step["inputs"] = _sources(node.all("inputs"), sources)
    return {"steps": steps, "outputs": _sources(graph.all("outputs"), sources)}


def _step_name(node: str) -> str:
    return node.replace(".", "-")  # a source is STEP.OUTPUT


def _sources(entries: list[YamlSetting], sources: dict[tuple[str, str], str]) -> dict[str, str]:
    """Return the sources of the inputs of a node, or of the outputs of a graph."""
    found: dict[str, str] = {}
    for each in entries:
        for name in each.value if isinstance(each.value, dict) else ():
            node, item = each.required(name, "node_name"), each.required(name, "data_item")
            if (node, item) not in sources:
                raise _Left(each.get(name), f"node {node!r} has no output {item!r}")
            found[name] = sources[node, item]
    return found
