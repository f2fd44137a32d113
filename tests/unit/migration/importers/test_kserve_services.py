"""`gateway import kserve`: an InferenceService becomes an upstream and a route."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.config.load import load_text
from gateway.migration.importers.imported import Imported
from gateway.migration.importers.kserve_services import import_kserve


def imported(folder: Path, text: str) -> Imported:
    path = folder / "resources.yaml"
    path.write_text(text)
    found = import_kserve(path, "127.0.0.1:8000", "127.0.0.1:8001")
    if found.models:
        load_text(yaml.safe_dump(found.config))
    return found


def service(**spec: Any) -> str:
    """Return the text of an InferenceService."""
    metadata = {"name": "flowers", **spec.pop("metadata", {})}
    status = spec.pop("status", {})
    document = {"apiVersion": "serving.kserve.io/v1beta1", "kind": "InferenceService"}
    return yaml.safe_dump(document | {"metadata": metadata, "spec": spec, "status": status})


def model(kind: str = "sklearn", **keys: Any) -> dict[str, Any]:
    return {"model": {"modelFormat": {"name": kind}, **keys}}


def urls(found: Imported) -> list[str]:
    return [each["url"] for each in found.config["upstreams"].values()]


def notes(found: Imported) -> list[str]:
    return [f"{each.line}: {each.text}" for each in found.unmapped]


_HOST = "flowers-predictor.default.svc.cluster.local:80"


@pytest.mark.parametrize(
    ("predictor", "url"),
    [
        (model(), f"tfs+http://{_HOST}"),
        (model(protocolVersion="v2"), f"oip+http://{_HOST}"),
        (model(protocolVersion="grpc-v2"), f"oip+grpc://{_HOST}"),
        (model("tensorflow", protocolVersion="grpc-v1"), f"tfs+grpc://{_HOST}"),
        (model("triton"), f"oip+http://{_HOST}"),
        (model("mlflow", runtime="kserve-mlserver"), f"oip+http://{_HOST}"),
        ({"sklearn": {"storageUri": "gs://m"}}, f"tfs+http://{_HOST}"),
        ({"sklearn": {"protocolVersion": "v2"}}, f"oip+http://{_HOST}"),
        ({"onnx": {}}, f"oip+http://{_HOST}"),
        ({"containers": [{"image": "own"}]}, f"tfs+http://{_HOST}"),
        (
            {"containers": [{"env": [{"name": "PROTOCOL", "value": "grpc-v2"}]}]},
            f"oip+grpc://{_HOST}",
        ),
        (
            {"name": "blue", **model()},
            "tfs+http://flowers-blue-predictor.default.svc.cluster.local:80",
        ),
    ],
)
def test_protocol_and_service_follow_the_rules_of_kserve(
    tmp_path: Path, predictor: dict[str, Any], url: str
) -> None:
    """The version of the file counts, else the default of the server that KServe starts."""
    assert [url] == urls(imported(tmp_path, service(predictor=predictor)))


@pytest.mark.parametrize(
    ("versions", "url"),
    [
        (["grpc-v2", "v2"], f"oip+http://{_HOST}"),
        (["v1", "v2"], f"tfs+http://{_HOST}"),
        (["grpc-v2"], f"oip+grpc://{_HOST}"),
        ([], f"tfs+http://{_HOST}"),
    ],
)
def test_the_runtime_decides_where_the_service_names_no_version(
    tmp_path: Path, versions: list[str], url: str
) -> None:
    """KServe takes V1 or V2, what is first."""
    runtime = {
        "kind": "ServingRuntime",
        "metadata": {"name": "mine"},
        "spec": {"protocolVersions": versions},
    }
    text = f"{service(predictor=model(runtime='mine'))}---\n{yaml.safe_dump(runtime)}"
    assert [url] == urls(imported(tmp_path, text))


def test_a_runtime_that_is_not_in_the_file_is_named(tmp_path: Path) -> None:
    """One of KServe itself is known."""
    found = imported(tmp_path, service(predictor=model(runtime="far")))
    assert [f"tfs+http://{_HOST}"] == urls(found)
    assert "runtime 'far' is not in the file, so its protocol counts as v1" in notes(found)[0]
    found = imported(tmp_path, service(predictor=model(runtime="kserve-sklearnserver")))
    assert not any("runtime" in note for note in notes(found))


def test_a_listener_has_the_form_of_kserve_v1(tmp_path: Path) -> None:
    """Else the gateway reads each message, for which nothing tells the datatypes."""
    listeners = [
        imported(tmp_path, text).config["listeners"][0].get("options")
        for text in (
            service(predictor=model()),
            service(predictor=model("tensorflow")),
            service(predictor=model(protocolVersion="v2")),
        )
    ]
    assert listeners == [{"tfs": {"dialect": "kserve"}}, None, None]
    other = service(metadata={"name": "tf"}, predictor=model("tensorflow"))
    found = imported(tmp_path, f"{service(predictor=model())}---\n{other}")
    assert notes(found)[-1] == (
        "1: upstream 'tf-predictor.default': V1 here has the form of KServe, without signatures, "
        "labels and versions"
    )


def test_v1_has_the_form_of_kserve(tmp_path: Path) -> None:
    """TensorFlow Serving has its own form of V1, and tells the tensors of its models."""
    found = imported(tmp_path, service(predictor=model()))
    (upstream,) = found.config["upstreams"].values()
    assert {"dialect": "kserve"} == upstream["options"]
    assert ["models.flowers.signature" in each for each in notes(found)] == [True]
    found = imported(tmp_path, service(predictor={"tensorflow": {}}))
    (upstream,) = found.config["upstreams"].values()
    assert "options" not in upstream
    assert notes(found) == []


def test_a_transformer_takes_the_calls(tmp_path: Path) -> None:
    """It has HTTP on its port, whatever it speaks to the predictor."""
    spec = {"transformer": {"containers": [{}]}, "predictor": model(protocolVersion="grpc-v2")}
    found = imported(tmp_path, service(metadata={"namespace": "shop"}, **spec))
    assert ["oip+http://flowers-transformer.shop.svc.cluster.local:80"] == urls(found)


def test_name_and_timeout_are_kept(tmp_path: Path) -> None:
    """An argument of the server names the model, and a template does not."""
    predictor = {"timeout": 7, **model(protocolVersion="v2", args=["--model_name=rose"])}
    (route,) = imported(tmp_path, service(predictor=predictor)).config["routes"]
    assert (["rose"], "7s") == (route["match"]["model"], route["timeout"])
    predictor = model(protocolVersion="v2", args=["--model_name={{.Name}}", "--x"])
    (route,) = imported(tmp_path, service(predictor=predictor)).config["routes"]
    assert ["flowers"] == route["match"]["model"]


def test_canaries_become_weights(tmp_path: Path) -> None:
    """Each canary has a service of its own."""
    canary = {"predictor": {"name": "next", **model(protocolVersion="v2")}, "trafficPercent": 20}
    spec = {"predictor": model(protocolVersion="v2"), "canary": [canary]}
    (route,) = imported(tmp_path, service(**spec)).config["routes"]
    assert [
        {"upstream": "flowers-predictor.default", "weight": 80},
        {"upstream": "flowers-next-predictor.default", "weight": 20},
    ] == route["targets"]


def test_traffic_of_tagged_revisions_becomes_weights(tmp_path: Path) -> None:
    """Knative has an address for each tag, which the status shows."""
    traffic = [{"percent": 10, "tag": "latest"}, {"percent": 90, "tag": "prev"}]
    spec = {
        "predictor": {"canaryTrafficPercent": 10, **model(protocolVersion="v2")},
        "status": {"components": {"predictor": {"traffic": traffic}}},
    }
    found = imported(tmp_path, service(**spec))
    (route,) = found.config["routes"]
    assert [
        {"upstream": "latest-flowers-predictor.default", "weight": 10},
        {"upstream": "prev-flowers-predictor.default", "weight": 90},
    ] == route["targets"]
    assert notes(found) == []


def test_a_canary_without_tags_is_named(tmp_path: Path) -> None:
    """KServe goes on splitting the calls behind one address."""
    predictor = {"canaryTrafficPercent": 10, **model(protocolVersion="v2")}
    found = imported(tmp_path, service(predictor=predictor))
    (note,) = notes(found)
    assert note.startswith("7: 'canaryTrafficPercent': KServe splits the calls")
    assert [f"oip+http://{_HOST}"] == urls(found)


_DOCUMENTS = """\
# exported
apiVersion: v1
kind: Secret
metadata: {name: s}
---
apiVersion: serving.kserve.io/v1alpha1
kind: ServingRuntime
metadata: {name: mine, annotations: {serving.kserve.io/server-type: mlserver}}
---
apiVersion: serving.kserve.io/v1alpha1
kind: ClusterServingRuntime
metadata: {name: other}
---
apiVersion: v1
kind: List
items:
- kind: InferenceService
  metadata: {name: a}
  spec:
    predictor: {model: {runtime: mine, modelFormat: {name: triton}}}
    explainer: {}
