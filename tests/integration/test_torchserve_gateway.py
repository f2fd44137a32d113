"""TorchServe's clients at a listener of both transports: streams, limits, tokens, shared paths."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest

from gateway.app import Gateway
from tests.integration.access_kit import KEY, exchange, guarded
from tests.integration.asking_kit import running

Arrays = Mapping[str, np.ndarray]
CONFIG = """
version: 1
listeners:
  - {name: own, http: "127.0.0.1:0", protocols: [torchserve], transport: TRANSPORT, limits: {message_bytes: 1KiB}}
  - {name: shared, http: "127.0.0.1:0", transport: TRANSPORT, default_model: count}
admin: {address: off}
lifecycle: {pre_stop: 0s, drain: 1s}
models:
  count:
    backend: python
    options: {callable: "tests.integration.test_torchserve_gateway:count"}
    signature:
      inputs: [{name: n, datatype: INT32, shape: [1]}]
      outputs: [{name: y, datatype: INT32, shape: [1]}]
"""


def count(inputs: Arrays) -> Iterator[Arrays]:
    """Count from 0, and fail at 3."""
    for number in range(int(inputs["n"][0])):
        if number == 3:
            raise RuntimeError("broken")
        yield {"y": np.array([number], np.int32)}


@pytest.fixture(params=["native", "reference"])
async def gateway(request: pytest.FixtureRequest) -> AsyncIterator[Gateway]:
    async with running(CONFIG.replace("TRANSPORT", request.param)) as found:
        yield found


async def raw(address: str, text: bytes) -> bytes:
    """Send bytes on a connection of its own; return all that comes back until it is closed."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(text)
        async with asyncio.timeout(45):
            return await reader.read()
    except ConnectionResetError:
        return b""
    finally:
        writer.close()


def post(body: bytes, headers: str = "") -> bytes:
    """Return a request after which the connection is closed."""
    head = f"POST /predictions/count HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{headers}"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


async def test_a_stream_that_fails_has_no_last_chunk(gateway: Gateway) -> None:
    """The client sees that something is missing; a whole stream has its end."""
    address = gateway.addresses["own.http"]
    whole = await raw(address, post(b"[2]"))
    assert b"ts_stream_next: true" in whole.lower()
    assert whole.endswith(b"\r\n0\r\n\r\n")
    cut = await raw(address, post(b"[9]"))
    assert b"[2]" in cut
    assert not cut.endswith(b"0\r\n\r\n")


async def test_every_response_has_the_request_id(gateway: Gateway) -> None:
    """Errors too, and those of a body that is too large."""
    address = gateway.addresses["own.http"]
    mine = {"x-request-id": "caller-7"}
    for target, body, status in (
        ("/ping", b"", 200),
        ("/predictions/count", b"[1.5]", 400),
        ("/predictions/none", b"[1]", 404),
        ("/nothing/at/all", b"[1]", 404),
        ("/predictions/count", b"1" * 2000, 413),
    ):
        reply = await exchange(address, target, mine, method="POST", body=body)
        assert (reply.status, reply.headers["x-request-id"]) == (status, "caller-7"), target
        if status != 200:
            assert json.loads(reply.body)["code"] == status
        reply = await exchange(address, target, method="POST", body=body)
        assert reply.headers["x-request-id"]


async def test_a_client_that_waits_for_a_word_may_send_its_body(gateway: Gateway) -> None:
    """`curl -T` sends PUT with `Expect: 100-continue`."""
    text = post(b"[1]", "Expect: 100-continue\r\n").replace(b"POST", b"PUT", 1)
    found = await raw(gateway.addresses["own.http"], text)
    assert b"HTTP/1.1 200" in found
    assert b"[0]" in found


async def test_a_listener_of_all_protocols_gives_two_paths_to_mlflow(gateway: Gateway) -> None:
    """Lists stay with TorchServe, and changes are refused as containers of SageMaker expect."""
    address = gateway.addresses["shared.http"]
    assert (await exchange(address, "/ping")).body == b"\n"
    invoked = await exchange(address, "/invocations", method="POST", body=b"[1]")
    assert "error_code" in json.loads(invoked.body)
    listed = await exchange(address, "/models")
    assert json.loads(listed.body)["models"][0]["modelName"] == "count"
    refused = await exchange(address, "/models", method="POST", body=b"{}")
    assert refused.status == 404
    assert "multi_model" in json.loads(refused.body)["message"]
    found = await raw(address, post(b"[1]").replace(b"/predictions/count", b"/models/count/invoke"))
    assert found.endswith(b"\r\n[0]\r\n0\r\n\r\n")


async def test_a_token_is_a_key_of_the_gateway(tmp_path: Path) -> None:
    """Without a right one the error is that of the server."""
    async with guarded(tmp_path) as found:
        address = found.addresses["main.http"]
        for headers in ({}, {"authorization": "Bearer wrong"}):
            reply = await exchange(
                address, "/predictions/none", headers, method="POST", body=b"[1]"
            )
            document = json.loads(reply.body)
            assert (reply.status, document["type"]) == (400, "InvalidKeyException")
        right = {"authorization": f"Bearer {KEY}"}
        reply = await exchange(address, "/predictions/none", right, method="POST", body=b"[1]")
        # The key is right: the only upstream is absent.
        assert json.loads(reply.body)["type"] == "ServiceUnavailableException"
