"""The gRPC codec of grps: calls and replies with their messages, and errors within messages."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gateway.ir.calls import (
    InferRequest,
    InferResponse,
    ServerLiveRequest,
    ServerReadyRequest,
    StreamInferRequest,
)
from gateway.ir.context import CallSequence, Context, ModelRef
from gateway.ir.errors import (
    ErrorCode,
    GatewayError,
    InvalidTensor,
    MalformedMessage,
    Overloaded,
    TooLarge,
    Unavailable,
    Unsupported,
)
from gateway.ir.limits import DEFAULT_LIMITS, MessageLimits
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.tensor import array_tensor, items_tensor
from gateway.protocols.grps.errors import NoMethod, Unreadable
from gateway.protocols.grps.grpc import BRPC_METHODS, METHODS, SERVICE, GrpcCodec, file_descriptors
from gateway.schema import grps_pb2 as pb
from gateway.wire.grpc import GrpcRequest, GrpcResponse, GrpcStatus, MethodKind
from tests.cases.grps_grpc import CALLS, INFER, REPLIES, STREAM, CallCase, ReplyCase

CODEC = GrpcCodec(DEFAULT_LIMITS, {"default_model": "m"})


def name_of(case: CallCase | ReplyCase) -> str:
    return case.name


def decode_call(message: pb.GrpsMessage, method: str = "Predict") -> Any:
    """Return the call of a client's message."""
    return CODEC.decode_call(
        GrpcRequest(SERVICE + method, (memoryview(message.SerializeToString()),))
    )


def read_message(wire: GrpcResponse) -> pb.GrpsMessage:
    """Return the message of a response, as the library reads it."""
    return pb.GrpsMessage.FromString(b"".join(wire.message))


@pytest.mark.parametrize("case", CALLS, ids=name_of)
def test_encodes_call(case: CallCase) -> None:
    """A call is encoded as the method and message of the table."""
    wire = CODEC.encode_call(case.call)
    found = pb.GrpsMessage.FromString(b"".join(wire.message))
    assert (SERVICE + case.method, case.message) == (wire.method, found)


@pytest.mark.parametrize("case", REPLIES, ids=name_of)
def test_decodes_reply(case: ReplyCase) -> None:
    """A response is decoded as the reply of the table."""
    data = memoryview(case.message.SerializeToString())
    assert case.reply == CODEC.decode_reply(case.call, GrpcResponse((data,)))


@pytest.mark.parametrize("case", CALLS[:5], ids=name_of)
def test_decoded_request_is_encoded_the_same(case: CallCase) -> None:
    """A second gateway sends the message of the first one: the key is the name then."""
    call = CODEC.decode_call(
        GrpcRequest(SERVICE + case.method, (memoryview(case.message.SerializeToString()),))
    )
    sent = CODEC.encode_call(call)
    assert case.message == pb.GrpsMessage.FromString(b"".join(sent.message))


def test_service_has_eight_methods_and_one_stream() -> None:
    """Server and reflection use the schema; the methods of brpc are others."""
    streams = [name for name, kind in METHODS.items() if kind is MethodKind.SERVER_STREAM]
    assert (8, [SERVICE + "PredictStreaming"]) == (len(METHODS), streams)
    assert 1 == len(file_descriptors())
    assert set() == set(BRPC_METHODS) & set(METHODS)


def test_methods_of_the_brpc_service_are_decoded() -> None:
    """The listener decides which methods it serves."""
    call = CODEC.decode_call(GrpcRequest("/grps.protos.v1.GrpsBrpcService/CheckLiveness"))
    assert isinstance(call, ServerLiveRequest)


def test_stream_has_one_message_for_each_reply() -> None:
    """Each message has a Status; an error is one more message of a successful call."""
    call = decode_call(pb.GrpsMessage(str_data="x"), "PredictStreaming")
    assert isinstance(call, StreamInferRequest)
    item = InferResponse(model=ModelRef("m"), outputs=(items_tensor("t", (1,), [b"a"]),))
    assert ("a", 200) == (read_message(CODEC.encode_item(call, item)).str_data, 200)
    wire = CODEC.encode_error(call, Unavailable("gone"))
    assert GrpcStatus.OK is wire.status
    expected = pb.Status(code=503, msg="gone", status=pb.Status.FAILURE)
    assert expected == read_message(wire).status


def test_item_of_an_upstream_is_a_reply() -> None:
    """A FAILURE in the stream is raised."""
    good = pb.GrpsMessage(str_data="a").SerializeToString()
    bad = pb.GrpsMessage(status=pb.Status(code=500, msg="boom", status=pb.Status.FAILURE))
    item = CODEC.decode_item(STREAM, GrpcResponse((memoryview(good),)))
    assert ("7", False) == (item.id, item.is_final)
    with pytest.raises(GatewayError, match="boom"):
        CODEC.decode_item(STREAM, GrpcResponse((memoryview(bad.SerializeToString()),)))


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (Unreadable("x"), GrpcStatus.INVALID_ARGUMENT),
        (NoMethod("x"), GrpcStatus.UNIMPLEMENTED),
        (Overloaded("x"), GrpcStatus.RESOURCE_EXHAUSTED),
        (TooLarge("x", limit="message_bytes"), GrpcStatus.RESOURCE_EXHAUSTED),
        (TooLarge("x", limit="elements"), GrpcStatus.OK),
        (InvalidTensor("x"), GrpcStatus.OK),
    ],
)
def test_some_errors_end_the_call_with_a_grpc_status(
    error: GatewayError, status: GrpcStatus
) -> None:
    """Unreadable messages, unknown methods and overload do; others are a message."""
    wire = CODEC.encode_error(None, error)
    assert (status, status is GrpcStatus.OK) == (wire.status, bool(wire.message))


