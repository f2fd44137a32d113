"""The Open Inference gRPC codec of an upstream: encoding of requests, decoding of responses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gateway.ir.calls import (
    InferRequest,
    InferResponse,
    ModelReadyRequest,
    RepositoryIndexRequest,
    StreamInferRequest,
)
from gateway.ir.context import Context, ModelRef
from gateway.ir.errors import (
    GatewayError,
    InvalidRequest,
    InvalidTensor,
    MalformedMessage,
    TooLarge,
    Unsupported,
    UpstreamError,
)
from gateway.ir.limits import DEFAULT_LIMITS, MessageLimits
from gateway.ir.tensors.data import RawData, StreamedData
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.tensor import (
    RequestedOutput,
    Tensor,
    array_tensor,
    raw_tensor,
    streamed_tensor,
)
from gateway.protocols.oip.grpc.codec import GrpcCodec
from gateway.schema import open_inference_pb2 as pb
from gateway.wire.grpc import GrpcResponse, GrpcStatus
from tests.cases.oip_grpc import CALLS, REPLIES, CallCase, ReplyCase
from tests.fakes import FakeArriving

CODEC = GrpcCodec(DEFAULT_LIMITS, {})
M = ModelRef("m")
X = array_tensor("X", np.arange(4, dtype="<f4"))
BIG = array_tensor("BIG", np.zeros((1, 3, 224, 224), "<f4"))
NOT_READY = [
    GrpcStatus.UNKNOWN,
    GrpcStatus.INVALID_ARGUMENT,
    GrpcStatus.NOT_FOUND,
    GrpcStatus.FAILED_PRECONDITION,
    GrpcStatus.UNAVAILABLE,
]


def codec(dialect: str) -> GrpcCodec:
    return GrpcCodec(DEFAULT_LIMITS, {"dialect": dialect})


def response(**fields: Any) -> GrpcResponse:
    return GrpcResponse((pb.ModelInferResponse(**fields).SerializeToString(),))


def sent(call: Any, dialect: str = "triton") -> pb.ModelInferRequest:
    return pb.ModelInferRequest.FromString(b"".join(codec(dialect).encode_call(call).message))


@pytest.mark.parametrize("case", CALLS, ids=lambda case: case.name)
def test_encodes_call(case: CallCase) -> None:
    """A call is written byte for byte as the protobuf library writes it."""
    found = CODEC.encode_call(case.call)
    assert (case.method, case.message) == (found.method, b"".join(found.message))


@pytest.mark.parametrize("case", REPLIES, ids=lambda case: case.name)
def test_decodes_reply(case: ReplyCase) -> None:
    """The codec decodes an upstream's message to the expected reply."""
    assert case.reply == CODEC.decode_reply(case.call, GrpcResponse((memoryview(case.message),)))


def test_upstream_error_is_forwarded_exactly() -> None:
    """Status and details of an upstream of this protocol reach the client unchanged."""
    wire = GrpcResponse(status=GrpcStatus.ALREADY_EXISTS, details="failed on purpose" * 50)
    with pytest.raises(InvalidRequest) as caught:
        CODEC.decode_reply(InferRequest(model=M), wire)
    assert wire == CODEC.encode_error(None, caught.value)


def test_status_without_details_is_named_in_the_error() -> None:
    """The error for an upstream's status without details contains the status."""
    with pytest.raises(UpstreamError, match="status UNKNOWN and no text"):
        CODEC.decode_reply(InferRequest(model=M), GrpcResponse(status=GrpcStatus.UNKNOWN))


@pytest.mark.parametrize("status", [each for each in GrpcStatus if each is not GrpcStatus.OK])
def test_only_some_statuses_mean_that_a_model_is_not_ready(status: GrpcStatus) -> None:
    """A readiness call raises a status that does not concern readiness."""
    call, wire = ModelReadyRequest(model=M), GrpcResponse(status=status, details="not here")
    if status in NOT_READY:
        assert CODEC.decode_reply(call, wire) is False
    else:
        with pytest.raises(GatewayError, match="not here"):
            CODEC.decode_reply(call, wire)


