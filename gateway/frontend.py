"""Frontend: one wire request in, one or more wire answers out.

The one place where errors become wire errors. Generic: it names no protocol and no socket.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any, Generic, TypeVar

import structlog

from gateway.ir.calls import Call, StreamInferRequest
from gateway.ir.context import REQUEST_ID
from gateway.ir.errors import GatewayError, InternalError
from gateway.service import Service
from gateway.wire.codec import Codec
from gateway.wire.grpc import GrpcResponse
from gateway.wire.http import Headers, HttpResponse

log = structlog.get_logger(__name__)

Q = TypeVar("Q")
A = TypeVar("A")

Refused = Callable[[str, GatewayError], None]
"""Told of a request that no service saw: codec name and error."""


def _ignore(_codec: str, _error: GatewayError) -> None: ...


Stamp = Callable[[A, str], A]
"""Writes the request id on an answer."""


def _no_stamp(answer: A, _request_id: str) -> A:
    return answer


def stamp_http(answer: HttpResponse, request_id: str) -> HttpResponse:
    """Return *answer* with the request id as a header."""
    headers = Headers((*answer.headers.pairs, (REQUEST_ID, request_id)))
    return HttpResponse(answer.status, headers, answer.body, answer.compressible)


def stamp_grpc(answer: GrpcResponse, request_id: str) -> GrpcResponse:
    """Return *answer* with the request id as trailing metadata."""
    metadata = (*answer.metadata, (REQUEST_ID, request_id))
    return GrpcResponse(answer.message, answer.status, answer.details, metadata)


class Frontend(Generic[Q, A]):
    """A server's side of one codec.

    Args:
        codec: Reads requests and writes answers.
        service: Answers calls.
        refused: Told of each request that was refused before the service saw it.
        stamp: Writes the request id on the answer to a call, on the first of a stream.
    """

    def __init__(
        self,
        codec: Codec[Q, A],
        service: Service,
        *,
        refused: Refused = _ignore,
        stamp: Stamp[A] = _no_stamp,
    ) -> None:
        self._codec = codec
        self._service = service
        self._refused = refused
        self._stamp = stamp
        # Unique within the process and, by its random part, between processes.
        self._prefix = os.urandom(6).hex()
        self._numbers = itertools.count(1)

    async def __call__(self, wire: Q, /) -> AsyncGenerator[A, None]:
        """Answer *wire*: decode, call the service, encode. Raises no `GatewayError`."""
        answer = await self.ask(wire)
        if not isinstance(answer, AsyncGenerator):
            yield answer
            return
        async with aclosing(answer) as items:
            async for item in items:
                yield item

    async def ask(self, wire: Q, /) -> A | AsyncGenerator[A, None]:
        """Answer *wire* as calling does: with the one answer, or a generator where it streams."""
        try:
            call = self._codec.decode_call(wire)
        except GatewayError as error:
            return self.refuse(error)
        except Exception as error:  # noqa: BLE001  # a bug of ours must not reach the client raw
            return self.refuse(_internal(error, None))
        if not call.context.request_id:
            call = call.within(request_id=f"{self._prefix}-{next(self._numbers):x}")
        if isinstance(call, StreamInferRequest):
            return self._stream(call)
        try:
            answer = self._codec.encode_reply(call, await self._service(call))
        except Exception as error:  # noqa: BLE001
            answer = self._failed(call, error)
        return self._stamp(answer, call.context.request_id)

    async def _stream(self, call: StreamInferRequest) -> AsyncGenerator[A, None]:
        request_id = call.context.request_id
        first = True
        try:
            async with aclosing(self._items(call)) as items:
                async for item in items:
                    yield self._stamp(item, request_id) if first else item
                    first = False
        except Exception as error:  # noqa: BLE001
            yield self._stamp(self._failed(call, error), request_id)

    def _failed(self, call: Call[Any], error: Exception) -> A:
        """Say *error* in the protocol's form; what is no `GatewayError` is a bug of ours."""
        known = error if isinstance(error, GatewayError) else _internal(error, call)
        return self._codec.encode_error(call, known)

    def refuse(self, error: GatewayError, /) -> A:
        """Say *error* in the protocol's form, for a message no service saw."""
        self._refused(self._codec.name, error)
        return self._codec.encode_error(None, error)

    def refuse_wire(self, wire: Q, error: GatewayError, /) -> A:
        """Say *error* as the answer to *wire*, which was read whole: with its id, if it has one.

        On a stream a client knows answers by their ids alone.
        """
        self._refused(self._codec.name, error)
        try:
            call = self._codec.decode_call(wire)
        except GatewayError as unread:
            error.origin = error.origin or unread.origin
            return self._codec.encode_error(None, error)
        except Exception as bug:  # noqa: BLE001  # must not hide what is to be said
            _internal(bug, None)
            return self._codec.encode_error(None, error)
        return self._codec.encode_error(call, error)

    async def _items(self, call: StreamInferRequest) -> AsyncGenerator[A, None]:
        answers = await self._service(call)
        try:
            async for item in answers:
                yield self._codec.encode_item(call, item)
        finally:
            close = getattr(answers, "aclose", None)
            if close is not None:
                await close()


def _internal(error: Exception, call: Call[Any] | None) -> InternalError:
    """Log a bug with its traceback and return what a caller may know of it."""
    model = None if call is None else call.model
    log.error("internal error", exc_info=error, model=None if model is None else str(model))
    return InternalError("internal error of the gateway", model=model)
