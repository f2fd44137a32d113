"""Large binary tensors cut through: the upstream receives them before the client has sent them."""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import struct
from typing import Any

import pytest
import uvloop

from gateway.policies.limits.policy import CallLimits
from gateway.policies.limits.retry import RetryBudget
from gateway.schema import open_inference_pb2 as pb
from gateway.service import Service
from gateway.transports.contract import ClientLimits
from gateway.transports.http1.client import HttpClient
from gateway.wire.http import HttpRequest
from tests.integration.cut_kit import MIB, Far, FarGrpc, grpc_near, near, request, response_of
from tests.integration.http_kit import eventually, stable


def retried(inner: Service) -> CallLimits:
    return CallLimits(inner, retries=RetryBudget())


async def test_bytes_pass_unchanged() -> None:
    """Sixteen MiB in three tensors and their JSON arrive at the upstream unchanged."""
    a, b, c = os.urandom(9 * MIB), os.urandom(7 * MIB), os.urandom(12)
    async with Far() as far, near(lambda: HttpClient(far.url, ClientLimits())) as gateway:
        raw = await gateway.connect()
        head, body = request(("a", "UINT8", a), ("b", "FP32", b), ("c", "INT32", c))
        await raw.send(head + body)
        response = await response_of(raw)
        await raw.close()
    assert 200 == response.status
    assert [7] == response.json["outputs"][0]["data"]
    (seen,) = far.seen
    assert a + b + c == seen.binary
    sizes = [each["parameters"]["binary_data_size"] for each in seen.json["inputs"]]
    assert [9 * MIB, 7 * MIB, 12] == sizes


async def test_upstream_gets_the_head_before_the_body_is_complete() -> None:
    """The upstream has the JSON and the first bytes while the client still sends."""
    data = os.urandom(MIB)
    async with Far() as far, near(lambda: HttpClient(far.url, ClientLimits())) as gateway:
        raw = await gateway.connect()
        head, body = request(("a", "UINT8", data))
        await raw.send(head + body[:1000])
        await eventually(lambda: bool(far.seen) and far.seen[0].binary == body[:1000])
        await raw.send(body[1000:])
        response = await response_of(raw)
        await raw.close()
    assert 200 == response.status
    assert data == far.seen[0].binary


async def test_slow_upstream_pauses_the_client() -> None:
    """Unread bytes stay with the client; buffered ones are charged to the memory budget."""
    data = bytes(48 * MIB)
    async with Far() as far, near(lambda: HttpClient(far.url, ClientLimits())) as gateway:
        far.reads.clear()
        raw = await gateway.connect()
        head, body = request(("a", "UINT8", data))
        sending = asyncio.ensure_future(raw.send(head + body))
        await eventually(lambda: bool(far.seen))
        unsent = await stable(raw.writer.transport.get_write_buffer_size)
        used_bytes = gateway.budget.used
        far.reads.set()
        await sending
        response = await response_of(raw)
        await raw.close()
    assert 200 == response.status
    assert MIB >= used_bytes > 0
    assert unsent > 30 * MIB
    assert data == far.seen[0].binary


async def test_connections_are_reused_after_a_cut_through_body() -> None:
    """After a cut-through body both connections serve the next request."""
    async with Far() as far, near(lambda: HttpClient(far.url, ClientLimits())) as gateway:
        raw = await gateway.connect()
        head, body = request(("a", "UINT8", os.urandom(MIB)))
        statuses = []
        for _ in range(3):
            await raw.send(head + body)
            statuses.append((await response_of(raw)).status)
        await raw.close()
    assert [200, 200, 200] == statuses
    assert 1 == far.connections


async def test_pipelined_requests_are_served_in_order() -> None:
    """A request behind a large one on its connection is not read as part of its body."""
    async with Far() as far, near(lambda: HttpClient(far.url, ClientLimits())) as gateway:
        raw = await gateway.connect()
        head, body = request(("a", "UINT8", os.urandom(MIB)))
        small, rest = request(("a", "UINT8", b"12345"))
        await raw.send(head + body + small + rest)
        statuses = [(await response_of(raw)).status for _ in range(2)]
        await raw.close()
    assert [200, 200] == statuses
    assert b"12345" == far.seen[1].binary


async def test_client_disconnect_resets_the_upstream_connection() -> None:
    """The upstream never sees a short body that looks complete."""
    async with Far() as far, near(lambda: HttpClient(far.url, ClientLimits())) as gateway:
        raw = await gateway.connect()
        head, body = request(("a", "UINT8", os.urandom(MIB)))
        await raw.send(head + body[: 300 * 1024])
        await eventually(lambda: bool(far.seen))
        raw.writer.transport.abort()
        async with asyncio.timeout(20):
            await far.seen[0].end.wait()
    assert far.seen[0].on_reset
    assert not far.seen[0].on_complete_stream


