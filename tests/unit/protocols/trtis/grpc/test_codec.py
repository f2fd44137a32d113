"""Tests of TensorRT v1 over gRPC, both directions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gateway.ir.calls import (
    InferRequest,
    InferResponse,
    ModelLoadRequest,
    ModelMetadataRequest,
    ModelReadyRequest,
    ModelUnloadRequest,
    RepositoryIndexRequest,
    ServerLiveRequest,
    ServerMetadataRequest,
    ServerStatusRequest,
    SharedStatusRequest,
    StreamInferRequest,
)
from gateway.ir.context import Context, ModelRef, Need
from gateway.ir.errors import (
    Forbidden,
    GatewayError,
    InvalidRequest,
    InvalidTensor,
    MalformedMessage,
    ModelNotFound,
    NotReady,
    RegionExists,
    RegionNotFound,
    RegionUnusable,
    TooLarge,
    Unavailable,
    Unsupported,
    UpstreamError,
)
from gateway.ir.limits import DEFAULT_LIMITS
from gateway.ir.metadata import (
    ModelMetadata,
    ModelStatus,
    ServerStatus,
    SharedRegion,
    TensorMetadata,
)
from gateway.ir.tensors.data import RawData
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.tensor import RequestedOutput, as_raw, items_tensor
from gateway.protocols.trtis.grpc.codec import METHODS, GrpcCodec, file_descriptors
from gateway.schema import tensorrt_v1_pb2 as pb
from gateway.wire.grpc import GrpcRequest, GrpcResponse, GrpcStatus, MethodKind
from tests.cases.trtis_grpc import CALLS, SERVICE, CallCase, answer, ask
from tests.cases.trtis_http import REPLY, SYSTEM, X_RAW, M, X, raw

OPEN = {"model_control": True, "repository_index": True}
CODEC: Any = GrpcCodec(DEFAULT_LIMITS, {})
WIDE: Any = GrpcCodec(DEFAULT_LIMITS, OPEN)
OK = pb.RequestStatus(code=pb.SUCCESS, server_id="s", request_id=1)
INFER: Any = next(case.message for case in CALLS if case.name == "infer")
CALL = next(case.call for case in CALLS if case.name == "infer")


def infer(**changes: Any) -> pb.InferRequest:
    message = pb.InferRequest()
    message.CopyFrom(INFER)
    for name, value in changes.items():
        if name == "raw_input":
            message.raw_input[:] = value
        elif hasattr(message, name):
            setattr(message, name, value)
        else:
            setattr(message.meta_data, name, value)
    return message


def read(wire: GrpcResponse) -> pb.InferResponse:
    assert wire.status is GrpcStatus.OK
    return pb.InferResponse.FromString(bytes(wire.view))


def test_all_methods_of_the_service_are_served() -> None:
    """All eight methods are served, one of them a stream."""
    assert len(METHODS) == 8
    assert METHODS[SERVICE + "StreamInfer"] is MethodKind.BIDIRECTIONAL
    assert METHODS[SERVICE + "Infer"] is MethodKind.UNARY
    assert b"nvidia.inferenceserver" in file_descriptors()[0]
    assert CODEC.needs == {Need.NAMES, Need.DATATYPES, Need.SHAPES, Need.BATCHING, Need.OUTPUTS}


@pytest.mark.parametrize("case", CALLS, ids=lambda case: case.name)
def test_encodes_call(case: CallCase) -> None:
    """A call is written as the message a real client sends."""
    wire = CODEC.encode_call(case.call)
    assert wire.method == SERVICE + case.method
    assert case.message == type(case.message).FromString(bytes(wire.view))


@pytest.mark.parametrize("case", CALLS, ids=lambda case: case.name)
def test_decodes_the_encoded_call(case: CallCase) -> None:
    """A message to an upstream, read as a client's, is the same call but for datatypes."""
    found = WIDE.decode_call(ask(case.message, case.method))
    if case.method == "Status":
        about = ModelRef("m") if case.call.model else None
        assert found == ServerStatusRequest(about=about, context=found.context)
    elif isinstance(case.call, InferRequest):
        plain = found.changed(inputs=(), context=Context())
        assert plain == case.call.changed(inputs=())
        for sent, got in zip(case.call.inputs, found.inputs, strict=True):
            assert (sent.name, sent.shape) == (got.name, got.shape)
            if isinstance(sent.data, RawData):
                assert as_raw(sent) == as_raw(got)
            else:
                assert sent.data == got.data
    else:
        assert case.call == found.with_context(protocol="", needs=frozenset())


