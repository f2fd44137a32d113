"""Advice for each caller: what to change, and the code of the same call."""

from __future__ import annotations

import ast
import json
import shlex
from typing import Any

import pytest

from gateway.ir.metadata import ModelMetadata, TensorMetadata
from gateway.ir.tensors.datatypes import Datatype
from gateway.migration.callers.advice import CURL, GRPC_CLIENT, HTTP_CLIENT, advise, snippets
from gateway.settings.units import parse_url

URLS = [parse_url("oip+http://new:8000"), parse_url("oip+grpc://new:8001")]


def metadata(datatype: Datatype | None, *shape: int, **fields: Any) -> ModelMetadata:
    return ModelMetadata(
        name="fraud",
        inputs=(TensorMetadata("features", datatype, shape),),
        outputs=(TensorMetadata("score", Datatype.FP32, (-1, 1)),),
        **fields,
    )


def row(protocol: str, model: str = "fraud", inputs: str = "features FP32[30]") -> dict[str, Any]:
    return {"client": "10.2.0.17", "protocol": protocol, "model": model, "inputs": inputs}


@pytest.mark.parametrize(
    ("protocol", "library", "change"),
    [
        ("trtis.http", "tritonclient[http] instead of tensorrtserver", "shapes include the batch"),
        ("trtis.grpc", "tritonclient[grpc] instead of tensorrtserver", "correlation_id is sequenc"),
        ("graphpipe.stream", "tritonclient[grpc] instead of GraphPipe", "inputs have names"),
        ("grps.brpc", "tritonclient[grpc] instead of brpc", "name and version are separate"),
        ("tfs.http", "tritonclient[http] instead of JSON for /v1/models", "inputs have datatypes"),
        ("tfs.grpc", "tritonclient[grpc] instead of tensorflow-serving-api", "no signature"),
        ("torchserve.http", "tritonclient[http] instead of requests", "inputs are tensors"),
        ("torchserve.grpc", "tritonclient[grpc] instead of stubs", "shapes include the batch"),
        ("seldon.http", "tritonclient[http] instead of SeldonClient", "the model is in the path"),
        ("seldon.grpc", "tritonclient[grpc] instead of SeldonClient", "strData and binData"),
        ("mlflow.http", "tritonclient[http] instead of requests", "inputs have datatypes"),
        ("oip.http", "", "the protocol stays"),
    ],
)
def test_each_protocol_has_its_library_and_its_changes(
    protocol: str, library: str, change: str
) -> None:
    """The lines describe the differences to Open Inference."""
    found = advise([row(protocol)], None)[0]
    assert found.library.startswith(library)
    assert any(each.startswith(change) for each in found.changes)


def test_advice_reflects_the_calls_of_a_caller() -> None:
    """It covers pinned versions, unknown inputs, state, and the size of binary tensors."""
    new = metadata(Datatype.FP32, -1, 30, versions=("8", "9"), stateful=True)
    changes = advise([row("trtis.http", "fraud:7", "x [30]")], new)[0].changes
    assert "it pins version 7; without a version it gets the newest one" in changes
    assert "the new server has no version 7; its versions are 8, 9" in changes
    assert "the model has state: each request names its sequence_id" in changes
    assert "it sends x; the inputs at the new server: features" in changes
    assert (
        "binary tensors send the inputs of one item as 120 bytes; JSON writes each element as text"
        in changes
    )


def test_code_exists_for_each_carrier() -> None:
    """Each address of the new server has the code of its carrier."""
    new = metadata(Datatype.FP32, -1, 30)
    assert list(snippets(new, URLS)) == [CURL, HTTP_CLIENT, GRPC_CLIENT]
    assert list(snippets(new, URLS[1:])) == [GRPC_CLIENT]


@pytest.mark.parametrize("datatype", [None, *Datatype], ids=str)
@pytest.mark.parametrize("stateful", [False, True])
def test_python_code_is_valid(datatype: Datatype | None, stateful: bool) -> None:
    """Every datatype is supported, and names are quoted."""
    new = metadata(datatype, -1, 3, stateful=stateful)
    for library, code in snippets(new, URLS, "7").items():
        if library != CURL:
            ast.parse(code)
            assert "model_version='7'" in code
            assert ("sequence_start=True" in code) is stateful


@pytest.mark.parametrize(
    "datatype", [each for each in Datatype if each not in {Datatype.FP16, Datatype.BF16}], ids=str
)
def test_small_bodies_of_curl_are_inline(datatype: Datatype) -> None:
    """The shell passes one argument that is JSON."""
    words = shlex.split(snippets(metadata(datatype, -1, 3), URLS)[CURL])
    assert words[:4] == ["curl", "-sS", "--fail-with-body", "http://new:8000/v2/models/fraud/infer"]
    body = json.loads(words[-1])
    assert body["inputs"][0]["datatype"] == datatype.name
    assert len(body["inputs"][0]["data"]) == 3


def test_half_floats_have_no_curl_command() -> None:
    """JSON cannot carry FP16 and BF16."""
    for datatype in (Datatype.FP16, Datatype.BF16):
        assert CURL not in snippets(metadata(datatype, -1, 3), URLS)


def test_large_bodies_of_curl_are_generated() -> None:
    """The command line stays short."""
    code = snippets(metadata(Datatype.FP32, -1, 100_000), URLS)[CURL]
    assert len(code) < 500
    assert code.startswith("python3 -c ")
    assert code.endswith(" -d @-\n")


@pytest.mark.parametrize("protocol", ["oip.http", "trtis.http"])
def test_another_name_or_version_of_the_model_is_a_change(protocol: str) -> None:
    """It comes first, and then more than the address changes."""
    changes = advise([row(protocol, "fraud:1")], None, ("scam", "2"))[0].changes
    assert [
        "the model 'fraud' is 'scam' at the new server",
        "it asks for version 2 there; today it asks for version 1",
    ] == list(changes[:2])
    assert not any("only the address changes" in each or "pins version" in each for each in changes)
    same = advise([row("oip.http", "fraud")], None, ("fraud", ""))[0].changes
    assert ["the protocol stays; only the address changes"] == list(same)