@pytest.mark.parametrize(
    "method",
    [
        "/grps.protos.v1.GrpsBrpcService/PredictStreaming",
        "/grps.protos.v1.GrpsBrpcService/PredictByHttp",
        "/grps.protos.v1.GrpsService/Nope",
        "/other.GrpsService/Predict",
    ],
)
def test_unknown_method_raises_no_method(method: str) -> None:
    """Methods of another service and streams of brpc are unknown, too."""
    with pytest.raises(NoMethod):
        CODEC.decode_call(GrpcRequest(method))


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (GrpcStatus.UNAVAILABLE, ErrorCode.UNAVAILABLE),
        (GrpcStatus.RESOURCE_EXHAUSTED, ErrorCode.OVERLOADED),
        (GrpcStatus.UNIMPLEMENTED, ErrorCode.UNSUPPORTED),
        (GrpcStatus.INTERNAL, ErrorCode.UPSTREAM),
    ],
)
def test_grpc_status_of_an_upstream_is_forwarded(status: GrpcStatus, code: ErrorCode) -> None:
    """A client of grps over gRPC receives the same status and details."""
    with pytest.raises(GatewayError) as caught:
        CODEC.decode_reply(ServerLiveRequest(), GrpcResponse(status=status, details="why"))
    again = CODEC.encode_error(ServerLiveRequest(), caught.value)
    assert (code, status, "why") == (caught.value.code, again.status, again.details)


def test_status_of_an_upstream_keeps_its_code_and_text() -> None:
    """Any code is kept; the text is cut to the limit."""
    message = pb.GrpsMessage(status=pb.Status(code=442, msg="t" * 5000, status=pb.Status.FAILURE))
    with pytest.raises(GatewayError) as caught:
        CODEC.decode_reply(INFER, GrpcResponse((memoryview(message.SerializeToString()),)))
    assert ErrorCode.INVALID_ARGUMENT is caught.value.code
    found = read_message(CODEC.encode_error(INFER, caught.value)).status
    assert (442, 1024) == (found.code, len(found.msg))


@pytest.mark.parametrize(
    "message",
    [
        pb.GrpsMessage(status=pb.Status(code=200, status=pb.Status.SUCCESS)),
        pb.GrpsMessage(ndarray=pb.NDArrayData()),
        pb.GrpsMessage(gtensors=pb.GenericTensorData.FromString(b"\x0a\x02\x10\x63")),
    ],
)
def test_unusable_response_is_rejected(message: pb.GrpsMessage) -> None:
    """A success without data is not a reply."""
    with pytest.raises((MalformedMessage, InvalidTensor)):
        CODEC.decode_reply(INFER, GrpcResponse((memoryview(message.SerializeToString()),)))


@pytest.mark.parametrize(
    "fields",
    [
        {"sequence": CallSequence(1)},
        {"inputs": (array_tensor("x", np.empty((0, 1 << 33))),)},
        {"inputs": (items_tensor("x", (2,), [b"", b"\xff"]),)},
    ],
)
def test_call_that_grps_cannot_represent_is_unsupported(fields: dict[str, Any]) -> None:
    """Sequences, dimensions over 32 bits and bytes that are not UTF-8 have no wire form."""
    with pytest.raises(Unsupported):
        CODEC.encode_call(InferRequest(model=ModelRef("m"), **fields))


def test_metadata_and_request_id_are_forwarded() -> None:
    """The request id is added; headers that are not gRPC metadata are dropped."""
    context = Context(
        metadata=(("x-a", "1"), ("host", "h"), ("x-bin", "b"), ("grpc-x", "y")), request_id="r"
    )
    wire = CODEC.encode_call(ServerReadyRequest(context=context))
    assert (("x-a", "1"), ("x-request-id", "r")) == wire.metadata
    call = CODEC.decode_call(GrpcRequest(SERVICE + "CheckReadiness", metadata=wire.metadata))
    assert ("r", wire.metadata) == (call.context.request_id, call.context.metadata)


@pytest.mark.parametrize(
    ("fields", "limit"),
    [
        ({"shape": [1] * 40}, "rank"),
        ({"shape": [2**31, 2**31]}, "elements"),
        ({"dtype": pb.DT_STRING, "shape": [1], "flat_string": ["x" * 99]}, "bytes_element_size"),
        ({"name": "n" * 99}, "name_bytes"),
    ],
)
def test_limits_are_enforced(fields: dict[str, Any], limit: str) -> None:
    """Each error has the name of its limit."""
    codec = GrpcCodec(MessageLimits(bytes_element_size=50, name_bytes=50), {"default_model": "m"})
    with pytest.raises(TooLarge) as caught:
        codec.decode_call(GrpcRequest(SERVICE + "Predict", (of_tensor(**fields),)))
    assert limit == caught.value.limit


def of_tensor(**fields: Any) -> bytes:
    """Return a message with a tensor of INT8."""
    tensor = pb.GenericTensor(**{"dtype": pb.DT_INT8, **fields})
    message = pb.GrpsMessage(gtensors=pb.GenericTensorData(tensors=[tensor]))
    return bytes(message.SerializeToString())


def test_repeated_message_field_is_merged() -> None:
    """Two halves of gtensors are two tensors, as in the library."""
    half = [of_tensor(name=name, shape=[1], flat_int8=[1]) for name in "ab"]
    call: Any = CODEC.decode_call(GrpcRequest(SERVICE + "Predict", (b"".join(half),)))
    found = [(tensor.name, tensor.datatype) for tensor in call.inputs]
    assert [("a", Datatype.INT8), ("b", Datatype.INT8)] == found
