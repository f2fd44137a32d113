"""Shared by the HTTP tests: scripted frontends, a started server and raw sockets."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar, overload

from gateway.ir.errors import ErrorCode, GatewayError
from gateway.transports.contract import HttpFrontend, HttpMount, MemoryBudget, ServerLimits
from gateway.transports.http.listener import HttpListener
from gateway.transports.http1.client import HttpClient as NativeClient
from gateway.transports.http1.server import HttpServer as NativeServer
from gateway.transports.net.tls_files import TlsContext
from gateway.transports.reference.http_client import HttpClient as ReferenceClient
from gateway.transports.reference.http_server import HttpServer as ReferenceServer
from gateway.wire.http import Headers, HttpRequest, HttpResponse

T = TypeVar("T")


@dataclass
class HttpMakes:
    """The HTTP implementations under test; see the fixtures `http_makes` and `http_clients`."""

    server: str = "reference"
    client: str = "reference"

    @property
    def http_server(self) -> type[HttpListener]:
        """The class of the server."""
        return {"reference": ReferenceServer, "native": NativeServer}[self.server]

    @property
    def http_client(self) -> type[ReferenceClient | NativeClient]:
        """The class of the client."""
        return ReferenceClient if self.client == "reference" else NativeClient


HTTP_MAKES = HttpMakes()

STATUS = {
    ErrorCode.INVALID_ARGUMENT: 400,
    ErrorCode.TOO_LARGE: 413,
    ErrorCode.UNSUPPORTED: 501,
    ErrorCode.QUOTA_EXCEEDED: 429,
    ErrorCode.OVERLOADED: 503,
    ErrorCode.UNAVAILABLE: 503,
}


class Refusing(HttpFrontend):
    """The rejections of a frontend."""

    def reject(self, error: GatewayError, /) -> HttpResponse:
        body = json.dumps({"error": error.message, "limit": error.limit}).encode()
        return HttpResponse(STATUS[error.code], Headers((("X-Refused", "1"),)), (body,))


class Echo(Refusing):
    """Responds with the request's body, and keeps the requests."""

    def __init__(self, *, compressible: bool = False) -> None:
        self.seen: list[HttpRequest] = []
        self._compressible = compressible

    async def __call__(self, wire: HttpRequest, /) -> AsyncGenerator[HttpResponse, None]:
        self.seen.append(wire)
        headers = Headers((("X-Path", wire.path),))
        yield HttpResponse(200, headers, wire.body, self._compressible, "an-id")


class Slow(Refusing):
    """Responds when `go` is set; notes when it starts and how it ends."""

    def __init__(self) -> None:
        self.started = asyncio.Event()
        self.go = asyncio.Event()
        self.end = asyncio.Event()
        self.cancelled = False
        self.running = 0

    async def __call__(self, wire: HttpRequest, /) -> AsyncGenerator[HttpResponse, None]:
        self.started.set()
        self.running += 1
        try:
            await self.go.wait()
            yield HttpResponse(200, body=(b"slow",))
        except asyncio.CancelledError:
            self.cancelled = True
            raise
        finally:
            self.running -= 1
            self.end.set()


class Parts(Refusing):
    """Responds in parts, each as it is put into the queue."""

    def __init__(self, *, fail: bool = False) -> None:
        self.parts: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.closed = asyncio.Event()
        self._fail = fail

    async def __call__(self, wire: HttpRequest, /) -> AsyncGenerator[HttpResponse, None]:
        try:
            while (part := await self.parts.get()) is not None:
                yield HttpResponse(200, Headers((("Content-Type", "text/plain"),)), (part,))
            if self._fail:
                raise RuntimeError("a bug in the middle of a stream")
        finally:
            self.closed.set()


@dataclass
class Running:
    server: HttpListener
    budget: MemoryBudget
    refused: list[GatewayError] = field(default_factory=list)

    @property
    def host(self) -> str:
        return self.server.address.rpartition(":")[0]

    @property
    def port(self) -> int:
        return int(self.server.address.rpartition(":")[2])

    @property
    def limits_hit(self) -> list[str | None]:
        return [error.limit for error in self.refused]

    async def connect(self) -> Raw:
        return Raw(*await asyncio.open_connection(self.host, self.port))

    async def ask(self, data: bytes) -> bytes:
        """Send raw bytes, and return all bytes until the server closes."""
        raw = await self.connect()
        try:
            await raw.send(data)
            return await raw.rest()
        finally:
            await raw.close()


