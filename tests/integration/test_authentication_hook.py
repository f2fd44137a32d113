"""Each request of each carrier asks for its client once, before it holds memory or a slot."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway.access.control import AccessControl
from gateway.api.access import Credentials
from gateway.app import Gateway
from gateway.ir.errors import Unauthenticated
from gateway.ir.identity import Identity
from tests.integration.access_kit import (
    brpc_frame,
    call,
    configuration,
    exchange,
    graphpipe_frame,
    guarded,
    infer_message,
    read_brpc,
    read_response,
)
from tests.integration.asking_kit import running
from tests.integration.http_kit import eventually

CLIENT = Identity("counted")
INFER = "/inference.GRPCInferenceService/ModelInfer"
HEALTH = "/grpc.health.v1.Health/Check"
REFLECTION = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"


class Counting:
    """Notes each request, and what is held when it asks."""

    def __init__(self) -> None:
        self.gateway: Gateway | None = None
        self.requests: list[Credentials] = []
        self.held: list[int] = []
        self.refuses = False
        self.waits = False

    def authenticate(self, credentials: Credentials, /) -> Any:
        assert self.gateway is not None
        self.requests.append(credentials)
        self.held.append(self.gateway._budget.used)
        if self.waits:
            return self._later()
        return self._found()

    def cases(self) -> Iterator[str]:
        """Yield what the client may be: known or not, at once or later."""
        for refuses in (False, True):
            for waits in (False, True):
                self.refuses, self.waits = refuses, waits
                self.requests.clear()
                self.held.clear()
                yield f"refuses={refuses} waits={waits}"

    async def _later(self) -> Identity:
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return self._found()

    def _found(self) -> Identity:
        if self.refuses:
            raise Unauthenticated("no such client")
        return CLIENT


@pytest.fixture
def counting(monkeypatch: pytest.MonkeyPatch) -> Counting:
    """Ask it instead of what the configuration names."""
    found = Counting()
    monkeypatch.setattr(AccessControl, "authenticator", lambda _self, _listener: found)
    return found


@pytest.fixture(params=["native", "reference"])
async def gateway(
    request: pytest.FixtureRequest, counting: Counting, tmp_path: Path
) -> AsyncIterator[Gateway]:
    """A gateway of each implementation, whose requests are counted."""
    async with guarded(tmp_path, request.param) as found:
        counting.gateway = found
        yield found


HTTP_REQUESTS = {
    "health": ("GET", "/v2/health/ready", b""),
    "metadata": ("GET", "/v2", b""),
    "inference": ("POST", "/v2/models/m/infer", b'{"inputs": []}'),
    "malformed": ("POST", "/v2/models/m/infer", b"{"),
    "unknown_path": ("GET", "/nothing/here", b""),
    "trtis": ("GET", "/api/status", b""),
    "graphpipe": ("POST", "/graphpipe/m", b"xxxxxxxx"),
    "grps": ("POST", "/grps/v1/infer/predict", b"{}"),
    "large": ("POST", "/v2/models/m/infer", bytes(300_000)),
}


async def test_each_http_request_is_authenticated_once(
    gateway: Gateway, counting: Counting
) -> None:
    """Whatever the path and the body, before a byte is held."""
    for name, (method, path, body) in HTTP_REQUESTS.items():
        for case in counting.cases():
            reply = await exchange(gateway.addresses["main.http"], path, method=method, body=body)
            assert (name, case, len(counting.requests), counting.held) == (name, case, 1, [0])
            assert (name, case, reply.status == 401) == (name, case, counting.refuses)
            assert gateway._budget.used == 0


GRPC_CALLS = {
    "inference": (INFER, infer_message()),
    "large": (INFER, infer_message(300_000)),
    "malformed": (INFER, b"\xff"),
    "unknown_method": ("/some.Service/Method", b""),
    "health": (HEALTH, b""),
    "reflection": (REFLECTION, b""),
    "grps": ("/grps.protos.v1.GrpsService/ServerMetadata", b""),
    "trtis": ("/nvidia.inferenceserver.GRPCService/Status", b""),
}


async def test_each_grpc_call_is_authenticated_once(gateway: Gateway, counting: Counting) -> None:
    """Whatever the method and the message, before a byte is held."""
    for name, (method, message) in GRPC_CALLS.items():
        for case in counting.cases():
            status, _, _ = await call(gateway.addresses["main.grpc"], method, message)
            assert (name, case, len(counting.requests), counting.held) == (name, case, 1, [0])
            is_refused = status.name == "UNAUTHENTICATED"
            assert (name, case, is_refused) == (name, case, counting.refuses)


@pytest.mark.parametrize("size", [0, 20_000, 300_000])
async def test_each_brpc_frame_is_authenticated_once(
    gateway: Gateway, counting: Counting, size: int
) -> None:
    """A frame that arrives in pieces does so as soon as its metadata is there."""
    for _ in counting.cases():
        await send_brpc(gateway, counting, size)


async def send_brpc(gateway: Gateway, counting: Counting, size: int) -> None:
    """Send a frame in two pieces, and check the answer."""
    refuses = counting.refuses
    host, port = gateway.addresses["main.grps.brpc"].split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    frame = brpc_frame("Predict", 7, data="Bearer abc", size=size)
    writer.write(frame[:100])
    await eventually(lambda: counting.requests)
    writer.write(frame[100:])
    meta, _ = await read_brpc(reader)
    assert meta.correlation_id == 7
    assert [each.data for each in counting.requests] == ["Bearer abc"]
    assert counting.held == [0]
    assert meta.response.error_code == (1004 if refuses else 0)
    if refuses:
        assert await asyncio.wait_for(reader.read(), 20) == b""
    writer.close()


@pytest.mark.parametrize("refuses", [False, True])
async def test_each_graphpipe_frame_is_authenticated_once(
    gateway: Gateway, counting: Counting, refuses: bool
) -> None:
    """A refused frame leaves its connection open."""
    counting.refuses = refuses
    host, port = gateway.addresses["main.graphpipe.tcp"].split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    for count in (1, 2):
        writer.write(graphpipe_frame())
        size = int.from_bytes(await asyncio.wait_for(reader.readexactly(4), 20), "little")
        await reader.readexactly(size)
        assert len(counting.requests) == count
    assert counting.held == [0, 0]
    writer.close()


async def test_a_refused_body_is_not_requested(gateway: Gateway, counting: Counting) -> None:
    """A client that expects "100 Continue" gets 401 at once."""
    counting.refuses = True
    reply = await exchange(
        gateway.addresses["main.http"],
        "/v2/models/m/infer",
        {"Expect": "100-continue"},
        method="POST",
        length=1000,
    )
    assert (reply.status, reply.headers["connection"]) == (401, "close")


async def test_a_small_refused_body_keeps_the_connection(
    gateway: Gateway, counting: Counting
) -> None:
    """A body of up to 64 KiB is read after a refusal; the next request follows on."""
    counting.refuses = True
    host, port = gateway.addresses["main.http"].split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    for _ in range(2):
        counting.requests.clear()
        writer.write(
            b"POST /v2/models/m/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 60000\r\n\r\n"
        )
        await eventually(lambda: counting.requests)
        writer.write(bytes(60_000))
        assert (await read_response(reader)).status == 401
    writer.write(b"POST /v2/models/m/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 70000\r\n\r\n")
    reply = await read_response(reader)
    assert (reply.status, reply.headers["connection"]) == (401, "close")
    writer.close()


async def test_a_listener_without_credentials_has_no_authentication(tmp_path: Path) -> None:
    """The classes of connections and exchanges are those that ask nobody."""
    text = configuration().replace('"security": {"keys": {"file": "keys.yaml"}}', '"security": {}')
    async with running(text, tmp_path) as gateway:
        assert [each.authentication for each in gateway._listeners] == [None]
        reply = await exchange(gateway.addresses["main.http"], "/v2/health/live")
        assert reply.status == 200
