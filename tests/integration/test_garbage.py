"""What calls leave behind: nothing that waits for the garbage collector.

Reference cycles stay until it runs, and with them the bodies of requests and responses.
This holds for connections, too, in every way that they end.
"""

from __future__ import annotations

import asyncio
import gc
import json
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, closing, suppress
from pathlib import Path
from types import FrameType

import numpy as np
import pytest

from gateway.app import connect
from gateway.app.run.gateway import Gateway
from gateway.config.load import load_text
from gateway.ir.calls import InferRequest
from gateway.ir.context import ModelRef
from gateway.ir.errors import (
    DeadlineExceeded,
    GatewayError,
    NotSent,
    TooLarge,
    Unavailable,
    UpstreamProtocolError,
)
from gateway.ir.tensors.tensor import array_tensor
from gateway.policies.complete.policy import Complete
from gateway.schema import open_inference_pb2 as pb
from gateway.settings.units import parse_url
from gateway.transports.contract import ClientLimits
from gateway.transports.grpc.client import GrpcClient
from gateway.transports.http1.client import HttpClient
from gateway.wire.grpc import GrpcRequest
from gateway.wire.http import Headers, HttpRequest
from tests.chaos.faulty_server import METADATA
from tests.fakes import settle
from tests.integration.http_kit import eventually

INFER = "/inference.GRPCInferenceService/ModelInfer"
READY = "/inference.GRPCInferenceService/ModelReady"
SIMPLE = {"backend": "python", "options": {"callable": "gateway.backends.examples:simple"}}
ROW = {"datatype": "INT32", "shape": [1, 16], "data": list(range(16))}
GOOD = json.dumps({"inputs": [{"name": f"INPUT{at}", **ROW} for at in (0, 1)]}).encode()
BAD = (
    b"{}",
    b'{"inputs":[',
    GOOD.replace(b"INT32", b"INT99"),
    GOOD.replace(b"[1, 16]", b"[1, 17]"),
)
HEAD = b"POST /v2/models/simple/infer HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n" % len(GOOD)
ROWS = 20_000
LARGE_SIZE = ROWS * 64
LARGE_JSON = json.dumps(
    {
        "inputs": [
            {
                "name": f"INPUT{at}",
                "datatype": "INT32",
                "shape": [ROWS, 16],
                "parameters": {"binary_data_size": LARGE_SIZE},
            }
            for at in (0, 1)
        ],
        "parameters": {"binary_data_output": True},
    }
).encode()
LARGE = LARGE_JSON + bytes(2 * LARGE_SIZE)
LARGE_HEAD = (
    b"POST /v2/models/simple/infer HTTP/1.1\r\nHost: h\r\n"
    b"Inference-Header-Content-Length: %d\r\nContent-Length: %d\r\n\r\n"
    % (len(LARGE_JSON), len(LARGE))
)
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0"
BAD_GRPC = (b"\xff\xff", b"\x0a\x06simple", b"\x0a\x04nope")

Ask = Callable[[HttpClient, GrpcClient], Awaitable[None]]


async def started(stack: AsyncExitStack, sections: dict[str, object]) -> Gateway:
    config = {
        "version": 1,
        "listeners": [{"http": "127.0.0.1:0", "grpc": "127.0.0.1:0"}],
        "admin": {"address": None, "metrics": None},
        **sections,
    }
    gateway = Gateway(load_text(json.dumps(config), source="test", directory=Path()))
    await gateway.start()
    stack.push_async_callback(gateway.stop, 0, 0)
    return gateway


def post(body: bytes, model: str = "simple") -> HttpRequest:
    headers = Headers((("content-type", "application/json"),))
    return HttpRequest("POST", f"/v2/models/{model}/infer", "", headers, (body,))


async def good(http: HttpClient, grpc: GrpcClient) -> None:
    assert (await http.send(post(GOOD), deadline=None)).status == 200
    request = GrpcRequest(READY, (b"\x0a\x06simple",))
    assert (await grpc.send(request, deadline=None)).status.name == "OK"


async def bad(http: HttpClient, grpc: GrpcClient) -> None:
    for request in (*map(post, BAD), post(GOOD, "nope")):
        assert (await http.send(request, deadline=None)).status in (400, 404)
    for message in BAD_GRPC:
        response = await grpc.send(GrpcRequest(INFER, (message,)), deadline=None)
        assert response.status.name != "OK"


