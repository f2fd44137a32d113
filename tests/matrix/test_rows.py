"""Clients of rows before servers of every protocol, and clients of every protocol before servers of rows.

The protocols of rows are MLflow's, TorchServe's and Seldon's: their messages have no datatypes.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import grpc
import numpy as np
import pytest
import pytest_asyncio

from gateway.app import Gateway
from gateway.protocols.torchserve.grpc.codec import PREDICTIONS
from gateway.schema import torchserve_inference_pb2 as pb
from tests.integration.asking_kit import ask, running, urls
from tests.integration.test_openai_upstream import post

HEAD = """
version: 1
listeners: [{http: "127.0.0.1:0", grpc: "127.0.0.1:0", default_model: MODEL}]
admin: {address: off}
lifecycle: {pre_stop: 0s, drain: 1s}
"""
MODELS = {
    "simple": """
models:
  simple:
    signature:
      max_batch_size: 8
      inputs:
        - {name: INPUT0, datatype: INT32, shape: [-1, 16]}
        - {name: INPUT1, datatype: INT32, shape: [-1, 16]}
      outputs:
        - {name: OUTPUT0, datatype: INT32, shape: [-1, 16]}
        - {name: OUTPUT1, datatype: INT32, shape: [-1, 16]}
""",
    "identity_int32": """
models:
  identity_int32:
    signature:
      inputs: [{name: INPUT0, datatype: INT32, shape: [-1, -1]}]
      outputs: [{name: OUTPUT0, datatype: INT32, shape: [-1, -1]}]
""",
}
BACKEND = """    backend: python
    options: {callable: "gateway.backends.examples:MODEL"}
"""
UPSTREAM = 'upstreams: {server: {url: "URL"}}\n'
WAYS = [
    "graphpipe.http",
    "grps.grpc",
    "grps.http",
    "oip.grpc",
    "oip.http",
    "trtis.grpc",
    "trtis.http",
]
MLFLOW, TORCHSERVE = ["mlflow.http"], ["torchserve.http", "torchserve.grpc"]
SELDON = ["seldon.http", "seldon.grpc"]
ONE = np.arange(32, dtype=np.int32).reshape(2, 16)
OTHER = np.full((2, 16), 2**30 + 1, np.int32)
INPUTS = {"INPUT0": ONE, "INPUT1": OTHER}
OUTPUTS = {"OUTPUT0": ONE + OTHER, "OUTPUT1": ONE - OTHER}
VALUES = np.array([[1, -2, 2**31 - 1], [0, 5, -(2**31)]], np.int32)
ITEM = {name: array[0].tolist() for name, array in INPUTS.items()}
REPLY = {name: array[0].tolist() for name, array in OUTPUTS.items()}

pytestmark = pytest.mark.asyncio(loop_scope="module")


def url_of(gateway: Gateway, way: str, model: str = "simple") -> str:
    """Return the URL of a way to a gateway."""
    protocol, _, carrier = way.partition(".")
    if way in WAYS:
        return urls(gateway, model)[way]
    return f"{protocol}+{carrier}://{gateway.addresses[f'main.{carrier}']}"


def front_of(url: str, model: str = "simple") -> str:
    """Return the configuration of a gateway before a server with this URL."""
    return HEAD.replace("MODEL", model) + MODELS[model] + UPSTREAM.replace("URL", url)


async def predict(gateway: Gateway, body: Any) -> tuple[int, Any]:
    """Return status and reply of a prediction of TorchServe over HTTP."""
    return await post(f"http://{gateway.addresses['main.http']}", "/predictions/simple", body)


async def predict_over_grpc(gateway: Gateway, body: Any) -> Any:
    """Return the reply of a prediction of TorchServe over gRPC."""
    message = pb.PredictionsRequest(model_name="simple", input={"data": json.dumps(body).encode()})
    async with grpc.aio.insecure_channel(gateway.addresses["main.grpc"]) as channel:
        method = channel.unary_unary(
            PREDICTIONS,
            request_serializer=pb.PredictionsRequest.SerializeToString,
            response_deserializer=pb.PredictionResponse.FromString,
        )
        return json.loads((await method(message)).prediction)


async def server_of(model: str) -> AsyncIterator[Gateway]:
    text = HEAD + MODELS[model] + BACKEND
    async with running(text.replace("MODEL", model)) as gateway:
        yield gateway


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server() -> AsyncIterator[Gateway]:
    """Run a server of every protocol with a model of two inputs."""
    async for gateway in server_of("simple"):
        yield gateway


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def identity() -> AsyncIterator[Gateway]:
    """Run a server of every protocol with a model that returns its input."""
    async for gateway in server_of("identity_int32"):
        yield gateway


@pytest.mark.parametrize("way", WAYS + MLFLOW)
async def test_rows_reach_a_server_of_any_protocol(server: Gateway, way: str) -> None:
    """All forms of MLflow's rows get the same columns, and a wrong value its place."""
    async with running(front_of(url_of(server, way))) as front:
        url = f"http://{front.addresses['main.http']}"
        columns = {name: array.tolist() for name, array in INPUTS.items()}
        rows = [
            dict(zip(columns, each, strict=True)) for each in zip(*columns.values(), strict=True)
        ]
        expected = {name: array.tolist() for name, array in OUTPUTS.items()}
        for request in ({"inputs": columns}, {"instances": rows}):
            status, reply = await post(url, "/invocations", request)
            assert (status, reply) == (200, {"predictions": expected})
        rows[1]["INPUT1"][3] = 0.5
        status, reply = await post(url, "/invocations", {"instances": rows})
        assert status == 400
        assert "instances[1].INPUT1[3] is 0.5" in reply["message"]