def test_tensors_are_sent_without_a_copy() -> None:
    """Outputs are not copied."""
    output = raw("y", Datatype.UINT8, (1 << 15,), bytes(1 << 16))
    call = CODEC.decode_call(ask(INFER, "StreamInfer"))
    assert call.batch_size == 2
    written = CODEC.encode_reply(call, REPLY.changed(outputs=(output,)))
    data = np.frombuffer(as_raw(output), np.uint8)
    assert any(np.shares_memory(np.frombuffer(part, np.uint8), data) for part in written.message)


def test_encodes_inference_reply() -> None:
    """The response has one raw_output for each requested output, and the id."""
    codec: Any = GrpcCodec(DEFAULT_LIMITS, {})
    call = codec.decode_call(ask(infer(id=9)))
    found = read(codec.encode_reply(call, REPLY))
    assert found.request_status.code == pb.SUCCESS
    assert (found.meta_data.id, found.meta_data.model_version) == (9, 3)
    assert list(found.raw_output) == [X_RAW]


def test_classes_have_an_empty_raw_output() -> None:
    """Clients index raw_output by position: an output of classes has an empty one."""
    message = infer()
    message.meta_data.output.add(name="c").cls.count = 1
    message.meta_data.output.reverse()
    call = CODEC.decode_call(ask(message))
    classes = items_tensor("c", (2,), [b"1:0", b"2:1"])
    found = read(CODEC.encode_reply(call, REPLY.changed(outputs=(*REPLY.outputs, classes))))
    assert list(found.raw_output) == [b"", X_RAW]
    assert found.meta_data.output[0].batch_classes[1].cls[0].value == 2.0


@pytest.mark.parametrize(
    ("message", "failure", "text"),
    [
        (infer(model_name="", id=9), InvalidRequest, "names no model"),
        (infer(model_name="a\n", id=9), InvalidRequest, "control"),
        (infer(model_version=-2, id=9), InvalidRequest, "version is -2"),
        (infer(batch_size=0, id=9), InvalidRequest, "batch_size is 0"),
        (infer(raw_input=[], id=9), InvalidTensor, "'x' has no raw_input: the message has 0"),
    ],
)
def test_rejected_inference_echoes_its_id(
    message: pb.InferRequest, failure: type[GatewayError], text: str
) -> None:
    """The gRPC call succeeds; the response has the error status and the id."""
    with pytest.raises(failure, match=text) as caught:
        CODEC.decode_call(ask(message, "StreamInfer"))
    found = read(CODEC.encode_error(None, caught.value))
    assert found.request_status.code == pb.INVALID_ARG
    assert found.meta_data == pb.InferResponseHeader(id=9)
    assert not found.raw_output


@pytest.mark.parametrize("method", ["Status", "Health", "ModelControl", "SharedMemoryControl"])
def test_a_long_message_without_tensors_blocked_the_event_loop(method: str) -> None:
    """60 MB of fields took the library up to 0.5 s; such messages are rejected."""
    wire = GrpcRequest(f"/nvidia.inferenceserver.GRPCService/{method}", (bytes((1 << 20) + 1),))
    with pytest.raises(TooLarge, match=f"1048577 bytes to {method}: at most 1048576"):
        CODEC.decode_call(wire)


def test_header_over_the_cache_limit_is_decoded() -> None:
    """A header that is too long for the cache is decoded, too."""
    message = infer()
    names = [f"output-with-a-long-name-{number}" for number in range(199)]
    for name in names:
        message.meta_data.output.add(name=name)
    assert [*names] == [each.name for each in CODEC.decode_call(ask(message)).outputs][1:]


def test_declared_size_must_match_the_entry() -> None:
    """A batch_byte_size other than the entry's size is rejected."""
    message = infer(raw_input=[X_RAW])
    assert 1 == len(CODEC.decode_call(ask(message)).inputs)
    message.meta_data.input[0].batch_byte_size = 9
    with pytest.raises(InvalidTensor, match="16 bytes and a batch_byte_size of 9"):
        CODEC.decode_call(ask(message))


@pytest.mark.parametrize("raws", [[], [X_RAW, b"more"], [X_RAW, b"", b""]])
def test_each_input_has_one_entry(raws: list[bytes]) -> None:
    """Missing and surplus entries of raw_input are rejected."""
    with pytest.raises(InvalidTensor, match=r"raw_input"):
        CODEC.decode_call(ask(infer(raw_input=raws)))


