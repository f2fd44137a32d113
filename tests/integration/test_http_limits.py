"""Every limit of the HTTP server, at its boundary, over real sockets with short limits."""

from __future__ import annotations

import asyncio
import gzip
import time
import zlib
from typing import Any

import pytest

from gateway.ir.errors import GatewayError
from gateway.transports.contract import HttpMount, MemoryBudget, ServerLimits
from gateway.transports.http1 import server_connection
from gateway.wire.http import Headers, HttpResponse
from tests.fakes import settle
from tests.integration.http_kit import (
    HTTP_MAKES,
    Answer,
    Echo,
    Raw,
    Running,
    Slow,
    eventually,
    parse,
    post,
    serving,
)

pytestmark = pytest.mark.usefixtures("http_makes")

CLOSE = "Connection: close"


async def fetch(running: Running, data: bytes) -> Answer:
    raw = await running.connect()
    try:
        await raw.send(data)
        return await raw.answer()
    finally:
        await raw.close()


def chunked(chunks: int, size: int = 1) -> bytes:
    head = b"POST /v2 HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
    return (
        head + b"".join(b"%x\r\n%s\r\n" % (size, b"x" * size) for _ in range(chunks)) + b"0\r\n\r\n"
    )


@pytest.mark.parametrize(("extra", "status"), [(0, 200), (1, 413)])
async def test_content_length_is_limited(extra: int, status: int) -> None:
    """A body of exactly the limit passes; one byte more is too large."""
    async with serving(Echo(), message_bytes=1000) as running:
        got = await fetch(running, post(b"x" * (1000 + extra)))
    assert got.status == status


