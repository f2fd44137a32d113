"""A gateway with an overloaded upstream: surplus calls are rejected at once."""

from __future__ import annotations

import asyncio

import aiohttp
import pytest

from tests.integration.asking_kit import running
from tests.integration.http_kit import eventually
from tests.integration.test_repeated_calls import REQUEST, Replica, served

ON_OVERLOAD = """
version: 1
listeners:
  - http: "127.0.0.1:0"
    protocols: [oip]
    transport: TRANSPORT
    limits: {requests_in_flight: 400, requests_per_address: 400, connections_per_address: 400}
admin: {address: null, metrics: null}
upstreams:
  slow:
    url: "URL"
    adaptive_concurrency: on_overload
    limits: {connections: 48, pending: 1}
    probe: {interval: 60s}
policies: {in_flight: 400}
lifecycle: {pre_stop: 0s}
"""
HELD, WAITING = 48, 100
"""Calls that `on_overload` never limits, and those that may wait then."""


@pytest.mark.parametrize("transport", ["native", "reference"])
async def test_overloaded_upstream_rejects_surplus_calls_quickly(transport: str) -> None:
    """Calls wait first; those beyond the queue get 503 with Retry-After while others wait."""
    replica = Replica()
    text = ON_OVERLOAD.replace("TRANSPORT", transport)
    async with served(replica) as url, running(text.replace("URL", url)) as main:
        address = main.addresses["main.http"]
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(f"http://{address}", connector=connector) as session:

            async def infer() -> tuple[int, str | None]:
                async with session.post("/v2/models/m/infer", json=REQUEST) as response:
                    await response.read()
                    return response.status, response.headers.get("Retry-After")

            assert 200 == (await infer())[0]
            replica.hold()
            calls_in_flight = [asyncio.create_task(infer()) for _ in range(HELD)]
            await replica.until_read(1 + HELD)
            # One waits for a connection; another one finds that full, so that the others wait; one
            # more is too many, and all are refused.
            more = [asyncio.create_task(infer()) for _ in range(WAITING + 3)]
            await eventually(lambda: sum(each.done() for each in more) >= WAITING + 2)
            refused = [await infer() for _ in range(40)]
            assert {(503, "1")} == set(refused)
            assert not any(each.done() for each in calls_in_flight)
            assert 1 + HELD == replica.read
            replica.release()
            assert {200} == {status for status, _ in await asyncio.gather(*calls_in_flight)}
            await asyncio.gather(*more)
            assert 200 == (await infer())[0]