@pytest.mark.parametrize("ready", [True, False])
def test_flag_of_a_successful_readiness_response_counts(ready: bool) -> None:
    """With the status OK, the flag of the message is the readiness."""
    wire = GrpcResponse((pb.ModelReadyResponse(ready=ready).SerializeToString(),))
    assert ready is CODEC.decode_reply(ModelReadyRequest(model=M), wire)


def output_of(name: str, shape: int, *raw: bytes) -> GrpcResponse:
    found = pb.ModelInferResponse.InferOutputTensor(name=name, datatype="FP32", shape=[shape])
    return response(outputs=[found], raw_output_contents=raw)


@pytest.mark.parametrize(
    ("wire", "kind", "text"),
    [
        (response(id="b"), MalformedMessage, "response has id 'b': the request had 'a'"),
        (response(), MalformedMessage, "lacks the requested output 'B'"),
        # The class of upstream faults.
        (output_of("\0", 0), MalformedMessage, "tensor name has the character U\\+0000"),
        (output_of("Y", 2, b"1234"), InvalidTensor, r"has 4 bytes, shape \[2\] of FP32 needs 8"),
    ],
)
def test_unusable_response_is_rejected(
    wire: GrpcResponse, kind: type[GatewayError], text: str
) -> None:
    """A response to another request, or of a wrong form, is rejected."""
    call = InferRequest(model=M, id="a", outputs=(RequestedOutput("B"),))
    with pytest.raises(kind, match=text):
        CODEC.decode_reply(call, wire)


def test_ids_of_the_gateway_are_not_the_clients() -> None:
    """A missing id is the request's; one that the client did not send is dropped."""
    found = CODEC.decode_reply(InferRequest(model=M, id="a"), response())
    assert ("a", M) == (found.id, found.model)
    call = InferRequest(model=M)
    found = CODEC.decode_reply(call, response(id="made-up"))
    wire = CODEC.encode_reply(call, found.changed(id="made-up"))
    assert ("", "") == (found.id, pb.ModelInferResponse.FromString(bytes(wire.view)).id)


def test_kserve_request_always_has_an_id() -> None:
    """KServe needs an id: the request's, else the request id of the call, else a fixed one."""
    named = Context(request_id="r")
    calls = [InferRequest(model=M, id="a", context=named), InferRequest(model=M, context=named)]
    found = [sent(call, "kserve").id for call in (*calls, InferRequest(model=M))]
    assert ["a", "r", "gateway"] == found


def test_kserves_leaked_parameter_and_extra_outputs_are_dropped() -> None:
    """Outputs not requested and the parameter `binary_data_size` of KServe are dropped."""
    size = {"binary_data_size": pb.InferParameter(int64_param=1)}
    outputs = [
        pb.ModelInferResponse.InferOutputTensor(
            name=name, datatype="UINT8", shape=[1], parameters=size
        )
        for name in ("A", "B")
    ]
    wire = response(outputs=outputs, raw_output_contents=[b"\1", b"\2"])
    call = InferRequest(model=M, outputs=(RequestedOutput("B"),))
    found = codec("kserve").decode_reply(call, wire).outputs
    assert (raw_tensor("B", Datatype.UINT8, (1,), memoryview(b"\2")),) == found


@pytest.mark.parametrize("name", ["a\n", "..", "x" * 2000])
def test_unusable_model_name_in_a_response_is_ignored(name: str) -> None:
    """An unusable model name or version in a response counts as absent, as over HTTP."""
    reply = CODEC.decode_reply(InferRequest(model=M), response(model_name=name))
    assert M.name == reply.model.name
    reply = CODEC.decode_reply(InferRequest(model=M), response(model_version=name))
    assert "" == reply.model.version


def test_unusable_parameter_in_a_response_is_dropped() -> None:
    """A parameter without a value, or with an unprintable name, is dropped."""
    message = pb.ModelInferResponse(model_name="m")
    message.parameters["k"].int64_param = 5
    message.parameters["unset"].SetInParent()
    message.parameters["a\n"].int64_param = 6
    wire = GrpcResponse((memoryview(message.SerializeToString()),))
    assert {"k": 5} == CODEC.decode_reply(InferRequest(model=M), wire).parameters


def test_invalid_id_in_a_response_is_rejected_by_comparison() -> None:
    """An id needs no check of its own, because it is compared with that of the request."""
    for _ in range(3):  # the form of the message is cached in between
        with pytest.raises(MalformedMessage, match=r"response has id '7\\n'"):
            CODEC.decode_reply(InferRequest(model=M, id="7"), response(id="7\n"))