async def test_client_that_still_sends_can_read_the_rejection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The connection is closed after a pause of the client, so that no reset hides the response."""
    # aiohttp ends it after a second, pauses or not.
    pause_s = 0.1 if HTTP_MAKES.server == "reference" else 0.25
    monkeypatch.setattr(server_connection, "_LINGER_S", 1.0)
    async with serving(Echo(), message_bytes=1000) as running:
        raw = await running.connect()
        await raw.send(post(b"", length=6000))
        for _ in range(6):
            await raw.send(bytes(1000))
            await asyncio.sleep(pause_s)
        data = await raw.rest()
        await raw.close()
    assert [413] == parse(data)


async def test_declared_length_is_rejected_before_the_body() -> None:
    """A declared 10 GiB is rejected without any byte of the body."""
    async with serving(Echo()) as running:
        data = await running.ask(post(b"", length=10 << 30))
    assert [413] == parse(data)
    assert b'"limit": "message_bytes"' in data


async def test_expect_continue_over_the_limit_is_413() -> None:
    """A client that expects 100 gets 413 alone."""
    async with serving(Echo()) as running:
        data = await running.ask(post(b"", "Expect: 100-continue", length=10 << 30))
    assert [413] == parse(data)


@pytest.mark.parametrize(("size", "status"), [(500, 200), (501, 413)])
async def test_chunked_body_size_is_limited(size: int, status: int) -> None:
    """Chunks are counted as they arrive."""
    async with serving(Echo(), message_bytes=1000) as running:
        got = await fetch(running, chunked(2, size))
    assert got.status == status


@pytest.mark.parametrize(("count", "status"), [(50, 200), (51, 413)])
async def test_chunk_count_is_limited(count: int, status: int) -> None:
    """More chunks than the limit are rejected, even small ones."""
    async with serving(Echo(), body_chunks=50) as running:
        got = await fetch(running, chunked(count))
    assert got.status == status


@pytest.mark.parametrize(("extra", "status"), [(0, 200), (1, 431)])
@pytest.mark.needs("readable_faults")
async def test_request_target_is_limited(extra: int, status: int) -> None:
    """The request target has a limit of its own."""
    async with serving(Echo(), header_line_bytes=200) as running:
        got = await fetch(running, post(b"", path="/v2/" + "x" * (196 + extra)))
    assert got.status == status


@pytest.mark.parametrize(("extra", "status"), [(0, 200), (1, 431)])
@pytest.mark.needs("readable_faults")
async def test_header_field_size_is_limited(extra: int, status: int) -> None:
    """A field has a limit for name and value, which may exceed that of the line."""
    async with serving(Echo(), header_line_bytes=200, header_field_bytes=500) as running:
        got = await fetch(running, post(b"", "X-Field: " + "x" * (493 + extra)))
    assert got.status == status


@pytest.mark.parametrize(("extra", "status"), [(0, 200), (1, 431)])
@pytest.mark.needs("readable_faults")
async def test_header_count_is_limited(extra: int, status: int) -> None:
    """Host and Content-Length count, too."""
    async with serving(Echo(), header_count=20) as running:
        got = await fetch(running, post(b"", *("X-A: b" for _ in range(18 + extra))))
        assert running.limits_hit == (["header_count"] if extra else [])
    assert got.status == status


@pytest.mark.parametrize(("extra", "status"), [(0, 200), (1, 431)])
async def test_header_total_is_limited(extra: int, status: int) -> None:
    """All fields have a common limit; Host and Content-Length take 9 + 21 bytes of it."""
    async with serving(Echo(), header_total_bytes=1000) as running:
        got = await fetch(running, post(b"", "X-A: " + "x" * (1000 - 28 - 7 + extra)))
    assert got.status == status


@pytest.mark.needs("readable_faults")
async def test_endless_head_is_rejected() -> None:
    """A head that keeps growing is rejected at the limit, before it ends."""
    async with serving(Echo(), header_total_bytes=4000) as running:
        fields = b"".join(b"X-%d: " % index + b"x" * 90 + b"\r\n" for index in range(60))
        data = await running.ask(b"GET /v2 HTTP/1.1\r\nHost: h\r\n" + fields)
    assert [431] == parse(data)


async def test_slow_head_times_out() -> None:
    """A head has one deadline, even when bytes keep arriving."""
    async with serving(Echo(), header_timeout_s=0.2) as running:
        raw = await running.connect()
        start = time.monotonic()
        drip = asyncio.create_task(_drip(raw, b"GET /v2 HTTP/1.1\r\nX-A: "))
        assert await raw.rest() == b""
        took = time.monotonic() - start
        await _end(drip)
        await raw.close()
        assert running.limits_hit == ["header_timeout_s"]
    assert took > 0.15


async def test_slow_second_head_times_out() -> None:
    """The deadline holds for each request; idle time between them does not count."""
    async with serving(Echo(), header_timeout_s=1.0) as running:
        raw = await running.connect()
        await raw.send(post(b"1"))
        assert (await raw.answer()).body == b"1"
        await asyncio.sleep(1.2)
        await raw.send(post(b"2"))
        assert (await raw.answer()).body == b"2"
        drip = asyncio.create_task(_drip(raw, b"GET /v2 HTTP/1.1\r\nX-A: "))
        assert await raw.rest() == b""
        await _end(drip)
        await raw.close()


async def _drip(raw: Raw, data: bytes) -> None:
    await raw.send(data)
    while True:
        await asyncio.sleep(0.03)
        await raw.send(b"x")


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize(
    ("limits", "limit"),
    [
        ({"body_idle_timeout_s": 0.15}, "body_idle_timeout_s"),
        ({"body_timeout_s": 0.15}, "body_timeout_s"),
        ({"body_min_rate_grace_s": 0.1, "body_min_rate_bytes_s": 100}, "body_min_rate_bytes_s"),
    ],
)
async def test_slow_body_is_408(limits: dict[str, Any], limit: str) -> None:
    """A body that stops, takes too long or is too slow gets 408, and the connection ends."""
    async with serving(Echo(), **limits) as running:
        data = await running.ask(post(b"x" * 5, length=100))
        assert [limit] == running.limits_hit
        assert running.budget.used == 0
    assert [408] == parse(data)


async def test_body_below_the_minimum_rate_is_408() -> None:
    """Bytes that keep arriving do not save a body below the minimum rate."""
    async with serving(Echo(), body_min_rate_grace_s=0.1, body_min_rate_bytes_s=1000) as running:
        raw = await running.connect()
        drip = asyncio.create_task(_drip(raw, post(b"", length=1000)))
        status, _ = await raw.head()
        await _end(drip)
        await raw.close()
    assert status == 408


@pytest.mark.parametrize(
    ("coding", "body", "status"),
    [
        ("br", b"x", 501),
        ("foo", b"x", 501),
        ("gzip, gzip", gzip.compress(b"x", mtime=0), 501),
        ("gzip", b"garbage", 400),
        ("gzip", gzip.compress(b"x", mtime=0)[:-4], 400),
        ("gzip", gzip.compress(b"x", mtime=0) + b"more", 400),
        ("deflate", zlib.compress(b"x")[:-1], 400),
        ("gzip", b"", 400),
        ("identity", b"x", 200),
        ("gzip", gzip.compress(b"x" * 1000, mtime=0), 200),
        ("gzip", gzip.compress(b"x" * 1001, mtime=0), 413),
    ],
)
async def test_content_codings_are_decoded_or_rejected(
    coding: str, body: bytes, status: int
) -> None:
    """Unknown, doubled, invalid, truncated and overlong codings are rejected; valid ones pass."""
    async with serving(Echo(), message_bytes=1000) as running:
        got = await fetch(running, post(body, f"Content-Encoding: {coding}"))
    assert got.status == status
    assert got.headers.get("accept-encoding") == ("gzip, deflate" if status == 501 else None)


async def test_decompression_ratio_is_limited() -> None:
    """A small body that inflates over 200 times past 1 MiB is rejected."""
    async with serving(Echo()) as running:
        got = await fetch(running, post(gzip.compress(bytes(8 << 20)), "Content-Encoding: gzip"))
    assert (got.status, got.json["limit"]) == (413, "decompressed_ratio")


async def test_body_over_the_memory_budget_is_503() -> None:
    """A body over the free budget waits a moment, then gets 503 with Retry-After."""
    async with serving(Slow(), budget_bytes=1000, queue_wait_s=0.1) as running:
        holder = await running.connect()
        await holder.send(post(b"x" * 900))
        await eventually(lambda: running.budget.used >= 900)
        start = time.monotonic()
        got = await fetch(running, post(b"x" * 200))
        took = time.monotonic() - start
        await holder.close()
    assert (got.status, got.headers.get("retry-after")) == (503, "1")
    assert got.json["limit"] == "in_flight_bytes"
    assert took > 0.05


async def test_a_request_without_a_body_waits_for_memory_too() -> None:
    """It is served when there is some, and is not taken for a body that arrives."""
    slow = Slow()
    async with serving(slow, budget_bytes=1000, queue_wait_s=30.0) as running:
        holder = await running.connect()
        await holder.send(post(b"x" * 900))
        await eventually(lambda: running.budget.used >= 900)
        rest = 1000 - running.budget.used
        assert running.budget.try_acquire(rest)
        asking = asyncio.create_task(fetch(running, b"GET /v2/x HTTP/1.1\r\nHost: x\r\n\r\n"))
        await eventually(lambda: running.budget.queued == 1)
        slow.go.set()
        got = await asking
        running.budget.release(rest)
        await holder.close()
    assert 200 == got.status


class Patient(Slow):
    """Sends Retry-After itself, as the codecs do."""

    def reject(self, error: GatewayError, /) -> HttpResponse:
        """Refuse with the header of the protocol."""
        refused = super().reject(error)
        headers = Headers((*refused.headers.pairs, ("Retry-After", "1")))
        return HttpResponse(refused.status, headers, refused.body)


async def test_retry_after_is_sent_once() -> None:
    """The transport adds the header only where the protocol's own rejection lacks it."""
    async with serving(Patient(), budget_bytes=1000, queue_wait_s=0.1) as running:
        holder = await running.connect()
        await holder.send(post(b"x" * 900))
        await eventually(lambda: running.budget.used >= 900)
        got = await fetch(running, post(b"x" * 200))
        await holder.close()
    assert ["1"] == [value for name, value in got.headers.pairs if name.lower() == "retry-after"]


