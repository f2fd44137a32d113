"""The port of a byte stream also serves HTTP and gRPC: the first bytes show the protocol."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import trustme

from gateway.ir.errors import GatewayError
from gateway.ir.limits import MessageLimits
from gateway.protocols.grps.brpc.framing import looks_like, server_framer
from gateway.transports.connection_count import ConnectionCount
from gateway.transports.contract import (
    ClientLimits,
    GrpcFrontend,
    GrpcMount,
    HttpFrontend,
    HttpMount,
    ServerLimits,
)
from gateway.transports.grpc.client import GrpcClient
from gateway.transports.http2.frames import PREFACE, may_be_http2, settings
from gateway.transports.memory_budget import MemoryBudget
from gateway.transports.net.tls_files import Authorities, TlsContext
from gateway.transports.reference.http_server import HttpServer
from gateway.transports.stream.protocol_sniffing import (
    SharedPortProtocols,
    may_be_http,
)
from gateway.transports.stream.server import StreamServer
from gateway.wire.grpc import GrpcRequest, GrpcResponse, GrpcStatus, MethodKind
from gateway.wire.http import Headers, HttpRequest, HttpResponse
from gateway.wire.stream import Frame
from tests.cases import brpc_oracle as oracle
from tests.integration.grpc_echo import UNARY, Answers, echo
from tests.integration.grpc_echo import Slow as GrpcSlow
from tests.integration.http_kit import Raw, eventually, post
from tests.integration.stream_kit import MOST, Echo, Slow
from tests.integration.test_stream_tls import contexts

BODY = b"hello"
FRAME = oracle.Question("Predict", BODY).bytes(7)


async def frame_of(raw: Raw) -> bytes:
    """Return the body of the next frame."""
    header = await raw.reader.readexactly(12)
    assert header[:4] == b"PRPC"
    return await raw.reader.readexactly(int.from_bytes(header[4:8], "big"))


class SlowFrames(Slow):
    """Responds to each frame with itself, once its event is set."""

    async def __call__(self, wire: Frame, /) -> AsyncGenerator[Frame, None]:
        async for _ in super().__call__(wire):
            yield Frame(wire.payload)

    def reject(self, _error: GatewayError, /) -> Frame:
        """Return a message that the framer can write."""
        return Frame((FRAME,))


class SlowHttp(HttpFrontend):
    """Responds to each request, once `go` is set."""

    def __init__(self) -> None:
        self.arrival = asyncio.Event()
        self.go = asyncio.Event()
        self.cancelled = asyncio.Event()

    async def __call__(self, _wire: HttpRequest, /) -> AsyncGenerator[HttpResponse, None]:
        self.arrival.set()
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        yield HttpResponse(200, Headers(()), (b"late",))

    def reject(self, error: GatewayError, /) -> HttpResponse:
        return HttpResponse(503, Headers(()), (error.message.encode(),))


class PromptHttp(SlowHttp):
    """Responds with the path."""

    async def __call__(self, wire: HttpRequest, /) -> AsyncGenerator[HttpResponse, None]:
        yield HttpResponse(200, Headers(()), (wire.path.encode(),))


@dataclass
class Port:
    """A port of both."""

    server: StreamServer
    count: ConnectionCount
    refused: list[GatewayError] = field(default_factory=list)

    async def connect(self, tls: ssl.SSLContext | None = None) -> Raw:
        address = self.server.address
        if address.startswith("unix:"):
            return Raw(*await asyncio.open_unix_connection(address.removeprefix("unix:")))
        host, _, port = address.rpartition(":")
        return Raw(*await asyncio.open_connection(host, int(port), ssl=tls))


@asynccontextmanager
async def both(
    frames: Any,
    http: Any,
    address: str = "127.0.0.1:0",
    ssl_context: ssl.SSLContext | None = None,
    calls: GrpcFrontend | None = None,
    **changed: Any,
) -> AsyncIterator[Port]:
    limits, budget = ServerLimits(**changed), MemoryBudget(1 << 30)
    count = ConnectionCount(limits.connections, limits.connections_per_address)
    refused: list[GatewayError] = []
    beside = HttpServer(
        mounts=[HttpMount(("/v2",), http)],
        limits=limits,
        budget=budget,
        on_reject=refused.append,
        listens=False,
        count=count,
        grpc=[GrpcMount({UNARY: MethodKind.UNARY}, Answers(echo) if calls is None else calls)],
    )
    connections = ((may_be_http, beside.connection), (may_be_http2, beside.http2_connection))
    server = StreamServer(
        address,
        lambda: server_framer(MessageLimits(message_bytes=MOST)),
        frames,
        limits=limits,
        budget=budget,
        ordered=False,
        tls=None if ssl_context is None else TlsContext(ssl_context),
        on_reject=refused.append,
        beside=SharedPortProtocols(looks_like, connections, (beside,), count),
    )
    await server.start()
    try:
        yield Port(server, count, refused)
    finally:
        await server.stop()
    assert (0, 0) == (budget.used, count.total)


@pytest.fixture(params=["tcp", "unix"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where to listen, on either carrier."""
    return f"unix:{tmp_path}/s" if request.param == "unix" else "127.0.0.1:0"


