"""A gateway with an overloaded upstream: surplus calls are rejected at once."""

from __future__ import annotations

import asyncio
import statistics
import time

import aiohttp
import grpc
import pytest

from gateway.schema import open_inference_pb2 as pb
from tests.integration.asking_kit import running
from tests.integration.reload_kit import until
from tests.integration.test_repeated_calls import REQUEST, Replica, counted, served

CONFIG = """
version: 1
listeners: [{{http: "127.0.0.1:0", grpc: "127.0.0.1:0", protocols: [oip], transport: {transport}}}]
admin: {{address: null, metrics: null}}
upstreams: {{slow: {{url: "{url}", adaptive_concurrency: {{max: 3}}, probe: {{interval: 60s}}}}}}
lifecycle: {{pre_stop: 0s}}
"""

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
SOON_S = 0.1
"""A refusal takes 3 ms; this is for machines that do something else meanwhile."""


@pytest.mark.parametrize("transport", ["native", "reference"])
async def test_calls_above_the_limit_are_rejected_with_retry_after(transport: str) -> None:
    """Rejections do not wait for the calls in flight, which continue."""
    replica = Replica()
    async with served(replica) as url, running(CONFIG.format(url=url, transport=transport)) as main:
        address = main.addresses["main.http"]
        async with (
            aiohttp.ClientSession(f"http://{address}") as session,
            grpc.aio.insecure_channel(main.addresses["main.grpc"]) as channel,
        ):

            async def infer() -> tuple[int, str | None]:
                async with session.post("/v2/models/m/infer", json=REQUEST) as response:
                    await response.read()
                    return response.status, response.headers.get("Retry-After")

            assert (200, None) == await infer()
            replica.hold()
            calls_in_flight = [asyncio.create_task(infer()) for _ in range(3)]
            await replica.until_read(1 + 3)
            assert [(503, "1")] * 5 == [await infer() for _ in range(5)]
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")(request())
            assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert not any(task.done() for task in calls_in_flight)
            assert 3 == await counted(main, 'gateway_concurrency_limit{upstream="slow"}')
            replica.release()
            assert [(200, None)] * 3 == await asyncio.gather(*calls_in_flight)
            assert (200, None) == await infer()
            assert replica.read == 1 + 3 + 1


@pytest.mark.parametrize("transport", ["native", "reference"])
async def test_overloaded_upstream_rejects_surplus_calls_quickly(transport: str) -> None:
    """Calls wait first; those beyond the queue get 503 with Retry-After at once."""
    replica = Replica()
    text = ON_OVERLOAD.replace("TRANSPORT", transport)
    async with served(replica) as url, running(text.replace("URL", url)) as main:
        address = main.addresses["main.http"]
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(f"http://{address}", connector=connector) as session:

            async def infer() -> tuple[int, str | None, float]:
                began = time.perf_counter()
                async with session.post("/v2/models/m/infer", json=REQUEST) as response:
                    await response.read()
                    took_s = time.perf_counter() - began
                    return response.status, response.headers.get("Retry-After"), took_s

            assert 200 == (await infer())[0]
            replica.hold()
            calls_in_flight = [asyncio.create_task(infer()) for _ in range(HELD)]
            await replica.until_read(1 + HELD)
            # One waits for a connection; another one finds that full, so that the others wait; one
            # more is too many, and all are refused.
            more = [asyncio.create_task(infer()) for _ in range(WAITING + 3)]
            await until(lambda: sum(each.done() for each in more) >= WAITING + 2)
            refused = [await infer() for _ in range(40)]
            assert {(503, "1")} == {(status, retry) for status, retry, _ in refused}
            assert statistics.median(took_s for _, _, took_s in refused) < SOON_S
            assert not any(each.done() for each in calls_in_flight)
            assert 1 + HELD == replica.read
            replica.release()
            assert {200} == {status for status, _, _ in await asyncio.gather(*calls_in_flight)}
            await asyncio.gather(*more)
            assert 200 == (await infer())[0]


def request() -> bytes:
    """Return an inference of one number over gRPC."""
    message = pb.ModelInferRequest(model_name="m")
    tensor = message.inputs.add(name="x", datatype="FP32", shape=[1])
    tensor.contents.fp32_contents.append(1.0)
    return message.SerializeToString()
