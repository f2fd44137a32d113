"""The timeout of a route: what counts, what it does not end, and what its error says."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp import web

from gateway.app import Gateway
from tests.integration.asking_kit import running
from tests.integration.test_repeated_calls import REQUEST, TENSOR, Replica, served

CONFIG = """
version: 1
listeners:
  - http: "127.0.0.1:0"
    protocols: [oip]
    transport: TRANSPORT
    options: {oip: {model_control: true}}
    limits: LIMITS
admin: {address: null, metrics: null}
upstreams: {up: {url: "URL", transport: TRANSPORT, probe: {interval: 60s}}}
routes: [{name: slow, targets: [{upstream: up}], timeout: 3s}]
policies: POLICIES
lifecycle: {pre_stop: 0s}
"""
TIMEOUT_S = 3.0
LOAD_S = 3.3


@asynccontextmanager
async def before(
    replica: Replica, transport: str, *, limits: str = "{}", policies: str = "{}"
) -> AsyncIterator[tuple[Gateway, aiohttp.ClientSession]]:
    """Run a gateway before *replica*; yield it and a session of its HTTP listener."""
    async with served(replica) as url:
        text = CONFIG.replace("TRANSPORT", transport).replace("URL", url)
        text = text.replace("LIMITS", limits).replace("POLICIES", policies)
        async with running(text) as gateway:
            base = f"http://{gateway.addresses['main.http']}"
            async with aiohttp.ClientSession(base) as session:
                yield gateway, session


async def infer(session: aiohttp.ClientSession, **headers: str) -> tuple[int, str, float]:
    """Call the model; return status, error and seconds."""
    began = time.monotonic()
    async with session.post("/v2/models/m/infer", json=REQUEST, headers=headers) as response:
        found = await response.json()
        return response.status, found.get("error", ""), time.monotonic() - began


@pytest.mark.parametrize("transport", ["native", "reference"])
@pytest.mark.parametrize(
    ("limits", "policies"),
    [("{}", "{in_flight: 1}"), ("{requests_in_flight: 1}", "{}")],
    ids=["route", "listener"],
)
async def test_time_in_a_queue_counts(transport: str, limits: str, policies: str) -> None:
    """A call that waited for most of its time gets the rest, and not its whole time again."""
    replica = OneByOne()
    async with before(replica, transport, limits=limits, policies=policies) as (_, session):
        replica.answer()
        assert 200 == (await infer(session))[0]
        first = asyncio.create_task(infer(session))
        await replica.until_read(2)
        second = asyncio.create_task(infer(session))
        await asyncio.sleep(0.5 * TIMEOUT_S)
        replica.answer()
        assert 200 == (await first)[0]
        status, error, seconds = await second
    assert (504, True) == (status, "within 3 s (timeout of route 'slow')" in error)
    assert 0.9 * TIMEOUT_S <= seconds < 1.4 * TIMEOUT_S


async def test_the_error_of_a_call_that_stays_in_the_queue_names_the_key() -> None:
    """The error names the limit."""
    replica = Replica()
    replica.hold()
    async with before(replica, "native", policies="{in_flight: 1}") as (_, session):
        first = asyncio.create_task(infer(session))
        await replica.until_read(1)
        status, error, _ = await infer(session, **{"x-request-timeout": "0.1"})
        replica.release()
        await first
    assert 504 == status
    assert "no slot of route 'slow' before the deadline: 1 inferences are in flight" in error
    assert "(policies.in_flight)" in error


async def test_the_error_names_what_shortened_the_deadline_of_a_client() -> None:
    """The error says that the time of the gateway is shorter, and names its key."""
    replica = Replica()
    replica.hold()
    async with before(replica, "native") as (_, session):
        status, error, _ = await infer(session, **{"x-request-timeout": "60"})
        replica.release()
    assert 504 == status
    assert "timeout of route 'slow', which is shorter than the time of the client" in error


class OneByOne(Replica):
    """A server that answers one inference for each call of `answer`."""

    def __init__(self) -> None:
        super().__init__()
        self._answers = asyncio.Semaphore(0)

    def answer(self) -> None:
        """Answer one inference."""
        self._answers.release()

    async def infer(self, request: web.Request) -> web.Response:
        """Wait for `answer`."""
        await super().infer(request)
        await self._answers.acquire()
        return web.json_response({"model_name": "m", "outputs": [{**TENSOR, "data": [2.0]}]})


class Loading(Replica):
    """A server whose models take their time to load."""

    async def load(self, request: web.Request) -> web.Response:
        """Load a model."""
        await asyncio.sleep(LOAD_S)
        return await super().load(request)


@pytest.mark.parametrize("transport", ["native", "reference"])
async def test_a_load_may_take_longer_than_an_inference(transport: str) -> None:
    """The timeout of a route is for the answers of models."""
    replica = Loading()
    async with (
        before(replica, transport) as (_, session),
        session.post("/v2/repository/models/m/load", json={}) as response,
    ):
        assert 200 == response.status, await response.text()
