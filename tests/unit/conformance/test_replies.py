"""What replies say, strictly, and how they differ from what a rule allows."""

from __future__ import annotations

import json
import struct
from typing import Any

import pytest

from gateway.conformance.replies import grpc_reply, http_reply, mismatches
from gateway.conformance.requests import CannotAsk, RequestSubject, request_of
from gateway.conformance.rules import AllowedReply
from gateway.conformance.tensors import (
    CertifiedModel,
    DeclaredTensor,
    InferenceCase,
    elements_of,
    tensor_from,
)
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.tensor import raw_tensor
from gateway.schema import open_inference_pb2 as pb
from gateway.settings.units import parse_url
from gateway.wire.grpc import GrpcRequest, GrpcResponse, GrpcStatus
from gateway.wire.http import Headers, HttpRequest, HttpResponse

THREE = struct.pack("<3f", 1.0, -0.0, 0.1)
X = raw_tensor("X", Datatype.FP32, (3,), memoryview(THREE))
Y = X.renamed("Y")
COPY = CertifiedModel(
    "m",
    ("1",),
    (DeclaredTensor("X", "FP32", (-1,)),),
    (DeclaredTensor("Y", "FP32", (-1,)),),
    {},
    "identity",
)
SUBJECT = RequestSubject(
    parse_url("http://127.0.0.1:8000"), model=COPY, case=InferenceCase((X,), (Y,))
)
INFER = ("oip", "inference.GRPCInferenceService/ModelInfer")
KNOWN = AllowedReply(("200", "OK"), outputs="known")


def output(**changes: Any) -> dict[str, Any]:
    found = {"name": "Y", "datatype": "FP32", "shape": [3], "data": [1.0, -0.0, 0.1], **changes}
    return {name: value for name, value in found.items() if value is not None}


def replied(
    *outputs: Any, tail: bytes = b"", headers: tuple[tuple[str, str], ...] = ()
) -> list[str]:
    """Return how a response with these outputs differs from the known one."""
    body = json.dumps({"model_name": "m", "outputs": outputs}).encode()
    length = (("Inference-Header-Content-Length", str(len(body))),) if tail else ()
    wire = HttpResponse(200, Headers((*length, *headers)), (body + tail,))
    return mismatches(KNOWN, http_reply(wire, has_tensors=True), SUBJECT)


def binary(size: int) -> dict[str, Any]:
    return output(data=None, parameters={"binary_data_size": size})


def test_the_known_outputs_are_accepted() -> None:
    assert replied(output()) == []
    assert replied(output(data=[[1.0], [-0.0], [0.10000000149011612]])) == []
    assert replied(binary(12), tail=THREE) == []


@pytest.mark.parametrize(
    ("outputs", "tail", "text"),
    [
        ([output(data=[1.0, 0.0, 0.1])], b"", "has 0.0 as element 1; expected -0.0"),
        ([output(data=[1.0, None, 0.1])], b"", "element 1 is null, which is no FP32"),
        ([output(data=[1.0, True, 0.1])], b"", "element 1 is true"),
        ([output(data=[1.0, 0.1])], b"", "it has 2 elements, and the shape [3]"),
        ([output(data=None)], b"", "neither data nor a binary_data_size"),
        ([output(datatype="FP64")], b"", "is FP64; expected FP32"),
        ([output(shape=[1, 3])], b"", "has the shape [1, 3]; expected [-1]"),
        ([output(shape=None)], b"", "its shape is None"),
        ([output(name="Z")], b"", 'the outputs are ["Z"]; expected ["Y"]'),
        ([], b"", 'the outputs are []; expected ["Y"]'),
        ([binary(16)], THREE, "its binary_data_size is 16, where 12 bytes follow"),
        ([binary(12)], THREE + b"x", "1 bytes are left behind the outputs"),
    ],
)
def test_other_outputs_differ(outputs: list[Any], tail: bytes, text: str) -> None:
    assert text in "; ".join(replied(*outputs, tail=tail))


def test_a_body_that_is_no_json_differs_without_controls() -> None:
    reply = http_reply(HttpResponse(200, body=(b"\x1b[31mred",)), has_tensors=True)

    (found, *_) = mismatches(KNOWN, reply, SUBJECT)

    assert found.startswith("the body is no JSON")
    assert found.isprintable()


def test_statuses_are_exact_or_of_a_class() -> None:
    reply = http_reply(HttpResponse(404, body=(b'{"error": "no"}',)), has_tensors=False)

    assert mismatches(AllowedReply(("4xx",), {"error": "$filled"}), reply, SUBJECT) == []
    assert mismatches(AllowedReply(("400",)), reply, SUBJECT) == ["404: no; expected 400"]
    assert mismatches(AllowedReply(("404",), {"detail": "$string"}), reply, SUBJECT) == [
        "'detail' is absent"
    ]


