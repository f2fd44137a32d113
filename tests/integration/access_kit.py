"""Shared by the tests of authentication: a gateway of all carriers, and requests with credentials."""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import grpc
from grpc import aio

from gateway.access.control import AccessControl
from gateway.access.key_file import KeyFile, save_key_file
from gateway.app import Gateway
from gateway.protocols.graphpipe.flatbuffer_writer import METADATA_REQUEST
from gateway.protocols.grps.brpc.framing import MAGIC
from gateway.schema import grps_pb2, open_inference_pb2
from gateway.schema.baidu_std_pb2 import RpcMeta
from tests.integration.asking_kit import running

KEY = "tg_0123456789abcdefghijklmnopqrstuvwxyzABCD"
OTHER_KEY = "tg_another456789abcdefghijklmnopqrstuvwxyz"
NOW = datetime(2026, 11, 26, tzinfo=UTC)


def control_of(gateway: Gateway) -> AccessControl:
    """Return what names the clients of a gateway."""
    found = gateway._access
    assert isinstance(found, AccessControl)
    return found


def key_file(directory: Path, **changes: Any) -> Path:
    """Write a file with `KEY` of the client `fraud`; return its path."""
    path = directory / "keys.yaml"
    file = KeyFile.new().added("fraud", KEY, NOW, **changes)
    save_key_file(path, file)
    return path


def configuration(transport: str = "native", **security: Any) -> str:
    """Return a configuration with all carriers, which requires keys."""
    document: dict[str, Any] = {
        "version": 1,
        "admin": {"address": "off"},
        "lifecycle": {"pre_stop": "0s"},
        "clients": {"fraud": {"groups": ["finance"], "tier": "gold"}},
        "security": security or {"keys": {"file": "keys.yaml"}},
        "listeners": [
            {
                "http": "127.0.0.1:0",
                "grpc": "127.0.0.1:0",
                "transport": transport,
                "default_model": "m",
                "streams": [
                    {"protocol": "graphpipe", "address": "127.0.0.1:0"},
                    {"protocol": "grps", "address": "127.0.0.1:0"},
                ],
            }
        ],
        "upstreams": {"absent": {"url": "oip+http://127.0.0.1:9"}},
    }
    return json.dumps(document)


@asynccontextmanager
async def guarded(directory: Path, transport: str = "native") -> AsyncIterator[Gateway]:
    """Run a gateway of all carriers whose clients need `KEY`."""
    key_file(directory)
    async with running(configuration(transport), directory) as gateway:
        yield gateway


class HttpReply:
    """A response of HTTP/1."""

    def __init__(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.body = body


async def exchange(
    address: str,
    target: str,
    headers: Mapping[str, str] | None = None,
    *,
    method: str = "GET",
    body: bytes = b"",
    length: int | None = None,
) -> HttpReply:
    """Send one request on a connection of its own, as it stands; return the response."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        fields = {"Host": "x", **(headers or {})}
        if body or length is not None or method == "POST":
            fields["Content-Length"] = str(len(body) if length is None else length)
        head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        writer.write(f"{method} {target} HTTP/1.1\r\n{head}\r\n".encode() + body)
        return await read_response(reader)
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()


async def read_response(reader: asyncio.StreamReader) -> HttpReply:
    """Read one response."""
    head = (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 20)).decode()
    first, *lines = head.split("\r\n")
    fields = {
        name.lower(): value.strip()
        for name, _, value in (line.partition(":") for line in lines if line)
    }
    body = await reader.readexactly(int(fields.get("content-length", 0)))
    return HttpReply(int(first.split()[1]), fields, body)


async def call(
    address: str, method: str, message: bytes = b"", metadata: Any = ()
) -> tuple[grpc.StatusCode, str, bytes]:
    """Make one unary gRPC call; return status, details and the response."""
    async with aio.insecure_channel(address) as channel:
        unary = channel.unary_unary(method)
        try:
            return grpc.StatusCode.OK, "", await unary(message, metadata=metadata, timeout=60)
        except aio.AioRpcError as error:
            return error.code(), error.details() or "", b""


def brpc_frame(
    method: str,
    number: int = 1,
    data: str = "",
    service: str = "grps.protos.v1.GrpsBrpcService",
    size: int = 0,
) -> bytes:
    """Return a frame of baidu_std that calls *method*, with a message of at least *size* bytes."""
    meta = RpcMeta(correlation_id=number)
    meta.request.service_name, meta.request.method_name = service, method
    if data:
        meta.authentication_data = data.encode()
    encoded = meta.SerializeToString()
    message = grps_pb2.GrpsMessage(str_data="x" * size).SerializeToString()
    sizes = struct.pack(">II", len(encoded) + len(message), len(encoded))
    return MAGIC + sizes + encoded + message


async def read_brpc(reader: asyncio.StreamReader) -> tuple[RpcMeta, bytes]:
    """Read one frame of baidu_std."""
    head = await asyncio.wait_for(reader.readexactly(12), 20)
    body, size = struct.unpack(">II", head[4:])
    rest = await reader.readexactly(body)
    return RpcMeta.FromString(rest[:size]), rest[size:]


def graphpipe_frame() -> bytes:
    """Return a metadata request of GraphPipe."""
    return struct.pack("<I", len(METADATA_REQUEST)) + METADATA_REQUEST


def infer_message(size: int = 1) -> bytes:
    """Return an inference of Open Inference over gRPC."""
    tensor = open_inference_pb2.ModelInferRequest.InferInputTensor(
        name="x", datatype="UINT8", shape=[size]
    )
    request = open_inference_pb2.ModelInferRequest(
        model_name="m", inputs=[tensor], raw_input_contents=[bytes(size)]
    )
    return request.SerializeToString()
