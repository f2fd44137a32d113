"""Items of TorchServe's clients before servers of every protocol, and their clients before one."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import grpc
import numpy as np
import pytest
import pytest_asyncio

from gateway.app import Gateway
from gateway.config.load import load_text
from gateway.protocols.torchserve.grpc.codec import PREDICTIONS
from gateway.schema import torchserve_inference_pb2 as pb
from tests.integration.asking_kit import ask, urls
from tests.matrix.test_mlflow import COMMON, FRONT, ONE, OTHER, SERVER, SIGNATURE, WAYS

FORWARD = COMMON.replace("models:\n  simple:\n", 'upstreams: {server: {url: "URL"}}\n')
OWN = ("torchserve.http", "torchserve.grpc")
BODY = {"INPUT0": ONE[0].tolist(), "INPUT1": OTHER[0].tolist()}
EXPECTED = {"OUTPUT0": (ONE + OTHER)[0].tolist(), "OUTPUT1": (ONE - OTHER)[0].tolist()}


def url_of(gateway: Gateway, way: str) -> str:
    """Return the URL of a way to a gateway."""
    if way in OWN:
        carrier = way.rpartition(".")[2]
        return f"torchserve+{carrier}://{gateway.addresses[f'main.{carrier}']}"
    return urls(gateway, "simple")[way]


async def predict(gateway: Gateway, body: Any) -> tuple[int, Any]:
    """Return status and answer of a prediction over HTTP."""
    url = f"http://{gateway.addresses['main.http']}/predictions/simple"
    async with aiohttp.ClientSession() as session, session.post(url, json=body) as response:
        return response.status, json.loads(await response.read())


async def predict_over_grpc(gateway: Gateway, body: Any) -> Any:
    """Return the answer of a prediction over gRPC."""
    message = pb.PredictionsRequest(model_name="simple", input={"data": json.dumps(body).encode()})
    async with grpc.aio.insecure_channel(gateway.addresses["main.grpc"]) as channel:
        method = channel.unary_unary(
            PREDICTIONS,
            request_serializer=pb.PredictionsRequest.SerializeToString,
            response_deserializer=pb.PredictionResponse.FromString,
        )
        return json.loads((await method(message)).prediction)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server() -> AsyncIterator[Gateway]:
    """Run a server of every protocol with a model of two inputs."""
    gateway = Gateway(load_text(SERVER + SIGNATURE))
    await gateway.start()
    try:
        yield gateway
    finally:
        await gateway.stop()


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("way", [*WAYS, *OWN])
async def test_items_reach_a_server_of_any_protocol(server: Gateway, way: str) -> None:
    """Both carriers have the same answer, without the batch axis, and a wrong value its place."""
    front = Gateway(load_text(FRONT.replace("URL", url_of(server, way))))
    await front.start()
    try:
        assert await predict(front, BODY) == (200, EXPECTED)
        assert await predict_over_grpc(front, BODY) == EXPECTED
        status, reply = await predict(front, {**BODY, "INPUT1": [0] * 15 + [0.5]})
        assert (status, reply["code"], reply["type"]) == (400, 400, "BadRequestException")
        assert "body.INPUT1[15] is 0.5" in reply["message"]
    finally:
        await front.stop()


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("own", OWN)
@pytest.mark.parametrize("way", [*WAYS, "mlflow.http"])
async def test_clients_of_any_protocol_reach_a_server(server: Gateway, way: str, own: str) -> None:
    """A batch becomes one request for each item, and one reply."""
    front = Gateway(load_text(FRONT.replace("URL", url_of(server, own))))
    await front.start()
    try:
        if way == "mlflow.http":
            url = f"http://{front.addresses['main.http']}/invocations"
            body = {"inputs": {"INPUT0": ONE.tolist(), "INPUT1": OTHER.tolist()}}
            async with aiohttp.ClientSession() as session, session.post(url, json=body) as reply:
                found = (await reply.json())["predictions"]
        else:
            found = await ask(url_of(front, way), "simple", {"INPUT0": ONE, "INPUT1": OTHER})
        np.testing.assert_array_equal(ONE + OTHER, found["OUTPUT0"])
        np.testing.assert_array_equal(ONE - OTHER, found["OUTPUT1"])
    finally:
        await front.stop()


@pytest.mark.asyncio(loop_scope="module")
async def test_requests_are_forwarded_without_a_signature(server: Gateway) -> None:
    """Answers and errors are those of the server."""
    front = Gateway(load_text(FORWARD.replace("URL", url_of(server, "torchserve.http"))))
    await front.start()
    try:
        assert await predict(front, BODY) == (200, EXPECTED)
        for body in ({"INPUT0": [1]}, [1]):
            assert await predict(front, body) == await predict(server, body)
    finally:
        await front.stop()