def test_repeated_header_is_merged() -> None:
    """Two occurrences of a message are one, as in every protobuf parser."""
    head = pb.InferRequest(model_name="m", model_version=-1, meta_data={"batch_size": 1})
    tail = pb.InferRequest(meta_data={"id": 4, "output": [{"name": "o"}]})
    data = head.SerializeToString() + tail.SerializeToString()
    found = CODEC.decode_call(GrpcRequest(SERVICE + "Infer", (data,)))
    assert (found.batch_size, found.id, found.outputs) == (1, "4", (RequestedOutput("o"),))


@pytest.mark.parametrize(
    "data",
    [
        b"\xff",
        b"\x0a\x01m\x10\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\x1a\x01\xff",
        b"\x0a\x01\xff",
    ],
)
def test_invalid_messages_are_rejected(data: bytes) -> None:
    """The response to an invalid message has the protocol's form."""
    with pytest.raises(MalformedMessage) as caught:
        CODEC.decode_call(GrpcRequest(SERVICE + "StreamInfer", (data,)))
    found = read(CODEC.encode_error(None, caught.value))
    assert (found.request_status.code, found.meta_data.id) == (pb.INVALID_ARG, 0)


def test_version_zero_is_a_version() -> None:
    """0 is the literal version 0, unless the listener maps it to the latest version."""
    assert CODEC.decode_call(ask(infer(model_version=0))).model == ModelRef("m", "0")
    lenient: Any = GrpcCodec(DEFAULT_LIMITS, {"version_zero": "latest"})
    assert lenient.decode_call(ask(infer(model_version=0))).model == M


CONTROL, SHARED = pb.ModelControlRequest, pb.SharedMemoryControlRequest
ACTION_5 = CONTROL(model_name="m").SerializeToString() + b"\x10\x05"


def sent(method: str, message: Any) -> GrpcRequest:
    body = message if isinstance(message, bytes) else message.SerializeToString()
    return GrpcRequest(SERVICE + method, (body,))


@pytest.mark.parametrize(
    ("method", "message", "failure", "code"),
    [
        ("Health", pb.HealthRequest(mode="dead"), InvalidRequest, pb.UNKNOWN),
        ("Profile", pb.ProfileRequest(cmd="run"), InvalidRequest, pb.UNKNOWN),
        ("Repository", pb.RepositoryRequest(), InvalidRequest, pb.UNKNOWN),
        ("SharedMemoryControl", SHARED(), InvalidRequest, pb.UNKNOWN),
        ("SharedMemoryControl", SHARED(unregister={}), InvalidRequest, pb.INVALID_ARG),
        ("SharedMemoryControl", SHARED(register={"name": "r"}), InvalidRequest, pb.INVALID_ARG),
        ("ModelControl", CONTROL(), InvalidRequest, pb.INVALID_ARG),
        ("ModelControl", CONTROL(model_name="m"), Forbidden, pb.UNAVAILABLE),
        ("ModelControl", ACTION_5, InvalidRequest, pb.UNKNOWN),
        ("Status", pb.StatusRequest(model_name="\n"), InvalidRequest, pb.INVALID_ARG),
        ("Status", b"\xff", MalformedMessage, pb.INVALID_ARG),
        ("Other", b"", Unsupported, pb.UNSUPPORTED),
    ],
)
def test_rejects_invalid_and_disabled_calls(
    method: str, message: Any, failure: type[GatewayError], code: int
) -> None:
    """The error is in request_status, without meta_data."""
    codec = WIDE if message is ACTION_5 else CODEC
    with pytest.raises(failure) as caught:
        codec.decode_call(sent(method, message))
    found = read(codec.encode_error(None, caught.value))
    assert found.request_status.code == code
    assert not found.HasField("meta_data")


def test_response_to_a_rejected_index_request_has_an_index() -> None:
    """The client ignores the status of a response without an index."""
    wire = ask(pb.RepositoryRequest(index=True), "Repository")
    with pytest.raises(Forbidden) as caught:
        CODEC.decode_call(wire)
    call = WIDE.decode_call(wire)
    for refused in (None, call):
        written = CODEC.encode_error(refused, caught.value)
        found = pb.RepositoryResponse.FromString(bytes(written.view))
        assert found.request_status.code == pb.UNAVAILABLE
        assert "not enabled" in found.request_status.msg
        assert found.WhichOneof("response_type") == "index"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (RegionNotFound("r"), pb.NOT_FOUND),
        (RegionExists("r"), pb.ALREADY_EXISTS),
        (RegionUnusable("r"), pb.INTERNAL),
        (ModelNotFound("m"), pb.UNAVAILABLE),
    ],
)
def test_region_errors_have_their_own_codes(error: GatewayError, code: int) -> None:
    """Region errors have the status of real servers; a model error has another."""
    found = read(CODEC.encode_error(InferRequest(model=M, id="3"), error))
    assert (found.request_status.code, found.meta_data.id) == (code, 3)


