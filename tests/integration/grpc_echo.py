"""Shared by the gRPC transport tests: frontends of a few lines, and a server with a client."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from gateway.ir.errors import ErrorCode, GatewayError
from gateway.transports.contract import (
    ClientLimits,
    GrpcClient,
    GrpcFrontend,
    GrpcMount,
    MemoryBudget,
    Server,
    ServerLimits,
)
from gateway.transports.grpc.client import GrpcClient as NativeClient
from gateway.transports.grpc.server import GrpcServer as NativeServer
from gateway.transports.grpc.withheld import WithheldCalls
from gateway.transports.net.tls import ClientTls, ServerTls
from gateway.transports.net.tls_files import TlsFiles
from gateway.transports.reference.grpc_client import GrpcClient as ReferenceClient
from gateway.transports.reference.grpc_server import GrpcServer as ReferenceServer
from gateway.wire.grpc import GrpcRequest, GrpcResponse, GrpcStatus, MethodKind

UNARY = "/test.Echo/Unary"
STREAM = "/test.Echo/Stream"
BIDI = "/test.Echo/Bidi"
METHODS = {
    UNARY: MethodKind.UNARY,
    STREAM: MethodKind.SERVER_STREAM,
    BIDI: MethodKind.BIDIRECTIONAL,
}
MIB = 1 << 20
_CORE_NOTE = re.compile(r"I\d{4} \S+ +\d+ \w+\.cc:\d+\] ")
# grpcio's server prints this where a call is cancelled while it stops.
_CORE_CANCELLED = re.compile(
    r"Traceback \(most recent call last\):\n"
    r"(  File \"src/python/grpcio/grpc/_cython/.*\n)+"
    r"asyncio\.exceptions\.CancelledError\n"
)

_STATUS = {
    ErrorCode.QUOTA_EXCEEDED: GrpcStatus.RESOURCE_EXHAUSTED,
    ErrorCode.OVERLOADED: GrpcStatus.RESOURCE_EXHAUSTED,
    ErrorCode.TOO_LARGE: GrpcStatus.RESOURCE_EXHAUSTED,
    ErrorCode.INTERNAL: GrpcStatus.INTERNAL,
    ErrorCode.INVALID_ARGUMENT: GrpcStatus.INVALID_ARGUMENT,
    ErrorCode.DEADLINE_EXCEEDED: GrpcStatus.DEADLINE_EXCEEDED,
}


class Answers(GrpcFrontend):
    """A frontend made of one async generator function; keeps its requests."""

    def __init__(
        self, response: Callable[[GrpcRequest], AsyncGenerator[GrpcResponse, None]]
    ) -> None:
        self._answer = response
        self.requests: list[GrpcRequest] = []

    def __call__(self, wire: GrpcRequest, /) -> AsyncGenerator[GrpcResponse, None]:
        self.requests.append(wire)
        return self._answer(wire)

    def reject(self, error: GatewayError, /) -> GrpcResponse:
        return GrpcResponse(status=_STATUS[error.code], details=error.message)


async def echo(wire: GrpcRequest) -> AsyncGenerator[GrpcResponse, None]:
    """Respond with the message, once, or three times where the method streams."""
    for _ in range(3 if wire.method == STREAM else 1):
        yield GrpcResponse(wire.message, metadata=(("x-echo", "yes"),))


class Slow(GrpcFrontend):
    """A frontend that responds when `go` is set and notes how its calls ended."""

    def __init__(self) -> None:
        self.started = asyncio.Event()
        self.cancelled = asyncio.Event()
        self.go = asyncio.Event()
        self.running = 0
        self._changed = asyncio.Condition()
        self.most = 0

    async def __call__(self, wire: GrpcRequest, /) -> AsyncGenerator[GrpcResponse, None]:
        self.running += 1
        self.most = max(self.most, self.running)
        self.started.set()
        async with self._changed:
            self._changed.notify_all()
        try:
            if wire.method == STREAM:
                yield GrpcResponse((b"first",))
            await self.go.wait()
            yield GrpcResponse(wire.message)
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        finally:
            self.running -= 1

    async def reached(self, running: int) -> None:
        """Wait until so many calls run."""
        async with self._changed:
            await self._changed.wait_for(lambda: self.running >= running)

    def reject(self, error: GatewayError, /) -> GrpcResponse:
        return GrpcResponse(status=_STATUS[error.code], details=error.message)


@dataclass
class Makes:
    """The implementations of server and client under test; the fixture `grpc_makes` sets them."""

    server: str = "reference"
    client: str = "reference"


MAKES = Makes()


def new_server(
    address: str,
    frontend: GrpcFrontend | None = None,
    limits: ServerLimits | None = None,
    *,
    budget: MemoryBudget | None = None,
    tls: ServerTls | TlsFiles | None = None,
    extras: Sequence[GrpcMount] = (),
) -> Server:
    """Make a server of the implementation under test; without *frontend* it has no methods."""
    mounts = () if frontend is None else (GrpcMount(METHODS, frontend),)
    limits, budget = (
        limits or ServerLimits(requests_per_address=256),
        budget or MemoryBudget(512 * MIB),
    )
    files = TlsFiles("listener test", tls) if isinstance(tls, ServerTls) else tls
    if MAKES.server == "native":
        context = None if files is None else files.context("h2")
        return NativeServer(address, mounts, limits, budget, tls=context, extras=extras)
    return ReferenceServer(address, mounts, limits, budget, tls=files, extras=extras)


def new_client(
    target: str,
    limits: ClientLimits | None = None,
    *,
    tls: ClientTls | TlsFiles | None = None,
    withheld: WithheldCalls | None = None,
) -> GrpcClient:
    """Make a client of the implementation under test."""
    limits = limits or ClientLimits()
    files = TlsFiles("upstream test", tls) if isinstance(tls, ClientTls) else tls
    if MAKES.client == "native":
        context = None if files is None else files.context("h2")
        return NativeClient(target, limits, tls=context, withheld=withheld)
    return ReferenceClient(target, limits, tls=files)


@asynccontextmanager
async def serving(
    frontend: GrpcFrontend,
    limits: ServerLimits | None = None,
    *,
    address: str = "127.0.0.1:0",
    **options: Any,
) -> AsyncIterator[Server]:
    """Run a server of all test methods, by default on a free port of the loopback."""
    server = new_server(address, frontend, limits, **options)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


@asynccontextmanager
async def calling(
    server: Server | str, limits: ClientLimits | None = None, **options: Any
) -> AsyncIterator[GrpcClient]:
    """Run a client of *server*."""
    client = new_client(server if isinstance(server, str) else server.address, limits, **options)
    try:
        yield client
    finally:
        await client.close()


def ask(message: bytes = b"x", method: str = UNARY) -> GrpcRequest:
    """Return a request without metadata."""
    return GrpcRequest(method, (message,))


def only_quiet(capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> None:
    """Fail unless nothing was written to stderr and no warning logged.

    Where grpc was imported before the gateway, its C core notes peers that go away: "I1121 ...".
    """
    assert [] == [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]
    lines = _CORE_CANCELLED.sub("", capfd.readouterr().err).splitlines()
    noise = [line for line in lines if _CORE_NOTE.match(line) is None]
    assert [] == noise, noise