V, NOT_UTF8 = ModelRef("m", "1"), ModelRef("\ud800")


@pytest.mark.parametrize(
    ("dialect", "call", "kind", "text"),
    [
        ("kserve", InferRequest(model=V), Unsupported, "kserve has no versions"),
        ("kserve", ModelReadyRequest(model=V), Unsupported, "kserve has no versions"),
        ("kserve", RepositoryIndexRequest(), Unsupported, "'kserve' has no repository index"),
        ("ovms", RepositoryIndexRequest(), Unsupported, "'ovms' has no repository index"),
        ("triton", InferRequest(), InvalidRequest, "infer names no model"),
        ("triton", InferRequest(model=NOT_UTF8), Unsupported, "cannot be written"),
        ("triton", ModelReadyRequest(model=NOT_UTF8), Unsupported, "cannot be written"),
    ],
)
def test_calls_that_a_server_would_misread_are_not_sent(
    dialect: str, call: Any, kind: type[GatewayError], text: str
) -> None:
    """A call is rejected before anything is sent."""
    with pytest.raises(kind, match=text):
        codec(dialect).encode_call(call)


def test_reply_of_a_model_that_is_not_utf8_is_rejected() -> None:
    """It has no form on the wire."""
    with pytest.raises(Unsupported, match="reply cannot be written"):
        CODEC.encode_reply(InferRequest(model=M), InferResponse(model=NOT_UTF8, outputs=()))


def test_unknown_dialect_is_rejected() -> None:
    """A dialect that does not exist is rejected by name."""
    with pytest.raises(ValueError, match="dialect is 'tf': expected one of auto, triton"):
        codec("tf")


@pytest.mark.parametrize(("dialect", "most"), [("mlserver", 4 << 20), ("kserve", 8 << 20)])
def test_request_over_the_size_limit_of_a_server_is_not_sent(dialect: str, most: int) -> None:
    """The server's default limit applies unless the option raises it."""
    large = array_tensor("X", np.zeros(most, "|u1"))
    small = array_tensor("X", np.zeros(most - 100, "|u1"))
    for call in (_infer(large), StreamInferRequest(request=_infer(large))):
        if dialect == "kserve" and isinstance(call, StreamInferRequest):
            continue  # it has no streams
        with pytest.raises(TooLarge, match=f"{dialect} accepts at most {most}") as raised:
            codec(dialect).encode_call(call)
        assert "request_bytes" == raised.value.limit
    assert codec(dialect).encode_call(_infer(small)).message
    more = GrpcCodec(MessageLimits(request_bytes=2 * most), {"dialect": dialect})
    assert more.encode_call(_infer(large)).message
    assert codec("triton").encode_call(_infer(large)).message


def test_too_many_bytes_elements_are_not_sent_to_mlserver() -> None:
    """Many BYTES elements block MLServer over gRPC as well; other servers get all of them."""
    texts = [
        Tensor("X", Datatype.BYTES, (count,), RawData(memoryview(bytes(4 * count))))
        for count in (250_001, 250_000)
    ]
    with pytest.raises(
        TooLarge, match="250001 BYTES elements, mlserver gets at most 250000"
    ) as raised:
        codec("mlserver").encode_call(_infer(texts[0]))
    assert "json_strings" == raised.value.limit
    assert codec("mlserver").encode_call(_infer(texts[1])).message
    assert codec("kserve").encode_call(_infer(texts[0])).message
    more = GrpcCodec(MessageLimits(json_strings=100_001), {"dialect": "mlserver"})
    assert more.encode_call(_infer(texts[0])).message


def test_streaming_body_counts_towards_the_size_limit() -> None:
    """The known length of a streaming body counts towards the limit of the request."""
    source = FakeArriving(bytes(8 << 20), 0)
    data = StreamedData(source, 0, source.end)
    call = _infer(streamed_tensor("X", Datatype.UINT8, (8 << 20,), data))
    with pytest.raises(TooLarge, match="request_bytes"):
        codec("mlserver").encode_cut_through(call)


def _infer(tensor: Tensor) -> InferRequest:
    return InferRequest(model=M, inputs=(tensor,), id="1")
