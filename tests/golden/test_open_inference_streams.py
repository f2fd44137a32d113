"""Recorded streams of real servers, decoded and encoded: Triton's envelope, MLServer's bare responses.

Sources: `oip/README.md`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from gateway.frontend.frontend import Frontend
from gateway.ir.calls import InferResponse, StreamInferRequest
from gateway.ir.context import CallSequence
from gateway.ir.errors import GatewayError, ModelNotFound, Unsupported
from gateway.ir.limits import DEFAULT_LIMITS
from gateway.ir.tensors.tensor import as_numpy
from gateway.registry import protocol
from gateway.schema import open_inference_pb2 as pb
from gateway.transports.memory_budget import UNLIMITED
from gateway.transports.reservation import Reservation
from gateway.wire.grpc import GrpcRequest, GrpcResponse
from tests.fakes import FakeStream, ScriptedService
from tests.golden.open_inference import Exchange, exchanges
from tests.golden.open_inference_tables import STREAMS

ALL = {one.name: one for one in exchanges() if one.name in STREAMS and one.protocol == "grpc"}
BINDING: Any = protocol("oip").grpc
LISTENER = BINDING.codec(DEFAULT_LIMITS, {})


def upstream(exchange: Exchange) -> Any:
    return BINDING.codec(DEFAULT_LIMITS, {"dialect": exchange.server})


def read(exchange: Exchange) -> list[InferResponse]:
    codec = upstream(exchange)
    call = LISTENER.decode_call(exchange.messages[0])
    return [codec.decode_item(call, response) for response in exchange.responses]


def out(items: list[InferResponse]) -> list[int | str]:
    """Return OUT of each item, or the text of its error."""
    return [
        int(as_numpy(item.outputs[0])[0]) if item.error is None else item.error.message
        for item in items
    ]


def test_each_message_decodes_to_one_streaming_call() -> None:
    """Each message is a call with any number of replies, an id and a sequence."""
    found = [LISTENER.decode_call(wire) for wire in ALL["188-triton-stream-sequence"].messages]
    assert [StreamInferRequest] * 3 == [type(call) for call in found]
    assert ["q5", "q6", "q7"] == [call.request.id for call in found]
    assert [
        CallSequence(812, start=True),
        CallSequence(812),
        CallSequence(812, end=True),
    ] == [call.request.sequence for call in found]


@pytest.mark.parametrize("name", ["165-triton-stream", "229-mlserver-stream"])
def test_responses_of_a_decoupled_model_are_decoded(name: str) -> None:
    """Every response becomes an item, and none is final: the end of the stream ends the call."""
    items = read(ALL[name])
    assert [4, 5, 6] == out(items)
    assert [False] * 3 == [item.is_final for item in items]
    assert [{}] * 3 == [dict(item.parameters) for item in items]


def test_an_error_in_the_middle_is_an_item() -> None:
    """An element that fails is an item with an error, and the next item follows."""
    items = read(ALL["185-triton-stream-error"])
    assert [4, "negative element at 1", 6] == out(items)


def test_an_error_without_a_final_mark_is_raised() -> None:
    """The response to a request that Triton rejects is raised; the next request succeeds."""
    exchange = ALL["187-triton-stream-unknown-then-ok"]
    codec = upstream(exchange)
    unknown, known = [LISTENER.decode_call(wire) for wire in exchange.messages]
    first, second = exchange.responses
    with pytest.raises(ModelNotFound, match="unknown model: 'nope' is not found"):
        codec.decode_item(unknown, first)
    assert codec.decode_item(known, second).is_final


def test_a_dialect_without_streams_rejects_a_stream() -> None:
    """KServe's status decodes to Unsupported, and its dialect encodes no stream."""
    exchange = ALL["248-kserve-stream"]
    call = LISTENER.decode_call(exchange.messages[0])
    with pytest.raises(Unsupported, match="Method not found"):
        upstream(exchange).decode_item(call, exchange.response)
    with pytest.raises(Unsupported, match="'kserve' has no streams"):
        upstream(exchange).encode_call(call)


@pytest.mark.parametrize("name", [name for name in ALL if "kserve" not in name])
def test_messages_are_forwarded_unchanged(name: str) -> None:
    """The upstream message equals the received one, without the flag for an empty final response."""
    for wire in ALL[name].messages:
        call = LISTENER.decode_call(wire)
        sent = pb.ModelInferRequest.FromString(bytes(upstream(ALL[name]).encode_call(call).view))
        came = pb.ModelInferRequest.FromString(bytes(wire.view))
        came.parameters.pop("triton_enable_empty_final_response", None)
        assert came == sent


async def responses_to(exchange: Exchange, *streams: list[Any]) -> list[GrpcResponse]:
    """Return the listener's responses when the service returns these streams."""

    async def messages() -> AsyncIterator[GrpcRequest]:
        for wire in exchange.messages:
            yield wire

    service = ScriptedService(
        *(each[0] if isinstance(each[0], GatewayError) else FakeStream(each) for each in streams)
    )
    frontend: Frontend[GrpcRequest, GrpcResponse] = Frontend(LISTENER, service)
    return [response async for response in frontend.session(messages(), Open())]


class Open:
    """An admission gate that admits every call."""

    max_calls = 8

    def admit(self, _wire: GrpcRequest, /) -> Any:
        return self

    def check_response(self, response: GrpcResponse, /) -> None:
        pass

    def hold(self, _answer: GrpcResponse, /) -> Any:
        return Reservation(UNLIMITED, None)

    async def __aenter__(self) -> None:
        pass

    async def __aexit__(self, *_details: object) -> None:
        pass


def of_triton(message: GrpcResponse) -> pb.ModelStreamInferResponse:
    return pb.ModelStreamInferResponse.FromString(bytes(message.view))


@pytest.mark.parametrize(
    "name", ["165-triton-stream", "185-triton-stream-error", "186-triton-stream-empty-final"]
)
async def test_responses_are_encoded_as_by_triton(name: str) -> None:
    """Envelope, id, final mark, errors and the empty final response equal Triton's."""
    exchange = ALL[name]
    codec = upstream(exchange)
    call = LISTENER.decode_call(exchange.messages[0])
    items = [codec.decode_item(call, response) for response in exchange.responses]
    if name == "186-triton-stream-empty-final":
        items.pop()  # it is not requested from an upstream
    found = [of_triton(response) for response in await responses_to(exchange, items)]
    assert [of_triton(response) for response in exchange.responses] == found


async def test_a_failed_request_does_not_end_the_stream() -> None:
    """A failed request gets an error with its id and model, and the next one its response."""
    exchange = ALL["187-triton-stream-unknown-then-ok"]
    known = LISTENER.decode_call(exchange.messages[1])
    response = upstream(exchange).decode_item(known, exchange.responses[1])
    failed, good = await responses_to(exchange, [ModelNotFound("no 'nope' here")], [response])
    message = of_triton(failed)
    assert "no 'nope' here" == message.error_message
    assert ("s-5", "nope") == (message.infer_response.id, message.infer_response.model_name)
    assert message.infer_response.parameters["triton_final_response"].bool_param
    assert of_triton(exchange.responses[1]) == of_triton(good)
