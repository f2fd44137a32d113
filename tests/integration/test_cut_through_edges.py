"""Bodies that are passed on: over TLS, at a drain, beyond the places there are, into small windows."""

from __future__ import annotations

import asyncio
import os
import ssl
from typing import Any

import pytest
import trustme

from benchmarks import resident
from gateway.policies.observe import Observe
from gateway.protocols.oip.grpc.codec import GrpcCodec
from gateway.telemetry.call_log import CallRecord
from gateway.transports.contract import ClientLimits
from gateway.transports.grpc.client import GrpcClient
from gateway.transports.http1.client import HttpClient
from gateway.transports.http2 import frames
from tests.integration.cut_kit import LIMITS, MIB, Far, answer_of, near, request
from tests.integration.http_kit import Raw, eventually


async def test_over_tls() -> None:
    """What is received decrypted passes like anything else."""
    authority = trustme.CA()
    server_side = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(server_side)
    client_side = ssl.create_default_context()
    authority.configure_trust(client_side)
    async with (
        Far() as far,
        near(lambda: HttpClient(far.url, ClientLimits()), tls=server_side) as gateway,
    ):
        host, _, port = gateway.server.address.rpartition(":")
        raw = Raw(*await asyncio.open_connection(host, int(port), ssl=client_side))
        head, body = request(("a", "UINT8", os.urandom(4 * MIB)))
        await raw.send(head + body[:1000])
        await eventually(lambda: bool(far.seen) and far.seen[0].binary == body[:1000])
        await raw.send(body[1000:])
        answer = await answer_of(raw)
        await raw.close()
    assert 200 == answer.status
    assert body == far.seen[0].binary


async def test_a_client_that_waits_to_be_told_to_go_on() -> None:
    """With "Expect: 100-continue" nothing of the body is sent before it is asked for."""
    async with Far() as far, near(lambda: HttpClient(far.url, ClientLimits())) as gateway:
        raw = await gateway.connect()
        head, body = request(("a", "UINT8", os.urandom(MIB)), headers=("Expect: 100-continue",))
        fields, _, text = head.partition(b"\r\n\r\n")
        await raw.send(fields + b"\r\n\r\n")
        async with asyncio.timeout(5):
            status, _ = await raw.head()
        await raw.send(text + body)
        answer = await answer_of(raw)
        await raw.close()
    assert 100 == status
    assert 200 == answer.status
    assert body == far.seen[0].binary


async def test_a_drain_that_is_over_ends_both_sides() -> None:
    """The client is told that the gateway stops; the upstream's connection is reset."""
    async with Far() as far, near(lambda: HttpClient(far.url, ClientLimits())) as gateway:
        raw = await gateway.connect()
        head, body = request(("a", "UINT8", os.urandom(MIB)))
        await raw.send(head + body[: 300 * 1024])
        await eventually(lambda: bool(far.seen))
        await gateway.server.drain(0.05)
        answer = await answer_of(raw)
        await raw.close()
        async with asyncio.timeout(5):
            await far.seen[0].end.wait()
    assert (503, "close") == (answer.status, answer.headers.get("connection"))
    assert far.seen[0].on_reset


async def test_a_client_that_leaves_is_counted() -> None:
    """Its call is observed as cancelled, as any that nobody waits for."""
    seen: list[CallRecord] = []
    async with (
        Far() as far,
        near(
            lambda: HttpClient(far.url, ClientLimits()),
            layer=lambda each: Observe(each, seen.append),
        ) as gateway,
    ):
        raw = await gateway.connect()
        head, body = request(("a", "UINT8", os.urandom(MIB)))
        await raw.send(head + body[: 300 * 1024])
        await eventually(lambda: bool(far.seen))
        raw.writer.transport.abort()
        await eventually(lambda: bool(seen))
    assert [("InferRequest", "cancelled")] == [(each.kind, each.code) for each in seen]


