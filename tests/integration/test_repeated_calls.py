"""Retries, hedging and fallbacks of a whole gateway, before servers that fail after reading."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from tests.integration.asking_kit import running

REQUEST = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": [1.0]}]}
TENSOR = {"name": "x", "datatype": "FP32", "shape": [1]}
CONFIG = """
version: 1
listeners: [{http: "127.0.0.1:0", protocols: [oip]}]
admin: {address: null, metrics: null}
upstreams:
  pair: {urls: [URL0, URL1], balance: round_robin, probe: {interval: 60s}}
  first: {url: URL0, probe: {interval: 60s}}
  second: {url: URL1, probe: {interval: 60s}}
routes: [ROUTE]
lifecycle: {pre_stop: 0s}
"""


class Replica:
    """A model server that fails as the test says, and counts what it has read."""

    def __init__(self) -> None:
        self.mode = "serve"
        self.read = 0
        self.left = asyncio.Event()

    async def infer(self, request: web.Request) -> web.Response:
        """Read the request whole, then serve, reset or hang."""
        await request.read()
        self.read += 1
        if self.mode == "reset":
            assert request.transport is not None
            request.transport.abort()
        if self.mode == "hang":
            try:
                await asyncio.Event().wait()
            finally:
                self.left.set()
        return web.json_response({"model_name": "m", "outputs": [{**TENSOR, "data": [2.0]}]})

    async def describe(self, _request: web.Request) -> web.Response:
        """Answer a question about the server or the model."""
        found = {"name": "m", "platform": "p", "inputs": [TENSOR], "outputs": [TENSOR]}
        return web.json_response({**found, "version": "1", "extensions": []})


@asynccontextmanager
async def served(replica: Replica) -> AsyncIterator[str]:
    """Serve a replica; yield its URL."""
    app = web.Application()
    app.router.add_post("/v2/models/m/infer", replica.infer)
    app.router.add_get("/{path:.*}", replica.describe)
    runner = web.AppRunner(app, handler_cancellation=True)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"oip+http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@asynccontextmanager
async def gateway_before(route: str) -> AsyncIterator[tuple[list[Replica], Any]]:
    """Start two replicas and a gateway with a route; yield them and a function that asks."""
    replicas = [Replica(), Replica()]
    async with AsyncExitStack() as stack:
        found = [await stack.enter_async_context(served(replica)) for replica in replicas]
        text = CONFIG.replace("ROUTE", route).replace("URL0", found[0]).replace("URL1", found[1])
        gateway = await stack.enter_async_context(running(text))
        session = await stack.enter_async_context(aiohttp.ClientSession())
        url = f"http://{gateway.addresses['main.http']}/v2/models/m/infer"

        async def ask(times: int) -> list[int]:
            found = []
            for _ in range(times):
                async with session.post(url, json=REQUEST) as response:
                    await response.read()
                    found.append(response.status)
            return found

        yield replicas, ask


async def test_a_call_that_was_read_is_not_repeated_by_itself() -> None:
    """A reset after reading is an error of that call: no inference runs twice."""
    async with gateway_before("{targets: [{upstream: pair}]}") as (replicas, ask):
        await ask(4)
        replicas[0].mode = "reset"
        found = await ask(4)
        assert [2, 2] == [found.count(200), found.count(503)]
        assert 8 == sum(replica.read for replica in replicas)


@pytest.mark.parametrize(
    "targets", ["[{upstream: pair}]", "[{upstream: first, weight: 9}, {upstream: second}]"]
)
async def test_an_idempotent_call_is_repeated_elsewhere(targets: str) -> None:
    """The caller sees no error, and no retry goes to the replica that has just failed."""
    retry = "{on: [unsent, reset_before_answer], idempotent: true, min_retries: 20}"
    async with gateway_before(f"{{retry: {retry}, targets: {targets}}}") as (replicas, ask):
        replicas[0].mode = "reset"
        assert [200] * 8 == await ask(8)
        assert 8 == replicas[1].read
        assert 0 < replicas[0].read <= 8


async def test_a_hedged_call_is_answered_by_the_other_replica() -> None:
    """The attempt that lost is cancelled at its server."""
    route = "{retry: {idempotent: true}, hedge: {after: 20ms, at_most: 1}, targets: [TARGET]}"
    route = route.replace("TARGET", "{upstream: pair}")
    async with gateway_before(route) as (replicas, ask):
        replicas[0].mode = "hang"
        assert [200] * 4 == await ask(4)
        assert 4 == replicas[1].read
        await asyncio.wait_for(replicas[0].left.wait(), 5)


async def test_an_attempt_ends_in_time_for_another() -> None:
    """`per_try_timeout` gives up a replica that hangs, within the deadline of the call."""
    retry = "{on: [timeout], idempotent: true, per_try_timeout: 50ms}"
    route = f"{{timeout: 5s, retry: {retry}, targets: [{{upstream: pair}}]}}"
    async with gateway_before(route) as (replicas, ask):
        replicas[0].mode = "hang"
        assert [200] * 4 == await ask(4)
        assert 4 == replicas[1].read