async def large(http: HttpClient, grpc: GrpcClient) -> None:
    """Send bodies of which that over HTTP is passed on while it arrives."""
    headers = Headers((("inference-header-content-length", str(len(LARGE_JSON))),))
    request = HttpRequest("POST", "/v2/models/simple/infer", "", headers, (LARGE,))
    assert (await http.send(request, deadline=None)).status == 200
    message = pb.ModelInferRequest(model_name="simple", raw_input_contents=[bytes(LARGE_SIZE)] * 2)
    for at in (0, 1):
        message.inputs.add(name=f"INPUT{at}", datatype="INT32", shape=[ROWS, 16])
    response = await grpc.send(GrpcRequest(INFER, (message.SerializeToString(),)), deadline=None)
    assert response.status.name == "OK"


def ours(found: object) -> str:
    """Return what of the gateway *found* is; "" for what is not its own."""
    if isinstance(found, FrameType):
        return found.f_code.co_qualname if "/gateway/" in found.f_code.co_filename else ""
    kind = type(found)
    return kind.__qualname__ if kind.__module__.startswith("gateway.") else ""


def watch(stack: AsyncExitStack) -> None:
    """Let the collector find only what becomes garbage and is made from now on.

    A thread of an earlier test may still end, and leave the cycles of its backend behind.
    """
    gc.collect()
    gc.freeze()  # for good, with all that was collected when the session began
    gc.disable()
    stack.callback(gc.enable)


def uncollected() -> list[str]:
    """Return the gateway's own objects that wait for the collector, and collect them."""
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        gc.collect()
        return [name for name in map(ours, gc.garbage) if name]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()


@pytest.mark.parametrize("ask", [good, bad, large])
@pytest.mark.parametrize("way", ["model", "oip+http", "oip+grpc"])
async def test_calls_leave_no_garbage(way: str, ask: Ask) -> None:
    """After calls of one kind no cycle of the gateway's own objects remains."""
    async with AsyncExitStack() as stack:
        gateway = await started(stack, {"models": {"simple": SIMPLE}})
        if way != "model":
            address = gateway.addresses["main.http" if way == "oip+http" else "main.grpc"]
            upstream = {"url": f"{way}://{address}", "probe": {"interval": "1h"}}
            gateway = await started(stack, {"upstreams": {"up": upstream}})
        for last in (False, False, True):
            if last:  # the first ones settle what is asked once
                watch(stack)
            http = HttpClient(f"http://{gateway.addresses['main.http']}", ClientLimits())
            grpc = GrpcClient(gateway.addresses["main.grpc"], ClientLimits())
            stack.push_async_callback(http.close)
            stack.push_async_callback(grpc.close)
            await ask(http, grpc)
            await settle()
        assert [] == uncollected()


