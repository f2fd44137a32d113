"""A client and a server frontend joined in memory, for tests and benchmarks.

Messages are rewritten as a real wire would deliver them: bodies joined into one fresh read-only
view, the deadline carried over, so that nothing is shared that sockets would not share.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import Any, Generic, TypeVar

from gateway.ir.context import REQUEST_ID
from gateway.ir.errors import DeadlineExceeded, NotSent, UpstreamProtocolError
from gateway.transports.contract import Decode, ServerFrontend, accepted
from gateway.transports.http.headers import FRAMING
from gateway.wire.grpc import GrpcRequest, GrpcResponse
from gateway.wire.http import Buffer, Headers, HttpRequest, HttpResponse, size_of
from gateway.wire.stream import Frame

Q = TypeVar("Q")
A = TypeVar("A")


class MemoryClient(Generic[Q, A]):
    """A client whose upstream is a frontend in the same process.

    Args:
        frontend: Answers.
        request: Rewrites a request, with its deadline, as the server would see it.
        answer: Rewrites an answer as the client would see it.
    """

    def __init__(
        self,
        frontend: ServerFrontend[Q, A],
        request: Callable[[Q, float | None], Q],
        answer: Callable[[A], A],
    ) -> None:
        self._frontend = frontend
        self._request = request
        self._answer = answer
        self._closed = False

    async def send(
        self, wire: Q, /, *, deadline: float | None, decode: Decode[A] | None = None
    ) -> Any:
        """Send one message and return its first answer; see `contract.Client`."""
        async with aclosing(self.stream(wire, deadline=deadline)) as answers:
            async for answer in answers:
                return answer if decode is None else await accepted(answer, decode)
        raise UpstreamProtocolError("the frontend gave no answer")

    async def stream(self, wire: Q, /, *, deadline: float | None) -> AsyncGenerator[A, None]:
        """Send one message and iterate over its answers."""
        if self._closed:
            raise NotSent("the client is closed")
        async with aclosing(self._frontend(self._request(wire, deadline))) as answers:
            while True:
                answer = await _before(deadline, answers)
                if answer is None:
                    return
                yield self._answer(answer)

    async def close(self) -> None:
        """Refuse further messages; harmless the second time."""
        self._closed = True


async def _before(deadline: float | None, answers: AsyncGenerator[A, None]) -> A | None:
    """Return the next answer, None at the end; raises DeadlineExceeded at *deadline*."""
    if deadline is None:
        return await anext(answers, None)
    left = deadline - time.monotonic()
    try:
        if left > 0:
            async with asyncio.timeout(left):
                return await anext(answers, None)
    except TimeoutError:
        pass  # answered below, as is a deadline that was past from the start
    raise DeadlineExceeded("the deadline passed while the frontend was asked")


def http_memory(
    frontend: ServerFrontend[HttpRequest, HttpResponse],
) -> MemoryClient[HttpRequest, HttpResponse]:
    """Return a client of *frontend* over an HTTP that needs no socket."""
    return MemoryClient(frontend, _http_request, _http_answer)


def grpc_memory(
    frontend: ServerFrontend[GrpcRequest, GrpcResponse],
) -> MemoryClient[GrpcRequest, GrpcResponse]:
    """Return a client of *frontend* over a gRPC that needs no socket."""
    return MemoryClient(frontend, _grpc_request, _grpc_answer)


def stream_memory(frontend: ServerFrontend[Frame, Frame]) -> MemoryClient[Frame, Frame]:
    """Return a client of *frontend* over a byte stream that needs no socket."""
    return MemoryClient(frontend, _frame_request, _frame_answer)


def _http_request(wire: HttpRequest, deadline: float | None) -> HttpRequest:
    pairs = [pair for pair in wire.headers if pair[0].lower() not in FRAMING]
    pairs += [("Host", "memory"), ("Content-Length", str(size_of(wire.body)))]
    if wire.request_id:
        pairs.append((REQUEST_ID, wire.request_id))
    body = (_fresh(wire.body),)
    return HttpRequest(wire.method, wire.path, wire.query, Headers(pairs), body, deadline)


def _http_answer(wire: HttpResponse) -> HttpResponse:
    pairs = [pair for pair in wire.headers if pair[0].lower() not in FRAMING]
    if wire.request_id:
        pairs.append((REQUEST_ID, wire.request_id))
    return HttpResponse(wire.status, Headers(pairs), (_fresh(wire.body),))


def _grpc_request(wire: GrpcRequest, deadline: float | None) -> GrpcRequest:
    return GrpcRequest(wire.method, (_fresh(wire.message),), wire.metadata, deadline)


def _grpc_answer(wire: GrpcResponse) -> GrpcResponse:
    return GrpcResponse((_fresh(wire.message),), wire.status, wire.details, wire.metadata)


def _frame_request(wire: Frame, deadline: float | None) -> Frame:
    return Frame((_fresh(wire.payload),), wire.correlation, deadline)


def _frame_answer(wire: Frame) -> Frame:
    return Frame((_fresh(wire.payload),), wire.correlation)


def _fresh(buffers: Sequence[Buffer]) -> memoryview:
    return memoryview(bytes(bytearray().join(buffers)))
