"""Plain HTTP requests over HTTP/2, on the port of HTTP/1: bodies, limits, errors, endings."""

from __future__ import annotations

import asyncio
import gzip
import ssl

import pytest
import trustme

from gateway.transports.http2.flood_control import EARLY_RESET_S
from gateway.transports.http2.frames import PREFACE
from gateway.wire.http import size_of
from tests.integration.http2_kit import H2Client, h2_client
from tests.integration.http_kit import (
    HTTP_MAKES,
    Echo,
    Parts,
    Raw,
    Slow,
    eventually,
    post,
    serving,
)

MIB = 1 << 20
PROTOCOL_ERROR, NO_ERROR, ENHANCE_YOUR_CALM = 1, 0, 11


@pytest.fixture(autouse=True)
def native() -> None:
    """Serve with the native implementation, the only one with HTTP/2."""
    HTTP_MAKES.server = "native"


async def test_both_versions_are_served_on_one_port() -> None:
    """A port of HTTP/1 also serves HTTP/2 with prior knowledge."""
    echo = Echo()
    async with serving(echo) as running:
        assert b"HTTP/1.1 200" in await running.ask(post(b"one", "Connection: close"))
        async with h2_client(running.server.address) as client:
            response = await client.ask("POST", "/v2/x?a=1", b"two", [("x-own", "1")])
    assert (200, b"two") == (response.status, bytes(response.body))
    expected = {"x-path": "/v2/x", "x-request-id": "an-id", "content-length": "3"}
    assert expected.items() <= response.headers.items()
    assert "date" in response.headers
    wire = echo.seen[1]
    assert ("POST", "/v2/x", "a=1") == (wire.method, wire.path, wire.query)
    assert ["a", "1"] == [wire.headers.get("host"), wire.headers.get("x-own")]


async def test_preface_in_single_bytes_is_recognised() -> None:
    """The preface may arrive byte by byte."""
    async with serving(Echo()) as running:
        raw = await running.connect()
        for byte in PREFACE + bytes(3) + b"\x04" + bytes(5):
            await raw.send(bytes((byte,)))
        assert b"\x04" == (await raw.reader.readexactly(9))[3:4]
        await raw.close()


async def test_incomplete_preface_times_out() -> None:
    """A client that stops within the preface is cut, as one with a slow HTTP/1 head."""
    async with serving(Echo(), header_timeout_s=0.1) as running:
        raw = await running.connect()
        await raw.send(PREFACE[:10])
        assert b"" == await raw.rest()
        await raw.close()
    assert ["header_timeout_s"] == running.limits_hit