@pytest.mark.parametrize(
    ("response", "kind"),
    [
        (b"", Unavailable),
        (b"HTTP/1.1 200 OK\r\n", Unavailable),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nshort", Unavailable),
        (b"SSH-2.0\r\n\r\n", UpstreamProtocolError),
        (b"HTTP/1.1 200 OK\r\n" + b"X: a\r\n" * 200 + b"\r\n", UpstreamProtocolError),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n", TooLarge),
        (None, DeadlineExceeded),
    ],
)
async def test_failed_requests_leave_no_garbage(
    response: bytes | None, kind: type[GatewayError]
) -> None:
    """An upstream without a valid response leaves no cycle behind, whatever it sends instead."""
    client_end = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with closing(writer):
            for each in (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", response):
                await reader.readuntil(b"\r\n\r\n")
                if each is None:
                    await client_end.wait()
                else:
                    writer.write(each)

    async with AsyncExitStack() as stack:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        stack.callback(server.close)
        stack.callback(client_end.set)
        client = HttpClient(
            f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", ClientLimits()
        )
        stack.push_async_callback(client.close)
        request = HttpRequest("POST", "/")
        watch(stack)
        assert (await client.send(request, deadline=None)).status == 200
        with pytest.raises(kind) as caught:
            await client.send(
                request, deadline=time.monotonic() + (0.05 if response is None else 20)
            )
        del caught
        await settle()
        assert [] == uncollected()


@pytest.mark.parametrize(
    ("scheme", "listener"),
    [("oip+http", "main.http"), ("oip+grpc", "main.grpc"), ("grps+brpc", "main.grps.brpc")],
)
async def test_abandoned_calls_leave_no_garbage(scheme: str, listener: str) -> None:
    """The part of a response that has arrived is freed as soon as its client disconnects."""
    arrived = asyncio.Event()
    client_end = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with closing(writer), suppress(asyncio.IncompleteReadError):
            while (await reader.readuntil(b"\r\n\r\n")).startswith(b"GET"):
                body = json.dumps(METADATA).encode()
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 500000\r\n\r\n" + bytes(1000))
            arrived.set()
            await client_end.wait()

    async with AsyncExitStack() as stack:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        stack.callback(server.close)
        stack.callback(client_end.set)
        url = f"oip+http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        streams = [{"protocol": "grps", "address": "127.0.0.1:0"}]
        gateway = await started(
            stack,
            {
                "listeners": [
                    {"http": "127.0.0.1:0", "grpc": "127.0.0.1:0", "streams": streams},
                ],
                "upstreams": {"up": {"url": url, "probe": {"interval": "1h"}}},
            },
        )
        client = connect(parse_url(f"{scheme}://{gateway.addresses[listener]}"))
        stack.push_async_callback(client.close)
        service = Complete(client.service, client.needs)
        for last in (False, True):
            if last:
                watch(stack)
            arrived.clear()
            tensor = array_tensor("IN", np.arange(5, dtype=np.int32))
            task = asyncio.ensure_future(
                service(InferRequest(model=ModelRef("add"), inputs=(tensor,)))
            )
            await arrived.wait()
            await eventually(lambda: in_flight(gateway) > 100_000)
            task.cancel()
            await asyncio.wait([task])
            del task
            await eventually(lambda: in_flight(gateway) == 0)
        await settle()
        assert [] == uncollected()


def in_flight(gateway: Gateway) -> float:
    """Return how many bytes of the memory budget are in use."""
    found = gateway.metrics.registry.get_sample_value("gateway_in_flight_bytes")
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("carrier", "sent", "answered"),
    [
        ("http", b"", False),
        ("http", HEAD[:20], False),
        ("http", HEAD + GOOD[:20], False),
        ("http", HEAD + GOOD, True),
        ("http", LARGE_HEAD + LARGE[: LARGE_SIZE // 2], False),
        ("http", b"\0 nonsense\r\n\r\n", True),
        ("grpc", b"", False),
        ("grpc", PREFACE[:10], False),
        ("grpc", PREFACE, True),
        ("grpc", PREFACE + b"\0\0\1\6\0\0\0\0\0x", True),
    ],
)
async def test_lost_connections_leave_no_garbage(
    carrier: str, sent: bytes, *, answered: bool
) -> None:
    """A connection that is lost, at whatever point, is freed at once."""
    async with AsyncExitStack() as stack:
        gateway = await started(stack, {"models": {"simple": SIMPLE}})
        host, _, port = gateway.addresses[f"main.{carrier}"].rpartition(":")
        for last in (False, True):
            if last:
                watch(stack)
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(sent)
            if answered:
                assert await reader.read(1)
            await settle()
            writer.transport.abort()
            del reader, writer
            await settle()
        assert [] == uncollected()


async def over_http(http: HttpClient, _grpc: GrpcClient) -> None:
    await http.send(post(GOOD), deadline=None)


async def over_grpc(_http: HttpClient, grpc: GrpcClient) -> None:
    await grpc.send(GrpcRequest(INFER, (GOOD,)), deadline=None)


@pytest.mark.parametrize("ask", [over_http, over_grpc])
async def test_refused_connections_leave_no_garbage(ask: Ask, unused_tcp_port: int) -> None:
    """A call to an upstream that is down leaves nothing behind, not even its message."""

    async def fail() -> None:
        address = f"127.0.0.1:{unused_tcp_port}"
        http = HttpClient(f"http://{address}", ClientLimits())
        grpc = GrpcClient(address, ClientLimits())
        with pytest.raises(NotSent):
            await ask(http, grpc)
        await http.close()
        await grpc.close()

    await fail()
    async with AsyncExitStack() as stack:
        watch(stack)
        await fail()
        await settle()
        assert [] == uncollected()
