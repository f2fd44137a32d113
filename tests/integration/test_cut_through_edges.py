"""Cut-through at its edges: TLS, drain, concurrency limits and small HTTP/2 windows."""

from __future__ import annotations

import asyncio
import os
import ssl
from typing import Any

import pytest
import trustme

from benchmarks import resident, systems
from gateway.policies.observe import Observe
from gateway.protocols.oip.grpc.codec import GrpcCodec
from gateway.telemetry.log.call_log import CallRecord
from gateway.transports.contract import ClientLimits
from gateway.transports.grpc.client import GrpcClient
from gateway.transports.http1.client import HttpClient
from gateway.transports.http2 import frames
from tests.integration.cut_kit import LIMITS, MIB, Far, near, request, response_of
from tests.integration.http_kit import Raw, eventually, stable


async def test_body_is_cut_through_under_tls() -> None:
    """A body received over TLS is forwarded as it arrives."""
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
        response = await response_of(raw)
        await raw.close()
    assert 200 == response.status
    assert body == far.seen[0].binary


async def test_expect_continue_precedes_a_cut_through_body() -> None:
    """With "Expect: 100-continue" the client gets 100 before it sends the body."""
    async with Far() as far, near(lambda: HttpClient(far.url, ClientLimits())) as gateway:
        raw = await gateway.connect()
        head, body = request(("a", "UINT8", os.urandom(MIB)), headers=("Expect: 100-continue",))
        fields, _, text = head.partition(b"\r\n\r\n")
        await raw.send(fields + b"\r\n\r\n")
        async with asyncio.timeout(20):
            status, _ = await raw.head()
        await raw.send(text + body)
        response = await response_of(raw)
        await raw.close()
    assert 100 == status
    assert 200 == response.status
    assert body == far.seen[0].binary


async def test_expired_drain_ends_both_connections() -> None:
    """The client gets 503 with `Connection: close`; the upstream connection is reset."""
    async with Far() as far, near(lambda: HttpClient(far.url, ClientLimits())) as gateway:
        raw = await gateway.connect()
        head, body = request(("a", "UINT8", os.urandom(MIB)))
        await raw.send(head + body[: 300 * 1024])
        await eventually(lambda: bool(far.seen))
        await gateway.server.drain(0.05)
        response = await response_of(raw)
        await raw.close()
        async with asyncio.timeout(20):
            await far.seen[0].end.wait()
    assert (503, "close") == (response.status, response.headers.get("connection"))
    assert far.seen[0].on_reset


async def test_client_disconnect_is_recorded_as_cancelled() -> None:
    """The call of a client that disconnects is recorded as cancelled."""
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


async def test_slow_senders_do_not_hold_all_slots() -> None:
    """Beyond a quarter of the slots a request is buffered whole before it gets one."""
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
        statuses = [(await response_of(other)).status for other in others]
        await slow.send(body[1000:])
        statuses.append((await response_of(slow)).status)
        for raw in (slow, *others):
            await raw.close()
    assert 1 == forwarded_count
    assert [200, 200, 200, 200] == statuses


class Stingy:
    """An HTTP/2 server that grants the initial windows, and more only on demand."""

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


async def test_closed_windows_pause_the_client() -> None:
    """Bytes that the upstream's windows do not admit stay with the client."""
    async with Stingy() as far, stingy_client(far) as gateway:
        raw = await gateway.connect()
        head, body = request(("a", "UINT8", bytes(48 * MIB)))
        sending = asyncio.ensure_future(raw.send(head + body))
        await eventually(lambda: far.received == 65_535)
        unsent = await stable(raw.writer.transport.get_write_buffer_size)
        used_bytes = gateway.budget.used
        before = far.received
        far.grant(64 * MIB)
        async with asyncio.timeout(45):
            await sending
            await far.request_end.wait()
        raw.writer.transport.abort()
    assert 65_535 == before
    assert MIB >= used_bytes > 0
    assert unsent > 30 * MIB
    assert 48 * MIB < far.received < 49 * MIB


async def test_client_disconnect_resets_a_blocked_stream() -> None:
    """The upstream gets RST_STREAM although its windows are closed."""
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
def test_large_requests_stay_within_their_memory() -> None:
    """16 MiB cut through hold a MiB; buffered bodies hold the budget, and the others wait for it."""
    messages: list[str] = []
    passed, buffered_row = resident.run(messages.append)
    assert passed.good, passed
    assert (resident.PASSED, 0) == (passed.answered, passed.refused)
    assert buffered_row.good, buffered_row
    assert resident.KEPT == buffered_row.answered + buffered_row.refused
    assert buffered_row.answered * resident.KEPT_BYTES >= 256 * resident.MIB


async def test_bodies_that_fill_the_budget_do_not_wait_for_each_other_for_ever() -> None:
    """Complete bodies that need a last reservation and half bodies end: served or rejected."""
    async with resident.Upstream() as upstream:
        server = {"url": f"oip+http://127.0.0.1:{upstream.port}", "options": {"dialect": "unknown"}}
        sections = {"upstreams": {"server": server}, "in_flight_bytes": "4MiB"}
        with systems.serving(sections, "native", {"cut_through_bytes": 0}) as running:
            request = resident.message(resident.MIB)
            upstream.reads.clear()
            asking = [
                asyncio.ensure_future(resident.request_status(running.http_port, request))
                for _ in range(24)
            ]
            await resident.resident_at_rest(running.pid)
            upstream.reads.set()
            statuses = await asyncio.gather(*asking)
    assert set(statuses) == {200, 503}