- kind: InferenceService
  metadata: {name: a, namespace: second}
  spec: {predictor: {onnx: {}}}
- kind: InferenceService
  metadata: {name: b}
  spec: {predictor: {model: {protocolVersion: v9}}}
- kind: InferenceService
  metadata:
    name: c
    annotations: {serving.kserve.io/deploymentMode: ModelMesh}
  spec: {predictor: {model: {protocolVersion: grpc-v2}}}
"""


def test_what_is_left_out_is_named_with_its_line(tmp_path: Path) -> None:
    """Lines count from the top of the file, over all documents and lists."""
    found = imported(tmp_path, _DOCUMENTS)
    assert [
        "2: Secret 's' left out",
        "21: 'explainer' has no equivalent: call service a-explainer",
        "20: model 'a': Triton has the names of its folders; set them in match.model",
        "22: model 'a' left out: another resource has this name",
        "27: InferenceService 'b' left out: protocol 'v9'; expected one of v1, grpc-v1, v2, grpc-v2",
        "10: runtime 'other' left out: no InferenceService names it",
    ] == notes(found)
    assert [["a"], ["c"]] == [each["match"]["model"] for each in found.config["routes"]]
    assert [
        "oip+http://a-predictor.default.svc.cluster.local:80",
        "oip+grpc://modelmesh-serving.default.svc.cluster.local:8033",
    ] == urls(found)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "resources.yaml is empty"),
        ("# nothing\n---\n---\n", "resources.yaml is empty"),
        ("- a\n", "resources.yaml:1: expected a mapping"),
        ("a: b\n---\na: [\n", "resources.yaml:4:1: not YAML"),
        ("kind: InferenceService\nkind: b\n", "resources.yaml:2:1: duplicate key 'kind'"),
        ('{"kind": ', "resources.yaml:1:"),
        ("a: b", "has no InferenceService: found no kind; expected kind: InferenceService"),
        ("kind: List\nitems: []", "found an empty list"),
        ("kind: Pod", "has no InferenceService: found Pod"),
        ("kind: [Pod]", "resources.yaml:1: kind: expected text"),
        ("kind: List\nitems: a", "resources.yaml:2: items: expected a list"),
        ("kind: InferenceService", "resources.yaml:1: metadata.name: is missing"),
        (service(), "spec.predictor: is missing: expected serving.kserve.io/v1beta1"),
        (service(predictor={}), "spec.predictor: has no server"),
        (service(predictor=[]), "spec.predictor: has no server"),
        (service(predictor={"containers": "a"}), "spec.predictor.containers: expected a list"),
        (service(predictor={"model": {"runtime": ["a"]}}), "model.runtime: expected text"),
        (service(predictor={"timeout": "1s", **model()}), "timeout: expected a number, got '1s'"),
        (service(metadata={"name": "a/b"}, predictor=model()), "'a/b-predictor.default' is no"),
        (
            service(predictor=model(), canary=[{"trafficPercent": 101}]),
            "spec.canary: has 101 %; expected 100",
        ),
    ],
)
def test_other_files_are_refused(tmp_path: Path, text: str, reason: str) -> None:
    """The error says where and what is wrong, and what is expected."""
    with pytest.raises(ValueError, match=r"resources\.yaml") as caught:
        imported(tmp_path, text)
    assert reason in str(caught.value)


def test_bytes_are_refused(tmp_path: Path) -> None:
    """A file of another encoding is named."""
    path = tmp_path / "resources.yaml"
    path.write_bytes(b"\xff")
    with pytest.raises(ValueError, match=r"resources\.yaml is not UTF-8"):
        import_kserve(path, "127.0.0.1:8000", "127.0.0.1:8001")