async def test_stalled_body_is_408_and_counted() -> None:
    """A stalled body hits the listener's idle limit; the upstream connection is reset."""
    async with (
        Far() as far,
        near(lambda: HttpClient(far.url, ClientLimits()), body_idle_timeout_s=1.0) as gateway,
    ):
        raw = await gateway.connect()
        head, body = request(("a", "UINT8", os.urandom(MIB)))
        await raw.send(head + body[: 300 * 1024])
        response = await response_of(raw)
        await raw.close()
        async with asyncio.timeout(20):
            await far.seen[0].end.wait()
    assert 408 == response.status
    assert ["body_idle_timeout_s"] == [error.limit for error in gateway.refused]
    assert far.seen[0].on_reset
    assert not far.seen[0].on_complete_stream


async def test_early_upstream_error_is_relayed() -> None:
    """An early error reaches the client, whose connection serves the next request."""
    refusal = b'{"error": "no such model here"}'
    async with Far() as far, near(lambda: HttpClient(far.url, ClientLimits())) as gateway:
        far.early = b"HTTP/1.1 404 Not Found\r\nContent-Length: %d\r\n\r\n" % len(refusal) + refusal
        raw = await gateway.connect()
        head, body = request(("a", "UINT8", os.urandom(8 * MIB)))
        await raw.send(head + body[: 300 * 1024])
        first = await response_of(raw)
        await raw.send(body[300 * 1024 :])
        far.early = None
        await raw.send(head + body)
        second = await response_of(raw)
        await raw.close()
    assert (404, "no such model here") == (first.status, first.json["error"])
    assert 200 == second.status
    assert 2 == far.connections


async def test_upstream_reset_within_a_body_is_503_without_retry() -> None:
    """A connection lost while the body passes fails that request only."""
    connections = 0

    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        await reader.readexactly(200 * 1024)
        writer.transport.abort()

    server = await asyncio.start_server(hang_up, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with near(lambda: HttpClient(url, ClientLimits()), layer=retried) as gateway:
        raw = await gateway.connect()
        head, body = request(("a", "UINT8", os.urandom(4 * MIB)))
        await raw.send(head + body)
        response = await response_of(raw)
        await raw.close()
    server.close()
    assert 503 == response.status
    assert 1 == connections


async def test_refused_connection_is_retried_before_any_byte() -> None:
    """While no byte of the body is forwarded, a refused connection is retried."""
    async with Far() as far:
        clients = [
            HttpClient("http://127.0.0.1:1", ClientLimits()),
            HttpClient(far.url, ClientLimits()),
        ]

        class Second:
            """The address that is there, at the second attempt."""

            sends_rest = True

            async def send(
                self, wire: HttpRequest, /, *, deadline: float | None, decode: Any
            ) -> Any:
                return await clients.pop(0).send(wire, deadline=deadline, decode=decode)

            async def close(self) -> None:
                pass

        last = clients[1]
        async with near(Second, layer=retried) as gateway:
            raw = await gateway.connect()
            head, body = request(("a", "UINT8", os.urandom(MIB)))
            await raw.send(head + body)
            response = await response_of(raw)
            await raw.close()
        await last.close()
    assert 200 == response.status
    assert body == far.seen[0].binary


async def test_deadline_ends_both_connections() -> None:
    """At the deadline the client gets 504 and the upstream connection is reset."""
    async with (
        Far() as far,
        near(
            lambda: HttpClient(far.url, ClientLimits()), layer=lambda inner: CallLimits(inner, 1.0)
        ) as gateway,
    ):
        raw = await gateway.connect()
        head, body = request(("a", "UINT8", os.urandom(MIB)))
        await raw.send(head + body[: 300 * 1024])
        response = await response_of(raw)
        await raw.close()
        async with asyncio.timeout(20):
            await far.seen[0].end.wait()
    assert 504 == response.status
    assert far.seen[0].on_reset


async def test_bytes_input_is_validated_before_forwarding() -> None:
    """A BYTES input is validated before any byte is forwarded, whatever its position."""
    size = 100_000
    good = struct.pack("<I", size) + bytes(size)
    bad = struct.pack("<I", size + 1) + bytes(size)
    async with Far() as far, near(lambda: HttpClient(far.url, ClientLimits())) as gateway:
        raw = await gateway.connect()
        statuses = []
        for data in (good, bad):
            head, body = request(("x", "FP32", bytes(MIB)), ("a", "BYTES", data))
            await raw.send(head + body)
            statuses.append((await response_of(raw)).status)
        await raw.close()
    assert [200, 400] == statuses
    assert [bytes(MIB) + good] == [seen.binary for seen in far.seen]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"shape": [5]}, "needs 5"),
        ({"parameters": {"binary_data_size": MIB - 1}}, "needs"),
        ({"parameters": {"binary_data_size": 2 * MIB}}, "missing after the JSON"),
        ({"datatype": "WHAT"}, "WHAT"),
    ],
)
async def test_invalid_json_head_is_rejected_before_the_body(
    change: dict[str, Any], reason: str
) -> None:
    """The JSON is validated before forwarding; the connection stays usable."""
    async with Far() as far, near(lambda: HttpClient(far.url, ClientLimits())) as gateway:
        raw = await gateway.connect()
        body = bytes(MIB)
        tensor: dict[str, Any] = {"name": "a", "datatype": "UINT8", "shape": [MIB]}
        tensor = {**tensor, "parameters": {"binary_data_size": MIB}, **change}
        text = json.dumps({"inputs": [tensor]}).encode()
        head = (
            "POST /v2/models/m/infer HTTP/1.1\r\nHost: h\r\n"
            f"Inference-Header-Content-Length: {len(text)}\r\n"
            f"Content-Length: {len(text) + MIB}\r\n\r\n"
        ).encode()
        await raw.send(head + text)
        response = await response_of(raw)
        await raw.send(body)
        good, rest = request(("a", "UINT8", b"123"))
        await raw.send(good + rest)
        second = await response_of(raw)
        await raw.close()
    assert (400, True) == (response.status, reason in response.json["error"])
    assert 200 == second.status
    assert [b"123"] == [seen.binary for seen in far.seen]