def test_encodes_health_and_control() -> None:
    """They have their own messages."""
    live = CODEC.decode_call(ask(pb.HealthRequest(mode="live"), "Health"))
    health = pb.HealthResponse.FromString(bytes(CODEC.encode_reply(live, False).view))
    assert (health.health, health.request_status.code) == (False, pb.SUCCESS)
    profile = CODEC.decode_call(ask(pb.ProfileRequest(cmd="stop"), "Profile"))
    wire = CODEC.encode_reply(profile, True)
    assert pb.ProfileResponse.FromString(bytes(wire.view)).request_status.code == pb.SUCCESS
    done = WIDE.encode_reply(ModelLoadRequest(model=M), None)
    assert WIDE.decode_reply(ModelLoadRequest(model=M), done) is None


@pytest.mark.parametrize("region", [SYSTEM, SharedRegion(name="c", size_bytes=9, device=0)])
def test_encodes_regions(region: SharedRegion) -> None:
    """They are in both fields; a region on a device has no key."""
    wire = WIDE.encode_reply(SharedStatusRequest(), (region,))
    found = pb.SharedMemoryControlResponse.FromString(bytes(wire.view)).shared_memory_status
    assert list(found.shared_memory_region) == list(found.declared_region)
    assert (region,) == WIDE.decode_reply(SharedStatusRequest(), wire)


def test_encodes_status() -> None:
    """Metadata, readiness and index are read from it."""
    inputs = (TensorMetadata("x", Datatype.BYTES, (-1, 2)),)
    listed = ModelStatus(ModelMetadata(name="m", versions=("2",), inputs=inputs))
    wire = CODEC.encode_reply(ServerStatusRequest(), ServerStatus(is_ready=True, models=(listed,)))
    expected = ModelMetadata(
        name="m", versions=("2",), platform="custom", inputs=inputs, max_batch_size=128
    )
    assert expected == CODEC.decode_reply(ModelMetadataRequest(model=M), wire)
    assert CODEC.decode_reply(ModelReadyRequest(model=M), wire) is True
    assert len(CODEC.decode_reply(RepositoryIndexRequest(), wire)) == 1
    assert CODEC.decode_reply(ServerMetadataRequest(), wire).name == "inference:0"


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (CALL.changed(model=None), "names no model"),
        (CALL.changed(model=ModelRef("m", "x")), "expects a number"),
        (CALL.changed(model=ModelRef("\ud800")), "cannot be written"),
        (ModelMetadataRequest(), "names no model"),
        (ModelLoadRequest(model=M, parameters={"config": "{}"}), "has the parameter 'config'"),
        (ModelUnloadRequest(model=M, dependents=True), "includes its dependents"),
        (ServerStatusRequest(), "server status is not supported over trtis."),
    ],
)
def test_rejects_calls_that_v1_cannot_represent(call: Any, text: str) -> None:
    """The error names the cause, before a message is sent."""
    with pytest.raises(Unsupported, match=text):
        CODEC.encode_call(call)


def reply(**parts: Any) -> GrpcResponse:
    header = {
        "model_name": "m",
        "batch_size": 2,
        "output": [{"name": "y", "raw": {"dims": [2], "batch_byte_size": 16}}],
    }
    message = {"request_status": OK, "meta_data": header, "raw_output": [X_RAW], **parts}
    return answer(pb.InferResponse(**message))


def test_decodes_reply() -> None:
    """The batch size is separate from the shape; the output is a view of the message."""
    wire = reply()
    found = CODEC.decode_reply(CALL, wire)
    assert (found.model, found.batch_size) == (M, 2)
    (output,) = found.outputs
    assert output.shape == (2,)
    assert as_raw(output) == X_RAW
    (message,) = wire.message
    assert np.shares_memory(
        np.frombuffer(as_raw(output), np.uint8), np.frombuffer(message, np.uint8)
    )