async def test_slow_senders_do_not_take_all_places() -> None:
    """Beyond a quarter of the places a request is received whole before it holds one."""
    async with (
        Far() as far,
        near(
            lambda: HttpClient(far.url, ClientLimits()),
            requests_in_flight=4,
            requests_per_address=4,
        ) as gateway,
    ):
        head, body = request(("a", "UINT8", os.urandom(MIB)))
        slow = await gateway.connect()
        await slow.send(head + body[:1000])
        await eventually(lambda: bool(far.seen))
        others = [await gateway.connect() for _ in range(3)]
        for other in others:
            await other.send(head + body[:1000])
        await asyncio.sleep(0.05)
        forwarded_count = len(far.seen)
        for other in others:
            await other.send(body[1000:])
        statuses = [(await answer_of(other)).status for other in others]
        await slow.send(body[1000:])
        statuses.append((await answer_of(slow)).status)
        for raw in (slow, *others):
            await raw.close()
    assert 1 == forwarded_count
    assert [200, 200, 200, 200] == statuses


class Stingy:
    """An HTTP/2 server that grants what the protocol begins with, and more only when told to."""

    def __init__(self) -> None:
        self.received = 0
        self.reset = False
        self.request_end = asyncio.Event()
        self.connection_end = asyncio.Event()
        self._writer: asyncio.StreamWriter
        self._server: asyncio.Server

    async def __aenter__(self) -> Stingy:  # noqa: PYI034
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_error: object) -> None:
        self._server.close()
        await self.connection_end.wait()

    @property
    def target(self) -> str:
        return f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def grant(self, size: int) -> None:
        """Let the client send *size* bytes more."""
        self._writer.write(frames.window_update(0, size) + frames.window_update(1, size))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        writer.write(frames.settings(()))
        try:
            await reader.readexactly(len(frames.PREFACE))
            while True:
                head = await reader.readexactly(9)
                payload = await reader.readexactly(int.from_bytes(head[:3], "big"))
                if head[3] == frames.DATA:
                    self.received += len(payload)
                if head[3] == frames.DATA and head[4] & frames.END_STREAM:
                    self.request_end.set()
                self.reset = self.reset or head[3] == frames.RST_STREAM
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.connection_end.set()
            writer.close()


def stingy_client(far: Stingy) -> Any:
    return near(
        lambda: GrpcClient(far.target, ClientLimits()),
        GrpcCodec(LIMITS, {"dialect": "triton"}),
    )


async def test_windows_hold_the_client_up() -> None:
    """What the server's windows do not let through stays with the client, until they do."""
    async with Stingy() as far, stingy_client(far) as gateway:
        raw = await gateway.connect()
        head, body = request(("a", "UINT8", bytes(48 * MIB)))
        sending = asyncio.ensure_future(raw.send(head + body))
        await eventually(lambda: far.received == 65_535)
        await asyncio.sleep(0.2)
        unsent, used_bytes = raw.writer.transport.get_write_buffer_size(), gateway.budget.used_bytes
        before = far.received
        far.grant(64 * MIB)
        async with asyncio.timeout(20):
            await sending
            await far.request_end.wait()
        raw.writer.transport.abort()
    assert 65_535 == before
    assert MIB >= used_bytes > 0
    assert unsent > 30 * MIB
    assert 48 * MIB < far.received < 49 * MIB


async def test_a_stream_is_reset_when_the_client_leaves() -> None:
    """The server is told with RST_STREAM, although its windows are shut and nothing is read."""
    async with Stingy() as far, stingy_client(far) as gateway:
        raw = await gateway.connect()
        head, body = request(("a", "UINT8", bytes(MIB)))
        await raw.send(head + body[:100_000])
        await eventually(lambda: far.received == 65_535)
        raw.writer.transport.abort()
        await eventually(lambda: far.reset)
    assert not far.request_end.is_set()


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_large_requests_hold_no_more_than_they_may() -> None:
    """At most a MiB for 16 MiB passed on; the budget for 32 bodies of 32 MiB, the rest refused."""
    messages: list[str] = []
    passed, buffered_row = resident.run(messages.append)
    assert passed.good, passed
    assert (resident.PASSED, 0) == (passed.answered, passed.refused)
    assert buffered_row.good, buffered_row
    assert buffered_row.answered * resident.KEPT_BYTES <= 512 * resident.MIB
    assert resident.KEPT == buffered_row.answered + buffered_row.refused
    assert buffered_row.refused
