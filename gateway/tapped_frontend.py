"""TappedFrontend: a frontend that passes calls, replies and messages to a tap (a recorder)."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from functools import partial
from time import monotonic
from typing import Any, Protocol, TypeVar

import structlog
from msgspec import Struct, field

from gateway.frontend import Frontend
from gateway.ir.calls import Call, InferResponse, StreamInferRequest
from gateway.ir.errors import ErrorCode, GatewayError
from gateway.ir.streams import close_stream
from gateway.ir.teed_body import TeedBody
from gateway.service import Service
from gateway.session import SessionReply
from gateway.telemetry.call_path import CALL_PATH, CallPath
from gateway.wire.codec import Codec

log = structlog.get_logger(__name__)

Q = TypeVar("Q")
A = TypeVar("A")


class TappedCall(Struct):
    """One inference, as the tap of a frontend gets it.

    Attributes:
        call: As the client's codec decoded it; `context.origin` has the message. The frontend
            handles this one, so a tap may put a teed body in it.
        started: On the clock of `time.monotonic`.
        path: Route and target of the call.
        items: The replies, each with its time since the start, seconds.
        responses: The messages to the client.
        error: Code and text of the error that ended the call; None for none.
        teed: Keeps the body of a call that began before it was received; None for others.
    """

    call: Call[Any]
    started: float
    path: CallPath = field(default_factory=CallPath)
    took_s: float = 0.0
    items: list[tuple[float, InferResponse]] = field(default_factory=list)
    responses: list[Any] = field(default_factory=list)
    error: tuple[ErrorCode, str] | None = None
    teed: TeedBody | None = None

    def add(self, item: InferResponse) -> None:
        """Note a reply."""
        self.items.append((monotonic() - self.started, item))

    def fail(self, error: BaseException) -> None:
        """Note the error that ended the call; without the object, which refers to frames."""
        if isinstance(error, GatewayError):
            self.error = error.code, error.message
        elif isinstance(error, Exception):
            self.error = ErrorCode.INTERNAL, "internal error of the gateway"
        else:
            self.error = ErrorCode.CANCELLED, "the client disconnected"


class Tap(Protocol):
    """Receives the calls of a frontend with their replies; its methods neither wait nor raise."""

    def begin(self, call: Call[Any], /) -> TappedCall | None:
        """Return the exchange of a call; None for a call that is not chosen."""
        ...

    def end(self, exchange: TappedCall, /) -> None:
        """Receive a finished exchange."""
        ...

    def rejected(self, codec: str, wire: Any, error: GatewayError, response: Any, /) -> None:
        """Receive a message that could not be decoded."""
        ...


class TappedFrontend(Frontend[Q, A]):
    """A frontend that passes calls, their replies, and the messages of both to a tap.

    It is a class of its own, so that a frontend without a tap does nothing for one.

    Args:
        codec: See `Frontend`.
        service: See `Frontend`.
        tap: Receives the calls.
        options: The other arguments of `Frontend`.
    """

    def __init__(self, codec: Codec[Q, A], service: Service, tap: Tap, **options: Any) -> None:
        super().__init__(codec, service, **options)
        self._tap = tap

    async def handle(self, wire: Q, /) -> A | AsyncGenerator[A, None]:
        """Return the response to *wire* as `Frontend` does; the tap receives what it chooses."""
        call = await self._decoded(wire, self._codec.decode_call)
        if isinstance(call, GatewayError):
            response = self._reject_wire(wire, call)
            self._tap.rejected(self._codec.name, wire, call, response)
            return response
        if type(call) is StreamInferRequest:
            return self._stream(call, wire)
        response = await self._single(call)
        if self._bytes is not None:
            self._bytes.count(wire, response)
        return response

    async def _single(self, call: Call[Any], service: Service | None = None) -> A:
        exchange = self._tap.begin(call)
        if exchange is None:
            return await super()._single(call, service)
        try:
            observed = partial(self._observed, exchange)
            response = await super()._single(exchange.call, observed)
            exchange.responses.append(response)
            return response
        finally:
            self._end(exchange)

    async def _replies(
        self, call: Call[Any], service: Service | None = None
    ) -> AsyncGenerator[SessionReply[A], None]:
        exchange = self._tap.begin(call) if type(call) is StreamInferRequest else None
        observed = service if exchange is None else partial(self._observed, exchange)
        async with aclosing(super()._replies(call, observed)) as replies:
            try:
                async for reply in replies:
                    if exchange is not None:
                        exchange.responses.append(reply.wire)
                    yield reply
            finally:
                if exchange is not None:
                    self._end(exchange)

    async def _rejected_only(
        self, wire: Q, error: GatewayError
    ) -> AsyncGenerator[SessionReply[A], None]:
        async with aclosing(super()._rejected_only(wire, error)) as replies:
            async for reply in replies:
                self._tap.rejected(self._codec.name, wire, error, reply.wire)
                yield reply

    async def _observed(self, exchange: TappedCall, call: Call[Any]) -> Any:
        """Call the service, and note the call path, the replies and the error."""
        token = CALL_PATH.set(exchange.path)
        try:
            reply = await self._service(call)
        except BaseException as error:
            exchange.fail(error)
            raise
        finally:
            CALL_PATH.reset(token)
        if type(call) is StreamInferRequest:
            return _NotedStream(reply, exchange)
        exchange.add(reply)
        return reply

    def _end(self, exchange: TappedCall) -> None:
        exchange.took_s = monotonic() - exchange.started
        try:
            self._tap.end(exchange)
        except Exception:  # the client's response must not fail because of a tap
            log.exception("call not recorded")
        finally:
            if exchange.teed is not None:
                exchange.teed.release()


class _NotedStream:
    """A stream of replies that notes each of them in an exchange."""

    def __init__(self, items: AsyncIterator[InferResponse], exchange: TappedCall) -> None:
        self._items = items
        self._exchange = exchange

    def __aiter__(self) -> AsyncIterator[InferResponse]:
        return self

    async def __anext__(self) -> InferResponse:
        try:
            item = await anext(self._items)
        except StopAsyncIteration:
            raise
        except BaseException as error:
            self._exchange.fail(error)
            raise
        self._exchange.add(item)
        return item

    async def aclose(self) -> None:
        await close_stream(self._items)
