"""The gRPC codec of grps: calls and answers beside their messages, and errors inside them."""

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
from gateway.ir.context import Context, ModelRef, Sequence
from gateway.ir.datatypes import Datatype
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
from gateway.ir.tensor import array_tensor, as_numpy, items_tensor
from gateway.protocols.grps.errors import NoMethod, Unreadable
from gateway.protocols.grps.grpc import (
    BRPC_METHODS,
    METHODS,
    SERVICE,
    GrpcCodec,
    file_descriptors,
)
from gateway.schema import grps_pb2 as pb
from gateway.wire.grpc import GrpcRequest, GrpcResponse, GrpcStatus, MethodKind
from tests.cases.grps_grpc import CALLS, INFER, REPLIES, STREAM, CallCase, ReplyCase

CODEC = GrpcCodec(DEFAULT_LIMITS, {"default_model": "m"})


def name_of(case: CallCase | ReplyCase) -> str:
    return case.name


def decode_call(message: pb.GrpsMessage, method: str = "Predict") -> Any:
    """Return the call that a client's message is."""
    return CODEC.decode_call(
        GrpcRequest(SERVICE + method, (memoryview(message.SerializeToString()),))
    )


def read_message(wire: GrpcResponse) -> pb.GrpsMessage:
    """Return the message of an answer, as the library reads it."""
    return pb.GrpsMessage.FromString(b"".join(wire.message))


@pytest.mark.parametrize("case", CALLS, ids=name_of)
def test_calls_are_written(case: CallCase) -> None:
    """A call is the method and message that the table says."""
    wire = CODEC.encode_call(case.call)
    found = pb.GrpsMessage.FromString(b"".join(wire.message))
    assert (SERVICE + case.method, case.message) == (wire.method, found)


@pytest.mark.parametrize("case", REPLIES, ids=name_of)
def test_replies_are_read(case: ReplyCase) -> None:
    """An answer is what the table says."""
    data = memoryview(case.message.SerializeToString())
    assert case.reply == CODEC.decode_reply(case.call, GrpcResponse((data,)))


@pytest.mark.parametrize("case", CALLS[:5], ids=name_of)
def test_requests_are_read_back(case: CallCase) -> None:
    """What one gateway sends, another one reads: the key is the name then."""
    call = CODEC.decode_call(
        GrpcRequest(SERVICE + case.method, (memoryview(case.message.SerializeToString()),))
    )
    sent = CODEC.encode_call(call)
    assert case.message == pb.GrpsMessage.FromString(b"".join(sent.message))


def test_the_service_has_eight_methods_of_which_one_streams() -> None:
    """As the schema says, for server and reflection."""
    streams = [name for name, kind in METHODS.items() if kind is MethodKind.SERVER_STREAM]
    assert (8, [SERVICE + "PredictStreaming"], 1) == (
        len(METHODS),
        streams,
        len(file_descriptors()),
    )


def test_float_tensors_are_views_both_ways() -> None:
    """FP32 and FP64 are never copied."""
    for dtype in (np.float32, np.float64):
        tensor = array_tensor("x", np.arange(5000, dtype=dtype))
        wire = CODEC.encode_call(InferRequest(model=ModelRef("m"), inputs=(tensor,)))
        assert np.shares_memory(np.frombuffer(wire.message[1], np.uint8), as_numpy(tensor))
        data = np.frombuffer(b"".join(wire.message), np.uint8)
        call = CODEC.decode_call(GrpcRequest(wire.method, (data.data,)))
        assert isinstance(call, InferRequest)
        assert np.shares_memory(as_numpy(call.inputs[0]), data)


def test_a_stream_is_one_message_for_each_answer() -> None:
    """Each with its own Status; an error is one more message, the call succeeds."""
    call = decode_call(pb.GrpsMessage(str_data="x"), "PredictStreaming")
    assert isinstance(call, StreamInferRequest)
    item = InferResponse(model=ModelRef("m"), outputs=(items_tensor("t", (1,), [b"a"]),))
    assert ("a", 200) == (read_message(CODEC.encode_item(call, item)).str_data, 200)
    wire = CODEC.encode_error(call, Unavailable("gone"))
    found = read_message(wire).status
    assert (GrpcStatus.OK, 503, "gone", pb.Status.FAILURE) == (
        wire.status,
        found.code,
        found.msg,
        found.status,
    )


def test_an_item_of_an_upstream_is_an_answer() -> None:
    """And a FAILURE in the stream is raised."""
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
def test_only_what_was_never_read_ends_the_call(error: GatewayError, status: GrpcStatus) -> None:
    """A failure is a message, unless there was none, or too much load."""
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
def test_an_unknown_method_is_no_method(method: str) -> None:
    """Nor is one of another service; that of brpc has no streams."""
    with pytest.raises(NoMethod):
        CODEC.decode_call(GrpcRequest(method))


