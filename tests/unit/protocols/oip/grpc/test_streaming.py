"""Messages of ModelStreamInfer: what the recorded exchanges do not show."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.ir.calls import InferRequest, InferResponse, StreamInferRequest
from gateway.ir.context import ModelRef, Origin
from gateway.ir.data import ItemsData
from gateway.ir.datatypes import Datatype
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
from gateway.ir.tensor import RequestedOutput, Tensor
from gateway.protocols.oip.grpc.codec import GrpcCodec
from gateway.protocols.oip.grpc.streaming import STREAM
from gateway.schema import open_inference_pb2 as pb
from gateway.wire.grpc import GrpcRequest, GrpcResponse, GrpcStatus

CODEC = GrpcCodec(DEFAULT_LIMITS, {})
M = ModelRef("m")
CALL = StreamInferRequest(model=M, request=InferRequest(model=M, id="7"))


def to_wire(message: pb.ModelInferRequest | bytes, *metadata: tuple[str, str]) -> GrpcRequest:
    data = message if isinstance(message, bytes) else message.SerializeToString()
    return GrpcRequest(STREAM, (memoryview(data),), metadata)


def opened(wire: GrpcRequest) -> StreamInferRequest:
    call = CODEC.decode_call(wire)
    assert isinstance(call, StreamInferRequest)
    return call


def refusal(wire: GrpcRequest) -> GatewayError:
    with pytest.raises(GatewayError) as caught:
        CODEC.decode_call(wire)
    return caught.value


def answered(answer: GrpcResponse) -> pb.ModelStreamInferResponse:
    assert GrpcStatus.OK is answer.status
    return pb.ModelStreamInferResponse.FromString(bytes(answer.view))


def envelope(**fields: Any) -> GrpcResponse:
    message = pb.ModelStreamInferResponse(**fields).SerializeToString()
    return GrpcResponse((memoryview(message),))


def marked(final: bool, **fields: Any) -> pb.ModelInferResponse:
    mark = pb.InferParameter(bool_param=final)
    return pb.ModelInferResponse(parameters={"triton_final_response": mark}, **fields)


def test_a_request_that_cannot_be_read_is_answered_in_the_stream_with_its_id() -> None:
    """Its id and model are found although the rest of it is wrong."""
    wrong = pb.ModelInferRequest(model_name="m", id="9", raw_input_contents=[b"left over"])
    found = answered(CODEC.encode_error(None, refusal(to_wire(wrong))))
    assert "message has 1 raw contents for 0 tensors" in found.error_message
    assert ("m", "9") == (found.infer_response.model_name, found.infer_response.id)


@pytest.mark.parametrize("data", [b"\xff\xff", b"\x0a\x02\xff\xfe"], ids=["cut", "no text"])
def test_bytes_that_are_no_message_are_answered_in_the_stream(data: bytes) -> None:
    """A message of which nothing can be told is answered, and the stream goes on."""
    found = answered(CODEC.encode_error(None, refusal(to_wire(data))))
    assert found.error_message
    assert ("", "") == (found.infer_response.model_name, found.infer_response.id)


def test_a_client_may_want_errors_as_the_status_of_the_stream() -> None:
    """With `triton_grpc_error` an error has a status, and ends the stream."""
    wire = to_wire(pb.ModelInferRequest(model_name="m", id="9"), ("triton_grpc_error", "true"))
    expected = GrpcResponse(status=GrpcStatus.NOT_FOUND, details="no m")
    call = opened(wire)
    assert expected == CODEC.encode_error(call, NotFound("no m"))
    assert expected == CODEC.encode_late_error(call, NotFound("no m"))
    own = GrpcResponse(status=GrpcStatus.ABORTED, details="own words")
    error = UpstreamError("own words", origin=Origin("oip.grpc", own))
    assert own == CODEC.encode_error(call, error)
    broken = to_wire(b"\xff\xff", ("triton_grpc_error", "true"))
    assert GrpcStatus.INVALID_ARGUMENT is CODEC.encode_error(None, refusal(broken)).status


@pytest.mark.parametrize("last", [None, InferResponse(model=M, outputs=(), is_final=False)])
def test_the_end_is_marked_for_who_asks(last: InferResponse | None) -> None:
    """An answer without outputs ends the answers of a client that asked for it, and of no other."""
    wants = pb.ModelInferRequest(
        model_name="m",
        id="9",
        parameters={"triton_enable_empty_final_response": pb.InferParameter(bool_param=True)},
    )
    call = opened(to_wire(wants))
    assert {} == call.request.parameters
    end = CODEC.encode_end(call, last)
    assert end is not None
    assert marked(True, model_name="m", id="9") == answered(end).infer_response
    assert CODEC.encode_end(CALL, last) is None
    assert CODEC.encode_end(call, InferResponse(model=M, outputs=(), is_final=True)) is None


def test_the_mark_that_is_asked_for_is_true_or_false() -> None:
    """Another type is the client's fault."""
    wrong = pb.ModelInferRequest(
        model_name="m",
        parameters={"triton_enable_empty_final_response": pb.InferParameter(int64_param=1)},
    )
    with pytest.raises(InvalidRequest, match="'triton_enable_empty_final_response' is 1"):
        CODEC.decode_call(to_wire(wrong))