@pytest.mark.parametrize(
    ("first", "expected"),
    [
        (b"G", True),
        (b"POST /x HTTP/1.1", True),
        (b"P", True),
        (b"PR", False),
        (b"GETS", False),
        (b"get ", False),
        (b"PRI * HTTP/2.0", False),
        (b"\x16\x03\x01", False),
        (b"STRM", False),
    ],
)
def test_http_is_detected_by_its_methods(first: bytes, expected: bool) -> None:
    """Bytes that begin no HTTP method are not HTTP."""
    assert expected is may_be_http(first)


@pytest.mark.parametrize(
    ("first", "expected"),
    [
        (b"P", True),
        (b"PRI * HTTP/2.0\r\n", True),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0", True),
        (b"PRP", False),
        (b"PRI * HTTP/1.1", False),
        (b"GET ", False),
    ],
)
def test_http2_is_detected_by_its_preface(first: bytes, expected: bool) -> None:
    """Any prefix of the preface matches."""
    assert expected is may_be_http2(first)


async def test_connections_choose_their_protocol(address: str) -> None:
    """One port serves frames and HTTP on different connections, repeatedly."""
    async with both(Echo(), PromptHttp(), address) as port:
        framed, http = await port.connect(), await port.connect()
        for _ in range(2):
            await framed.send(FRAME)
            assert BODY in await frame_of(framed)
            await http.send(post(b"{}", path="/v2/x"))
            assert (200, b"/v2/x") == ((response := await http.answer()).status, response.body)
        await framed.close()
        await http.close()
        await eventually(lambda: port.count.total == 0)


@pytest.mark.parametrize("sent", [FRAME, post(b"{}", path="/v2/x")], ids=["frame", "http"])
async def test_protocol_is_detected_from_single_bytes(sent: bytes) -> None:
    """P begins both protocols; later bytes decide, and no byte is lost."""
    async with both(Echo(), PromptHttp()) as port:
        raw = await port.connect()
        for byte in sent:
            await raw.send(bytes([byte]))
            await asyncio.sleep(0)
        if sent is FRAME:
            assert BODY in await frame_of(raw)
        else:
            assert 200 == (await raw.answer()).status
        await raw.close()


@pytest.mark.parametrize(
    "sent",
    [b"STRM" + bytes(8), b"\x16\x03\x01\x02\x00", b"PRI * HTTP/3.0\r\n\r\nSM\r\n\r\n", b"prpc"],
    ids=["streaming", "tls", "http3", "lower case"],
)
async def test_unknown_protocol_is_closed_silently(sent: bytes) -> None:
    """As brpc does."""
    frames = Echo()
    async with both(frames, PromptHttp()) as port:
        raw = await port.connect()
        await raw.send(sent)
        assert b"" == await raw.rest()
        await raw.close()
    assert [] == frames.seen


