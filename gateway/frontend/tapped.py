"""TappedFrontend: a frontend that passes calls, replies and messages to a tap (a recorder)."""

from collections.abc import AsyncGenerator, Coroutine
from contextlib import aclosing
from functools import partial
from time import monotonic
from typing import Any, TypeVar

import structlog

from gateway.api.protocol import Codec
from gateway.api.tap import RecordedStream, Tap, TappedCall
from gateway.frontend.frontend import Frontend
from gateway.ir.calls import Call, OpaqueCall, StreamInferRequest, with_read_tensors
from gateway.ir.errors import GatewayError
from gateway.service import Service
from gateway.session import SessionReply
from gateway.telemetry.call_path import CALL_PATH
from gateway.telemetry.faults import FAULTS

log = structlog.get_logger(__name__)

Q = TypeVar("Q")
A = TypeVar("A")


class TappedFrontend(Frontend[Q, A]):
    """A frontend that passes calls, their replies, and the messages of both to a tap.

    It is a class of its own, so that a frontend without a tap does nothing for one.

    Args:
        codec: Decodes requests and encodes replies.
        service: Answers the calls.
        tap: Receives the calls.
        options: The other arguments of `Frontend`.
    """

    def __init__(self, codec: Codec[Q, A], service: Service, tap: Tap, **options: Any) -> None:
        super().__init__(codec, service, **options)
        self._tap = tap

    def _choose(self, call: Call[Any]) -> Coroutine[Any, Any, A] | None:
        """Return what handles *call* if the tap chooses it, else None."""
        exchange = self._tap.begin(call)
        return None if exchange is None else self._tapped(exchange)

    async def _tapped(self, exchange: TappedCall) -> A:
        try:
            observed = partial(self._observed, exchange)
            response = await super()._single(with_read_tensors(exchange.call), observed)
            exchange.responses.append(response)
            return response
        finally:
            self._end(exchange)

    async def _single(self, call: Call[Any], service: Service | None = None) -> A:
        chosen = self._choose(call)
        return await (super()._single(call, service) if chosen is None else chosen)

    def _reject_unread(self, wire: Q, error: GatewayError, request_id: str) -> A:
        response = super()._reject_unread(wire, error, request_id)
        self._tap.rejected(self.codec.name, self.codec.for_record(wire), error, response)
        return response

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
                kept = self.codec.for_record(wire)
                self._tap.rejected(self.codec.name, kept, error, reply.wire)
                yield reply

    async def _observed(self, exchange: TappedCall, call: Call[Any]) -> Any:
        """Call the service, and note the call path, the replies and the error."""
        token, exchange.service = CALL_PATH.set(exchange.path), self.service
        try:
            reply = await self.service(call)
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

    def _end(self, exchange: TappedCall) -> None:
        exchange.took_s = monotonic() - exchange.started
        try:
            self._tap.end(exchange)
        except FAULTS:  # the client's response must not fail because of a tap
            log.exception("call not recorded")
            if exchange.teed is not None:
                exchange.teed.release()
