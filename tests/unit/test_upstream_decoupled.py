"""Upstream: the single reply of a model that returns any number of them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any

import pytest

from gateway.ir.calls import (
    Call,
    InferRequest,
    InferResponse,
    ModelReadyRequest,
    StreamInferRequest,
)
from gateway.ir.context import Context, ModelRef
from gateway.ir.errors import Decoupled, GatewayError, NotFound, Unsupported, UpstreamError
from gateway.ir.tensors.tensor import items_tensor
from gateway.upstream import Upstream
from tests.fakes import FakeCodec

M = ModelRef("m")
CALL = InferRequest(model=M, context=Context(request_id="r"))
OUTPUT = items_tensor("Y", (1,), [b"y"])
ITEM = InferResponse(model=M, outputs=(OUTPUT,), is_final=False)
END = InferResponse(model=M, outputs=())
REFUSED = Decoupled("ModelInfer RPC doesn't support models with decoupled transaction policy")


class Values(FakeCodec):
    """A codec whose messages are the calls and replies themselves."""

    def encode_call(self, call: Call[Any], /) -> Any:
        return call

    def decode_reply(self, call: Call[Any], wire: Any, /) -> Any:
        return wire

    def decode_item(self, call: StreamInferRequest, wire: Any, /) -> InferResponse:
        found: InferResponse = wire
        return found


class Unary(Values):
    """A protocol without streams."""

    def encode_call(self, call: Call[Any], /) -> Any:
        if isinstance(call, StreamInferRequest):
            raise Unsupported("no streams")
        return call


class Server:
    """A client that rejects inferences outside of streams."""

    def __init__(self, items: Sequence[InferResponse] = (ITEM,)) -> None:
        self.requests: list[str] = []
        self.closed_streams = 0
        self.refusal: GatewayError = REFUSED
        self._items = items

    async def send(
        self, wire: Any, /, *, deadline: float | None, decode: Callable[[Any], Any]
    ) -> Any:
        self.requests.append(type(wire).__name__)
        if isinstance(wire, InferRequest):
            raise self.refusal
        return decode(True)

    async def stream(self, wire: Any, /, *, deadline: float | None) -> AsyncGenerator[Any, None]:
        self.requests.append(type(wire).__name__)
        assert wire.request == CALL.changed(model=wire.model)
        try:
            for item in self._items:
                yield item
        finally:
            self.closed_streams += 1

    async def close(self) -> None: ...


async def test_a_decoupled_model_is_called_as_a_stream() -> None:
    """The one item of the stream is the reply; the next call is a stream at once."""
    server = Server([ITEM, END])
    upstream: Upstream[Any, Any] = Upstream("u", Values(), server)
    for _ in range(2):
        assert ITEM.changed(is_final=True) == await upstream(CALL)
    assert ["InferRequest", "StreamInferRequest", "StreamInferRequest"] == server.requests
    assert 2 == server.closed_streams


async def test_a_call_with_a_queue_timeout_becomes_a_stream_too() -> None:
    """Its reply is the only item of the stream."""
    server = Server()
    call = CALL.changed(timeout_us=60_000_000)
    upstream: Upstream[Any, Any] = Upstream("u", Values(), server)
    server.stream = _any_stream  # type: ignore[method-assign]
    assert ITEM.changed(is_final=True) == await upstream(call)
    assert ["InferRequest"] == server.requests


async def _any_stream(_wire: Any, /, *, deadline: float | None) -> AsyncGenerator[Any, None]:
    yield ITEM


@pytest.mark.parametrize(
    ("items", "count"), [([], "no response"), ([ITEM, ITEM, ITEM], "more than one response")]
)
async def test_no_reply_or_several_are_an_error(items: list[InferResponse], count: str) -> None:
    """The error suggests a streaming call, and the stream is closed."""
    server = Server(items)
    upstream: Upstream[Any, Any] = Upstream("u", Values(), server)
    text = f"decoupled model 'm' sent {count}; use a streaming call"
    with pytest.raises(Unsupported, match=text):
        await upstream(CALL)
    assert 1 == server.closed_streams


async def test_an_error_item_is_raised() -> None:
    """An error in the stream is the result of the call."""
    failed = InferResponse(model=M, outputs=(), is_final=False, error=UpstreamError("no"))
    upstream: Upstream[Any, Any] = Upstream("u", Values(), Server([failed]))
    with pytest.raises(UpstreamError, match="no"):
        await upstream(CALL)


async def test_other_errors_and_calls_are_unchanged() -> None:
    """Other errors do not lead to a stream, and other calls have their replies."""
    server = Server()
    upstream: Upstream[Any, Any] = Upstream("u", Values(), server)
    for error in (NotFound("none"), Unsupported("no")):
        server.refusal = error
        with pytest.raises(type(error)):
            await upstream(CALL)
    assert await upstream(ModelReadyRequest(model=M))
    assert ["InferRequest", "InferRequest", "ModelReadyRequest"] == server.requests


async def test_a_protocol_without_streams_raises_decoupled() -> None:
    """Each call fails with the error of the server."""
    server = Server()
    upstream: Upstream[Any, Any] = Upstream("u", Unary(), server)
    for _ in range(2):
        with pytest.raises(Decoupled):
            await upstream(CALL)
    assert {"InferRequest"} == set(server.requests)


async def test_the_oldest_decoupled_models_are_forgotten() -> None:
    """The number of known models is limited; a forgotten one is called as at first."""
    server = Server()
    upstream: Upstream[Any, Any] = Upstream("u", Values(), server)
    for number in range(1025):
        await upstream(CALL.changed(model=ModelRef(f"m{number}")))
    for number, expected in ((1024, 1), (0, 2)):
        del server.requests[:]
        await upstream(CALL.changed(model=ModelRef(f"m{number}")))
        assert expected == len(server.requests)