async def test_disabled_cut_through_buffers_the_body() -> None:
    """With `cut_through_bytes: 0` a body is forwarded once it is complete."""
    async with (
        Far() as far,
        near(lambda: HttpClient(far.url, ClientLimits()), cut_through_bytes=0) as gateway,
    ):
        raw = await gateway.connect()
        head, body = request(("a", "UINT8", os.urandom(MIB)))
        await raw.send(head + body[:-1])
        await eventually(lambda: gateway.budget.used > MIB)
        other = await gateway.connect()
        await other.send(b"".join(request(("a", "UINT8", b"x"))))
        assert 200 == (await response_of(other)).status
        await other.close()
        assert 1 == len(far.seen)
        await raw.send(body[-1:])
        response = await response_of(raw)
        await raw.close()
    assert 200 == response.status
    assert body == far.seen[1].binary


@pytest.mark.parametrize("size", [100_000, 16 * MIB + 4])
async def test_http_body_is_forwarded_over_grpc(size: int) -> None:
    """A tensor that arrives over HTTP is forwarded over gRPC unchanged."""
    far = FarGrpc()
    data = os.urandom(size)
    async with grpc_near(far) as (gateway, _):
        raw = await gateway.connect()
        head, body = request(("s", "INT32", b"\1\0\0\0"), ("a", "UINT8", data))
        small, rest = request(("a", "UINT8", data))
        responses = []
        for sent, after in ((head, body), (small, rest)):
            await raw.send(sent + after[:1000])
            await asyncio.sleep(0)
            await raw.send(after[1000:])
            responses.append((await response_of(raw)).status)
        await raw.close()
    assert [200, 200] == responses
    first, second = [pb.ModelInferRequest.FromString(message) for message in far.seen]
    assert [b"\1\0\0\0", data] == list(first.raw_input_contents)
    assert [data] == list(second.raw_input_contents)
    assert ["a"] == [tensor.name for tensor in second.inputs]


async def test_client_disconnect_leaves_the_grpc_upstream_usable() -> None:
    """The upstream runs no partial request and serves the next one."""
    far = FarGrpc()
    async with grpc_near(far) as (gateway, _):
        raw = await gateway.connect()
        head, body = request(("a", "UINT8", os.urandom(2 * MIB)))
        await raw.send(head + body[:MIB])
        await eventually(lambda: gateway.budget.used > 0)
        raw.writer.transport.abort()
        await eventually(lambda: gateway.budget.used == 0)
        again = await gateway.connect()
        await again.send(head + body)
        response = await response_of(again)
        await again.close()
    assert 200 == response.status
    assert 1 == len(far.seen)


SCENARIOS = [
    function
    for name, function in list(vars().items())
    if name.startswith("test_") and not inspect.signature(function).parameters
]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_on_uvloop(scenario: Any) -> None:
    """Each scenario also passes on uvloop."""
    uvloop.run(scenario())
