"""TapStep: passes the calls, replies and messages of a frontend to a tap (a recorder)."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from functools import partial
from time import monotonic
from typing import Any, Generic, TypeVar

import structlog

from gateway.api.protocol import Codec
from gateway.api.tap import RecordedStream, Tap, TappedCall
from gateway.ir.calls import Call, OpaqueCall, StreamInferRequest, with_read_tensors
from gateway.ir.errors import GatewayError
from gateway.service import Service
from gateway.session import SessionReply
from gateway.telemetry.call_path import CALL_PATH
from gateway.telemetry.faults import FAULTS

log = structlog.get_logger(__name__)

Q = TypeVar("Q")
A = TypeVar("A")


class TapStep(Generic[Q, A]):
    """The tap of a frontend.

    Args:
        tap: Receives the calls.
        codec: The codec of the frontend.

    Attributes:
        begin: Returns the exchange of a call; None for a call that is not chosen.
    """

    def __init__(self, tap: Tap, codec: Codec[Q, A]) -> None:
        self._tap = tap
        self._codec = codec
        self.begin = tap.begin

    async def record(
        self,
        exchange: TappedCall,
        respond: Callable[[Call[Any], Service], Awaitable[A]],
        service: Service,
    ) -> A:
        """Return the response of *respond* to a chosen call, which *service* handles."""
        try:
            observed = partial(_observed, exchange, service)
            response = await respond(with_read_tensors(exchange.call), observed)
            exchange.responses.append(response)
            return response
        finally:
            self._end(exchange)

    async def record_stream(
        self,
        call: StreamInferRequest,
        respond: Callable[[StreamInferRequest, Service], AsyncGenerator[SessionReply[A], None]],
        service: Service,
    ) -> AsyncGenerator[SessionReply[A], None]:
        """Yield the responses of *respond* to a call, which *service* handles."""
        exchange = self.begin(call)
        observed = service if exchange is None else partial(_observed, exchange, service)
        async with aclosing(respond(call, observed)) as replies:
            try:
                async for reply in replies:
                    if exchange is not None:
                        exchange.responses.append(reply.wire)
                    yield reply
            finally:
                if exchange is not None:
                    self._end(exchange)

    def rejected(self, wire: Q, error: GatewayError, response: A) -> None:
        """Pass on a message that could not be decoded."""
        self._tap.rejected(self._codec.name, self._codec.for_record(wire), error, response)

    def _end(self, exchange: TappedCall) -> None:
        exchange.took_s = monotonic() - exchange.started
        try:
            self._tap.end(exchange)
        except FAULTS:  # the client's response must not fail because of a tap
            log.exception("call not recorded")
            if exchange.teed is not None:
                exchange.teed.release()


async def _observed(exchange: TappedCall, service: Service, call: Call[Any]) -> Any:
    """Call the service, and note the call path, the replies and the error."""
    token, exchange.service = CALL_PATH.set(exchange.path), service
    try:
        reply = await service(call)
    except BaseException as error:
        exchange.fail(error)
        raise
    finally:
        CALL_PATH.reset(token)
    if type(call) is StreamInferRequest:
        return RecordedStream(reply, exchange)
    if type(call) is not OpaqueCall:  # nobody reads the reply to one
        exchange.add(reply)
    return reply
