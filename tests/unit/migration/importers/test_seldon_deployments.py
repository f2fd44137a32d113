"""`gateway import seldon`: predictors become targets, and chains of models pipelines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from gateway.cli.commands import command_line
from gateway.config.load import load_text
from gateway.migration.importers.imported import Imported
from gateway.migration.importers.seldon_deployments import import_seldon


def imported(folder: Path, text: str) -> Imported:
    path = folder / "deployment.yaml"
    path.write_text(text)
    found = import_seldon(path, "127.0.0.1:8000", "127.0.0.1:8001")
    if found.models:
        load_text(yaml.safe_dump(found.config))
    return found


def deployment(*predictors: Any, name: str = "house", **spec: Any) -> str:
    """Return the text of a deployment, whose keys have an order."""
    head = {"apiVersion": "machinelearning.seldon.io/v1", "kind": "SeldonDeployment"}
    document = {**head, "metadata": {"name": name}, "spec": {**spec, "predictors": predictors}}
    return yaml.safe_dump(document, sort_keys=False)


def predictor(name: str = "main", graph: Any = None, **keys: Any) -> dict[str, Any]:
    return {"name": name, "graph": graph or {"name": "node"}, **keys}


def container(name: str, **sides: Any) -> dict[str, Any]:
    """Return a container that declares its inputs and outputs."""
    env = [{"name": "MODEL_METADATA", "value": yaml.safe_dump(sides)}]
    return {"name": name, "env": env}


def tensor(name: str, *shape: int) -> list[dict[str, Any]]:
    return [{"name": name, "datatype": "FP64", "shape": list(shape)}]


def urls(found: Imported) -> list[str]:
    return [each["url"] for each in found.config["upstreams"].values()]


def notes(found: Imported) -> list[str]:
    return [f"{each.line}: {each.text}" for each in found.unmapped]


_HOST = "house-main.default.svc.cluster.local"

_UNDECLARED = (
    "1: model 'house': Seldon does not tell inputs and outputs; set models.house.signature for "
    "clients of other protocols"
)


_NODE = "house-main-node.default.svc.cluster.local"


@pytest.mark.parametrize(
    ("spec", "scheme", "places"),
    [
        ({}, "seldon", (f"{_HOST}:8000", f"{_HOST}:5001")),
        ({"protocol": "seldon", "transport": "grpc"}, "seldon", (f"{_HOST}:8000", f"{_HOST}:5001")),
        (
            {"protocol": "tensorflow", "transport": "rest"},
            "tfs",
            (f"{_NODE}:9000", f"{_NODE}:9500"),
        ),
        ({"protocol": "kfserving"}, "oip", (f"{_NODE}:9000", f"{_NODE}:9500")),
        ({"protocol": "v2", "transport": "grpc"}, "oip", (f"{_NODE}:9000", f"{_NODE}:9500")),
    ],
)
def test_each_carrier_has_its_port(
    tmp_path: Path, spec: dict[str, str], scheme: str, places: tuple[str, str]
) -> None:
    """Of the orchestrator for Seldon's protocol, and else of the only model's own service."""
    found = imported(tmp_path, deployment(predictor(), **spec))
    assert [f"{scheme}+http://{places[0]}", f"{scheme}+grpc://{places[1]}"] == urls(found)
    assert found.config["listeners"][0]["default_model"] == "house"
    name = places[0].partition(".svc")[0]
    assert [(f"{scheme}.grpc", f"{name}.grpc"), (None, name)] == [
        (each["match"].get("protocol"), each["targets"][0]["upstream"])
        for each in found.config["routes"]
    ]
    options = {"seldon": {"feedback": "forward"}} if scheme == "seldon" else None
    assert found.config["listeners"][0].get("options") == options


def test_an_orchestrator_without_health_is_called_over_http_alone(tmp_path: Path) -> None:
    """Its gRPC server ends at a question for its health, and its REST server has no such path."""
    graph = {"name": "r", "type": "ROUTER", "children": [{"name": "m"}]}
    found = imported(tmp_path, deployment(predictor(graph=graph), protocol="v2"))
    assert [f"oip+http://{_HOST}:8000"] == urls(found)
    assert len(found.config["routes"]) == 1
    assert (
        "8: service house-main does not tell whether it is ready, and neither does the gateway "
        "before it"
    ) == notes(found)[-1]


@pytest.mark.parametrize(
    ("keys", "address"),
    [
        ({"annotations": {"seldon.io/svc-name": "own"}}, "own.default.svc.cluster.local:8000"),
        ({"annotations": {"seldon.io/no-engine": "true"}}, f"{_HOST}:9000"),
        (
            {
                "annotations": {"seldon.io/no-engine": "true"},
                "componentSpecs": [
                    {"spec": {"containers": [{"name": "first"}, {"name": "node"}]}},
                ],
            },
            f"{_HOST}:9001",
        ),
        (
            {
                "annotations": {"seldon.io/no-engine": "true"},
                "graph": {"name": "node", "endpoint": {"httpPort": "7000"}},
            },
            f"{_HOST}:7000",
        ),
        (
            {"name": "x" * 60},
            "seldon-c87ca6f364dedb1360a54c80721a4d34.default.svc.cluster.local:8000",
        ),
    ],
)
def test_the_service_follows_the_rules_of_seldon(
    tmp_path: Path, keys: dict[str, Any], address: str
) -> None:
    """Without an orchestrator its service has the port of the node."""
    url, _ = urls(imported(tmp_path, deployment(predictor(**keys))))
    assert f"seldon+http://{address}" == url


def test_traffic_becomes_weights_and_a_shadow_is_named(tmp_path: Path) -> None:
    """A protocol with names of models also keeps the name of the node."""
    found = imported(
        tmp_path,
        deployment(
            predictor(traffic=75),
            predictor("next", {"name": "new"}, traffic=25),
            predictor("copy", shadow=True),
            protocol="v2",
        ),
    )
    of_grpc, route = found.config["routes"]
    assert ["house", "node"] == route["match"]["model"] == of_grpc["match"]["model"]
    assert [
        {"upstream": "house-main-node.default", "model": "node", "weight": 75},
        {"upstream": "house-next-new.default", "model": "new", "weight": 25},
    ] == route["targets"]
    assert [75, 25] == [each["weight"] for each in of_grpc["targets"]]
    assert ["19: predictor 'copy' left out: it is a shadow; see migrations.NAME.mirror"] == (
        notes(found)
    )


def test_what_has_no_equivalent_is_named_with_its_line(tmp_path: Path) -> None:
    """Each deployment of the file is imported."""
    text = deployment(predictor(ssl={"certSecretName": "s"}, explainer={"type": "ALE"}))
    others = (
        deployment(predictor(), name="other", protocol="v2"),
        deployment(predictor(), name="node", protocol="v9"),
        deployment(predictor(), name="stream", serverType="kafka"),
    )
    found = imported(tmp_path, "---\n".join([text, *others]))
    assert [
        "12: 'explainer' has no equivalent: call service house-main-explainer",
        "10: 'ssl': set tls.ca of the upstream",
        _UNDECLARED,
        "31: 'node' left out: protocol 'v9'; expected one of seldon, tensorflow, kfserving, v2",
        "42: 'stream' left out: its server reads Kafka, and has no address",
    ] == notes(found)
    assert [["house"], ["other"]] == [
        each["match"]["model"] for each in found.config["routes"][1::2]
    ]
    tls = [each.get("tls") for each in found.config["upstreams"].values()]
    assert tls == [{}, {}, None, None]
    assert "default_model" not in found.config["listeners"][0]


def test_a_name_of_two_namespaces_is_imported_once(tmp_path: Path) -> None:
    """The second deployment is named."""
    text = deployment(predictor(), protocol="v2")
    second = text.replace("name: house", "name: house\n  namespace: other")
    found = imported(tmp_path, f"{text}---\n{second}")
    assert ["12: 'house' left out: another namespace has this name"] == notes(found)
    assert [f"oip+http://{_NODE}:9000", f"oip+grpc://{_NODE}:9500"] == urls(found)


_CHAIN = {"name": "clean", "children": [{"name": "score", "type": "MODEL"}]}


def specs(*containers: dict[str, Any]) -> dict[str, Any]:
    return {"componentSpecs": [{"spec": {"containers": list(containers)}}]}


def test_a_chain_of_declared_models_becomes_a_pipeline(tmp_path: Path) -> None:
    """Each node has a service of its own, and its tensors come from MODEL_METADATA."""
    containers = (
        container("clean", inputs=tensor("raw", -1, 30), outputs=tensor("rows", -1, 4)),
        container("score", inputs=tensor("x", -1, 4), outputs=tensor("y", -1)),
    )
    found = imported(tmp_path, deployment(predictor(graph=_CHAIN, **specs(*containers))))
    assert {
        "house-main": {
            "steps": {
                "clean": {"model": "house-main-clean", "inputs": {"raw": "request.raw"}},
                "score": {"model": "house-main-score", "inputs": {"x": "clean.rows"}},
            },
            "outputs": {"y": "score.y"},
        }
    } == found.config["pipelines"]
    assert [
        "seldon+http://house-main-clean.default.svc.cluster.local:9000",
        "seldon+http://house-main-score.default.svc.cluster.local:9001",
    ] == urls(found)
    assert {"inputs": tensor("x", -1, 4), "outputs": tensor("y", -1)} == (
        found.config["models"]["house-main-score"]["signature"]
    )
    assert {"match": {"model": ["house"]}, "targets": [{"model": "house-main"}]} == (
        found.config["routes"][-1]
    )
    assert notes(found) == []


@pytest.mark.parametrize(
    ("graph", "containers", "reasons"),
    [
        (
            {"name": "ab", "implementation": "RANDOM_ABTEST", "children": [{"name": "a"}]},
            [],
            ["'ab' is a RANDOM_ABTEST", "'a' has no env MODEL_METADATA"],
        ),
        ({"name": "r", "type": "ROUTER"}, [], ["'r' is a ROUTER"]),
        ({"name": "m", "methods": ["ROUTE"]}, [], ["'m' is a custom unit"]),
        (
            {"name": "t", "children": [{"name": "a"}, {"name": "b", "type": "COMBINER"}]},
            [],
            ["'t' has 2 children", "'a' has no env MODEL_METADATA", "'b' is a COMBINER"],
        ),
        (
            _CHAIN,
            [
                container("clean", inputs=[{"messagetype": "tensor"}], outputs=tensor("y", 1)),
                container("score", inputs=tensor("a", 1), outputs=[*tensor("b", 1)] * 2),
            ],
            ["'clean' has no env MODEL_METADATA", "'score' has no env MODEL_METADATA"],
        ),
        (
            _CHAIN,
            [
                {"name": "clean", "env": [{"name": "MODEL_METADATA", "value": "["}]},
                {"name": "score", "env": [{"name": "OTHER", "value": "["}]},
            ],
            ["'clean' has no env MODEL_METADATA", "'score' has no env MODEL_METADATA"],
        ),
    ],
)
def test_other_graphs_stay_with_seldon(
    tmp_path: Path, graph: dict[str, Any], containers: list[dict[str, Any]], reasons: list[str]
) -> None:
    """Each node that prevents a pipeline is named, and all calls go to the orchestrator."""
    found = imported(tmp_path, deployment(predictor(graph=graph, **specs(*containers))))
    assert [f"seldon+http://{_HOST}:8000", f"seldon+grpc://{_HOST}:5001"] == urls(found)
    assert "pipelines" not in found.config
    texts = [each.text for each in found.unmapped[:-1]]
    assert len(reasons) == len(texts)
    for reason, text in zip(reasons, texts, strict=True):
        assert text.startswith(f"node {reason}")
        assert text.endswith("is no pipeline: its calls go to service house-main")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("kind: Model", "has no SeldonDeployment: found Model; expected kind: SeldonDeployment"),
        ("kind: SeldonDeployment", "deployment.yaml:1: metadata.name: is missing"),
        (deployment(), "spec.predictors: is missing: expected a predictor"),
        (deployment(predictor("")), "spec.predictors[0].name: is missing"),
        (deployment({"name": "a"}), "spec.predictors[0].graph.name: is missing"),
        (deployment({"name": "a", "graph": ["b"]}), "spec.predictors[0].graph.name: is missing"),
        (deployment("a"), "spec.predictors[0].name: is missing"),
        (
            deployment(predictor(traffic=50), predictor("b", traffic=20)),
            "deployment.yaml:6: spec.predictors: traffic adds up to 70: expected 100",
        ),
        (
            deployment(predictor(traffic="half")),
            "spec.predictors[0].traffic: expected a number, got 'half'",
        ),
        (deployment(predictor(graph={"name": "a", "children": 3})), "children: expected a list"),
        (deployment(predictor("a b")), "'house-a b.default' is no SERVICE.NAMESPACE"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, text: str, reason: str) -> None:
    """The error says where and what is wrong, and what is expected."""
    with pytest.raises(ValueError, match=r"deployment\.yaml") as caught:
        imported(tmp_path, text)
    assert reason in str(caught.value)


def test_the_command_writes_a_valid_file(tmp_path: Path) -> None:
    """It names what is lost, and fails for it with --strict."""
    path, out = tmp_path / "deployment.yaml", tmp_path / "gateway.yaml"
    path.write_text(deployment(predictor(graph={"name": "r", "type": "ROUTER"})))
    command = command_line(["import", "validate"])
    arguments = ["import", "seldon", str(path), "-o", str(out)]
    result = CliRunner().invoke(command, arguments)
    assert (result.exit_code, "node 'r' is a ROUTER" in result.output) == (0, True), result.output
    assert CliRunner().invoke(command, [*arguments, "--strict"]).exit_code == 1
    result = CliRunner().invoke(command, ["validate", "--strict", str(out)])
    assert result.exit_code == 0, result.output
