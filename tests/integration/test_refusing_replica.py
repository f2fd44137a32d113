"""One of three servers refuses calls or fails at once, before a whole gateway, over sockets."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import grpc
import numpy as np
import pytest
from aiohttp import web
from grpc import aio

from gateway.app import connect
from gateway.ir.calls import InferRequest
from gateway.ir.context import Context, ModelRef
from gateway.ir.errors import GatewayError
from gateway.ir.tensors.tensor import array_tensor
from gateway.schema import open_inference_pb2 as pb
from gateway.settings.units import parse_url
from tests.integration.asking_kit import WHOLE, running

CONFIG = """
version: 1
listeners: [{CARRIER: "127.0.0.1:0", protocols: [oip]}]
admin: {address: null, metrics: null}
lifecycle: {pre_stop: 0s}
telemetry: {log: {calls_per_second: 0}}
upstreams:
  servers: {urls: [URLS], transport: IMPLEMENTATION, options: {dialect: mlserver}}
routes:
  - name: all
    targets: [{upstream: servers}]
"""
RETRY = "    retry: {idempotent: true, on: [overloaded]}\n"
SERVICE_S = 0.05
CLIENTS = 12
CALLS = 600
REFUSED, FAILED = "refused", "failed"


class Replica:
    """A model server that serves in 50 ms, refuses calls, or fails at once.

    Attributes:
        fault: `REFUSED`, `FAILED`, or "" to serve.
        held_s: How long it tells those whom it refuses to wait; None to tell nothing.
        refused_at: When it refused calls, or failed.
    """

    def __init__(self) -> None:
        self.fault = ""
        self.held_s: float | None = None
        self.refused_at: list[float] = []

    async def serve(self) -> None:
        """Take the time of an inference."""
        await asyncio.sleep(SERVICE_S)

    async def infer_http(self, request: web.Request) -> web.Response:
        """Reply over HTTP."""
        document = json.loads(await request.read())
        if not self.fault:
            await self.serve()
            output = {"name": "y", "datatype": "FP32", "shape": [1], "data": [2.0]}
            reply = {"id": document.get("id", ""), "model_name": "m", "outputs": [output]}
            return web.json_response(reply)
        self.refused_at.append(time.monotonic())
        headers = {} if self.held_s is None else {"Retry-After": f"{self.held_s:g}"}
        status = 429 if self.fault == REFUSED else 500
        return web.json_response({"error": "not now"}, status=status, headers=headers)

    async def infer_grpc(self, _request: bytes, context: aio.ServicerContext) -> bytes:
        """Reply over gRPC."""
        if not self.fault:
            await self.serve()
            reply = pb.ModelInferResponse(model_name="m")
            reply.outputs.add(name="y", datatype="FP32", shape=[1])
            reply.raw_output_contents.append(np.float32(2).tobytes())
            return reply.SerializeToString()
        self.refused_at.append(time.monotonic())
        pushback = (
            () if self.held_s is None else (("grpc-retry-pushback-ms", f"{self.held_s * 1e3:g}"),)
        )
        code = (
            grpc.StatusCode.RESOURCE_EXHAUSTED
            if self.fault == REFUSED
            else grpc.StatusCode.INTERNAL
        )
        await context.abort(code, "not now", pushback)
        raise AssertionError


async def _describe(_request: web.Request) -> web.Response:
    inputs, outputs = ([{"name": name, "datatype": "FP32", "shape": [1]}] for name in "xy")
    found = {"name": "m", "platform": "p", "inputs": inputs, "outputs": outputs}
    return web.json_response({**found, "version": "1", "extensions": []})


async def _ready(_request: bytes, _context: aio.ServicerContext) -> bytes:
    return b"\x08\x01"


@asynccontextmanager
async def served(replica: Replica, carrier: str) -> AsyncIterator[str]:
    """Serve a replica; yield its URL."""
    if carrier == "http":
        app = web.Application()
        app.router.add_post("/v2/models/m/infer", replica.infer_http)
        app.router.add_get("/{path:.*}", _describe)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"oip+http://127.0.0.1:{runner.addresses[0][1]}"
        await runner.cleanup()
        return
    server = aio.server()
    handlers = {
        "ModelInfer": grpc.unary_unary_rpc_method_handler(replica.infer_grpc),
        **{
            name: grpc.unary_unary_rpc_method_handler(_ready)
            for name in ("ServerLive", "ServerReady", "ModelReady")
        },
    }
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("inference.GRPCInferenceService", handlers),)
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    yield f"oip+grpc://127.0.0.1:{port}"
    await server.stop(None)


@asynccontextmanager
async def gateway_before(
    carrier: str, implementation: str = "native", more: str = ""
) -> AsyncIterator[tuple[list[Replica], Any]]:
    """Start three replicas and a gateway; yield the replicas, and a function that makes calls."""
    replicas = [Replica() for _ in range(3)]
    async with AsyncExitStack() as stack:
        urls = [await stack.enter_async_context(served(each, carrier)) for each in replicas]
        text = CONFIG.replace("URLS", ", ".join(f'"{url}"' for url in urls))
        text = text.replace("CARRIER", carrier).replace("IMPLEMENTATION", implementation)
        gateway = await stack.enter_async_context(running(text + more))
        connected = connect(parse_url(f"oip+{carrier}://{gateway.addresses[f'main.{carrier}']}"))
        stack.push_async_callback(connected.close)
        inputs = (array_tensor("x", np.ones(1, np.float32)),)

        async def make(calls: int, clients: int = CLIENTS) -> int:
            numbers, failed = iter(range(calls)), itertools.count()

            async def client() -> None:
                for _ in numbers:
                    context = Context(needs=WHOLE, deadline=time.monotonic() + 60)
                    try:
                        await connected.service(
                            InferRequest(model=ModelRef("m"), inputs=inputs, context=context)
                        )
                    except GatewayError:
                        next(failed)

            await asyncio.gather(*(client() for _ in range(clients)))
            return next(failed)

        yield replicas, make


@pytest.mark.parametrize("carrier", ["http", "grpc"])
@pytest.mark.parametrize(
    ("implementation", "fault"), [("native", REFUSED), ("native", FAILED), ("reference", REFUSED)]
)
async def test_a_replica_that_refuses_gets_few_calls(
    carrier: str, implementation: str, fault: str
) -> None:
    """At most 3 % of the calls fail."""
    async with gateway_before(carrier, implementation) as (replicas, make):
        replicas[0].fault = fault
        failed = await make(CALLS)
        assert 0 < failed <= 0.03 * CALLS


@pytest.mark.parametrize("carrier", ["http", "grpc"])
async def test_a_retry_hides_a_flapping_replica(carrier: str) -> None:
    """It refuses calls half of the time, and no client sees that."""

    async def flap(replica: Replica) -> None:
        for fault in itertools.cycle((REFUSED, "")):
            replica.fault = fault
            await asyncio.sleep(0.5)

    async with gateway_before(carrier, more=RETRY) as (replicas, make):
        flapping = asyncio.create_task(flap(replicas[0]))
        failed = await make(CALLS)
        flapping.cancel()
        assert replicas[0].refused_at
        assert 0 == failed


@pytest.mark.parametrize("implementation", ["native", "reference"])
@pytest.mark.parametrize("carrier", ["http", "grpc"])
async def test_a_refusing_replica_gets_no_calls_for_its_pause(
    carrier: str, implementation: str
) -> None:
    """After its first refusal no call goes there for the time of `Retry-After` or the pushback."""
    async with gateway_before(carrier, implementation) as (replicas, make):
        bad = replicas[0]
        bad.fault, bad.held_s = REFUSED, 60.0
        assert 1 == await make(60, clients=1)
        assert 1 == len(bad.refused_at)
