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
from gateway.transports.admission import ConnectionCount, MemoryBudget
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
    """Answers each frame with itself, when told to."""

    async def __call__(self, wire: Frame, /) -> AsyncGenerator[Frame, None]:
        async for _ in super().__call__(wire):
            yield Frame(wire.payload)

    def reject(self, _error: GatewayError, /) -> Frame:
        """Return a message that the framer can write."""
        return Frame((FRAME,))


class SlowHttp(HttpFrontend):
    """Answers each request when told to."""

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
    """Answers with the path."""

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
        refused=refused.append,
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
        ssl_context=ssl_context,
        refused=refused.append,
        beside=SharedPortProtocols(looks_like, connections, (beside,), count),
    )
    await server.start()
    try:
        yield Port(server, count, refused)
    finally:
        await server.stop()
    assert (0, 0) == (budget.used_bytes, count.total)


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
def test_http_is_known_by_its_methods(first: bytes, expected: bool) -> None:
    """As soon as bytes agree with no method they are not HTTP's."""
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
def test_http2_is_known_by_its_preface(first: bytes, expected: bool) -> None:
    """As far as it has come."""
    assert expected is may_be_http2(first)


async def test_each_connection_speaks_its_own(address: str) -> None:
    """Frames and HTTP are answered on one port, connection by connection, as often as asked."""
    async with both(Echo(), PromptHttp(), address) as port:
        framed, http = await port.connect(), await port.connect()
        for _ in range(2):
            await framed.send(FRAME)
            assert BODY in await frame_of(framed)
            await http.send(post(b"{}", path="/v2/x"))
            assert (200, b"/v2/x") == ((answer := await http.answer()).status, answer.body)
        await framed.close()
        await http.close()
        await eventually(lambda: port.count.total == 0)


@pytest.mark.parametrize("sent", [FRAME, post(b"{}", path="/v2/x")], ids=["frame", "http"])
async def test_first_bytes_may_come_one_by_one(sent: bytes) -> None:
    """P begins both; what follows decides, and nothing that came is lost."""
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
async def test_what_is_neither_is_closed_without_a_word(sent: bytes) -> None:
    """As brpc does."""
    frames = Echo()
    async with both(frames, PromptHttp()) as port:
        raw = await port.connect()
        await raw.send(sent)
        assert b"" == await raw.rest()
        await raw.close()
    assert [] == frames.seen


@pytest.mark.parametrize("sent", [b"", b"P", b"PO"], ids=["nothing", "either", "half a method"])
async def test_who_does_not_say_what_it_speaks_is_closed(sent: bytes) -> None:
    """In the time that a request may take to begin."""
    async with both(Echo(), PromptHttp(), header_timeout_s=0.1) as port:
        raw = await port.connect()
        await raw.send(sent)
        async with asyncio.timeout(2):
            assert b"" == await raw.rest()
        await raw.close()
    assert ["header_timeout_s"] == [error.limit for error in port.refused]


async def test_who_leaves_undecided_is_forgotten(address: str) -> None:
    """A connection that ends before it has said anything costs nothing."""
    async with both(Echo(), PromptHttp(), address) as port:
        raw = await port.connect()
        await raw.send(b"P")
        await eventually(lambda: port.count.total == 1)
        await raw.close()
        await eventually(lambda: port.count.total == 0)
    assert [] == port.refused


async def test_connections_are_counted_together() -> None:
    """The limit is on the port, whatever they speak; each is refused in the form of its protocol."""
    frames = SlowFrames()
    async with both(frames, SlowHttp(), connections=3) as port:
        framed, http, silent = [await port.connect() for _ in range(3)]
        await framed.send(FRAME)
        await http.send(post(b"{}", path="/v2/x"))
        await silent.send(b"P")
        await eventually(lambda: port.count.total == 3 and bool(frames.waiting))
        for sent, answer in (
            (FRAME, b"PRPC"),
            (post(b"{}", path="/v2/x"), b"HTTP/1.1 503 "),
            (PREFACE, settings(()) + b"\0"),
        ):
            late = await port.connect()
            await late.send(sent)
            assert (await late.rest()).startswith(answer)
            await late.close()
        late = await port.connect()
        assert b"" == await late.rest()
        for raw in (framed, http, silent, late):
            await raw.close()
        await eventually(lambda: port.count.total == 0)
    # The frontend of the frames counts what it refuses.
    assert ["connections"] * 3 == [error.limit for error in port.refused]


