"""Management messages over gRPC: omitted fields, spellings of servers, and limits."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf.message import Message

from gateway.ir.calls import (
    Call,
    ModelLoadRequest,
    ModelMetadataRequest,
    RepositoryIndexRequest,
    ServerMetadataRequest,
)
from gateway.ir.context import ModelRef
from gateway.ir.errors import (
    GatewayError,
    InvalidRequest,
    InvalidTensor,
    MalformedMessage,
    TooLarge,
)
from gateway.ir.limits import DEFAULT_LIMITS, MessageLimits
from gateway.ir.metadata import ModelMetadata, ModelState, RepositoryEntry, TensorMetadata
from gateway.ir.tensors.datatypes import Datatype
from gateway.protocols.oip.grpc.codec import GrpcCodec
from gateway.protocols.oip.grpc.management import MESSAGES, SERVICE
from gateway.schema import open_inference_pb2 as pb
from gateway.wire.grpc import GrpcRequest
from tests.cases.oip_options import EVERYTHING

Tensor = pb.ModelMetadataResponse.TensorMetadata
Entry = pb.RepositoryIndexResponse.ModelIndex


def read(call: type[Call[Any]], message: Message, limits: MessageLimits = DEFAULT_LIMITS) -> Any:
    request = call(model=ModelRef("m"))
    return MESSAGES[call].read_reply(request, memoryview(message.SerializeToString()), limits)


def test_metadata_without_types() -> None:
    """A server may omit types and shapes, or name datatypes of its own."""
    message = pb.ModelMetadataResponse(
        name="m",
        inputs=[Tensor(name="A"), Tensor(name="B", datatype="STRING", shape=[-1])],
        outputs=[Tensor(name="C", datatype="FP32")],
    )
    expected = ModelMetadata(
        name="m",
        inputs=(TensorMetadata("A", None, None), TensorMetadata("B", None, (-1,))),
        outputs=(TensorMetadata("C", Datatype.FP32, ()),),
    )
    assert expected == read(ModelMetadataRequest, message)


def test_metadata_with_ambiguous_field_is_read() -> None:
    """Field 6, a map whose value type differs between servers, is ignored."""
    data = pb.ModelMetadataResponse(name="m").SerializeToString() + b"\x32\x06\x0a\x01k\x12\x01v"
    request = ModelMetadataRequest(model=ModelRef("m"))
    found = MESSAGES[ModelMetadataRequest].read_reply(request, memoryview(data), DEFAULT_LIMITS)
    assert ModelMetadata(name="m") == found


@pytest.mark.parametrize(
    ("spelled", "state"),
    [
        ("READY", ModelState.READY),
        ("State.READY", ModelState.READY),
        ("State.UNAVAILABLE", ModelState.UNAVAILABLE),
        ("", ModelState.UNKNOWN),
        ("ASLEEP", ModelState.UNKNOWN),
    ],
)
def test_states(spelled: str, state: ModelState) -> None:
    """States are read with and without MLServer's prefix; a new one is unknown."""
    found = read(RepositoryIndexRequest, index([Entry(name="m", state=spelled)]))
    assert (RepositoryEntry("m", state=state),) == found


def test_long_reason_is_truncated() -> None:
    """The reason why a model is not ready is truncated to its limit."""
    (entry,) = read(RepositoryIndexRequest, index([Entry(name="m", reason="x" * 5000)]))
    assert DEFAULT_LIMITS.error_text_bytes == len(entry.reason)


def index(models: list[Entry]) -> Message:
    return pb.RepositoryIndexResponse(models=models)


def server(extensions: list[str]) -> Message:
    return pb.ServerMetadataResponse(extensions=extensions)


META, SERVER_META, INDEX = ModelMetadataRequest, ServerMetadataRequest, RepositoryIndexRequest


def meta(**fields: Any) -> Message:
    return pb.ModelMetadataResponse(**fields)


