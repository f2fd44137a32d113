"""A connection that breaks at the first write: nothing was sent, so the request is sent again."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from gateway.ir.errors import NotSent
from gateway.transports.contract import ClientLimits
from gateway.transports.http1.client import HttpClient
from gateway.transports.stream.client import StreamClient
from gateway.wire.grpc import GrpcRequest, GrpcResponse
from gateway.wire.http import HttpRequest
from gateway.wire.stream import Frame
from tests.integration import grpc_echo, http_kit, stream_kit

SIZES = pytest.mark.parametrize("size", [10, 1_000_000], ids=["small", "large"])


def break_connections(address: str) -> None:
    """Let each write of a connection to *address* fail from now on."""
    port = int(address.rpartition(":")[2]) if ":" in address.removeprefix("unix:") else address
    count = 0
    transports: Any = asyncio.get_running_loop()._transports  # type: ignore[attr-defined]  # of the selector loop
    for transport in list(transports.values()):
        peer = transport.get_extra_info("peername")
        if port in peer or address == f"unix:{peer}":
            transport.get_extra_info("socket").shutdown(socket.SHUT_WR)
            count += 1
    assert count == 1


@SIZES
async def test_an_unsent_http_request_is_sent_again(size: int) -> None:
    """A POST failed with "Broken pipe", although its server had not seen it."""
    echo = http_kit.Echo()
    async with http_kit.serving(echo) as running:
        client = HttpClient(f"http://{running.server.address}", ClientLimits())
        for body in (b"first", bytes(size)):
            wire = HttpRequest("POST", "/v2/x", body=(body,))
            response = await client.send(wire, deadline=None)
            assert body == response.view.tobytes()
            if body == b"first":
                break_connections(running.server.address)
        await client.close()
    assert [b"first", bytes(size)] == [each.view.tobytes() for each in echo.seen]


@SIZES
@pytest.mark.parametrize("in_order", [True, False])
@pytest.mark.parametrize("kind", ["tcp", "unix"])
async def test_an_unsent_frame_is_sent_again(
    size: int, in_order: bool, kind: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The same over framed streams."""
    folder = tmp_path_factory.mktemp("u")
    address = "127.0.0.1:0" if kind == "tcp" else f"unix:{folder}/s"
    seen: list[int] = []

    class Sizes(stream_kit.Refusing):
        async def __call__(self, wire: Frame, /) -> AsyncGenerator[Frame, None]:
            seen.append(len(wire.payload[0]))
            yield Frame((b"an answer",))

    framer = stream_kit.ordered if in_order else stream_kit.NumberedFramer
    async with stream_kit.serving(Sizes(), address, in_order=in_order) as running:
        where = running.server.address
        client = StreamClient(where, framer, ClientLimits(), ordered=in_order)
        await client.send(Frame((b"the first",)), deadline=None)
        break_connections(where)
        await client.send(Frame((bytes(size),)), deadline=None)
        await client.close()
    assert [9, size] == seen


@SIZES
@pytest.mark.parametrize("method", [grpc_echo.UNARY, grpc_echo.STREAM])
async def test_an_unsent_grpc_call_may_be_sent_again(
    size: int, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its error says that nothing was sent, which routes retry by default."""
    monkeypatch.setattr(grpc_echo.MAKES, "server", "native")
    monkeypatch.setattr(grpc_echo.MAKES, "client", "native")
    frontend = grpc_echo.Answers(grpc_echo.echo)
    async with grpc_echo.serving(frontend) as server, grpc_echo.calling(server) as client:
        await client.send(grpc_echo.ask(), deadline=None)
        break_connections(server.address)
        with pytest.raises(NotSent):
            await _first(client, GrpcRequest(method, (bytes(size),)))
        assert b"again" == (await _first(client, GrpcRequest(method, (b"again",)))).view.tobytes()
    assert 2 == len(frontend.requests)


async def _first(client: Any, wire: GrpcRequest) -> GrpcResponse:
    if wire.method == grpc_echo.UNARY:
        response: GrpcResponse = await client.send(wire, deadline=None)
        return response
    found: list[GrpcResponse] = [each async for each in client.stream(wire, deadline=None)]
    return found[-1]
