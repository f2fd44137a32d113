"""Servers of every kind that share one port with others."""

from __future__ import annotations

import socket
from collections.abc import AsyncGenerator, Callable

import pytest

from gateway.app.makes import HTTP_SERVERS, Make, grpc_server
from gateway.ir.errors import GatewayError
from gateway.transports.base import Budget, GrpcMount, HttpMount, Server, ServerLimits
from gateway.transports.port_guard import PortGuard
from gateway.transports.stream_server import StreamServer
from gateway.wire.http import HttpRequest, HttpResponse
from tests.integration.grpc_echo import METHODS, Answers, echo
from tests.integration.stream_kit import ordered

MAKES: tuple[Make, ...] = ("native", "reference")


class Page:
    """Answers every request with an empty page."""

    async def __call__(self, wire: HttpRequest, /) -> AsyncGenerator[HttpResponse, None]:
        yield HttpResponse(200)

    def refuse(self, error: GatewayError, /) -> HttpResponse:
        return HttpResponse(400)


class Unread:
    """A frontend for frames that nobody sends."""

    async def __call__(self, wire: object, /) -> AsyncGenerator[object, None]:
        yield wire

    def refuse(self, error: GatewayError, /) -> object:
        return error


Start = Callable[[str, bool], Server]


def http(make: Make) -> Start:
    def new(address: str, shares: bool) -> Server:
        host, _, port = address.rpartition(":")
        return HTTP_SERVERS[make](
            host,
            int(port),
            mounts=[HttpMount(("",), Page())],
            limits=ServerLimits(),
            budget=Budget(1 << 20),
            reuse_port=shares,
        )

    return new


def grpc(make: Make) -> Start:
    def new(address: str, shares: bool) -> Server:
        return grpc_server(
            make,
            address,
            mounts=[GrpcMount(METHODS, Answers(echo))],
            extras=(),
            limits=ServerLimits(),
            budget=Budget(1 << 20),
            tls=None,
            refused=lambda _error: None,
            reuse_port=shares,
        )

    return new


def stream(address: str, shares: bool) -> Server:
    frontend: object = Unread()
    return StreamServer(
        address,
        ordered,
        frontend,  # type: ignore[arg-type]  # it is never asked
        limits=ServerLimits(),
        budget=Budget(1 << 20),
        reuse_port=shares,
    )


KINDS: list[Start] = [*map(http, MAKES), *map(grpc, MAKES), stream]
NAMES = [*(f"http-{make}" for make in MAKES), *(f"grpc-{make}" for make in MAKES), "stream"]
kinds = pytest.mark.parametrize("new", KINDS, ids=NAMES)


@kinds
async def test_two_share_a_port(new: Start) -> None:
    """The second server that shares a port gets it, and either one answers when the other left."""
    guard = PortGuard("127.0.0.1", 0)
    address = f"127.0.0.1:{guard.port}"
    first, second = new(address, True), new(address, True)
    try:
        await first.start()
        await second.start()
        assert [address] * 2 == [first.address, second.address]
        await first.stop()
        socket.create_connection(("127.0.0.1", guard.port), timeout=5).close()
    finally:
        await first.stop()
        await second.stop()
        guard.close()


@kinds
async def test_a_server_on_its_own_is_refused(new: Start) -> None:
    """One that does not share is told that the address is in use."""
    guard = PortGuard("127.0.0.1", 0)
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
