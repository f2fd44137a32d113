"""A sidecar whose clients all have one address serves what its server serves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import grpc
import pytest
import yaml

from gateway.app import Gateway
from gateway.cli.serving.sidecar import sidecar_config
from gateway.schema import open_inference_pb2 as pb
from tests.integration.asking_kit import running
from tests.integration.test_repeated_calls import REQUEST, Replica, served

pytestmark = pytest.mark.timeout(120)

BY_TRANSPORT = pytest.mark.parametrize(
    ("transport", "many"), [("native", 1000), ("reference", 300)]
)
INFER = "/inference.GRPCInferenceService/ModelInfer"


@asynccontextmanager
async def sidecar(replica: Replica, transport: str) -> AsyncIterator[Gateway]:
    """Run a sidecar with default flags before *replica*, with all its sockets on free ports."""
    async with served(replica) as url:
        config = sidecar_config([url], http="127.0.0.1:0", grpc="127.0.0.1:0", admin="off")
        config["listeners"][0]["transport"] = transport
        config["upstreams"]["upstream"]["transport"] = transport
        config["lifecycle"] = {"pre_stop": "0s"}
        async with running(yaml.safe_dump(config)) as gateway:
            yield gateway


def message() -> bytes:
    """Return an inference for the model `m`."""
    tensor = pb.ModelInferRequest.InferInputTensor(name="x", datatype="FP32", shape=[1])
    tensor.contents.fp32_contents.append(1.0)
    return pb.ModelInferRequest(model_name="m", inputs=[tensor]).SerializeToString()


@BY_TRANSPORT
async def test_many_calls_run_at_once_over_http(transport: str, many: int) -> None:
    """The server has all of them before it answers the first one."""
    replica = Replica()
    replica.hold()
    async with (
        sidecar(replica, transport) as gateway,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session,
    ):
        url = f"http://{gateway.addresses['main.http']}/v2/models/m/infer"

        async def call() -> int:
            async with session.post(url, json=REQUEST) as response:
                await response.read()
                return response.status

        calls = [asyncio.create_task(call()) for _ in range(many)]
        await replica.until_read(many)
        replica.release()
        assert [200] * many == await asyncio.gather(*calls)


@BY_TRANSPORT
async def test_many_calls_run_at_once_on_one_channel(transport: str, many: int) -> None:
    """The streams of one connection are no limit of the calls in flight."""
    replica = Replica()
    replica.hold()
    async with (
        sidecar(replica, transport) as gateway,
        grpc.aio.insecure_channel(gateway.addresses["main.grpc"]) as channel,
    ):
        infer = channel.unary_unary(INFER)
        calls = [asyncio.ensure_future(infer(message(), timeout=100)) for _ in range(many)]
        await replica.until_read(many)
        replica.release()
        assert many == len(await asyncio.gather(*calls))
