"""Seldon's clients before servers of every other protocol, and clients of these before Seldon."""

from __future__ import annotations

from collections.abc import AsyncIterator

import numpy as np
import pytest
import pytest_asyncio

from gateway.app import Gateway
from gateway.config.load import load_text
from tests.integration.asking_kit import ask, urls
from tests.integration.test_openai_upstream import post

COMMON = """
version: 1
listeners: [{http: "127.0.0.1:0", grpc: "127.0.0.1:0", default_model: same}]
admin: {address: off}
lifecycle: {pre_stop: 0s, drain: 1s}
models:
  same:
    signature:
      inputs: [{name: INPUT0, datatype: INT32, shape: [-1, -1]}]
      outputs: [{name: OUTPUT0, datatype: INT32, shape: [-1, -1]}]
"""
SERVER = f"""{COMMON}    backend: python
    options: {{callable: "gateway.backends.examples:identity_int32"}}
"""
FRONT = COMMON + 'upstreams: {server: {url: "URL"}}\n'
WAYS = [
    "graphpipe.http",
    "grps.grpc",
    "grps.http",
    "oip.grpc",
    "oip.http",
    "trtis.grpc",
    "trtis.http",
]
OWN = ["seldon.grpc", "seldon.http"]
VALUES = np.array([[1, -2, 2**31 - 1], [0, 5, -(2**31)]], np.int32)


def url_of(gateway: Gateway, way: str) -> str:
    """Return the URL of a way to a gateway."""
    protocol, _, carrier = way.partition(".")
    if protocol == "seldon":
        return f"seldon+{carrier}://{gateway.addresses[f'main.{carrier}']}"
    return urls(gateway, "same")[way]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server() -> AsyncIterator[Gateway]:
    """Run a server of every protocol."""
    gateway = Gateway(load_text(SERVER))
    await gateway.start()
    try:
        yield gateway
    finally:
        await gateway.stop()


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("way", [*WAYS, *OWN])
async def test_a_message_reaches_a_server_of_any_protocol(server: Gateway, way: str) -> None:
    """Both forms of arrays are exact, and a wrong value has its place."""
    front = Gateway(load_text(FRONT.replace("URL", url_of(server, way))))
    await front.start()
    try:
        url = f"http://{front.addresses['main.http']}"
        flat = {"shape": list(VALUES.shape), "values": VALUES.reshape(-1).tolist()}
        for data in ({"ndarray": VALUES.tolist()}, {"tensor": flat}):
            status, reply = await post(url, "/api/v1.0/predictions", {"data": data})
            assert (status, reply["data"]) == (200, {"names": ["t:0", "t:1", "t:2"], **data})
        flat["values"][4] = 0.5
        status, reply = await post(url, "/predict", {"data": {"tensor": flat}})
        assert status == 400
        assert "data.tensor.values[4] is 0.5" in reply["status"]["info"]
    finally:
        await front.stop()


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("own", OWN)
async def test_clients_of_any_protocol_reach_seldon(server: Gateway, way: str, own: str) -> None:
    """The signature in the configuration gives the datatype back."""
    front = Gateway(load_text(FRONT.replace("URL", url_of(server, own))))
    await front.start()
    try:
        found = await ask(url_of(front, way), "same", {"INPUT0": VALUES})
        np.testing.assert_array_equal(VALUES, found["OUTPUT0"])
        assert found["OUTPUT0"].dtype == np.int32
    finally:
        await front.stop()
