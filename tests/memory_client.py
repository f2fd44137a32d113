"""MemoryClient: a client and a server frontend that are connected in memory.

Each message is copied as sockets would deliver it: its body is one new read-only view, and it has
the deadline.  Nothing is shared that sockets would not share.
"""

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
        frontend: Handles the requests.
        request: Returns a request with its deadline, as the server would receive it.
        response: Returns a response, as the client would receive it.
    """

    def __init__(
        self,
        frontend: ServerFrontend[Q, A],
        request: Callable[[Q, float | None], Q],
        response: Callable[[A], A],
    ) -> None:
        self._frontend = frontend
        self._request = request
        self._response = response
        self._is_closed = False

    async def send(
        self, wire: Q, /, *, deadline: float | None, decode: Decode[A] | None = None
    ) -> Any:
        """Send one message and return its first response; see `contract.Client`."""
        async with aclosing(self.stream(wire, deadline=deadline)) as responses:
            async for response in responses:
                return response if decode is None else await accepted(response, decode)
        raise UpstreamProtocolError("the frontend gave no response")

    async def stream(self, wire: Q, /, *, deadline: float | None) -> AsyncGenerator[A, None]:
        """Send one message and yield its responses."""
        if self._is_closed:
            raise NotSent("the client is closed")
        async with aclosing(self._frontend(self._request(wire, deadline))) as responses:
            while True:
                response = await _next(responses, deadline)
                if response is None:
                    return
                yield self._response(response)

    async def close(self) -> None:
        """Reject further messages. A second call does nothing."""
        self._is_closed = True


async def _next(responses: AsyncGenerator[A, None], deadline: float | None) -> A | None:
    """Return the next response, None at the end. Raises DeadlineExceeded at *deadline*."""
    if deadline is None:
        return await anext(responses, None)
    remaining = deadline - time.monotonic()
    try:
        if remaining > 0:
            async with asyncio.timeout(remaining):
                return await anext(responses, None)
    except TimeoutError:
        pass
    raise DeadlineExceeded("the deadline passed before the frontend replied")


def http_memory(
    frontend: ServerFrontend[HttpRequest, HttpResponse],
) -> MemoryClient[HttpRequest, HttpResponse]:
    """Return an HTTP client of *frontend* without sockets."""
    return MemoryClient(frontend, _http_request, _http_response)


def grpc_memory(
    frontend: ServerFrontend[GrpcRequest, GrpcResponse],
) -> MemoryClient[GrpcRequest, GrpcResponse]:
    """Return a gRPC client of *frontend* without sockets."""
    return MemoryClient(frontend, _grpc_request, _grpc_response)


def stream_memory(frontend: ServerFrontend[Frame, Frame]) -> MemoryClient[Frame, Frame]:
    """Return a client of *frontend* for framed messages, without sockets."""
    return MemoryClient(frontend, _frame_request, _frame_response)


def _http_request(wire: HttpRequest, deadline: float | None) -> HttpRequest:
    pairs = [pair for pair in wire.headers if pair[0].lower() not in FRAMING]
    pairs += [("Host", "memory"), ("Content-Length", str(size_of(wire.body)))]
    if wire.request_id:
        pairs.append((REQUEST_ID, wire.request_id))
    body = (_fresh(wire.body),)
    return HttpRequest(wire.method, wire.path, wire.query, Headers(pairs), body, deadline)


def _http_response(wire: HttpResponse) -> HttpResponse:
    pairs = [pair for pair in wire.headers if pair[0].lower() not in FRAMING]
    if wire.request_id:
        pairs.append((REQUEST_ID, wire.request_id))
    return HttpResponse(wire.status, Headers(pairs), (_fresh(wire.body),))


def _grpc_request(wire: GrpcRequest, deadline: float | None) -> GrpcRequest:
    return GrpcRequest(wire.method, (_fresh(wire.message),), wire.metadata, deadline)


def _grpc_response(wire: GrpcResponse) -> GrpcResponse:
    return GrpcResponse((_fresh(wire.message),), wire.status, wire.details, wire.metadata)


def _frame_request(wire: Frame, deadline: float | None) -> Frame:
    return Frame((_fresh(wire.payload),), wire.correlation, deadline)


def _frame_response(wire: Frame) -> Frame:
    return Frame((_fresh(wire.payload),), wire.correlation)


def _fresh(buffers: Sequence[Buffer]) -> memoryview:
    return memoryview(bytes(bytearray().join(buffers)))