@pytest.mark.parametrize("way", WAYS + TORCHSERVE)
async def test_items_reach_a_server_of_any_protocol(server: Gateway, way: str) -> None:
    """Both carriers of TorchServe have one reply without the batch axis, and a wrong value its place."""
    async with running(front_of(url_of(server, way))) as front:
        assert await predict(front, ITEM) == (200, REPLY)
        assert await predict_over_grpc(front, ITEM) == REPLY
        status, reply = await predict(front, {**ITEM, "INPUT1": [0] * 15 + [0.5]})
        assert (status, reply["code"], reply["type"]) == (400, 400, "BadRequestException")
        assert "body.INPUT1[15] is 0.5" in reply["message"]


@pytest.mark.parametrize("way", WAYS + SELDON)
async def test_a_message_reaches_a_server_of_any_protocol(identity: Gateway, way: str) -> None:
    """Both forms of Seldon's arrays are exact, and a wrong value has its place."""
    address = url_of(identity, way, "identity_int32")
    async with running(front_of(address, "identity_int32")) as front:
        url = f"http://{front.addresses['main.http']}"
        flat = {"shape": list(VALUES.shape), "values": VALUES.reshape(-1).tolist()}
        for data in ({"ndarray": VALUES.tolist()}, {"tensor": flat}):
            status, reply = await post(url, "/api/v1.0/predictions", {"data": data})
            assert (status, reply["data"]) == (200, {"names": ["t:0", "t:1", "t:2"], **data})
        flat["values"][4] = 0.5
        status, reply = await post(url, "/predict", {"data": {"tensor": flat}})
        assert status == 400
        assert "data.tensor.values[4] is 0.5" in reply["status"]["info"]


@pytest.mark.parametrize("own", MLFLOW + TORCHSERVE)
@pytest.mark.parametrize("way", WAYS)
async def test_clients_of_any_protocol_reach_rows(server: Gateway, way: str, own: str) -> None:
    """The signature of the configuration names outputs; TorchServe gets a request for each item."""
    async with running(front_of(url_of(server, own))) as front:
        found = await ask(url_of(front, way), "simple", INPUTS)
        for name, expected in OUTPUTS.items():
            np.testing.assert_array_equal(expected, found[name])


@pytest.mark.parametrize("own", TORCHSERVE)
async def test_rows_reach_a_server_of_items(server: Gateway, own: str) -> None:
    """MLflow's rows become one request for each item, and one reply."""
    async with running(front_of(url_of(server, own))) as front:
        body = {"inputs": {name: array.tolist() for name, array in INPUTS.items()}}
        url = f"http://{front.addresses['main.http']}"
        expected = {name: array.tolist() for name, array in OUTPUTS.items()}
        assert (200, {"predictions": expected}) == await post(url, "/invocations", body)


@pytest.mark.parametrize("own", SELDON)
@pytest.mark.parametrize("way", WAYS)
async def test_clients_of_any_protocol_reach_seldon(identity: Gateway, way: str, own: str) -> None:
    """The signature in the configuration gives the datatype back."""
    model = "identity_int32"
    async with running(front_of(url_of(identity, own), model)) as front:
        found = await ask(url_of(front, way, model), model, {"INPUT0": VALUES})
        np.testing.assert_array_equal(VALUES, found["OUTPUT0"])
        assert found["OUTPUT0"].dtype == np.int32


async def test_requests_are_forwarded_without_a_signature(server: Gateway) -> None:
    """Replies and errors are those of the server."""
    upstream = UPSTREAM.replace("URL", url_of(server, "torchserve.http"))
    async with running(HEAD.replace("MODEL", "simple") + upstream) as front:
        assert await predict(front, ITEM) == (200, REPLY)
        for body in ({"INPUT0": [1]}, [1]):
            assert await predict(front, body) == await predict(server, body)
