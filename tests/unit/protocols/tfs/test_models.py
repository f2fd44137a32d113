"""The model of a request of TensorFlow Serving, by what the configuration declares."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.ir.context import ModelRef
from gateway.ir.errors import InvalidRequest
from gateway.protocols.tfs.declarations import read_declaration
from gateway.protocols.tfs.grpc.codec import GrpcCodec
from gateway.protocols.tfs.http.codec import HttpCodec
from gateway.schema import tensorflow_serving_pb2 as pb
from gateway.wire.grpc import GrpcRequest
from gateway.wire.http import Headers, HttpRequest

LABELS = {"labels": {"stable": 3}}
BODY = b'{"examples": [{"x": 1.0}]}'


def request(rest: str) -> HttpRequest:
    return HttpRequest("POST", f"/v1/models/m{rest}", "", Headers(), (BODY,))


@pytest.mark.parametrize(
    ("declared", "rest", "sent"),
    [
        ({}, ":classify", ":classify"),
        ({}, "/labels/any:classify", "/labels/any:classify"),
        (LABELS, ":classify", ":classify"),
        (LABELS, "/versions/2:regress", "/versions/2:regress"),
        (LABELS, "/labels/stable:classify", "/versions/3:classify"),
        (LABELS, "/labels/other:classify", None),
        ({"bytes": "b64"}, ":classify", None),
        ({"signatures": {"s": {}}}, ":classify", None),
    ],
)
def test_labels_leave_the_signatures_to_the_server(
    declared: dict[str, Any], rest: str, sent: str | None
) -> None:
    """A declared label becomes its version, and no other one exists."""
    codec = HttpCodec()
    codec.declare({"m": read_declaration(declared, str)} if declared else {})
    call = codec.decode_unread(request(rest), InvalidRequest("refused"))
    if sent is None:
        assert call is None
        return
    assert call is not None
    assert call.context.origin is not None
    wire = codec.send_on(call, call.context.origin)
    assert (f"/v1/models/m{sent}", BODY) == (wire.path, bytes(wire.view))


def test_a_declared_label_is_a_version_over_grpc() -> None:
    """The signature stays that of the client."""
    codec = GrpcCodec()
    codec.declare({"m": read_declaration(LABELS, str)})
    message = pb.ClassificationRequest()
    message.model_spec.name, message.model_spec.version_label = "m", "stable"
    message.model_spec.signature_name = "kinds"
    method = "/tensorflow.serving.PredictionService/Classify"
    call = codec.decode_unread(
        GrpcRequest(method, (message.SerializeToString(),)), InvalidRequest("refused")
    )
    assert call is not None
    assert (call.model, call.context.origin is not None) == (ModelRef("m", "3"), True)
    sent = pb.ClassificationRequest.FromString(
        bytes(codec.send_on(call, call.context.origin).view)  # type: ignore[arg-type]  # it is there
    )
    spec = sent.model_spec
    assert (spec.name, spec.version.value, spec.version_label) == ("m", 3, "")
    assert spec.signature_name == "kinds"


def test_a_request_without_a_label_passes_as_it_came() -> None:
    """Labels alone change nothing of it; a label, or a declared signature, does."""
    predict = HttpRequest("POST", "/v1/models/m:predict", "", Headers(), (b'{"instances": [1]}',))
    labelled = HttpRequest(
        "POST", "/v1/models/m/labels/stable:predict", "", Headers(), (b'{"instances": [1]}',)
    )
    found = []
    for declared in (LABELS, {"signatures": {"serving_default": {}}, **LABELS}):
        codec = HttpCodec()
        codec.declare({"m": read_declaration(declared, str)})
        for wire in (predict, labelled):
            origin = codec.decode_call(wire).context.origin
            found.append(origin is not None and bool(origin.whole))
    assert found == [True, False, False, False]
