"""The Open Inference gRPC codec of a listener: decoding of requests, encoding of responses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gateway.ir.calls import InferRequest, InferResponse, StreamInferRequest
from gateway.ir.context import CallSequence, ModelRef, Origin
from gateway.ir.errors import (
    ERROR_CLASSES,
    ErrorCode,
    InvalidRequest,
    MalformedMessage,
    NotFound,
    TooLarge,
    Unsupported,
)
from gateway.ir.limits import DEFAULT_LIMITS
from gateway.ir.tensors.data import SharedMemoryData
from gateway.ir.tensors.tensor import RequestedOutput, array_tensor, as_raw
from gateway.protocols.oip.grpc.codec import METHODS, GrpcCodec, file_descriptors
from gateway.schema import open_inference_pb2 as pb
from gateway.wire.errors import GRPC_STATUS
from gateway.wire.grpc import GrpcRequest, GrpcResponse, GrpcStatus, MethodKind
from tests.cases.oip_grpc import CALLS, METHOD, REPLIES, CallCase, ReplyCase
from tests.cases.oip_options import EVERYTHING

CODEC = GrpcCodec(DEFAULT_LIMITS, EVERYTHING)
M = ModelRef("m")
X = array_tensor("X", np.arange(4, dtype="<f4"))
BIG = array_tensor("BIG", np.zeros((1, 3, 224, 224), "<f4"))


def codec(dialect: str) -> GrpcCodec:
    return GrpcCodec(DEFAULT_LIMITS, {"dialect": dialect})


def read(wire: GrpcRequest) -> InferRequest:
    call = CODEC.decode_call(wire)
    assert isinstance(call, InferRequest)
    return call


def infer(message: pb.ModelInferRequest, **fields: Any) -> GrpcRequest:
    return GrpcRequest(METHOD + "ModelInfer", (message.SerializeToString(),), **fields)


@pytest.mark.parametrize("case", CALLS, ids=lambda case: case.name)
def test_decodes_call(case: CallCase) -> None:
    """The codec decodes a client's message to the expected call."""
    found = CODEC.decode_call(GrpcRequest(case.method, (memoryview(case.message),)))
    assert case.call == found.changed(context=case.call.context)


@pytest.mark.parametrize("case", REPLIES, ids=lambda case: case.name)
def test_encodes_reply(case: ReplyCase) -> None:
    """The codec encodes a reply byte for byte as the protobuf library does."""
    found = GrpcCodec(DEFAULT_LIMITS, {}).encode_reply(case.call, case.reply)
    assert (GrpcStatus.OK, case.message) == (found.status, b"".join(found.message))


def test_large_tensors_are_sent_without_a_copy() -> None:
    """The data of a large tensor are a separate, uncopied buffer of the message, in both directions."""
    call = InferRequest(model=M, inputs=(BIG,))
    data = np.frombuffer(as_raw(BIG), np.uint8)
    for wire in (
        CODEC.encode_call(call).message,
        CODEC.encode_reply(call, InferResponse(model=M, outputs=(BIG,))).message,
    ):
        assert np.shares_memory(data, np.frombuffer(wire[1], np.uint8))


def int64(value: int) -> pb.InferParameter:
    return pb.InferParameter(int64_param=value)


def text(value: str) -> pb.InferParameter:
    return pb.InferParameter(string_param=value)


TRUE = pb.InferParameter(bool_param=True)
REGION = {"shared_memory_region": text("r"), "shared_memory_byte_size": int64(8)}


def test_reserved_parameters_become_fields_of_the_call() -> None:
    """Sequence, priority and timeout become fields of the call; custom parameters remain."""
    parameters = {
        "sequence_id": text("s-1"),
        "sequence_start": TRUE,
        "priority": pb.InferParameter(uint64_param=2),
        "timeout": int64(7),
        "binary_data_output": TRUE,
        "k": pb.InferParameter(uint64_param=2**64 - 1),
    }
    found = read(infer(pb.ModelInferRequest(model_name="m", parameters=parameters)))
    assert CallSequence("s-1", start=True) == found.sequence
    assert (2, 7, {"k": 2**64 - 1}) == (found.priority, found.timeout_us, found.parameters)


def infer_with_output(**parameters: pb.InferParameter) -> GrpcRequest:
    """Return an inference request whose one requested output has these parameters."""
    output = pb.ModelInferRequest.InferRequestedOutputTensor(name="Y", parameters=parameters)
    return infer(pb.ModelInferRequest(model_name="m", outputs=[output]))


def test_parameters_of_http_are_dropped() -> None:
    """Parameters with a meaning over HTTP only do not reach the call."""
    message = pb.ModelInferRequest(model_name="m", raw_input_contents=[b"\1"])
    sizes = {"binary_data_size": int64(1), "k": int64(2)}
    message.inputs.add(name="X", datatype="UINT8", shape=[1]).MergeFrom(
        pb.ModelInferRequest.InferInputTensor(parameters=sizes)
    )
    assert {"k": 2} == read(infer(message)).inputs[0].parameters
    assert (RequestedOutput("Y"),) == read(infer_with_output(binary_data=TRUE)).outputs


