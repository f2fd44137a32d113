"""Members and fields that Open Inference lacks, before a server of the same protocol and carrier."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import pytest

from gateway.ir.calls import InferRequest, InferResponse
from gateway.ir.context import ModelRef
from gateway.ir.errors import MalformedMessage
from gateway.ir.limits import DEFAULT_LIMITS
from gateway.policies.batch.merge import row_count
from gateway.protocols.oip.grpc.codec import GrpcCodec
from gateway.protocols.oip.http.codec import HttpCodec
from gateway.schema import open_inference_pb2 as pb
from gateway.wire.grpc import GrpcRequest, GrpcResponse
from gateway.wire.http import Headers, HttpRequest, HttpResponse

_METHOD = "/inference.GRPCInferenceService/ModelInfer"
# Fields 2032 to 2034: bytes, a number, and four bytes.
FIELDS = b"\x82\x7f\x03own\x88\x7f\x05\x95\x7f1234"
MEMBERS: Mapping[str, Any] = {"own": {"a": [1.5, None, "text"]}, "é": True, "own_list": [[], 2]}


class Carrier(NamedTuple):
    """A codec with messages that have more than the common form.

    Attributes:
        codec: Of a listener and of an upstream.
        request, response: The messages, by the number of their elements.
    """

    codec: Any
    request: Any
    response: Any


def _http_request(count: int) -> HttpRequest:
    tensor = {"name": "x", "datatype": "INT32", "shape": [count], "data": [1] * count}
    body = json.dumps({"inputs": [tensor], **MEMBERS, "model_name": "secret"}).encode()
    path = "/v2/models/m/infer"
    return HttpRequest("POST", path, "", Headers(()), (memoryview(body),))


def _http_response(count: int) -> HttpResponse:
    tensor = {"name": "y", "datatype": "INT32", "shape": [count], "data": [1] * count}
    body = json.dumps({**MEMBERS, "model_name": "m", "outputs": [tensor]}).encode()
    return HttpResponse(200, Headers(()), (memoryview(body),))


def _grpc_request(count: int) -> GrpcRequest:
    message = pb.ModelInferRequest(model_name="m", raw_input_contents=[bytes(4 * count)])
    message.inputs.add(name="x", datatype="INT32", shape=[count])
    return GrpcRequest(_METHOD, (memoryview(message.SerializeToString() + FIELDS),))


def _grpc_response(count: int) -> GrpcResponse:
    message = pb.ModelInferResponse(model_name="m", raw_output_contents=[bytes(4 * count)])
    message.outputs.add(name="y", datatype="INT32", shape=[count])
    return GrpcResponse((memoryview(message.SerializeToString() + FIELDS),))


CARRIERS = {
    "http": Carrier(HttpCodec(DEFAULT_LIMITS, {}), _http_request, _http_response),
    "grpc": Carrier(GrpcCodec(DEFAULT_LIMITS, {}), _grpc_request, _grpc_response),
}
COUNTS = [1, 10_000]
"""Elements of messages that different parsers read."""


def check_unknown(wire: Any) -> None:
    """Check that a message has the members or fields, and no other model."""
    if not isinstance(wire, HttpRequest | HttpResponse):
        assert bytes(wire.view).count(FIELDS) == 1
        return
    end = wire.headers.get("inference-header-content-length")
    found = json.loads(bytes(wire.view[: int(end)] if end else wire.view))
    assert MEMBERS == {key: found[key] for key in MEMBERS}
    assert found.get("model_name") in (None, "m")


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("name", CARRIERS)
@pytest.mark.parametrize("model", ["m", "other"])
def test_unknown_members_reach_the_server(name: str, count: int, model: str) -> None:
    """Also in a repeated message, and with the target's name of the model."""
    carrier = CARRIERS[name]
    for _ in range(4):
        call = carrier.codec.decode_call(carrier.request(count))
        sent = call if model == "m" else call.changed(model=ModelRef(model))
        check_unknown(carrier.codec.encode_call(sent))


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("name", CARRIERS)
def test_unknown_members_of_replies_reach_the_client(name: str, count: int) -> None:
    """Also in a repeated reply, and with the client's name of the model."""
    carrier = CARRIERS[name]
    call = InferRequest(model=ModelRef("m"))
    own = carrier.codec.decode_call(carrier.request(1))
    for _ in range(4):
        reply = carrier.codec.decode_reply(call, carrier.response(count))
        check_unknown(carrier.codec.encode_reply(own, reply.changed(model=ModelRef("m"))))


@pytest.mark.parametrize("name", CARRIERS)
def test_unknown_members_of_another_carrier_stay_out(name: str) -> None:
    """They have no meaning there."""
    carrier, (other,) = CARRIERS[name], [CARRIERS[key] for key in CARRIERS if key != name]
    call = carrier.codec.decode_call(carrier.request(1))
    plain = call.with_context(origin=None)
    assert bytes(other.codec.encode_call(plain).view) == bytes(other.codec.encode_call(call).view)
    reply: InferResponse = other.codec.decode_reply(call, other.response(1))
    written = bytes(carrier.codec.encode_reply(call, reply).view)
    assert b"own" not in written


@pytest.mark.parametrize("name", CARRIERS)
def test_changed_tensors_leave_unknown_members_out(name: str) -> None:
    """They may be about the tensors; and such calls are neither merged nor cached."""
    carrier = CARRIERS[name]
    call = carrier.codec.decode_call(carrier.request(1))
    assert call.has_unknown
    assert 0 == row_count(call)
    changed = call.changed(inputs=tuple(tensor.renamed("z") for tensor in call.inputs))
    assert not changed.has_unknown
    assert 1 == row_count(changed)
    assert b"own" not in bytes(carrier.codec.encode_call(changed).view)


@pytest.mark.parametrize("text", ['{"own":{"a":1,"a":2},"inputs":[]}', '{"own":1,"own":2}'])
def test_unknown_members_occur_once(text: str) -> None:
    """Readers differ in what counts of a key that occurs twice."""
    wire = HttpRequest("POST", "/v2/models/m/infer", "", Headers(()), (memoryview(text.encode()),))
    with pytest.raises(MalformedMessage, match="twice"):
        CARRIERS["http"].codec.decode_call(wire)


def test_fields_are_kept_up_to_64_kib() -> None:
    """They are copied, and count for no other limit."""
    carrier = CARRIERS["grpc"]
    big = b"\x82\x7f" + b"\xf0\xff\x03" + bytes(65_520)
    given = carrier.request(1).view
    for body, is_kept in ((big, True), (big + big, False)):
        wire = GrpcRequest(_METHOD, (memoryview(bytes(given) + body),))
        written = bytes(carrier.codec.encode_call(carrier.codec.decode_call(wire)).view)
        assert is_kept is (body in written)