@pytest.mark.parametrize("sent", [b"", b"P", b"PO"], ids=["nothing", "either", "half a method"])
async def test_undetected_protocol_times_out(sent: bytes) -> None:
    """A connection whose protocol is unclear is closed after `header_timeout_s`."""
    async with both(Echo(), PromptHttp(), header_timeout_s=0.1) as port:
        raw = await port.connect()
        await raw.send(sent)
        async with asyncio.timeout(20):
            assert b"" == await raw.rest()
        await raw.close()
    assert ["header_timeout_s"] == [error.limit for error in port.refused]


async def test_undetected_connection_that_closes_is_released(address: str) -> None:
    """A connection that ends before its protocol is detected leaves nothing."""
    async with both(Echo(), PromptHttp(), address) as port:
        raw = await port.connect()
        await raw.send(b"P")
        await eventually(lambda: port.count.total == 1)
        await raw.close()
        await eventually(lambda: port.count.total == 0)
    assert [] == port.refused


async def test_connection_limit_counts_all_protocols() -> None:
    """The limit holds for the port; each protocol gets its own form of rejection."""
    frames = SlowFrames()
    async with both(frames, SlowHttp(), connections=3) as port:
        framed, http, silent = [await port.connect() for _ in range(3)]
        await framed.send(FRAME)
        await http.send(post(b"{}", path="/v2/x"))
        await silent.send(b"P")
        await eventually(lambda: port.count.total == 3 and bool(frames.waiting))
        for sent, response in (
            (FRAME, b"PRPC"),
            (post(b"{}", path="/v2/x"), b"HTTP/1.1 503 "),
            (PREFACE, settings(()) + b"\0"),
        ):
            late = await port.connect()
            await late.send(sent)
            assert (await late.rest()).startswith(response)
            await late.close()
        late = await port.connect()
        assert b"" == await late.rest()
        for raw in (framed, http, silent, late):
            await raw.close()
        await eventually(lambda: port.count.total == 0)
    # The frontend of the frames counts what it refuses.
    assert ["connections"] * 3 == [error.limit for error in port.refused]


async def test_grpc_calls_are_served(address: str) -> None:
    """A gRPC client sends the HTTP/2 preface first."""
    async with both(Echo(), PromptHttp(), address) as port:
        client = GrpcClient(port.server.address, ClientLimits())
        request = GrpcRequest(UNARY, (b"hello",))
        responses = [await client.send(request, deadline=None) for _ in range(2)]
        unknown = await client.send(GrpcRequest("/other/Method", (b"",)), deadline=None)
        await client.close()
        await eventually(lambda: port.count.total == 0)
    assert [b"hello"] * 2 == [bytes(response.view) for response in responses]
    assert GrpcStatus.UNIMPLEMENTED is unknown.status


async def test_drain_waits_for_grpc_calls() -> None:
    """A call in flight gets the drain time, then ends with UNAVAILABLE."""
    waiting = GrpcSlow()
    async with both(Echo(), PromptHttp(), calls=Answers(waiting)) as port:
        client = GrpcClient(port.server.address, ClientLimits())
        call = asyncio.ensure_future(client.send(GrpcRequest(UNARY, (b"x",)), deadline=None))
        await waiting.started.wait()
        async with asyncio.timeout(20):
            await port.server.drain(0.1)
        found = await asyncio.gather(call, return_exceptions=True)
        result: object = found[0]
        await client.close()
    is_answer = isinstance(result, GatewayError | GrpcResponse)
    assert (True, GrpcStatus.UNAVAILABLE) == (
        is_answer,
        getattr(result, "status", GrpcStatus.UNAVAILABLE),
    )
    assert waiting.cancelled.is_set()


