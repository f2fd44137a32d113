"""Rows of MLflow's clients before servers of every other protocol, and their clients before MLflow."""

from __future__ import annotations

from collections.abc import AsyncIterator

import numpy as np
import pytest
import pytest_asyncio

from gateway.app import Gateway
from gateway.config.load import load_text
from tests.integration.asking_kit import ask, urls
from tests.integration.test_openai_upstream import post

SIGNATURE = """
    signature:
      max_batch_size: 8
      inputs:
        - {name: INPUT0, datatype: INT32, shape: [-1, 16]}
        - {name: INPUT1, datatype: INT32, shape: [-1, 16]}
      outputs:
        - {name: OUTPUT0, datatype: INT32, shape: [-1, 16]}
        - {name: OUTPUT1, datatype: INT32, shape: [-1, 16]}
"""
COMMON = """
version: 1
listeners: [{http: "127.0.0.1:0", grpc: "127.0.0.1:0", default_model: simple}]
admin: {address: off}
lifecycle: {pre_stop: 0s, drain: 1s}
models:
  simple:
"""
SERVER = (
    f'{COMMON}    backend: python\n    options: {{callable: "gateway.backends.examples:simple"}}'
)
FRONT = COMMON + SIGNATURE + 'upstreams: {server: {url: "URL"}}\n'
WAYS = [
    "graphpipe.http",
    "grps.grpc",
    "grps.http",
    "oip.grpc",
    "oip.http",
    "trtis.grpc",
    "trtis.http",
]
ONE = np.arange(32, dtype=np.int32).reshape(2, 16)
OTHER = np.full((2, 16), 2**30 + 1, np.int32)


def url_of(gateway: Gateway, way: str) -> str:
    """Return the URL of a way to a gateway."""
    mlflow = f"mlflow+http://{gateway.addresses['main.http']}"
    return mlflow if way == "mlflow.http" else urls(gateway, "simple")[way]


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
@pytest.mark.parametrize("way", [*WAYS, "mlflow.http"])
async def test_rows_reach_a_server_of_any_protocol(server: Gateway, way: str) -> None:
    """All forms of rows get the same columns, and a wrong value its place."""
    front = Gateway(load_text(FRONT.replace("URL", url_of(server, way))))
    await front.start()
    try:
        url = f"http://{front.addresses['main.http']}"
        columns = {"INPUT0": ONE.tolist(), "INPUT1": OTHER.tolist()}
        rows = [
            dict(zip(columns, each, strict=True)) for each in zip(*columns.values(), strict=True)
        ]
        expected = {"OUTPUT0": (ONE + OTHER).tolist(), "OUTPUT1": (ONE - OTHER).tolist()}
        for request in ({"inputs": columns}, {"instances": rows}):
            status, reply = await post(url, "/invocations", request)
            assert (status, reply) == (200, {"predictions": expected})
        rows[1]["INPUT1"][3] = 0.5
        status, reply = await post(url, "/invocations", {"instances": rows})
        assert status == 400
        assert "instances[1].INPUT1[3] is 0.5" in reply["message"]
    finally:
        await front.stop()


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("way", WAYS)
async def test_clients_of_any_protocol_reach_a_scoring_server(server: Gateway, way: str) -> None:
    """The signature in the configuration gives names and datatypes to both."""
    front = Gateway(load_text(FRONT.replace("URL", url_of(server, "mlflow.http"))))
    await front.start()
    try:
        found = await ask(url_of(front, way), "simple", {"INPUT0": ONE, "INPUT1": OTHER})
        np.testing.assert_array_equal(ONE + OTHER, found["OUTPUT0"])
        np.testing.assert_array_equal(ONE - OTHER, found["OUTPUT1"])
    finally:
        await front.stop()
