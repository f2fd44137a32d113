"""Servers of every kind that share one port with others."""

from __future__ import annotations

import socket
from collections.abc import AsyncGenerator, Callable

import pytest

from gateway.ir.errors import GatewayError
from gateway.transports.choice import TransportImplementation, grpc_server, http_server_class
from gateway.transports.contract import (
    GrpcMount,
    HttpFrontend,
    HttpMount,
    MemoryBudget,
    Server,
    ServerLimits,
    StreamFrontend,
)
from gateway.transports.net.listening import PortReservation
from gateway.transports.stream.server import StreamServer
from gateway.wire.http import HttpRequest, HttpResponse
from gateway.wire.stream import Frame
from tests.integration.grpc_echo import METHODS, Answers, echo
from tests.integration.stream_kit import framed, ordered

MAKES: tuple[TransportImplementation, ...] = ("native", "reference")


class Page(HttpFrontend):
    """Responds to every request with an empty page."""

    async def __call__(self, wire: HttpRequest, /) -> AsyncGenerator[HttpResponse, None]:
        yield HttpResponse(200)

    def reject(self, error: GatewayError, /) -> HttpResponse:
        return HttpResponse(400)


class Same(StreamFrontend):
    """Responds to every frame with itself."""

    async def __call__(self, wire: Frame, /) -> AsyncGenerator[Frame, None]:
        yield wire

    def reject(self, error: GatewayError, /) -> Frame:
        raise error


Start = Callable[[str, bool], Server]


def http(make: TransportImplementation) -> Start:
    def new(address: str, shares: bool) -> Server:
        host, _, port = address.rpartition(":")
        return http_server_class(make)(
            host,
            int(port),
            mounts=[HttpMount(("",), Page())],
            limits=ServerLimits(),
            budget=MemoryBudget(1 << 20),
            reuse_port=shares,
        )

    return new


def grpc(make: TransportImplementation) -> Start:
    def new(address: str, shares: bool) -> Server:
        return grpc_server(
            make,
            address,
            mounts=[GrpcMount(METHODS, Answers(echo))],
            extras=(),
            limits=ServerLimits(),
            budget=MemoryBudget(1 << 20),
            tls=None,
            on_reject=lambda _error: None,
            reuse_port=shares,
        )

    return new


def stream(address: str, shares: bool) -> Server:
    return StreamServer(
        address,
        ordered,
        Same(),
        limits=ServerLimits(),
        budget=MemoryBudget(1 << 20),
        reuse_port=shares,
    )


KINDS: list[Start] = [*map(http, MAKES), *map(grpc, MAKES), stream]
NAMES = [*(f"http-{make}" for make in MAKES), *(f"grpc-{make}" for make in MAKES), "stream"]
kinds = pytest.mark.parametrize("new", KINDS, ids=NAMES)


@kinds
async def test_two_servers_share_a_port(new: Start) -> None:
    """The second server of a shared port starts, and it serves after the first has stopped."""
    guard = PortReservation("127.0.0.1", 0)
    address = f"127.0.0.1:{guard.port}"
    first, second = new(address, True), new(address, True)
    try:
        await first.start()
        await second.start()
        assert [address] * 2 == [first.address, second.address]
        await first.stop()
        socket.create_connection(("127.0.0.1", guard.port), timeout=60).close()
    finally:
        await first.stop()
        await second.stop()
        guard.close()


@kinds
async def test_unshared_server_cannot_use_a_shared_port(new: Start) -> None:
    """A server that does not share raises "address in use"."""
    guard = PortReservation("127.0.0.1", 0)
    address = f"127.0.0.1:{guard.port}"
    shared, alone = new(address, True), new(address, False)
    try:
        await shared.start()
        with pytest.raises(OSError, match="in use"):
            await alone.start()
    finally:
        await shared.stop()
        await alone.stop()
        guard.close()


HTTP_REQUEST = b"GET / HTTP/1.1\r\nHost: h\r\n\r\n"
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\x04" + bytes(5)
SETTINGS = b"\x04"
LAST = [
    pytest.param(http("native"), HTTP_REQUEST, slice(0, 15), b"HTTP/1.1 200 OK", id="http-native"),
    pytest.param(
        http("reference"), HTTP_REQUEST, slice(0, 15), b"HTTP/1.1 200 OK", id="http-reference"
    ),
    pytest.param(grpc("native"), PREFACE, slice(3, 4), SETTINGS, id="grpc-native"),
    pytest.param(stream, framed(b"the last"), slice(0, 12), framed(b"the last"), id="stream"),
]


@pytest.mark.parametrize(("new", "request_", "part", "expected"), LAST)
async def test_drain_serves_connections_in_the_accept_backlog(
    new: Start, request_: bytes, part: slice, expected: bytes
) -> None:
    """Connections that the kernel established before the drain get their response."""
    guard = PortReservation("127.0.0.1", 0)
    server = new(f"127.0.0.1:{guard.port}", True)
    await server.start()
    clients = []
    for _ in range(5):  # the loop has no turn, so nobody takes them yet
        client = socket.create_connection(("127.0.0.1", guard.port), timeout=60)
        client.sendall(request_)
        clients.append(client)
    await server.drain(5)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", guard.port), timeout=60)
    responses = [client.recv(1 << 16)[part] for client in clients]
    assert [expected] * 5 == responses
    for client in clients:
        client.close()
    guard.close()