@pytest.mark.parametrize(
    ("wire", "failure", "text"),
    [
        (reply(raw_output=[]), MalformedMessage, "0 raw_output: expected 1"),
        (reply(raw_output=[b"1"]), MalformedMessage, "1 bytes: expected 16"),
        (reply(meta_data={}, raw_output=[]), MalformedMessage, "lacks the requested output 'y'"),
        (reply(request_status={"code": pb.UNAVAILABLE, "msg": "gone"}), NotReady, "gone"),
        (reply(request_status={}), GatewayError, "request status 0"),
        (GrpcResponse((b"\xff",)), MalformedMessage, "InferResponse"),
        (GrpcResponse((b"\x0a\x01\xff",)), MalformedMessage, "InferResponse"),
        (GrpcResponse((), GrpcStatus.UNAVAILABLE, "down"), Unavailable, "down"),
        (GrpcResponse((), GrpcStatus.DATA_LOSS), UpstreamError, "DATA_LOSS"),
        (GrpcResponse((), GrpcStatus.UNIMPLEMENTED), Unsupported, "UNIMPLEMENTED"),
    ],
)
def test_rejects_unusable_responses(
    wire: GrpcResponse, failure: type[GatewayError], text: str
) -> None:
    """A failure in either status, or an inconsistent message, is an error."""
    with pytest.raises(failure, match=text):
        CODEC.decode_reply(CALL, wire)


def test_control_character_in_a_response_is_malformed() -> None:
    """The error is the upstream's, not the request's."""
    message = pb.InferResponse(request_status=OK)
    message.meta_data.model_name = "a\nb"
    with pytest.raises(MalformedMessage, match="U\\+000A"):
        CODEC.decode_reply(InferRequest(model=M), answer(message))


def test_unknown_model_is_not_ready() -> None:
    """An error status for an unknown model means not ready."""
    wire = answer(pb.StatusResponse(request_status={"code": pb.INVALID_ARG, "msg": "no"}))
    assert CODEC.decode_reply(ModelReadyRequest(model=M), wire) is False
    with pytest.raises(ModelNotFound, match="no"):
        CODEC.decode_reply(ModelMetadataRequest(model=M), wire)


def test_live_needs_flag_and_status() -> None:
    """Both the flag and the status must be good."""
    for code, health, expected in (
        (pb.SUCCESS, True, True),
        (pb.SUCCESS, False, False),
        (pb.UNAVAILABLE, True, False),
    ):
        wire = answer(pb.HealthResponse(request_status={"code": code}, health=health))
        assert CODEC.decode_reply(ServerLiveRequest(), wire) is expected


def test_regions_in_the_declared_field_are_read() -> None:
    """A server that follows the declaration puts regions into field 1."""
    status = pb.SharedMemoryControlResponse(request_status=OK)
    status.shared_memory_status.declared_region.add(name="r")
    (found,) = CODEC.decode_reply(SharedStatusRequest(), answer(status))
    assert found.name == "r"


def test_unsupported_calls_are_rejected() -> None:
    """Calls and stream items that v1 lacks raise Unsupported."""
    stream = StreamInferRequest(model=M, request=InferRequest(model=M, inputs=(X,)))
    for function, *arguments in (
        (CODEC.encode_item, stream, InferResponse(model=M, outputs=())),
        (CODEC.encode_reply, ServerMetadataRequest(), None),
        (CODEC.decode_reply, ServerStatusRequest(), GrpcResponse()),
    ):
        with pytest.raises(Unsupported, match=r"is not supported over trtis\.grpc"):
            function(*arguments)


def test_context_holds_metadata_request_id_and_deadline() -> None:
    """They are passed in both directions, headers of framing are not."""
    metadata = (("x-a", "1"), ("x-request-id", "id"), ("x-bin", b"\x00"), ("host", "h"))
    wire = GrpcRequest(SERVICE + "Status", (b"",), metadata, 7.0)
    context = CODEC.decode_call(wire).context
    assert (context.request_id, context.deadline) == ("id", 7.0)
    assert context.metadata == (
        ("x-a", "1"),
        ("x-request-id", "id"),
        ("x-bin", "AA=="),
        ("host", "h"),
    )
    sent = CODEC.encode_call(ServerLiveRequest(context=context))
    assert sent.metadata == (("x-a", "1"), ("x-request-id", "id"), ("x-bin", b"\x00"))
    assert sent.deadline == 7.0
    named = CODEC.encode_call(ServerLiveRequest(context=Context(request_id="made")))
    assert named.metadata == (("x-request-id", "made"),)


def test_unknown_fields_are_ignored() -> None:
    """Requests and responses may have fields that this schema does not know."""
    extra = b"\xa0\x06\x01"
    wire = GrpcRequest(SERVICE + "Infer", (INFER.SerializeToString() + extra,))
    assert CODEC.decode_call(wire).batch_size == 2
    extended = GrpcResponse((bytes(reply().view) + extra,))
    assert CODEC.decode_reply(CALL, extended).batch_size == 2
