"""Shared by the tests of cut-through: raw upstreams, a gateway in front, binary requests."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Self

from gateway.frontend.frontend import Frontend
from gateway.ir.limits import MessageLimits
from gateway.protocols.oip.grpc.codec import GrpcCodec
from gateway.protocols.oip.http.codec import HttpCodec
from gateway.schema import open_inference_pb2 as pb
from gateway.service import Service
from gateway.transports.contract import (
    ClientLimits,
    GrpcFrontend,
    GrpcMount,
    HttpMount,
    ServerLimits,
)
from gateway.transports.grpc.client import GrpcClient
from gateway.transports.grpc.server import GrpcServer
from gateway.transports.http1.server import HttpServer
from gateway.transports.memory_budget import MemoryBudget
from gateway.transports.net.tls_files import TlsContext
from gateway.upstream import Upstream
from gateway.wire.grpc import GrpcRequest, GrpcResponse, MethodKind
from tests.integration.http_kit import Answer, Raw, eventually

MIB = 1 << 20
ANSWER = {
    "model_name": "m",
    "outputs": [{"name": "y", "datatype": "INT32", "shape": [1], "data": [7]}],
}
LIMITS = MessageLimits()


@dataclass
class Seen:
    """A request as a raw upstream sees it."""

    on_headers: str = ""
    body: bytearray = field(default_factory=bytearray)
    length: int = 0
    on_complete_stream: bool = False
    end: asyncio.Event = field(default_factory=asyncio.Event)
    on_reset: bool = False

    @property
    def json(self) -> Any:
        return json.loads(self.body[: self._json_bytes])

    @property
    def binary(self) -> bytes:
        return bytes(self.body[self._json_bytes :])

    @property
    def _json_bytes(self) -> int:
        return int(
            self.on_headers.lower().split("inference-header-content-length: ")[1].split("\r\n")[0]
        )


class Far:
    """An HTTP upstream made of a socket: reads while `reads` is set, and sends a set response."""

    def __init__(self, response: bytes | None = None, value: int = 7) -> None:
        self.seen: list[Seen] = []
        self.reads = asyncio.Event()
        self.reads.set()
        self.early: bytes | None = None
        self.connections = 0
        self.writers: list[asyncio.StreamWriter] = []
        output = {"name": "y", "datatype": "INT32", "shape": [1], "data": [value]}
        body = json.dumps({**ANSWER, "outputs": [output]}).encode()
        self._answer = (
            response
            or (
                b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
                % len(body)
            )
            + body
        )
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=MIB)
        return self

    async def __aexit__(self, *_error: object) -> None:
        assert self._server is not None
        self._server.close()

    @property
    def url(self) -> str:
        assert self._server is not None
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.writers.append(writer)
        try:
            while True:
                seen = Seen((await reader.readuntil(b"\r\n\r\n")).decode())
                self.seen.append(seen)
                await self._read(seen, reader, writer)
        except asyncio.IncompleteReadError:
            pass
        except ConnectionResetError:
            if self.seen:
                self.seen[-1].on_reset = True
        finally:
            if self.seen:
                self.seen[-1].end.set()
            writer.close()

    async def _read(
        self, seen: Seen, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        for line in seen.on_headers.lower().split("\r\n"):
            if line.startswith("content-length: "):
                seen.length = int(line.split(": ")[1])
        if self.early is not None:
            writer.write(self.early)
        while len(seen.body) < seen.length:
            await self.reads.wait()
            piece = await reader.read(65536)
            if not piece:
                raise asyncio.IncompleteReadError(bytes(seen.body), seen.length)
            seen.body += piece
        seen.on_complete_stream = True
        if self.early is None:
            writer.write(self._answer)
        seen.end.set()


@dataclass
class Near:
    """A gateway with one upstream, on sockets."""

    server: HttpServer
    budget: MemoryBudget
    refused: list[Any]

    async def connect(self) -> Raw:
        host, _, port = self.server.address.rpartition(":")
        return Raw(*await asyncio.open_connection(host, int(port)))


@asynccontextmanager
async def near(
    upstream: Callable[[], Any],
    codec: Any = None,
    layer: Callable[[Service], Service] = lambda service: service,
    tls: ssl.SSLContext | None = None,
    **limits: Any,
) -> AsyncIterator[Near]:
    """Serve Open Inference over HTTP in front of an upstream."""
    client = upstream()
    refused: list[Any] = []
    service = layer(Upstream("far", codec or HttpCodec(LIMITS, {"dialect": "unknown"}), client))
    frontend: Any = Frontend(HttpCodec(LIMITS, {}), service)
    budget = MemoryBudget(1 << 30)
    server = HttpServer(
        mounts=[HttpMount(("/v2",), frontend)],
        limits=ServerLimits(
            **{"cut_through_bytes": 64 * 1024, "requests_per_address": 256, **limits}
        ),
        budget=budget,
        on_reject=refused.append,
        tls=None if tls is None else TlsContext(tls),
    )
    await server.start()
    try:
        yield Near(server, budget, refused)
    finally:
        await server.stop()
        await client.close()
        await eventually(lambda: not budget.used)


def request(
    *tensors: tuple[str, str, bytes],
    headers: tuple[str, ...] = (),
    extra: dict[str, Any] | None = None,
) -> tuple[bytes, bytes]:
    """Return the head with the JSON of a binary request, and the bytes of its tensors."""
    sizes = {"UINT8": 1, "FP32": 4, "INT32": 4, "BOOL": 1}
    inputs = [
        {
            "name": name,
            "datatype": datatype,
            "shape": [1 if datatype == "BYTES" else len(data) // sizes[datatype]],
            "parameters": {"binary_data_size": len(data)},
        }
        for name, datatype, data in tensors
    ]
    text = json.dumps({"inputs": inputs, **(extra or {})}).encode()
    binary = b"".join(data for _, _, data in tensors)
    lines = [
        "POST /v2/models/m/infer HTTP/1.1",
        "Host: h",
        f"Inference-Header-Content-Length: {len(text)}",
        f"Content-Length: {len(text) + len(binary)}",
        *headers,
    ]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + text, binary


async def response_of(raw: Raw) -> Answer:
    async with asyncio.timeout(20):
        return await raw.answer()


class FarGrpc(GrpcFrontend):
    """A gRPC upstream that keeps the messages it received."""

    def __init__(self) -> None:
        self.seen: list[bytes] = []

    async def __call__(self, wire: GrpcRequest, /) -> AsyncGenerator[GrpcResponse, None]:
        self.seen.append(bytes(wire.view))
        response = pb.ModelInferResponse(model_name="m")
        response.outputs.add(name="y", datatype="INT32", shape=[1])
        response.raw_output_contents.append((7).to_bytes(4, "little"))
        yield GrpcResponse((response.SerializeToString(),))

    def reject(self, error: Any, /) -> GrpcResponse:
        raise AssertionError(error)


@asynccontextmanager
async def grpc_near(far: FarGrpc, **limits: Any) -> AsyncIterator[tuple[Near, GrpcServer]]:
    methods = {"/inference.GRPCInferenceService/ModelInfer": MethodKind.UNARY}
    frontend: Any = far
    server = GrpcServer(
        "127.0.0.1:0", [GrpcMount(methods, frontend)], ServerLimits(**limits), MemoryBudget(1 << 30)
    )
    await server.start()
    try:
        async with near(
            lambda: GrpcClient(server.address, ClientLimits()),
            GrpcCodec(LIMITS, {"dialect": "triton"}),
        ) as gateway:
            yield gateway, server
    finally:
        await server.stop()