async def test_inflated_bytes_count_in_the_budget() -> None:
    """The memory budget counts the inflated size of a body."""
    async with serving(Echo(), budget_bytes=1000, queue_wait_s=0.01) as running:
        got = await fetch(running, post(gzip.compress(b"x" * 2000), "Content-Encoding: gzip"))
    assert (got.status, got.json["limit"]) == (503, "in_flight_bytes")


async def test_requests_in_flight_and_queued_are_limited() -> None:
    """Over the slots a request waits; over the queue, or past the wait, it is rejected."""
    slow = Slow()
    async with serving(slow, requests_in_flight=1, requests_queued=1, queue_wait_s=2.0) as running:
        raws = [await running.connect() for _ in range(3)]
        await raws[0].send(post(b""))
        await slow.started.wait()
        await raws[1].send(post(b""))
        waits = asyncio.create_task(raws[1].answer())
        await eventually(lambda: running.server._listener.slots.queued == 1)
        await raws[2].send(post(b""))
        third = await raws[2].answer()
        is_second = not waits.done()
        second = await waits
        slow.go.set()
        first = await raws[0].answer()
        for raw in raws:
            await raw.close()
    assert [200, 503, 503] == [first.status, second.status, third.status]
    assert is_second  # the third was refused at once
    assert third.json["limit"] == "requests_in_flight"