async def test_drain_finishes_both_protocols(address: str) -> None:
    """Requests in flight are finished; a connection without a request is closed at once."""
    frames, http = SlowFrames(), SlowHttp()
    async with both(frames, http, address) as port:
        framed, http_client, silent = [await port.connect() for _ in range(3)]
        await framed.send(FRAME)
        await http_client.send(post(b"{}", path="/v2/x"))
        await silent.send(b"P")
        await eventually(lambda: bool(frames.waiting) and http.arrival.is_set())
        draining = asyncio.ensure_future(port.server.drain(5.0))
        assert b"" == await silent.rest()
        next(iter(frames.waiting.values())).set()
        http.go.set()
        assert b"late" == (await http_client.answer()).body
        assert BODY in await frame_of(framed)
        async with asyncio.timeout(20):
            await draining
        for raw in (framed, http_client, silent):
            await raw.close()


async def test_drain_cancels_requests_that_take_too_long() -> None:
    """After the drain time the requests of both protocols are cancelled."""
    frames, http = SlowFrames(), SlowHttp()
    async with both(frames, http) as port:
        framed, http_client = await port.connect(), await port.connect()
        await framed.send(FRAME)
        await http_client.send(post(b"{}", path="/v2/x"))
        await eventually(lambda: bool(frames.waiting) and http.arrival.is_set())
        async with asyncio.timeout(20):
            await port.server.drain(0.05)
        assert (1, True) == (len(frames.cancelled), http.cancelled.is_set())
        assert 503 == (await http_client.answer()).status
        for raw in (framed, http_client):
            await raw.close()


async def test_http_client_disconnect_cancels_its_request() -> None:
    """The request is cancelled, as on a port of HTTP alone."""
    http = SlowHttp()
    async with both(Echo(), http) as port:
        raw = await port.connect()
        await raw.send(post(b"{}", path="/v2/x"))
        await http.arrival.wait()
        await raw.close()
        async with asyncio.timeout(20):
            await http.cancelled.wait()


async def test_both_protocols_are_served_under_tls() -> None:
    """The protocol is detected from the decrypted bytes."""
    authority = trustme.CA()
    server, client = contexts(authority, authority)
    async with both(Echo(), PromptHttp(), ssl_context=server) as port:
        framed, http = await port.connect(client), await port.connect(client)
        await framed.send(FRAME)
        assert BODY in await frame_of(framed)
        await http.send(post(b"{}", path="/v2/x"))
        assert b"/v2/x" == (await http.answer()).body
        await framed.close()
        await http.close()
        await eventually(lambda: port.count.total == 0)


class Noted:
    """A server that notes the calls of its methods."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    async def start(self) -> None:
        self.calls.append("start")

    def drain_unverified(self, _authorities: Authorities) -> None:
        self.calls.append("drain_unverified")

    def authenticate(self, authentication: Any) -> None: ...

    def announce_close(self) -> None:
        self.calls.append("announce_close")

    async def drain(self, _timeout_s: float) -> None:
        self.calls.append("drain")

    async def stop(self) -> None:
        self.calls.append("stop")


async def test_port_in_use_stops_the_other_servers() -> None:
    """The servers next to it, which were started before, are stopped again."""
    noted, limits = Noted(), ServerLimits()
    count = ConnectionCount(limits.connections, limits.connections_per_address)
    async with both(Echo(), PromptHttp()) as port:
        server = StreamServer(
            port.server.address,
            lambda: server_framer(MessageLimits()),
            Echo(),
            limits=limits,
            budget=MemoryBudget(1000),
            beside=SharedPortProtocols(looks_like, (), (noted,), count),
        )
        with pytest.raises(OSError, match="cannot listen on"):
            await server.start()
    assert ["start", "stop"] == noted.calls


async def test_stop_closes_undetected_connections(address: str) -> None:
    """The stop does not wait for them."""
    async with both(Echo(), PromptHttp(), address) as port:
        raw = await port.connect()
        await raw.send(b"P")
        await eventually(lambda: port.count.total == 1)
        await port.server.stop()
        assert b"" == await raw.rest()
        await raw.close()


async def test_stop_is_repeatable(address: str) -> None:
    """Stopping twice after a drain is harmless."""
    async with both(Echo(), PromptHttp(), address) as port:
        await port.server.drain(0.1)
        await port.server.stop()
        await port.server.stop()