@pytest.mark.parametrize(
    ("call", "message", "kind", "text"),
    [
        (
            META,
            meta(inputs=[Tensor(shape=[-2])]),
            InvalidTensor,
            r"\[-2\]: expected dimensions of -1",
        ),
        (META, meta(inputs=[Tensor(shape=[1] * 33)]), TooLarge, "33 dimensions, at most 32"),
        (META, meta(outputs=[Tensor()] * 2049), TooLarge, "2049 outputs, at most 2048"),
        (META, meta(versions=[""] * 10_001), TooLarge, "10001 versions, at most 10000"),
        (META, meta(platform="\n"), InvalidRequest, "model metadata has the character"),
        (META, meta(inputs=[Tensor(name="\n")]), InvalidRequest, "tensor name has the character"),
        (SERVER_META, server(["\n"]), InvalidRequest, "server metadata has the character"),
        (SERVER_META, server([""] * 10_001), TooLarge, "10001 extensions"),
        (INDEX, index([Entry()] * 10_001), TooLarge, "10001 models"),
        (INDEX, index([Entry(version="\n")]), InvalidRequest, "model version has the character"),
    ],
)
def test_rejects(
    call: type[Call[Any]], message: Message, kind: type[GatewayError], text: str
) -> None:
    """A response over a limit or with invalid names is rejected."""
    with pytest.raises(kind, match=text):
        read(call, message)


SERVER = GrpcCodec(DEFAULT_LIMITS, EVERYTHING)
MIB = 1 << 20


def decode(method: str, data: bytes) -> Call[Any]:
    return SERVER.decode_call(GrpcRequest(SERVICE + method, (memoryview(data),)))


@pytest.mark.parametrize(
    "method",
    ["TraceSetting", "LogSettings", "RepositoryModelUnload", "RepositoryIndex", "ModelReady"],
)
def test_a_long_message_without_tensors_blocked_the_event_loop(method: str) -> None:
    """A long message without tensors is rejected: 32 MB of settings took 1.7 s to parse."""
    with pytest.raises(TooLarge, match=f"{MIB + 1} bytes to {method}: at most {MIB}"):
        decode(method, b"\x0a" * (MIB + 1))


def test_load_request_may_hold_a_file_and_few_parameters() -> None:
    """The fields of a load request are counted before the library parses them."""
    message = pb.RepositoryModelLoadRequest(model_name="m")
    message.parameters["file:1/model.onnx"].bytes_param = bytes(2 * MIB)
    data = message.SerializeToString()
    call = decode("RepositoryModelLoad", data)
    assert isinstance(call, ModelLoadRequest)
    assert {"file:1/model.onnx": bytes(2 * MIB)} == call.parameters
    with pytest.raises(TooLarge, match="has more than 128 fields"):
        decode("RepositoryModelLoad", data + b"\x1a\x00" * 200)
    with pytest.raises(MalformedMessage, match="request to load a model: "):
        decode("RepositoryModelLoad", data[:-1])


@pytest.mark.parametrize(
    ("method", "message", "field"),
    [
        ("TraceSetting", pb.TraceSettingRequest(), "settings"),
        ("LogSettings", pb.LogSettingsRequest(), "settings"),
        ("RepositoryModelLoad", pb.RepositoryModelLoadRequest(model_name="m"), "parameters"),
        ("RepositoryModelUnload", pb.RepositoryModelUnloadRequest(model_name="m"), "parameters"),
    ],
)
def test_entries_are_counted_before_they_are_read(
    method: str, message: Message, field: str
) -> None:
    """Too many entries are rejected before an entry without a value is."""
    for number in range(65):
        getattr(message, field)[f"{number}"].SetInParent()
    with pytest.raises(TooLarge, match=f"65 {field}, at most 64 are allowed"):
        decode(method, message.SerializeToString())


def test_platform_may_be_a_dot() -> None:
    """Only names of models, versions and regions are checked as segments of a path."""
    message = pb.ModelMetadataResponse(name="m", platform=".", versions=["1"])
    metadata = read(ModelMetadataRequest, message)
    assert (".", ("1",)) == (metadata.platform, metadata.versions)
