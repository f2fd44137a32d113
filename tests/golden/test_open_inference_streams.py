"""Recorded streams of real servers, read and written: Triton's envelope, MLServer's bare answers.

Sources: `oip/README.md`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import nullcontext
from typing import Any

import pytest

from gateway.frontend import Frontend
from gateway.ir.calls import InferResponse, StreamInferRequest
from gateway.ir.context import Sequence
from gateway.ir.errors import GatewayError, ModelNotFound, Unsupported
from gateway.ir.limits import DEFAULT_LIMITS
from gateway.ir.tensor import as_numpy
from gateway.registry import protocol
from gateway.schema import open_inference_pb2 as pb
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
    return [codec.decode_item(call, answer) for answer in exchange.answers]


def out(items: list[InferResponse]) -> list[int | str]:
    """Return OUT of each answer, or the text of its error."""
    return [
        int(as_numpy(item.outputs[0])[0]) if item.error is None else item.error.message
        for item in items
    ]


def test_messages_are_streams_of_one_inference() -> None:
    """Each message of a stream asks for any number of answers; id and sequence are read."""
    found = [LISTENER.decode_call(wire) for wire in ALL["188-triton-stream-sequence"].messages]
    assert [StreamInferRequest] * 3 == [type(call) for call in found]
    assert ["q5", "q6", "q7"] == [call.request.id for call in found]
    assert [
        Sequence(812, start=True),
        Sequence(812),
        Sequence(812, end=True),
    ] == [call.request.sequence for call in found]


@pytest.mark.parametrize("name", ["165-triton-stream", "229-mlserver-stream"])
def test_answers_of_a_decoupled_model_are_read(name: str) -> None:
    """Every answer is there, and none is marked as the last: the end of the stream is the end."""
    items = read(ALL[name])
    assert [4, 5, 6] == out(items)
    assert [False] * 3 == [item.is_final for item in items]
    assert [{}] * 3 == [dict(item.parameters) for item in items]


def test_an_error_in_the_middle_is_an_answer() -> None:
    """A model goes on after an element that fails, and so does its stream."""
    items = read(ALL["185-triton-stream-error"])
    assert [4, "negative element at 1", 6] == out(items)


def test_an_error_without_a_mark_ends_the_answers() -> None:
    """A request that Triton refuses has one answer, which is raised; the next one is answered."""
    exchange = ALL["187-triton-stream-unknown-then-ok"]
    codec = upstream(exchange)
    unknown, known = [LISTENER.decode_call(wire) for wire in exchange.messages]
    first, second = exchange.answers
    with pytest.raises(ModelNotFound, match="unknown model: 'nope' is not found"):
        codec.decode_item(unknown, first)
    assert codec.decode_item(known, second).is_final


def test_a_server_without_streams_is_not_asked() -> None:
    """KServe has none: its status says so, and its dialect is refused a stream."""
    exchange = ALL["248-kserve-stream"]
    call = LISTENER.decode_call(exchange.messages[0])
    with pytest.raises(Unsupported, match="Method not found"):
        upstream(exchange).decode_item(call, exchange.response)
    with pytest.raises(Unsupported, match="'kserve' has no streams"):
        upstream(exchange).encode_call(call)


@pytest.mark.parametrize("name", [name for name in ALL if "kserve" not in name])
def test_messages_are_written_as_they_read(name: str) -> None:
    """What is sent on is the message that came, but for the mark of the end: it needs none."""
    for wire in ALL[name].messages:
        call = LISTENER.decode_call(wire)
        sent = pb.ModelInferRequest.FromString(bytes(upstream(ALL[name]).encode_call(call).view))
        came = pb.ModelInferRequest.FromString(bytes(wire.view))
        came.parameters.pop("triton_enable_empty_final_response", None)
        assert came == sent


async def written(exchange: Exchange, *streams: list[Any]) -> list[GrpcResponse]:
    """Return what the listener answers, when the service gives these streams."""

    async def coming() -> AsyncIterator[GrpcRequest]:
        for wire in exchange.messages:
            yield wire

    service = ScriptedService(
        *(each[0] if isinstance(each[0], GatewayError) else FakeStream(each) for each in streams)
    )
    frontend: Frontend[GrpcRequest, GrpcResponse] = Frontend(LISTENER, service)
    return [answer async for answer in frontend.session(coming(), Open())]


class Open:
    """A gate that lets everything through."""

    max_calls = 8

    def admit(self, _wire: GrpcRequest, /) -> Any:
        return self

    def check_response(self, answer: GrpcResponse, /) -> None:
        pass

    def hold(self, _answer: GrpcResponse, /) -> Any:
        return nullcontext()

    async def __aenter__(self) -> None:
        pass

    async def __aexit__(self, *_details: object) -> None:
        pass


def of_triton(message: GrpcResponse) -> pb.ModelStreamInferResponse:
    return pb.ModelStreamInferResponse.FromString(bytes(message.view))


@pytest.mark.parametrize(
    "name", ["165-triton-stream", "185-triton-stream-error", "186-triton-stream-empty-final"]
)
async def test_answers_are_written_as_triton_writes_them(name: str) -> None:
    """Envelope, id, mark, errors and the empty answer at the end are Triton's, to the bit."""
    exchange = ALL[name]
    codec = upstream(exchange)
    call = LISTENER.decode_call(exchange.messages[0])
    items = [codec.decode_item(call, answer) for answer in exchange.answers]
    if name == "186-triton-stream-empty-final":
        items.pop()  # an upstream is not asked for it
    found = [of_triton(answer) for answer in await written(exchange, items)]
    assert [of_triton(answer) for answer in exchange.answers] == found


async def test_an_error_is_a_message_and_the_stream_goes_on() -> None:
    """A request that fails is answered with its id and model, and the next one as always."""
    exchange = ALL["187-triton-stream-unknown-then-ok"]
    known = LISTENER.decode_call(exchange.messages[1])
    answer = upstream(exchange).decode_item(known, exchange.answers[1])
    failed, good = await written(exchange, [ModelNotFound("no 'nope' here")], [answer])
    message = of_triton(failed)
    assert "no 'nope' here" == message.error_message
    assert ("s-5", "nope") == (message.infer_response.id, message.infer_response.model_name)
    assert message.infer_response.parameters["triton_final_response"].bool_param
    assert of_triton(exchange.answers[1]) == of_triton(good)