@dataclass
class Answer:
    status: int
    headers: Headers
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Raw:
    """A raw connection that reads responses one by one."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def head(self) -> tuple[int, Headers]:
        text = (await self.reader.readuntil(b"\r\n\r\n")).decode()
        first, *lines = text[:-4].split("\r\n")
        pairs = [line.partition(": ")[::2] for line in lines]
        return int(first.split()[1]), Headers(pairs)

    async def answer(self) -> Answer:
        status, headers = await self.head()
        if headers.get("transfer-encoding") == "chunked":
            return Answer(status, headers, await self.chunks())
        body = await self.reader.readexactly(int(headers.get("content-length") or 0))
        return Answer(status, headers, body)

    async def chunk(self) -> bytes:
        size = int(await self.reader.readuntil(b"\r\n"), 16)
        data = await self.reader.readexactly(size)
        assert await self.reader.readexactly(2) == b"\r\n"
        return data

    async def chunks(self) -> bytes:
        body = b""
        while part := await self.chunk():
            body += part
        return body

    async def rest(self) -> bytes:
        """Return all bytes until the end; a reset counts as the end."""
        data = b""
        try:
            while piece := await self.reader.read(65536):
                data += piece
        except ConnectionResetError:
            pass
        return data

    async def close(self) -> None:
        self.writer.close()
        with suppress(ConnectionError):
            await self.writer.wait_closed()


@overload
async def eventually(found: Callable[[], Coroutine[Any, Any, T]], patience_s: float = ...) -> T: ...
@overload
async def eventually(found: Callable[[], T], patience_s: float = ...) -> T: ...
async def eventually(found: Callable[[], Any], patience_s: float = 60.0) -> Any:
    """Return the first true result of *found*, for what has no event to await.

    Raises:
        TimeoutError: There is none within *patience_s* seconds.
    """
    async with asyncio.timeout(patience_s):
        while True:
            result = found()
            value = await result if isinstance(result, Awaitable) else result
            if value:
                return value
            await asyncio.sleep(0.005)


async def stable(found: Callable[[], T], still_s: float = 0.2) -> T:
    """Return *found* once it has stayed the same for *still_s* seconds: what flows has stopped."""
    loop = asyncio.get_running_loop()
    seen, since = found(), loop.time()
    async with asyncio.timeout(60.0):
        while loop.time() - since < still_s:
            await asyncio.sleep(0.01)
            if (now := found()) != seen:
                seen, since = now, loop.time()
    return seen


async def retried(
    make: Callable[[], Awaitable[T]], error: type[Exception], patience_s: float = 60.0
) -> T:
    """Return the first result of *make*, which may raise *error* until then."""

    async def attempt() -> list[T]:
        with suppress(error):
            return [await make()]
        return []

    return (await eventually(attempt, patience_s))[0]


def parse(data: bytes) -> list[int]:
    """Return the statuses of all responses in *data*."""
    return [int(part[:3]) for part in re.split(rb"HTTP/1\.[01] ", data)[1:]]


def post(body: bytes = b"", *fields: str, path: str = "/v2/x", length: int | None = None) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: h", *fields]
    lines.append(f"Content-Length: {len(body) if length is None else length}")
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


@asynccontextmanager
async def serving(
    frontend: HttpFrontend,
    *,
    budget_bytes: int = 1 << 30,
    fallback: HttpFrontend | None = None,
    ssl_context: Any = None,
    **limits: Any,
) -> AsyncIterator[Running]:
    """Serve *frontend* at /v2 with *limits* shortened for the test."""
    refused: list[GatewayError] = []
    budget = MemoryBudget(budget_bytes)
    server = HTTP_MAKES.http_server(
        mounts=[HttpMount(("/v2",), frontend)],
        limits=ServerLimits(**{"requests_per_address": 256, **limits}),
        budget=budget,
        fallback=fallback,
        tls=None if ssl_context is None else TlsContext(ssl_context),
        on_reject=refused.append,
    )
    await server.start()
    try:
        yield Running(server, budget, refused)
    finally:
        await server.stop()
    assert budget.used == 0
