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

_REQUEST_ID = "x-request-id"


def _no_stamp(answer: A, _request_id: str) -> A:
    return answer


def stamp_http(answer: HttpResponse, request_id: str) -> HttpResponse:
    """Return *answer* with the request id as a header."""
    headers = Headers((*answer.headers.pairs, (_REQUEST_ID, request_id)))
    return HttpResponse(answer.status, headers, answer.body, answer.compressible)


def stamp_grpc(answer: GrpcResponse, request_id: str) -> GrpcResponse:
    """Return *answer* with the request id as trailing metadata."""
    metadata = (*answer.metadata, (_REQUEST_ID, request_id))
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
        try:
            call = self._codec.decode_call(wire)
        except GatewayError as error:
            yield self.refuse(error)
            return
        except Exception as error:  # noqa: BLE001  # a bug of ours must not reach the client raw
            yield self.refuse(_internal(error, None))
            return
        if not call.context.request_id:
            call = call.within(request_id=f"{self._prefix}-{next(self._numbers):x}")
        request_id = call.context.request_id
        try:
            if isinstance(call, StreamInferRequest):
                first = True
                async with aclosing(self._items(call)) as items:
                    async for item in items:
                        yield self._stamp(item, request_id) if first else item
                        first = False
            else:
                answer = self._codec.encode_reply(call, await self._service(call))
                yield self._stamp(answer, request_id)
        except GatewayError as error:
            yield self._stamp(self._codec.encode_error(call, error), request_id)
        except Exception as error:  # noqa: BLE001
            internal = self._codec.encode_error(call, _internal(error, call))
            yield self._stamp(internal, request_id)

    def refuse(self, error: GatewayError, /) -> A:
        """Say *error* in the protocol's form, for a message no service saw."""
        self._refused(self._codec.name, error)
        return self._codec.encode_error(None, error)

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