def test_an_envelope_in_pieces_is_read_as_protobuf_has_it() -> None:
    """What comes twice is merged, as every protobuf library does."""
    parts = [
        pb.ModelStreamInferResponse(infer_response=marked(False, model_name="a")),
        pb.ModelStreamInferResponse(infer_response=pb.ModelInferResponse(model_name="m", id="7")),
    ]
    data = b"".join(part.SerializeToString() for part in parts)
    found = CODEC.decode_item(CALL, GrpcResponse((memoryview(data),)))
    assert (M, False) == (found.model, found.is_final)


def test_an_answer_that_is_no_envelope_is_refused() -> None:
    """Bytes that are no message are the upstream's fault."""
    with pytest.raises(MalformedMessage, match="not a message of type"):
        CODEC.decode_item(CALL, GrpcResponse((memoryview(b"\xff\xff"),)))


def test_an_answer_to_another_request_is_refused() -> None:
    """Each call has a stream of its own, so another id is no answer to it."""
    with pytest.raises(MalformedMessage, match="response has id '8': the request had '7'"):
        CODEC.decode_item(CALL, envelope(infer_response=marked(True, id="8")))


def test_an_error_that_is_the_last_answer_is_raised() -> None:
    """Marked as the last, it ends the answers."""
    with pytest.raises(UpstreamError, match="it broke"):
        CODEC.decode_item(CALL, envelope(error_message="it broke", infer_response=marked(True)))


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
def test_an_error_without_a_status_has_the_code_of_its_words(
    words: str, kind: type[GatewayError]
) -> None:
    """An error of Triton in a stream has the code that it has in a unary call."""
    with pytest.raises(kind) as caught:
        CODEC.decode_item(CALL, envelope(error_message=words, infer_response=marked(True)))
    assert kind is type(caught.value)


def test_a_status_ends_the_answers() -> None:
    """What ends the upstream's stream ends this one, with the upstream's own status."""
    wire = GrpcResponse(status=GrpcStatus.UNIMPLEMENTED, details="no streams")
    with pytest.raises(GatewayError, match="no streams") as caught:
        CODEC.decode_item(CALL, wire)
    assert Origin("oip.grpc", wire) == caught.value.origin


def test_outputs_that_were_asked_for_must_be_there_but_where_there_are_none() -> None:
    """An answer lacks what was asked for, or is the mark of an end and has nothing."""
    call = StreamInferRequest(
        model=M, request=InferRequest(model=M, outputs=(RequestedOutput("Y"),))
    )
    assert () == CODEC.decode_item(call, envelope(infer_response=marked(True))).outputs
    other = pb.ModelInferResponse.InferOutputTensor(name="X", datatype="FP32", shape=[0])
    with pytest.raises(MalformedMessage, match="lacks the requested output 'Y'"):
        CODEC.decode_item(call, envelope(infer_response=marked(True, outputs=[other])))


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (
            "UNIMPLEMENTED",
            "ModelInfer RPC doesn't support models with decoupled transaction policy",
        ),
        ("INTERNAL", "predict() method not implemented"),
    ],
    ids=["triton", "mlserver"],
)
def test_servers_say_that_a_model_is_decoupled(status: str, words: str) -> None:
    """Their words are an error of their own kind: a stream can be asked instead."""
    wire = GrpcResponse(status=GrpcStatus[status], details=words)
    with pytest.raises(Decoupled):
        CODEC.decode_reply(CALL.request, wire)
    other = GrpcResponse(status=GrpcStatus[status], details=f"{words}, or so")
    with pytest.raises(GatewayError) as caught:
        CODEC.decode_reply(CALL.request, other)
    assert not isinstance(caught.value, Decoupled)


def test_large_outputs_are_not_copied() -> None:
    """An answer's data is carried over from the tensor, envelope or not."""
    item = bytes(10_000)
    tensor = Tensor("Y", Datatype.BYTES, (1,), ItemsData([item]))
    answer = CODEC.encode_item(CALL, InferResponse(model=M, outputs=(tensor,)))
    assert 2 == len(answer.message)
    assert item in bytes(answer.message[1])