async def test_queued_request_gets_a_free_slot() -> None:
    """A waiting request is served once a slot is free."""
    slow = Slow()
    async with serving(slow, requests_in_flight=1, queue_wait_s=60) as running:
        one, two = await running.connect(), await running.connect()
        await one.send(post(b""))
        await slow.started.wait()
        await two.send(post(b""))
        await eventually(lambda: running.server._listener.slots.queued == 1)
        assert slow.running == 1
        slow.go.set()
        assert [200, 200] == [(await one.answer()).status, (await two.answer()).status]
        await one.close()
        await two.close()


@pytest.mark.parametrize("limit", ["connections", "connections_per_address"])
async def test_connections_are_limited(limit: str) -> None:
    """One over the limit gets 503 and is closed; a closed one makes room for another."""
    limits: dict[str, Any] = {limit: 2}
    async with serving(Echo(), **limits) as running:
        connections = [await running.connect() for _ in range(2)]
        for raw in connections:
            await raw.send(post(b"x"))
            assert (await raw.answer()).status == 200
        refused = await running.ask(post(b"too many"))
        assert refused.startswith(b"HTTP/1.1 503 ")
        assert b"\r\nRetry-After: 1\r\nConnection: close\r\n" in refused
        assert limit.encode() in refused
        assert running.limits_hit == [limit]
        await connections.pop().close()

        async def is_served() -> bool:
            return (await fetch(running, post(b"y"))).status == 200

        await eventually(is_served)
        await connections.pop().close()


async def test_idle_connection_is_closed() -> None:
    """A kept connection is closed after `keepalive_s`."""
    async with serving(Echo(), keepalive_s=0.2) as running:
        raw = await running.connect()
        await raw.send(post(b"x"))
        await raw.answer()
        start = time.monotonic()
        assert await raw.rest() == b""
        await raw.close()
    assert time.monotonic() - start > 0.1


async def test_unread_response_is_cut() -> None:
    """A response that is not read is aborted, and its memory is released."""
    body = b"x" * (16 << 20)
    async with serving(Echo(), write_idle_timeout_s=0.3) as running:
        raw = await running.connect()
        await raw.send(post(body))
        await eventually(lambda: running.budget.used > 0)
        await eventually(lambda: running.budget.used == 0)
        assert running.limits_hit == ["write_idle_timeout_s"]
        await raw.close()


async def test_slow_reader_gets_the_whole_response() -> None:
    """Any progress keeps a connection past many write timeouts."""
    body = b"x" * (16 << 20)
    async with serving(Echo(), write_idle_timeout_s=0.8) as running:
        raw = await running.connect()
        await raw.send(post(body))
        _, headers = await raw.head()
        remaining = int(headers.get("content-length") or 0)
        for _ in range(10):
            remaining -= len(await raw.reader.readexactly(1 << 20))
            await asyncio.sleep(0.2)
        remaining -= len(await raw.reader.readexactly(remaining))
        await raw.close()
        assert (remaining, running.limits_hit) == (0, [])


@pytest.mark.needs("pipelining")
async def test_pipelining_is_limited() -> None:
    """Behind a busy request a limited number of requests is read ahead."""
    slow = Slow()
    async with serving(slow, pipelined_requests=4) as running:
        raw = await running.connect()
        await raw.send(post(b"") * 100)
        await slow.started.wait()
        await settle()
        (connection,) = running.server.open_connections
        assert connection.in_flight <= 6
        slow.go.set()
        for _ in range(100):
            assert (await raw.answer()).status == 200
        await raw.close()


@pytest.mark.parametrize(("reserve", "statuses"), [(True, [200]), (False, [])])
async def test_reserved_server_accepts_when_descriptors_are_short(
    reserve: bool, statuses: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last tenth of the descriptors is reserved for the server of operators."""
    short = "gateway.transports.connection_count.descriptors_short"
    monkeypatch.setattr(short, lambda _sock: True)
    server = HTTP_MAKES.http_server(
        mounts=[HttpMount(("/v2",), Echo())],
        limits=ServerLimits(),
        budget=MemoryBudget(1 << 20),
        reserve=reserve,
    )
    await server.start()
    try:
        found = await Running(server, MemoryBudget(0)).ask(post(b"", "Connection: close"))
    finally:
        await server.stop()
    assert statuses == parse(found)