@pytest.mark.parametrize(
    ("pattern", "body", "differs"),
    [
        ({"a": "$model", "b?": "$string"}, {"a": "m", "b": None}, False),
        ({"a": ["$size"]}, {"a": [-1, 3, "7"]}, False),
        ({"a": ["$size"]}, {"a": [1.5]}, True),
        ({"a": {"$some": {"n": "m"}}}, {"a": [{"n": "x"}, {"n": "m"}]}, False),
        ({"a": {"$some": {"n": "m"}}}, {"a": [{"n": "x"}]}, True),
        ({"a": "$absent"}, {"a": 1}, True),
        ({"a": True}, {"a": 1}, True),
        ([{"a": 1}], {"a": 1}, True),
    ],
)
def test_patterns_of_bodies(pattern: Any, body: Any, differs: bool) -> None:
    reply = http_reply(HttpResponse(200, body=(json.dumps(body).encode(),)), has_tensors=False)

    assert bool(mismatches(AllowedReply(("200",), pattern), reply, SUBJECT)) is differs


def message(**changes: Any) -> GrpcResponse:
    tensor = pb.ModelInferResponse.InferOutputTensor(name="Y", datatype="FP32", shape=[3])
    made = pb.ModelInferResponse(model_name="m", outputs=[tensor], **changes)
    return GrpcResponse((made.SerializeToString(),))


def test_raw_and_typed_contents_over_grpc() -> None:
    assert (
        mismatches(KNOWN, grpc_reply(message(raw_output_contents=[THREE]), *INFER), SUBJECT) == []
    )
    short = grpc_reply(message(raw_output_contents=[THREE[:8]]), *INFER)
    assert "has 8 bytes, shape [3] of FP32 needs 12" in "".join(mismatches(KNOWN, short, SUBJECT))
    several = grpc_reply(message(raw_output_contents=[THREE, b""]), *INFER)
    assert "2 raw contents belong to 1 outputs" in "".join(mismatches(KNOWN, several, SUBJECT))


def test_a_status_over_grpc() -> None:
    reply = grpc_reply(GrpcResponse(status=GrpcStatus.NOT_FOUND, details="no"), *INFER)

    assert mismatches(AllowedReply(("NOT_FOUND",)), reply, SUBJECT) == []
    assert mismatches(KNOWN, reply, SUBJECT) == ["NOT_FOUND: no; expected 200 or OK"]


@pytest.mark.parametrize(
    ("datatype", "elements"),
    [
        ("UINT64", [0, 2**64 - 1]),
        ("INT64", [-(2**63), 2**63 - 1]),
        ("BOOL", [True, False]),
        ("FP16", [65504.0, -0.0]),
        ("BF16", [1.5, float("-inf")]),
        ("BYTES", [b"", b"\xff", "é".encode()]),
    ],
)
def test_elements_and_raw_data_are_the_same_values(datatype: str, elements: list[Any]) -> None:
    assert elements_of(tensor_from("Y", datatype, (len(elements),), elements)) == elements


def test_a_request_is_changed_and_shown_as_a_command() -> None:
    step = {"infer": "binary", "set": {"inputs.0.shape": "$longer"}, "drop": ["id"]}

    request = request_of(step, SUBJECT)

    assert isinstance(request.wire, HttpRequest)
    size = int(request.wire.headers.get("inference-header-content-length") or 0)
    document = json.loads(request.wire.view[:size].tobytes())
    assert document["inputs"][0]["shape"] == [4]
    assert "id" not in document
    assert request.wire.view[size:] == THREE
    assert request.command.startswith("python3 -c ")
    assert "| curl -sS -i -H 'content-type: " in request.command
    assert "http://127.0.0.1:8000/v2/models/m/infer --data-binary @-" in request.command


def test_a_request_over_grpc_is_a_message_and_a_line() -> None:
    subject = RequestSubject(parse_url("grpc://127.0.0.1:8001"), model=COPY, case=SUBJECT.case)

    request = request_of({"infer": "contents", "set": {"model_version": "$version"}}, subject)

    assert isinstance(request.wire, GrpcRequest)
    found = pb.ModelInferRequest.FromString(bytes(request.wire.view))
    assert (found.model_name, found.model_version) == ("m", "1")
    assert struct.pack("<3f", *found.inputs[0].contents.fp32_contents) == THREE
    assert request.command.startswith("grpcurl -plaintext -d '{")
    assert request.command.endswith(" 127.0.0.1:8001 inference.GRPCInferenceService/ModelInfer")


def test_a_member_that_a_request_lacks_cannot_be_dropped() -> None:
    with pytest.raises(CannotAsk, match=r"has no member 'inputs\.4'"):
        request_of({"infer": "json", "drop": ["inputs.4"]}, SUBJECT)
