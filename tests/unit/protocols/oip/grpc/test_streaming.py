"""Messages of ModelStreamInfer that the recorded exchanges do not cover."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gateway.ir.calls import InferRequest, InferResponse, StreamInferRequest
from gateway.ir.context import ModelRef, Origin
from gateway.ir.errors import (
    Decoupled,
    GatewayError,
    InvalidRequest,
    MalformedMessage,
    ModelNotFound,
    NotFound,
    NotReady,
    Unavailable,
    UpstreamError,
)
from gateway.ir.limits import DEFAULT_LIMITS
from gateway.ir.tensors.data import ItemsData
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.tensor import RequestedOutput, Tensor, raw_tensor
from gateway.protocols.oip.grpc.codec import GrpcCodec
from gateway.protocols.oip.grpc.streaming import STREAM
from gateway.schema import open_inference_pb2 as pb
from gateway.wire.grpc import GrpcRequest, GrpcResponse, GrpcStatus

CODEC = GrpcCodec(DEFAULT_LIMITS, {})
M = ModelRef("m")
CALL = StreamInferRequest(model=M, request=InferRequest(model=M, id="7"))


INVALID = pb.ModelInferRequest(
    model_name="m", id="9", raw_input_contents=[b"left over"]
).SerializeToString()


def to_wire(message: pb.ModelInferRequest | bytes, *metadata: tuple[str, str]) -> GrpcRequest:
    data = message if isinstance(message, bytes) else message.SerializeToString()
    return GrpcRequest(STREAM, (memoryview(data),), metadata)


def decode_stream_call(wire: GrpcRequest) -> StreamInferRequest:
    call = CODEC.decode_call(wire)
    assert isinstance(call, StreamInferRequest)
    return call


def decode_error(wire: GrpcRequest) -> GatewayError:
    with pytest.raises(GatewayError) as caught:
        CODEC.decode_call(wire)
    return caught.value


def stream_response(response: GrpcResponse) -> pb.ModelStreamInferResponse:
    assert GrpcStatus.OK is response.status
    return pb.ModelStreamInferResponse.FromString(bytes(response.view))


def envelope(**fields: Any) -> GrpcResponse:
    message = pb.ModelStreamInferResponse(**fields).SerializeToString()
    return GrpcResponse((memoryview(message),))


def marked(final: bool, **fields: Any) -> pb.ModelInferResponse:
    mark = pb.InferParameter(bool_param=final)
    return pb.ModelInferResponse(parameters={"triton_final_response": mark}, **fields)


OTHER_ID = envelope(infer_response=marked(True, id="8"))
FINAL_ERROR = envelope(error_message="it broke", infer_response=marked(True))


@pytest.mark.parametrize(
    ("data", "text", "named"),
    [
        (INVALID, "message has 1 raw contents for 0 tensors", ("m", "9")),
        (b"\xff\xff", "not a message of type", ("", "")),
        (b"\x0a\x02\xff\xfe", "not a message of type", ("", "")),
    ],
    ids=["invalid", "cut", "no text"],
)
def test_error_of_an_invalid_message_is_in_the_stream(
    data: bytes, text: str, named: tuple[str, str]
) -> None:
    """The error has the model name and the id of the request, where they could be read."""
    found = stream_response(CODEC.encode_error(None, decode_error(to_wire(data))))
    assert text in found.error_message
    assert named == (found.infer_response.model_name, found.infer_response.id)


def test_client_may_request_errors_as_stream_status() -> None:
    """With `triton_grpc_error` an error is the status that ends the stream."""
    wire = to_wire(pb.ModelInferRequest(model_name="m", id="9"), ("triton_grpc_error", "true"))
    expected = GrpcResponse(status=GrpcStatus.NOT_FOUND, details="no m")
    call = decode_stream_call(wire)
    assert expected == CODEC.encode_error(call, NotFound("no m"))
    assert expected == CODEC.encode_late_error(call, NotFound("no m"))
    own = GrpcResponse(status=GrpcStatus.ABORTED, details="own words")
    error = UpstreamError("own words", origin=Origin("oip.grpc", own))
    assert own == CODEC.encode_error(call, error)
    broken = to_wire(b"\xff\xff", ("triton_grpc_error", "true"))
    assert GrpcStatus.INVALID_ARGUMENT is CODEC.encode_error(None, decode_error(broken)).status


def wants_final(**value: Any) -> pb.ModelInferRequest:
    """Return a request for an empty final response, with this value of the parameter."""
    parameters = {"triton_enable_empty_final_response": pb.InferParameter(**value)}
    return pb.ModelInferRequest(model_name="m", id="9", parameters=parameters)


@pytest.mark.parametrize("last", [None, InferResponse(model=M, outputs=(), is_final=False)])
def test_empty_final_response_is_sent_only_on_request(last: InferResponse | None) -> None:
    """A stream ends with an empty final response if the client requested it and needs it."""
    call = decode_stream_call(to_wire(wants_final(bool_param=True)))
    assert {} == call.request.parameters
    end = CODEC.encode_end(call, last)
    assert end is not None
    assert marked(True, model_name="m", id="9") == stream_response(end).infer_response
    assert CODEC.encode_end(CALL, last) is None
    assert CODEC.encode_end(call, InferResponse(model=M, outputs=(), is_final=True)) is None
    with pytest.raises(InvalidRequest, match="'triton_enable_empty_final_response' is 1"):
        CODEC.decode_call(to_wire(wants_final(int64_param=1)))


def test_repeated_fields_of_an_envelope_are_merged() -> None:
    """A message field that occurs twice is merged, as protobuf libraries do."""
    parts = [
        pb.ModelStreamInferResponse(infer_response=marked(False, model_name="a")),
        pb.ModelStreamInferResponse(infer_response=pb.ModelInferResponse(model_name="m", id="7")),
    ]
    data = b"".join(part.SerializeToString() for part in parts)
    found = CODEC.decode_item(CALL, GrpcResponse((memoryview(data),)))
    assert (M, False) == (found.model, found.is_final)


@pytest.mark.parametrize(
    ("wire", "kind", "text"),
    [
        (GrpcResponse((b"\xff\xff",)), MalformedMessage, "not a message of type"),
        # Each call has its own stream.
        (OTHER_ID, MalformedMessage, "response has id '8': the request had '7'"),
        (FINAL_ERROR, UpstreamError, "it broke"),
    ],
)
def test_unusable_stream_response_is_rejected(
    wire: GrpcResponse, kind: type[GatewayError], text: str
) -> None:
    """What is no response of this stream is malformed; a final error is raised."""
    with pytest.raises(kind, match=text):
        CODEC.decode_item(CALL, wire)


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        (
            "[request id: 1] expected 1 inputs but got 0 [], but missing required input(s) ['A'].",
            InvalidRequest,
        ),
        ("unexpected shape for input 'IN' for model 'm'. Expected [1], got [2]", InvalidRequest),
        ("Request for unknown model: 'm' is not found", ModelNotFound),
        ("Request for unknown model: 'm' version 3 is not at ready state", NotReady),
        ("[request id: 7] Exceeds maximum queue size", Unavailable),
        ("Failed to process the request(s): it broke", UpstreamError),
        ("Failed to process the request(s): unknown model of a car", UpstreamError),
    ],
)
def test_error_text_determines_the_error_class(words: str, kind: type[GatewayError]) -> None:
    """A Triton error in a stream has the class that it has in a unary call."""
    with pytest.raises(kind) as caught:
        CODEC.decode_item(CALL, envelope(error_message=words, infer_response=marked(True)))
    assert kind is type(caught.value)


def test_status_of_the_upstream_stream_is_raised() -> None:
    """The status that ends the upstream's stream is raised, with its response as the origin."""
    wire = GrpcResponse(status=GrpcStatus.UNIMPLEMENTED, details="no streams")
    with pytest.raises(GatewayError, match="no streams") as caught:
        CODEC.decode_item(CALL, wire)
    assert Origin("oip.grpc", wire) == caught.value.origin


