"""A gateway before an upstream that gets more than it can do: whoever is refused learns it at once."""

from __future__ import annotations

import asyncio

import aiohttp
import grpc
import pytest

from gateway.schema import open_inference_pb2 as pb
from tests.integration.asking_kit import running
from tests.integration.test_repeated_calls import REQUEST, Replica, counted, served

CONFIG = """
version: 1
listeners: [{{http: "127.0.0.1:0", grpc: "127.0.0.1:0", protocols: [oip], transport: {transport}}}]
admin: {{address: null, metrics: null}}
upstreams: {{slow: {{url: "{url}", adaptive_concurrency: {{max: 3}}, probe: {{interval: 60s}}}}}}
lifecycle: {{pre_stop: 0s}}
"""


@pytest.mark.parametrize("transport", ["native", "reference"])
async def test_calls_above_the_limit_are_refused_with_retry_after(transport: str) -> None:
    """Nobody waits for the calls in flight, and these are not disturbed."""
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
            held = [asyncio.create_task(infer()) for _ in range(3)]
            await replica.until_read(1 + 3)
            assert [(503, "1")] * 5 == [await infer() for _ in range(5)]
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")(request())
            assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert not any(task.done() for task in held)
            assert 3 == await counted(main, 'gateway_concurrency_limit{upstream="slow"}')
            replica.release()
            assert [(200, None)] * 3 == await asyncio.gather(*held)
            assert (200, None) == await infer()
            assert replica.read == 1 + 3 + 1


def request() -> bytes:
    """Return an inference of one number over gRPC."""
    message = pb.ModelInferRequest(model_name="m")
    tensor = message.inputs.add(name="x", datatype="FP32", shape=[1])
    tensor.contents.fp32_contents.append(1.0)
    return message.SerializeToString()
