"""Readiness of a whole gateway with a dead upstream, and with one that requires a key."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from gateway.app import Gateway
from gateway.config.load import load_text
from gateway.ir.calls import (
    InferRequest,
    ModelMetadataRequest,
    ModelReadyRequest,
    ServerLiveRequest,
)
from gateway.ir.context import ModelRef
from gateway.ir.errors import Unavailable
from tests.integration.asking_kit import running
from tests.integration.http_kit import eventually

CONFIG = """
version: 1
listeners: [{{http: "127.0.0.1:0"}}]
admin: {{address: null, metrics: null}}
lifecycle: {{ready: {ready}, pre_stop: 0s, drain: 1s}}
upstreams:
  dead: {{url: "oip+http://127.0.0.1:1"}}
models:
  sum: {{backend: python, options: {{callable: "gateway.backends.examples:simple"}}}}
routes:
  - {{name: own, match: {{model: sum}}, targets: [{{model: sum}}]}}
  - {{name: away, match: {{model: far}}, targets: [{{upstream: dead}}]}}
"""


@asynccontextmanager
async def listening(reply: Callable[[web.Request], Awaitable[web.Response]]) -> AsyncIterator[int]:
    """Serve every path by *reply*; yield the port."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", reply)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


@pytest.mark.parametrize(
    ("ready", "expected"),
    [("any", True), ("all", False), ("[own]", True), ("[own, away]", False), ("away", False)],
)
async def test_dead_upstream_affects_only_its_routes(ready: str, expected: bool) -> None:
    """The routes of `lifecycle.ready` decide on readiness; the gateway is live in every case."""
    async with running(CONFIG.format(ready=ready)) as gateway:
        assert expected is await gateway.ready()
        assert await gateway.service(ServerLiveRequest())
        assert await gateway.service(ModelReadyRequest(model=ModelRef("sum")))
        with pytest.raises(Unavailable):
            await gateway.service(ModelReadyRequest(model=ModelRef("far")))


SLOW = """
version: 1
listeners: [{{http: "127.0.0.1:0"}}]
admin: {{address: "127.0.0.1:0", metrics: null}}
lifecycle: {{pre_stop: 0s, drain: 1s}}
upstreams:
  quick: {{url: "oip+http://127.0.0.1:{quick}", options: {{dialect: triton}}}}
  hung: {{url: "oip+http://127.0.0.1:{hung}", probe: {{timeout: 20s}}}}
"""


async def test_the_admin_port_opens_before_a_hung_upstream_is_probed() -> None:
    """Liveness is answered at once, readiness only when it listens, which waits a second at most."""
    probed, is_ready = asyncio.Event(), asyncio.Event()

    async def hang(request: web.Request) -> web.Response:
        probed.set()
        await asyncio.Event().wait()
        return web.Response()

    async def reply(request: web.Request) -> web.Response:
        is_ready.set()
        return web.json_response({"name": "triton", "version": "2.51.0", "extensions": []})

    async with listening(hang) as hung, listening(reply) as quick:
        gateway = Gateway(load_text(SLOW.format(hung=hung, quick=quick)))
        loop = asyncio.get_running_loop()
        began = loop.time()
        starting = asyncio.ensure_future(gateway.start())
        await asyncio.gather(probed.wait(), is_ready.wait())
        url = f"http://{gateway.addresses['admin']}"
        async with aiohttp.ClientSession(url) as session:
            assert 200 == (await session.get("/livez")).status
            assert 503 == (await session.get("/readyz")).status
            assert "starting" == (await (await session.get("/status")).json())["reason"]
            await starting
            assert loop.time() - began < 10
            assert 200 == (await session.get("/readyz")).status
        await gateway.stop()


GUARDED = """
version: 1
listeners: [{http: "127.0.0.1:0"}]
admin: {address: null, metrics: null}
lifecycle: {pre_stop: 0s, drain: 1s}
upstreams:
  guarded:
    url: "oip+http://127.0.0.1:PORT"
    options: {dialect: triton}
    headers: {key: of the calls, other: x}
    probe: {headers: {key: of the probes}}
"""


async def test_probes_and_calls_have_separate_headers() -> None:
    """Health and metadata requests send the key of the probes, inferences that of the calls."""
    seen: dict[str, set[str]] = {}

    async def reply(request: web.Request) -> web.Response:
        keys = (request.headers.get("key", ""), request.headers.get("other", ""))
        seen.setdefault(request.path, set()).add(", ".join(keys))
        documents: dict[str, dict[str, Any]] = {
            "/v2": {"name": "triton", "version": "2.51.0", "extensions": []},
            "/v2/models/m": {"name": "m", "inputs": [], "outputs": []},
            "/v2/models/m/infer": {"model_name": "m", "model_version": "1", "outputs": []},
        }
        return web.json_response(documents.get(request.path, {}))

    async with listening(reply) as port, running(GUARDED.replace("PORT", str(port))) as gateway:
        await eventually(gateway.ready)
        await gateway.service(ModelMetadataRequest(model=ModelRef("m")))
        await gateway.service(InferRequest(model=ModelRef("m")))
    assert {"of the calls, x"} == seen.pop("/v2/models/m/infer")
    assert {"/v2/health/ready", "/v2/models/m"} <= seen.keys()
    assert {"of the probes, x"} == set().union(*seen.values())
