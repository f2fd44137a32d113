"""Retries, hedging and fallbacks of a whole gateway, before servers that fail after reading."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from structlog.testing import capture_logs

from gateway.app import Gateway
from tests.integration.asking_kit import running

REQUEST = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": [1.0]}]}
TENSOR = {"name": "x", "datatype": "FP32", "shape": [1]}
CONFIG = """
version: 1
listeners: [{http: "127.0.0.1:0", protocols: [oip]}]
admin: {address: null, metrics: null}
upstreams:
  pair: {urls: [URL0, URL1], balance: BALANCE, probe: {interval: 60s}}
  first: {url: URL0, probe: {interval: 60s}}
  second: {url: URL1, probe: {interval: 60s}}
routes: [ROUTE]
lifecycle: {pre_stop: 0s}
"""


class Replica:
    """A model server that fails in the configured way, and counts the inferences it has read."""

    def __init__(self) -> None:
        self.mode = "serve"
        self.read = 0
        self.client_end = asyncio.Event()
        self._changed = asyncio.Condition()
        self._may_answer = asyncio.Event()
        self._may_answer.set()

    def hold(self) -> None:
        """Respond to no inference until `release`."""
        self._may_answer.clear()

    def release(self) -> None:
        """Respond to all inferences on hold."""
        self._may_answer.set()

    async def until_read(self, count: int) -> None:
        """Wait until so many inferences were read."""
        async with self._changed:
            await self._changed.wait_for(lambda: self.read >= count)

    async def infer(self, request: web.Request) -> web.Response:
        """Read the whole request, then serve, reset or hang."""
        await request.read()
        async with self._changed:
            self.read += 1
            self._changed.notify_all()
        await self._may_answer.wait()
        if self.mode == "reset":
            assert request.transport is not None
            request.transport.abort()
        if self.mode == "hang":
            try:
                await asyncio.Event().wait()
            finally:
                self.client_end.set()
        return web.json_response({"model_name": "m", "outputs": [{**TENSOR, "data": [2.0]}]})

    async def load(self, request: web.Request) -> web.Response:
        """Load a model."""
        await request.read()
        return web.Response()

    async def describe(self, _request: web.Request) -> web.Response:
        """Respond to a request for metadata of the server or the model."""
        found = {"name": "m", "platform": "p", "inputs": [TENSOR], "outputs": [TENSOR]}
        return web.json_response({**found, "version": "1", "extensions": []})


@asynccontextmanager
async def served(replica: Replica) -> AsyncIterator[str]:
    """Serve a replica; yield its URL."""
    app = web.Application()
    app.router.add_post("/v2/models/m/infer", replica.infer)
    app.router.add_post("/v2/repository/models/m/load", replica.load)
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
async def gateway_before(
    route: str, *, balance: str = "round_robin", more: str = ""
) -> AsyncIterator[tuple[list[Replica], Any, Gateway]]:
    """Start two replicas and a gateway with a route; yield both and a function that calls it."""
    replicas = [Replica(), Replica()]
    async with AsyncExitStack() as stack:
        found = [await stack.enter_async_context(served(replica)) for replica in replicas]
        text = CONFIG.replace("ROUTE", route).replace("URL0", found[0]).replace("URL1", found[1])
        text = text.replace("BALANCE", balance) + more
        gateway = await stack.enter_async_context(running(text))
        session = await stack.enter_async_context(aiohttp.ClientSession())
        url = f"http://{gateway.addresses['main.http']}/v2/models/m/infer"

        async def ask(times: int, **headers: str) -> list[int]:
            found = []
            for _ in range(times):
                async with session.post(url, json=REQUEST, headers=headers) as response:
                    await response.read()
                    found.append(response.status)
            return found

        yield replicas, ask, gateway


async def test_call_is_not_retried_by_default_after_it_was_read() -> None:
    """A reset after reading fails that call: no inference runs twice."""
    async with gateway_before("{targets: [{upstream: pair}]}") as (replicas, ask, _):
        await ask(4)
        replicas[0].mode = "reset"
        found = await ask(4)
        assert [2, 2] == [found.count(200), found.count(503)]
        assert 8 == sum(replica.read for replica in replicas)


@pytest.mark.parametrize(
    "targets", ["[{upstream: pair}]", "[{upstream: first, weight: 9}, {upstream: second}]"]
)
async def test_idempotent_call_is_retried_at_the_other_replica(targets: str) -> None:
    """The caller sees no error, and the replica that has just failed gets no retry."""
    retry = "{on: [unsent, reset_before_answer], idempotent: true, min_retries: 20}"
    async with gateway_before(f"{{retry: {retry}, targets: {targets}}}") as (replicas, ask, _):
        replicas[0].mode = "reset"
        assert [200] * 8 == await ask(8)
        assert 8 == replicas[1].read
        assert 0 < replicas[0].read <= 8


async def test_hedged_call_gets_the_reply_of_the_other_replica() -> None:
    """The losing attempt is cancelled at its server."""
    route = "{retry: {idempotent: true}, hedge: {after: 500ms, at_most: 1}, targets: [TARGET]}"
    route = route.replace("TARGET", "{upstream: pair}")
    async with gateway_before(route) as (replicas, ask, _):
        replicas[0].mode = "hang"
        assert [200] * 4 == await ask(4)
        assert 4 == replicas[1].read
        await asyncio.wait_for(replicas[0].client_end.wait(), 20)


async def test_per_try_timeout_leaves_time_for_a_retry() -> None:
    """`per_try_timeout` ends an attempt at a hanging replica before the call's deadline."""
    retry = "{on: [timeout], idempotent: true, per_try_timeout: 1s}"
    route = f"{{timeout: 60s, retry: {retry}, targets: [{{upstream: pair}}]}}"
    async with gateway_before(route) as (replicas, ask, _):
        replicas[0].mode = "hang"
        assert [200] * 4 == await ask(4)
        assert 4 == replicas[1].read