def test_only_a_response_without_outputs_may_lack_requested() -> None:
    """A response that lacks a requested output is rejected, unless it has no outputs at all."""
    call = StreamInferRequest(
        model=M, request=InferRequest(model=M, outputs=(RequestedOutput("Y"),))
    )
    assert () == CODEC.decode_item(call, envelope(infer_response=marked(True))).outputs
    other = pb.ModelInferResponse.InferOutputTensor(name="X", datatype="FP32", shape=[0])
    with pytest.raises(MalformedMessage, match="lacks the requested output 'Y'"):
        CODEC.decode_item(call, envelope(infer_response=marked(True, outputs=[other])))


DECOUPLED = "ModelInfer RPC doesn't support models with decoupled transaction policy"


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (GrpcStatus.UNIMPLEMENTED, DECOUPLED),
        (GrpcStatus.INTERNAL, "predict() method not implemented"),
    ],
    ids=["triton", "mlserver"],
)
def test_exact_error_text_raises_decoupled(status: GrpcStatus, words: str) -> None:
    """The exact texts of Triton and MLServer raise Decoupled, so that a stream call can follow."""
    with pytest.raises(Decoupled):
        CODEC.decode_reply(CALL.request, GrpcResponse(status=status, details=words))
    with pytest.raises(GatewayError) as caught:
        CODEC.decode_reply(CALL.request, GrpcResponse(status=status, details=f"{words}, or so"))
    assert not isinstance(caught.value, Decoupled)


@pytest.mark.parametrize("datatype", [Datatype.UINT8, Datatype.BYTES])
def test_large_output_is_not_copied(datatype: Datatype) -> None:
    """The message has the received data, or the elements, of a large output as a part."""
    elements = memoryview((9_996).to_bytes(4, "little") + bytes(9_996))
    shape = (1,) if datatype is Datatype.BYTES else (10_000,)
    tensor = raw_tensor("Y", datatype, shape, elements)
    _, part = CODEC.encode_item(CALL, InferResponse(model=M, outputs=(tensor,))).message
    assert elements == part
    assert np.shares_memory(np.frombuffer(elements, np.uint8), np.frombuffer(part, np.uint8))
    tensor = Tensor("Y", Datatype.BYTES, (1,), ItemsData([bytes(9_996)]))
    _, part = CODEC.encode_item(CALL, InferResponse(model=M, outputs=(tensor,))).message
    assert elements == part
