"""`gateway import ovms`: models of OpenVINO Model Server get a route, and graphs become pipelines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.config.load import load_text
from gateway.migration.importers.imported import Imported
from gateway.migration.importers.ovms_config import import_ovms


def imported(folder: Path, document: object) -> Imported:
    path = folder / "config.json"
    path.write_text(document if isinstance(document, str) else json.dumps(document, indent="\t"))
    found = import_ovms(path)
    if found.models:
        load_text(yaml.safe_dump(found.config))
    return found


def models(*names: str) -> dict[str, Any]:
    config = {"base_path": "/m", "nireq": 2, "shape": "auto", "target_device": "CPU"}
    return {"model_config_list": [{"config": {"name": name, **config}} for name in names]}


def source(name: str, node: str, item: str) -> dict[str, Any]:
    return {name: {"node_name": node, "data_item": item}}


def node(name: str, model: str, inputs: list[dict[str, Any]], **keys: Any) -> dict[str, Any]:
    outputs = [{"data_item": "prob:0", "alias": "prob"}]
    entry = {"name": name, "model_name": model, "type": "DL model", "inputs": inputs}
    return {**entry, "outputs": outputs, **keys}


def graph(*nodes: dict[str, Any], **keys: Any) -> dict[str, Any]:
    outputs = [source("label", nodes[-1]["name"], "prob")]
    return {"name": "both", "inputs": ["image"], "nodes": nodes, "outputs": outputs, **keys}


FIRST = node("first.one", "a", [source("in", "request", "image")])
SECOND = node("second", "b", [source("data", "first.one", "prob")], version=3)


def test_models_and_media_graphs_get_a_route(tmp_path: Path) -> None:
    """What the server keeps is not named."""
    document = {**models("a", "b"), "mediapipe_config_list": [{"name": "chat"}], "monitoring": {}}
    found = imported(tmp_path, document)
    assert {"openvino": {"url": "oip+grpc://127.0.0.1:19000", "options": {"dialect": "ovms"}}} == (
        found.config["upstreams"]
    )
    (route,) = found.config["routes"]
    assert ["a", "b", "chat"] == route["match"]["model"]
    assert found.unmapped == []


def test_a_graph_becomes_a_pipeline(tmp_path: Path) -> None:
    """An alias is replaced by the output of the model, and a point in a name by a hyphen."""
    found = imported(tmp_path, models("a", "b") | {"pipeline_config_list": [graph(FIRST, SECOND)]})
    assert {
        "both": {
            "steps": {
                "first-one": {"model": "a", "inputs": {"in": "request.image"}},
                "second": {"model": "b", "version": "3", "inputs": {"data": "first-one.prob:0"}},
            },
            "outputs": {"label": "second.prob:0"},
        }
    } == found.config["pipelines"]
    assert {"match": {"model": ["both"]}, "targets": [{"model": "both"}]} == (
        found.config["routes"][1]
    )
    assert found.unmapped == []


@pytest.mark.parametrize(
    ("left", "text"),
    [
        (graph(FIRST, demultiply_count=2), "'demultiply_count' has no equivalent"),
        (graph({**FIRST, "gather_from_node": "x"}), "'gather_from_node' has no equivalent"),
        (graph({**FIRST, "type": "custom"}), "node 'first.one' is of type 'custom'"),
        (graph(SECOND), "node 'first.one' has no output 'prob'"),
        (graph(node("n", "gone", [])), "model_config_list has no model 'gone'"),
    ],
)
def test_other_graphs_are_named(tmp_path: Path, left: dict[str, Any], text: str) -> None:
    """The models stay."""
    found = imported(tmp_path, models("a", "b") | {"pipeline_config_list": [left]})
    (note,) = found.unmapped
    assert f"graph 'both' left out: {text}" == note.text
    assert note.line > 15
    assert "pipelines" not in found.config


def test_a_graph_with_the_name_of_a_model_is_named(tmp_path: Path) -> None:
    """No call would reach it."""
    left = graph(FIRST, name="a")
    (note,) = imported(tmp_path, models("a", "b") | {"pipeline_config_list": [left]}).unmapped
    assert note.text == "graph 'a' left out: a model has its name"


def test_libraries_are_named(tmp_path: Path) -> None:
    """They run nodes that no model has."""
    found = imported(tmp_path, models("a") | {"custom_node_library_config_list": []})
    assert ["13: 'custom_node_library_config_list' has no equivalent"] == [
        f"{each.line}: {each.text}" for each in found.unmapped
    ]


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        ("{", "config.json:1:2: not YAML"),
        ("[]", "config.json:1: expected a mapping"),
        ({"model": 1}, "config.json has no model_config_list"),
        ({"model_config_list": {}}, "config.json:2: model_config_list: expected a list"),
        ({"model_config_list": [{}]}, "model_config_list[0].config.name: is missing"),
        ({"model_config_list": ["a"]}, "model_config_list[0].config.name: is missing"),
        (models() | {"mediapipe_config_list": [{}]}, "mediapipe_config_list[0].name: is missing"),
        (models() | {"pipeline_config_list": [{}]}, "pipeline_config_list[0].name: is missing"),
        (
            models("a") | {"pipeline_config_list": [graph({**FIRST, "inputs": 3})]},
            "pipeline_config_list[0].nodes[0].inputs: expected a list",
        ),
        (
            models("a") | {"pipeline_config_list": [graph({**FIRST, "inputs": [{"x": None}]})]},
            "nodes[0].inputs[0].x.node_name: is missing",
        ),
    ],
)
def test_other_files_are_refused(tmp_path: Path, document: object, reason: str) -> None:
    """The error says where and what is wrong."""
    with pytest.raises(ValueError, match=r"config\.json") as caught:
        imported(tmp_path, document)
    assert reason in str(caught.value)


def test_a_file_without_models_is_no_configuration(tmp_path: Path) -> None:
    """The command says so."""
    assert imported(tmp_path, models()).models == 0