def test_outputs_as_classes_or_in_shared_memory() -> None:
    """A client may request an output as classes or in shared memory."""
    found = read(infer_with_output(classification=int64(2))).outputs
    assert (RequestedOutput("Y", classes=2),) == found
    place = SharedMemoryData("r", 0, 8)
    assert (RequestedOutput("Y", shared=place),) == read(infer_with_output(**REGION)).outputs


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"classification": int64(0)}, "'classification' of output 'Y' is 0"),
        ({"classification": text("2")}, "expected a number of classes"),
        ({"classification": int64(2), **REGION}, "as classes and in shared memory"),
        ({"shared_memory_region": text("r")}, "shared_memory_byte_size None"),
        ({**REGION, "shared_memory_offset": int64(-1)}, "shared_memory_offset -1"),
        ({"shared_memory_byte_size": int64(2)}, "shared_memory_region None"),
    ],
)
def test_invalid_parameters_of_outputs_are_rejected(
    parameters: dict[str, pb.InferParameter], words: str
) -> None:
    """A reserved output parameter of a wrong type or value raises InvalidRequest."""
    with pytest.raises(InvalidRequest, match=words):
        CODEC.decode_call(infer_with_output(**parameters))


@pytest.mark.parametrize("method", sorted(METHODS))
def test_every_method_is_decoded(method: str) -> None:
    """An empty message is decoded, or rejected because it lacks a name; no method is unknown."""
    wire = GrpcRequest(method, (b"",))
    if method.endswith(("MemoryRegister", "ModelLoad", "ModelUnload")):
        with pytest.raises(InvalidRequest, match=r"has no name|names no model"):
            CODEC.decode_call(wire)
    else:
        assert "oip.grpc" == CODEC.decode_call(wire).context.protocol


def test_unknown_method_is_rejected_by_name() -> None:
    """The error for an unknown method contains its name."""
    with pytest.raises(Unsupported, match="ModelTrain' is not supported"):
        CODEC.decode_call(GrpcRequest(METHOD + "ModelTrain", (b"",)))


def test_methods_of_the_service() -> None:
    """All 20 methods are served, of which only ModelStreamInfer is a stream; all are reflected."""
    streams = [name for name, kind in METHODS.items() if kind is not MethodKind.UNARY]
    assert (20, [METHOD + "ModelStreamInfer"]) == (len(METHODS), streams)
    (found,) = file_descriptors()
    assert b"GRPCInferenceService" in found


@pytest.mark.parametrize("method", ["ModelInfer", "ModelReady", "ModelMetadata", "ServerLive"])
def test_undecodable_bytes_are_rejected(method: str) -> None:
    """Bytes that are not a message raise MalformedMessage, whose status is INVALID_ARGUMENT."""
    with pytest.raises(
        MalformedMessage, match=r"2 bytes are not a message of type inference\."
    ) as caught:
        CODEC.decode_call(GrpcRequest(METHOD + method, (b"\x0a\xff",)))
    assert ErrorCode.INVALID_ARGUMENT is caught.value.code
    assert GrpcStatus.INVALID_ARGUMENT is CODEC.encode_error(None, caught.value).status


@pytest.mark.parametrize("code", list(ErrorCode))
def test_encodes_error(code: ErrorCode) -> None:
    """Every error code has its gRPC status, and the response includes the error's text."""
    error = ERROR_CLASSES[code]("the text")
    found = CODEC.encode_error(None, error)
    # Clients search for these words.
    text = "Deadline Exceeded: the text" if code is ErrorCode.DEADLINE_EXCEEDED else "the text"
    assert GrpcResponse(status=GRPC_STATUS[code], details=text) == found


def test_error_of_another_protocol_keeps_its_text_up_to_a_limit() -> None:
    """The codec ignores the origin of an error of another protocol."""
    error = NotFound("no model", origin=Origin("oip.http", object()))
    expected = GrpcResponse(status=GrpcStatus.NOT_FOUND, details="no model")
    assert expected == CODEC.encode_error(None, error)
    found = CODEC.encode_error(None, InvalidRequest("x" * 5000))
    assert DEFAULT_LIMITS.error_text_bytes == len(found.details)


def test_index_of_a_named_repository_is_rejected() -> None:
    """The index covers all models; a request for one repository is rejected."""
    message = pb.RepositoryIndexRequest(repository_name="r").SerializeToString()
    with pytest.raises(Unsupported, match="repository is 'r'"):
        CODEC.decode_call(GrpcRequest(METHOD + "RepositoryIndex", (message,)))


def test_stream_call_has_no_single_reply() -> None:
    """Encoding or decoding a single reply of a stream call raises Unsupported."""
    untyped: Any = StreamInferRequest(model=M, request=InferRequest(model=M))
    for attempt in (
        lambda: CODEC.decode_reply(untyped, GrpcResponse()),
        lambda: CODEC.encode_reply(untyped, None),
    ):
        with pytest.raises(Unsupported, match="stream infer is not supported"):
            attempt()


def test_error_names_the_exceeded_limit() -> None:
    """The error of a request that exceeds a limit contains the limit's name."""
    message = pb.ModelInferRequest(model_name="m" * 256)
    with pytest.raises(TooLarge) as caught:
        CODEC.decode_call(infer(message))
    assert "model_name_bytes" == caught.value.limit