def test_the_service_of_brpc_is_read_alike() -> None:
    """Which names are answered where is the listener's business."""
    call = CODEC.decode_call(GrpcRequest("/grps.protos.v1.GrpsBrpcService/CheckLiveness"))
    assert isinstance(call, ServerLiveRequest)
    assert set() == set(BRPC_METHODS) & set(METHODS)


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (GrpcStatus.UNAVAILABLE, ErrorCode.UNAVAILABLE),
        (GrpcStatus.RESOURCE_EXHAUSTED, ErrorCode.OVERLOADED),
        (GrpcStatus.UNIMPLEMENTED, ErrorCode.UNSUPPORTED),
        (GrpcStatus.INTERNAL, ErrorCode.UPSTREAM),
    ],
)
def test_a_call_that_ended_is_an_error_that_goes_back_as_it_came(
    status: GrpcStatus, code: ErrorCode
) -> None:
    """For a client of grps over gRPC; others get its kind."""
    with pytest.raises(GatewayError) as caught:
        CODEC.decode_reply(ServerLiveRequest(), GrpcResponse(status=status, details="why"))
    again = CODEC.encode_error(ServerLiveRequest(), caught.value)
    assert (code, status, "why") == (caught.value.code, again.status, again.details)


def test_a_status_of_an_upstream_goes_back_in_its_own_words() -> None:
    """Code and text, however odd; no stack trace longer than the limit."""
    message = pb.GrpsMessage(status=pb.Status(code=442, msg="t" * 5000, status=pb.Status.FAILURE))
    with pytest.raises(GatewayError) as caught:
        CODEC.decode_reply(INFER, GrpcResponse((memoryview(message.SerializeToString()),)))
    found = read_message(CODEC.encode_error(INFER, caught.value)).status
    assert (ErrorCode.INVALID_ARGUMENT, 442, 1024) == (
        caught.value.code,
        found.code,
        len(found.msg),
    )


@pytest.mark.parametrize(
    "message",
    [
        pb.GrpsMessage(status=pb.Status(code=200, status=pb.Status.SUCCESS)),
        pb.GrpsMessage(ndarray=pb.NDArrayData()),
        pb.GrpsMessage(gtensors=pb.GenericTensorData.FromString(b"\x0a\x02\x10\x63")),
    ],
)
def test_an_answer_without_use_is_malformed(message: pb.GrpsMessage) -> None:
    """Success without data is none."""
    with pytest.raises((MalformedMessage, InvalidTensor)):
        CODEC.decode_reply(INFER, GrpcResponse((memoryview(message.SerializeToString()),)))


def test_what_grps_cannot_carry_is_unsupported() -> None:
    """Sequences have no words; nor have tensors without shape, or dimensions over 32 bits."""
    calls = [
        InferRequest(model=ModelRef("m"), sequence=Sequence(1)),
        InferRequest(model=ModelRef("m"), inputs=(array_tensor("x", np.empty((0, 1 << 33))),)),
        InferRequest(model=ModelRef("m"), inputs=(items_tensor("x", (2,), [b"", b"\xff"]),)),
    ]
    for call in calls:
        with pytest.raises(Unsupported):
            CODEC.encode_call(call)


def test_metadata_and_ids_pass() -> None:
    """The id of the call goes along, and what is no metadata of gRPC stays."""
    context = Context(
        metadata=(("x-a", "1"), ("host", "h"), ("x-bin", "b"), ("grpc-x", "y")), request_id="r"
    )
    wire = CODEC.encode_call(ServerReadyRequest(context=context))
    assert (("x-a", "1"), ("x-request-id", "r")) == wire.metadata
    call = CODEC.decode_call(GrpcRequest(SERVICE + "CheckReadiness", metadata=wire.metadata))
    assert ("r", wire.metadata) == (call.context.request_id, call.context.metadata)


@pytest.mark.parametrize(
    ("tensor", "limit"),
    [
        (pb.GenericTensor(dtype=pb.DT_INT8, shape=[1] * 40), "rank"),
        (pb.GenericTensor(dtype=pb.DT_INT8, shape=[2**31, 2**31]), "elements"),
        (
            pb.GenericTensor(dtype=pb.DT_STRING, shape=[1], flat_string=["x" * 99]),
            "bytes_element_size",
        ),
        (pb.GenericTensor(dtype=pb.DT_INT8, name="n" * 99), "name_bytes"),
    ],
)
def test_limits_hold(tensor: pb.GenericTensor, limit: str) -> None:
    """Each by its name, before anything is allocated."""
    codec = GrpcCodec(MessageLimits(bytes_element_size=50, name_bytes=50), {"default_model": "m"})
    message = pb.GrpsMessage(gtensors=pb.GenericTensorData(tensors=[tensor]))
    with pytest.raises(TooLarge) as caught:
        codec.decode_call(
            GrpcRequest(SERVICE + "Predict", (memoryview(message.SerializeToString()),))
        )
    assert limit == caught.value.limit


def test_a_message_field_that_comes_twice_is_merged_as_the_library_does() -> None:
    """Two halves of gtensors are two tensors."""
    half = [
        pb.GrpsMessage(
            gtensors=pb.GenericTensorData(
                tensors=[pb.GenericTensor(name=name, dtype=pb.DT_INT8, shape=[1], flat_int8=[1])]
            )
        ).SerializeToString()
        for name in "ab"
    ]
    call = CODEC.decode_call(GrpcRequest(SERVICE + "Predict", (memoryview(b"".join(half)),)))
    assert isinstance(call, InferRequest)
    assert [("a", Datatype.INT8), ("b", Datatype.INT8)] == [
        (tensor.name, tensor.datatype) for tensor in call.inputs
    ]