@pytest.mark.parametrize("sized", [True, False], ids=["with_length", "without_length"])
@pytest.mark.parametrize("size", [1, 65_535, 65_536, 3 * MIB])
async def test_bodies_of_any_size_are_echoed(size: int, sized: bool) -> None:
    """Small bodies arrive with their heads, large ones as the windows are updated."""
    echo = Echo()
    body = bytes(range(256)) * (size // 256 + 1)
    async with serving(echo) as running, h2_client(running.server.address) as client:
        for _ in range(2):
            response = await client.ask("POST", "/v2", body[:size], sized=sized)
            assert 200 == response.status
            assert body[:size] == bytes(response.body)


async def test_streams_are_served_concurrently() -> None:
    """Requests of one connection are served concurrently."""
    async with serving(Echo()) as running, h2_client(running.server.address) as client:
        bodies = [bytes([number]) * (1000 * number + 1) for number in range(50)]
        responses = await asyncio.gather(*(client.ask("POST", "/v2", body) for body in bodies))
    assert bodies == [bytes(response.body) for response in responses]


async def test_slow_request_does_not_delay_others() -> None:
    """Responses may be sent in any order."""
    slow = Slow()
    async with serving(slow) as running, h2_client(running.server.address) as client:
        number = client.begin("GET", "/v2", end=True)
        await slow.started.wait()
        assert 404 == (await client.ask("GET", "/else")).status
        slow.go.set()
        assert b"slow" == bytes((await client.answer(number)).body)


async def test_head_has_no_body() -> None:
    """Content-Length is that of the response to GET."""
    async with serving(Echo()) as running, h2_client(running.server.address) as client:
        response = await client.ask("HEAD", "/v2/x")
    assert (200, b"", "0") == (
        response.status,
        bytes(response.body),
        response.headers["content-length"],
    )


async def test_parts_are_sent_as_they_are_made() -> None:
    """The stream ends after the last part."""
    parts = Parts()
    async with serving(parts) as running, h2_client(running.server.address) as client:
        number = client.begin("POST", "/v2", end=True)
        await parts.parts.put(b"a")
        response = client.answers[number]
        await eventually(lambda: bytes(response.body) == b"a")
        for part in (b"b", None):
            await parts.parts.put(part)
        assert b"ab" == bytes((await client.answer(number)).body)
    assert "content-length" not in response.headers


async def test_failing_stream_is_reset() -> None:
    """A response that fails after its start is reset."""
    parts = Parts(fail=True)
    async with serving(parts) as running, h2_client(running.server.address) as client:
        number = client.begin("POST", "/v2", end=True)
        for part in (b"a", b"b"):
            await parts.parts.put(part)
        await eventually(lambda: bytes(client.answers[number].body) == b"ab")
        await parts.parts.put(None)
        assert (await client.answer(number)).reset is not None


async def test_reset_stream_cancels_its_request() -> None:
    """The frontend is cancelled; the connection stays usable."""
    slow = Slow()
    async with serving(slow) as running, h2_client(running.server.address) as client:
        number = client.begin("GET", "/v2", end=True)
        await slow.started.wait()
        client.reset(number)
        await slow.end.wait()
        assert slow.cancelled
        assert 404 == (await client.ask("GET", "/else")).status


async def test_client_disconnect_cancels_all_requests() -> None:
    """A lost connection cancels its requests and releases their memory."""
    slow = Slow()
    async with serving(slow) as running:
        async with h2_client(running.server.address) as client:
            client.begin("GET", "/v2", end=True)
            await slow.started.wait()
            client.begin("POST", "/v2", [("content-length", "1000000")])
        await slow.end.wait()
        await eventually(lambda: running.budget.used == 0)


@pytest.mark.parametrize("sized", [True, False], ids=["with_length", "without_length"])
async def test_body_over_the_limit_is_413(sized: bool) -> None:
    """It is rejected by its length, or as soon as it exceeds the limit."""
    async with (
        serving(Echo(), message_bytes=100_000) as running,
        h2_client(running.server.address) as client,
    ):
        response = await client.ask("POST", "/v2", bytes(400_000), sized=sized)
        assert 413 == response.status or b"limit" in response.body
        assert b"message_bytes" in response.body
        assert 200 == (await client.ask("POST", "/v2", b"next")).status


async def test_stalled_body_is_408() -> None:
    """A slow sender gets 408, and the connection stays usable."""
    async with (
        serving(Echo(), body_idle_timeout_s=0.1) as running,
        h2_client(running.server.address) as client,
    ):
        number = client.begin("POST", "/v2", [("content-length", "10")])
        response = await client.answer(number)
        assert 408 == response.status
        assert 200 == (await client.ask("POST", "/v2", b"next")).status
    assert ["body_idle_timeout_s"] == running.limits_hit


async def test_unread_response_is_reset() -> None:
    """A response that the client does not read is reset after the write timeout."""
    async with (
        serving(Echo(), write_idle_timeout_s=0.2) as running,
        h2_client(running.server.address) as client,
    ):
        client.reads = False
        response = await client.ask("POST", "/v2", bytes(MIB))
        assert response.reset is not None
    assert len(response.body) < MIB


async def test_slow_reader_gets_the_whole_response() -> None:
    """A response waits for its client's windows, and its memory is reserved until then."""
    async with serving(Echo()) as running, h2_client(running.server.address) as client:
        client.reads = False
        number = client.begin("POST", "/v2", [("content-length", str(MIB))])
        await client.send(number, bytes(MIB))
        response = client.answers[number]
        size = 0
        while not response.end.is_set():
            await eventually(lambda: len(response.body) > size or response.end.is_set())  # noqa: B023
            if response.end.is_set():
                break
            client.acknowledge(number, len(response.body) - size)
            size = len(response.body)
        assert MIB == len(response.body)
        await eventually(lambda: running.budget.used == 0)


async def test_compressed_body_is_decoded() -> None:
    """Content codings are decoded; an invalid one is 400."""
    echo = Echo()
    async with serving(echo) as running, h2_client(running.server.address) as client:
        packed = gzip.compress(bytes(1000))
        response = await client.ask("POST", "/v2", packed, [("content-encoding", "gzip")])
        bad = await client.ask("POST", "/v2", b"no gzip", [("content-encoding", "gzip")])
    assert (200, 1000, 400) == (response.status, size_of(echo.seen[0].body), bad.status)


async def test_expect_continue_gets_100() -> None:
    """A client that expects 100 gets it before it sends the body."""
    async with serving(Echo()) as running, h2_client(running.server.address) as client:
        fields = [("expect", "100-continue"), ("content-length", "3")]
        number = client.begin("POST", "/v2", fields)
        await eventually(lambda: client.answers[number].interim == [100])
        await client.send(number, b"abc")
        assert b"abc" == bytes((await client.answer(number)).body)


@pytest.mark.parametrize(
    ("fields", "authority", "status"),
    [
        ([("host", "b")], "a", 400),
        ([("host", "a")], "a", 200),
        ([("host", "a")], None, 200),
        ([], None, 400),
        ([("x" * 10, "y" * 70_000)], "a", 431),
        ([(f"x-{number}", "") for number in range(101)], "a", 431),
    ],
    ids=["other_host", "same_host", "host_alone", "no_host", "large_field", "many_fields"],
)
async def test_header_rules_of_http_1_apply(
    fields: list[tuple[str, str]], authority: str | None, status: int
) -> None:
    """An invalid head gets its status, and the connection stays usable."""
    async with serving(Echo()) as running, h2_client(running.server.address) as client:
        number = client.begin("GET", "/v2", fields, authority=authority, end=True)
        assert status == (await client.answer(number)).status
        assert 200 == (await client.ask("GET", "/v2")).status


@pytest.mark.parametrize(
    "fields",
    [
        [("connection", "close")],
        [("transfer-encoding", "chunked")],
        [("te", "gzip")],
        [("content-length", "x")],
        [("content-length", "5")],
        [("X-Upper", "1")],
    ],
    ids=lambda fields: str(fields[0][0]) + fields[0][1],
)
async def test_malformed_request_resets_the_stream(fields: list[tuple[str, str]]) -> None:
    """RFC 9113 8.1.1: a malformed request is a stream error."""
    echo = Echo()
    async with serving(echo) as running, h2_client(running.server.address) as client:
        number = client.begin("POST", "/v2", fields, end=True)
        assert PROTOCOL_ERROR == (await client.answer(number)).reset
        assert [] == echo.seen
        assert 200 == (await client.ask("GET", "/v2")).status


async def test_body_of_another_length_resets_the_stream() -> None:
    """It does not reach the frontend."""
    echo = Echo()
    async with serving(echo) as running, h2_client(running.server.address) as client:
        for size in (2, 4):
            number = client.begin("POST", "/v2", [("content-length", "3")])
            await client.send(number, bytes(size))
            assert PROTOCOL_ERROR == (await client.answer(number)).reset
    assert [] == echo.seen


async def test_rejected_requests_do_not_refill_the_flood_budget() -> None:
    """Requests to unknown paths do not pay for resets of others."""
    async with serving(Slow()) as running, h2_client(running.server.address) as client:
        for _ in range(60):
            numbers = [client.begin("GET", "/nowhere", end=True) for _ in range(10)]
            for number in numbers:
                await client.answer(number)
                client.reset(client.begin("GET", "/v2", end=True))
            if client.over.is_set():
                break
        await asyncio.wait_for(client.over.wait(), 20)
    assert ENHANCE_YOUR_CALM in [code for _, code in client.goaways]


async def test_cancelled_requests_leave_the_stream_of_a_neighbour() -> None:
    """300 requests that their clients leave in the middle are no attack."""
    slow = Slow()
    async with (
        serving(
            slow, h2_streams=1000, requests_in_flight=1000, requests_per_address=1000
        ) as running,
        h2_client(running.server.address) as client,
    ):
        neighbour = client.begin("GET", "/v2", end=True)
        numbers = [client.begin("GET", "/v2", end=True) for _ in range(300)]
        assert 404 == (await client.ask("GET", "/else")).status
        await asyncio.sleep(2 * EARLY_RESET_S)
        for number in numbers:
            client.reset(number)
        assert 404 == (await client.ask("GET", "/else")).status
        slow.go.set()
        assert b"slow" == bytes((await client.answer(neighbour)).body)
    assert [] == client.goaways


async def test_cookie_fields_are_joined() -> None:
    """RFC 9113 8.2.3: HTTP/1 has one Cookie field."""
    echo = Echo()
    async with serving(echo) as running, h2_client(running.server.address) as client:
        await client.ask("GET", "/v2", fields=[("cookie", "a=1"), ("cookie", "b=2")])
    assert "a=1; b=2" == echo.seen[0].headers.get("cookie")


async def test_grpc_call_on_an_http_port_is_unimplemented() -> None:
    """A gRPC call on a port of HTTP alone gets a gRPC status with the reason."""
    async with serving(Echo()) as running, h2_client(running.server.address) as client:
        fields = [("content-type", "application/grpc"), ("te", "trailers")]
        response = await client.ask("POST", "/v2", bytes(5), fields)
    assert ("12", "this address serves HTTP and no gRPC") == (
        response.headers["grpc-status"],
        response.headers["grpc-message"],
    )


async def test_drain_finishes_requests_in_flight() -> None:
    """GOAWAY and the response are sent, then the connection ends."""
    slow = Slow()
    async with serving(slow) as running, h2_client(running.server.address) as client:
        number = client.begin("GET", "/v2", end=True)
        await slow.started.wait()
        draining = asyncio.create_task(running.server.drain(5))
        await eventually(lambda: bool(client.goaways))
        slow.go.set()
        assert b"slow" == bytes((await client.answer(number)).body)
        await asyncio.wait_for(client.over.wait(), 20)
        await draining
    assert all(code == NO_ERROR for _, code in client.goaways)


async def test_drain_cancels_requests_that_take_too_long() -> None:
    """A request that exceeds the drain time gets 503."""
    slow = Slow()
    async with serving(slow) as running, h2_client(running.server.address) as client:
        number = client.begin("GET", "/v2", end=True)
        await slow.started.wait()
        await running.server.drain(0.3)
        assert 503 == (await client.answer(number)).status
        assert slow.cancelled


async def test_connection_limit_counts_both_versions() -> None:
    """The limit holds for the port; a rejected connection gets 503."""
    async with serving(Echo(), connections=2) as running:
        connection = await running.connect()
        async with h2_client(running.server.address) as first:
            assert 200 == (await first.ask("GET", "/v2")).status
            raw = await running.connect()
            assert b"HTTP/1.1 503" in await raw.rest()
            await raw.close()
        await connection.close()
        async with h2_client(running.server.address) as again:
            assert 200 == (await again.ask("GET", "/v2")).status
    assert ["connections"] == running.limits_hit


@pytest.mark.parametrize("offered", [["h2"], ["http/1.1"], ["h2", "http/1.1"], None])
async def test_tls_negotiates_the_version(offered: list[str] | None) -> None:
    """ALPN selects HTTP/2 where the client offers it, and HTTP/1 otherwise."""
    authority = trustme.CA()
    server_side = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_side.set_alpn_protocols(["h2", "http/1.1"])
    authority.issue_cert("127.0.0.1").configure_cert(server_side)
    client_side = ssl.create_default_context()
    authority.configure_trust(client_side)
    if offered is not None:
        client_side.set_alpn_protocols(offered)
    async with serving(Echo(), ssl_context=server_side) as running:
        if offered and "h2" in offered:
            async with h2_client(running.server.address, client_side) as client:
                assert "h2" == _alpn_protocol(client)
                assert 200 == (await client.ask("POST", "/v2", bytes(200_000))).status
        else:
            raw = Raw(*await asyncio.open_connection("127.0.0.1", running.port, ssl=client_side))
            await raw.send(post(b"one", "Connection: close"))
            assert b"HTTP/1.1 200" in await raw.rest()
            await raw.close()


def _alpn_protocol(client: H2Client) -> str | None:
    handshake: ssl.SSLObject = client.writer.get_extra_info("ssl_object")
    return handshake.selected_alpn_protocol()