async def counted(gateway: Gateway, sample: str) -> float:
    """Return the value of a sample on the metrics page; 0 if it is not there."""
    page, _ = await gateway.page("text/plain")
    values = dict(line.rsplit(" ", 1) for line in page.decode().splitlines())
    return float(values.get(sample, 0))


async def test_ejection_is_in_log_metrics_and_status() -> None:
    """The endpoint and the cause of the ejection are reported."""
    async with gateway_before("{targets: [{upstream: pair}]}") as (replicas, ask, gateway):
        replicas[0].mode = "reset"
        with capture_logs() as lines:
            assert 5 == (await ask(16)).count(503)
        (ejected,) = [line for line in lines if line["event"] == "endpoint ejected"]
        assert ("pair", "failures", 5.0) == tuple(
            ejected[key] for key in ("upstream", "cause", "seconds")
        )
        labels = f'cause="failures",endpoint="{ejected["endpoint"]}",upstream="pair"'
        assert 1 == await counted(gateway, f"gateway_endpoint_ejections_total{{{labels}}}")
        (pair,) = [each for each in (await gateway.status())["upstreams"] if each["name"] == "pair"]
        assert [ejected["endpoint"]] == [
            each["address"] for each in pair["endpoints"] if each["ejected_for_s"] > 0
        ]


async def test_retries_are_counted() -> None:
    """The metric has route, reason and outcome."""
    retry = "{on: [unsent, reset_before_answer], idempotent: true, min_retries: 20}"
    route = f"{{name: r, retry: {retry}, targets: [{{upstream: pair}}]}}"
    async with gateway_before(route) as (replicas, ask, gateway):
        replicas[0].mode = "reset"
        assert [200] * 2 == await ask(2)
        labels = 'reason="reset_before_answer",route="r"'
        retries = f'gateway_retries_total{{outcome="ok",{labels}}}'
        assert replicas[0].read == await counted(gateway, retries) >= 1


async def test_exhausted_retry_budget_is_counted() -> None:
    """The caller gets the error, and a metric counts it."""
    retry = "{on: [unsent, reset_before_answer], idempotent: true, min_retries: 0, budget: 0.01}"
    route = f"{{name: r, retry: {retry}, targets: [{{upstream: pair}}]}}"
    async with gateway_before(route) as (replicas, ask, gateway):
        replicas[0].mode = "reset"
        assert [200, 503] == sorted(await ask(2))
        assert 1 == await counted(gateway, 'gateway_retry_budget_exhausted_total{route="r"}')


async def test_hedges_are_counted() -> None:
    """The metric has the attempt whose reply was returned."""
    hedge = "retry: {idempotent: true}, hedge: {after: 500ms, at_most: 1}"
    route = f"{{name: r, {hedge}, targets: [{{upstream: pair}}]}}"
    async with gateway_before(route) as (replicas, ask, gateway):
        replicas[0].mode = "hang"
        assert [200] * 4 == await ask(4)
        won = await counted(gateway, 'gateway_hedges_total{route="r",won="second"}')
        assert replicas[0].read == won >= 1