async def test_calls_of_grpc_are_answered_there(address: str) -> None:
    """A client of gRPC speaks HTTP/2 from its first byte on."""
    async with both(Echo(), PromptHttp(), address) as port:
        client = GrpcClient(port.server.address, ClientLimits())
        question = GrpcRequest(UNARY, (b"hello",))
        answers = [await client.send(question, deadline=None) for _ in range(2)]
        unknown = await client.send(GrpcRequest("/other/Method", (b"",)), deadline=None)
        await client.close()
        await eventually(lambda: port.count.total == 0)
    assert [b"hello"] * 2 == [bytes(answer.view) for answer in answers]
    assert GrpcStatus.UNIMPLEMENTED is unknown.status


async def test_draining_waits_for_grpc_too() -> None:
    """A call in flight is given its time, and then ended and told so."""
    waiting = GrpcSlow()
    async with both(Echo(), PromptHttp(), calls=Answers(waiting)) as port:
        client = GrpcClient(port.server.address, ClientLimits())
        call = asyncio.ensure_future(client.send(GrpcRequest(UNARY, (b"x",)), deadline=None))
        await waiting.started.wait()
        async with asyncio.timeout(4):
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


async def test_draining_ends_both(address: str) -> None:
    """What is in flight is answered, whoever asked it; who sent no request is closed at once."""
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
        async with asyncio.timeout(3):
            await draining
        for raw in (framed, http_client, silent):
            await raw.close()


async def test_what_does_not_end_is_cancelled() -> None:
    """Draining cancels the requests of both protocols once its time is over."""
    frames, http = SlowFrames(), SlowHttp()
    async with both(frames, http) as port:
        framed, http_client = await port.connect(), await port.connect()
        await framed.send(FRAME)
        await http_client.send(post(b"{}", path="/v2/x"))
        await eventually(lambda: bool(frames.waiting) and http.arrival.is_set())
        async with asyncio.timeout(3):
            await port.server.drain(0.05)
        assert (1, True) == (len(frames.cancelled), http.cancelled.is_set())
        assert 503 == (await http_client.answer()).status
        for raw in (framed, http_client):
            await raw.close()


async def test_a_client_of_http_that_leaves_cancels_its_request() -> None:
    """Within 100 ms, as on a port of its own."""
    http = SlowHttp()
    async with both(Echo(), http) as port:
        raw = await port.connect()
        await raw.send(post(b"{}", path="/v2/x"))
        await http.arrival.wait()
        await raw.close()
        async with asyncio.timeout(0.1):
            await http.cancelled.wait()


async def test_both_are_spoken_under_tls() -> None:
    """The first bytes are those within."""
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
    """A server that notes what it is told."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    async def start(self) -> None:
        self.calls.append("start")

    def announce_close(self) -> None:
        self.calls.append("announce_close")

    async def drain(self, _timeout_s: float) -> None:
        self.calls.append("drain")

    async def stop(self) -> None:
        self.calls.append("stop")


async def test_a_port_that_is_taken_leaves_nothing_started() -> None:
    """The servers beside it, which began before, are stopped again."""
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


async def test_stopping_cuts_who_has_not_said_what_it_speaks(address: str) -> None:
    """Without waiting for it."""
    async with both(Echo(), PromptHttp(), address) as port:
        raw = await port.connect()
        await raw.send(b"P")
        await eventually(lambda: port.count.total == 1)
        await port.server.stop()
        assert b"" == await raw.rest()
        await raw.close()


async def test_stopping_is_harmless_the_second_time(address: str) -> None:
    """Twice, and after draining."""
    async with both(Echo(), PromptHttp(), address) as port:
        await port.server.drain(0.1)
        await port.server.stop()
        await port.server.stop()
