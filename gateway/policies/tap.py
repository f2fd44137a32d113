"""SampleCalls: passes chosen inferences of a route, with their replies, to a tap.

It knows neither which calls are chosen nor what happens to them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import Any, Final, TypeVar

import structlog

from gateway.api.layer import Entries, Layer, LayerContext
from gateway.api.tap import RecordedStream, RouteTap, SampledCall
from gateway.ir.bodies.streams import on_stream_end
from gateway.ir.calls import (
    Call,
    InferRequest,
    InferResponse,
    OpaqueCall,
    StreamInferRequest,
    with_read_tensors,
)
from gateway.ir.context import Origin
from gateway.ir.errors import ErrorCode
from gateway.ir.unread import is_unread_reply, message_of
from gateway.service import ReplyCoroutine, Service
from gateway.telemetry.call_path import CALL_PATH
from gateway.telemetry.faults import FAULTS

log = structlog.get_logger(__name__)

R = TypeVar("R")

_CANCELLED = ErrorCode.CANCELLED, "the client left before the end of the stream"


@dataclass(frozen=True, slots=True)
class RouteTaps:
    """What receives chosen calls of a route."""

    taps: Sequence[RouteTap] = ()


class SampleCalls:
    """Passes inferences to a tap. A fault of the tap changes no call.

    Args:
        inner: The service to call.
        tap: Chooses calls, and receives them.
    """

    def __init__(self, inner: Service, tap: RouteTap) -> None:
        self._inner = inner
        self._tap = tap

    def __call__(self, call: Call[R], /) -> ReplyCoroutine[R]:
        """Call *inner*."""
        kind = type(call)
        if kind is OpaqueCall:
            if call.context.origin is None:  # a question of the gateway's own, about a model
                return self._inner(call)
        elif kind is not InferRequest and kind is not StreamInferRequest:
            return self._inner(call)
        try:
            exchange = self._tap.begin(with_read_tensors(call))
        except FAULTS:
            log.exception("call not sampled")
            exchange = None
        return self._inner(call) if exchange is None else self._sampled(exchange)

    async def _sampled(self, exchange: SampledCall) -> Any:
        path, token = CALL_PATH.get(), None
        if path is None:
            token = CALL_PATH.set(exchange.path)
        else:
            exchange.path = path
        before_s, requests = exchange.path.upstream_s, exchange.path.requests
        try:
            reply = await self._inner(exchange.call)
        except BaseException as error:
            exchange.fail(error)
            self._end(exchange)
            raise
        finally:
            if token is not None:
                CALL_PATH.reset(token)
        if type(exchange.call) is StreamInferRequest:
            ended = partial(self._end_stream, exchange)
            return on_stream_end(exchange.call, RecordedStream(reply, exchange), ended)
        if exchange.path.requests <= requests + 1:
            exchange.upstream_s = exchange.path.upstream_s - before_s
        unread = reply if isinstance(reply, Origin) else _unread_message(reply)
        if unread is not reply:
            exchange.add(reply)
        if unread is not None:
            exchange.responses.append(unread.wire)
        self._end(exchange)
        return reply

    def _end_stream(self, exchange: SampledCall, _error: BaseException | Any) -> None:
        if not exchange.is_complete and exchange.error is None:
            exchange.error = _CANCELLED
        items = [item for _, item in exchange.items]
        if any(map(is_unread_reply, items)):
            exchange.responses += [message_of(item.origin) for item in items if item.origin]
        self._end(exchange)

    def _end(self, exchange: SampledCall) -> None:
        exchange.took_s = monotonic() - exchange.started
        try:
            self._tap.end(exchange)
        except FAULTS:  # the client's reply must not fail because of a tap
            log.exception("call not sampled")


def _unread_message(reply: InferResponse) -> Origin | None:
    return reply.origin if is_unread_reply(reply) else None


def _build(inner: Entries, at: LayerContext) -> Service | None:
    found, taps = inner.questions, at.part(RouteTaps).taps
    for tap in taps:
        found = SampleCalls(found, tap)
    return found if taps else None


LAYER: Final = Layer(
    "SampleCalls",
    "passes chosen calls to the shadow process, if a migration has them",
    "route",
    _build,
)
