"""`card`: the cost of a gateway of the same libraries that does nothing but translate.

    python -m benchmarks.card HTTP-PORT GRPC-PORT UPSTREAM-CARRIER UPSTREAM-PORT

It uses the low-level server and the client of aiohttp, orjson or simdjson, a hand-written protobuf
codec, grpc.aio with raw bytes, and uvloop. It parses, compares sizes with shapes, routes by the
name of the model and encodes again, in both directions. It has no limits, deadlines, policies,
metrics or logs, and trusts its peers. The goal of the gateway on its reference transports is at
most 1.3 times this cost.
"""

import asyncio
import struct
import sys
from collections.abc import Iterator
from math import prod
from typing import Any

import aiohttp
import grpc
import numpy as np
import orjson
import simdjson
from aiohttp import web
from grpc import aio

_SIMD_FROM = 8192
_METHOD = "/inference.GRPCInferenceService/ModelInfer"
_LENGTH = "Inference-Header-Content-Length"
_CODES = {"INT32": "i", "FP32": "f", "FP64": "d", "INT64": "q"}
_SIZES = {"INT32": 4, "FP32": 4, "FP64": 8, "INT64": 8}
_DTYPES = {"INT32": "<i4", "FP32": "<f4", "FP64": "<f8", "INT64": "<i8"}
_WIDE = {"d": "<f8", "i": "<i8"}
_UNLIMITED = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]

Buffer = bytes | memoryview
Tensor = tuple[str, str, list[int], Buffer]
"""Name, datatype, shape, raw data."""


# --- the four codecs, one for each message and protocol


def read_http(body: bytes, length: str | None, members: str) -> tuple[dict[str, Any], list[Tensor]]:
    """Read a message of Open Inference HTTP."""
    end = len(body) if length is None else int(length)
    view = memoryview(body)
    document: Any = None
    if end < _SIMD_FROM:
        document = orjson.loads(view[:end])
    else:
        document = simdjson.Parser().parse(body if end == len(body) else body[:end])
    tensors: list[Tensor] = []
    for member in document[members]:
        datatype, shape = member["datatype"], list(member["shape"])
        data: Buffer
        if "data" not in member:
            start, end = end, end + member["parameters"]["binary_data_size"]
            data = view[start:end]
        elif isinstance(member, dict):
            values = member["data"]
            data = struct.pack(f"<{len(values)}{_CODES[datatype]}", *values)
        else:
            code = "d" if datatype.startswith("F") else "i"
            wide = np.frombuffer(member["data"].as_buffer(of_type=code), _WIDE[code])
            data = wide.astype(_DTYPES[datatype]).data.cast("B")
        _check(datatype, shape, data)
        tensors.append((member["name"], datatype, shape, data))
    head = {key: document[key] for key in ("model_name", "id") if key in document}
    return head, tensors


def write_http_json(model: str, tensors: list[Tensor]) -> bytes:
    """Encode a response with `data` lists."""
    outputs = [
        {
            "name": name,
            "datatype": datatype,
            "shape": shape,
            "data": np.frombuffer(data, _DTYPES[datatype]),
        }
        for name, datatype, shape, data in tensors
    ]
    document = {"model_name": model, "outputs": outputs}
    return orjson.dumps(document, option=orjson.OPT_SERIALIZE_NUMPY)


def write_http_binary(
    tensors: list[Tensor], document: dict[str, Any], members: str
) -> list[Buffer]:
    """Encode a message with binary tensors. The first buffer is the JSON."""
    document[members] = [
        {
            "name": name,
            "datatype": datatype,
            "shape": shape,
            "parameters": {"binary_data_size": len(data)},
        }
        for name, datatype, shape, data in tensors
    ]
    return [orjson.dumps(document), *(data for _, _, _, data in tensors)]


def read_proto(message: bytes, raw_field: int) -> tuple[str, list[Tensor]]:
    """Decode a ModelInferRequest or ModelInferResponse. The data are views of it."""
    model, described, raws = "", [], []
    for field, value in _fields(memoryview(message)):
        if field == 1:
            model = str(value, "utf-8")
        elif field == 5:
            described.append(_read_tensor(value))
        elif field == raw_field:
            raws.append(value)
    tensors: list[Tensor] = []
    for (name, datatype, shape), raw in zip(described, raws, strict=True):
        _check(datatype, shape, raw)
        tensors.append((name, datatype, shape, raw))
    return model, tensors


def write_proto(model: str, tensors: list[Tensor], raw_field: int) -> bytes:
    """Write a ModelInferRequest or ModelInferResponse."""
    parts: list[Buffer] = [_text(1, model)]
    for name, datatype, shape, _ in tensors:
        dims = b"".join(map(_varint, shape))
        tensor = _text(1, name) + _text(2, datatype) + b"\x1a" + _varint(len(dims)) + dims
        parts.append(b"\x2a" + _varint(len(tensor)) + tensor)
    for *_, data in tensors:
        parts += (_varint(raw_field << 3 | 2) + _varint(len(data)), data)
    return b"".join(parts)


def _read_tensor(view: memoryview) -> tuple[str, str, list[int]]:
    name = datatype = ""
    shape: list[int] = []
    for field, value in _fields(view):
        if field == 1:
            name = str(value, "utf-8")
        elif field == 2:
            datatype = str(value, "utf-8")
        elif field == 3:
            at = 0
            while at < len(value):
                dim, at = _read_varint(value, at)
                shape.append(dim)
    return name, datatype, shape


def _fields(view: memoryview) -> Iterator[tuple[int, memoryview]]:
    """Yield the length-delimited fields of a message. These messages have no others."""
    at = 0
    while at < len(view):
        key, at = _read_varint(view, at)
        size, at = _read_varint(view, at)
        yield key >> 3, view[at : at + size]
        at += size


def _read_varint(view: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = view[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _text(field: int, value: str) -> bytes:
    encoded = value.encode()
    return _varint(field << 3 | 2) + _varint(len(encoded)) + encoded


def _check(datatype: str, shape: list[int], data: Buffer) -> None:
    needed = prod(shape) * _SIZES[datatype]
    if len(data) != needed:
        raise ValueError(f"{len(data)} bytes, shape {shape} of {datatype} needs {needed}")


# --- the two directions


class ToGrpc:
    """HTTP in, gRPC out."""

    def __init__(self, port: int) -> None:
        self._channel = aio.insecure_channel(f"127.0.0.1:{port}", options=_UNLIMITED)
        self._infer = self._channel.unary_unary(_METHOD)

    async def __call__(self, request: web.BaseRequest) -> web.StreamResponse:
        """Handle one request."""
        model = _routed(request.path)
        body = await request.content.read()  # `request.read` has a limit of 1 MiB
        _, tensors = read_http(body, request.headers.get(_LENGTH), "inputs")
        answer = await self._infer(write_proto(model, tensors, 7))
        name, outputs = read_proto(answer, 6)
        if _LENGTH not in request.headers:
            return web.Response(
                body=write_http_json(name, outputs), content_type="application/json"
            )
        parts = write_http_binary(outputs, {"model_name": name}, "outputs")
        return web.Response(body=b"".join(parts), headers={_LENGTH: str(len(parts[0]))})


class ToHttp:
    """gRPC or HTTP in, HTTP with binary tensors out."""

    def __init__(self, port: int) -> None:
        self._base = f"http://127.0.0.1:{port}"
        self._session = aiohttp.ClientSession(auto_decompress=False)

    async def grpc(self, message: bytes, _context: Any) -> bytes:
        """Handle one gRPC call."""
        model, tensors = read_proto(message, 7)
        _routed(f"/v2/models/{model}/infer")
        name, outputs = await self._ask(model, tensors)
        return write_proto(name, outputs, 6)

    async def http(self, request: web.BaseRequest) -> web.StreamResponse:
        """Handle one HTTP request with binary tensors."""
        model = _routed(request.path)
        body = await request.content.read()  # `request.read` has a limit of 1 MiB
        _, tensors = read_http(body, request.headers.get(_LENGTH), "inputs")
        name, outputs = await self._ask(model, tensors)
        parts = write_http_binary(outputs, {"model_name": name}, "outputs")
        return web.Response(body=b"".join(parts), headers={_LENGTH: str(len(parts[0]))})

    async def _ask(self, model: str, tensors: list[Tensor]) -> tuple[str, list[Tensor]]:
        document: dict[str, Any] = {"parameters": {"binary_data_output": True}}
        parts = write_http_binary(tensors, document, "inputs")
        headers = {_LENGTH: str(len(parts[0])), "Content-Type": "application/octet-stream"}
        url = f"{self._base}/v2/models/{model}/infer"
        async with self._session.post(url, data=b"".join(parts), headers=headers) as answer:
            body = await answer.read()
            head, outputs = read_http(body, answer.headers.get(_LENGTH), "outputs")
        return head["model_name"], outputs


def _routed(path: str) -> str:
    _, _, model = path.partition("/v2/models/")
    name, _, action = model.rpartition("/")
    if action != "infer" or name not in ("add_sub", "sum_and_empty"):
        raise LookupError(path)
    return name


async def _serve(http_port: int, grpc_port: int, carrier: str, port: int) -> None:
    handler = ToGrpc(port) if carrier == "grpc" else ToHttp(port).http
    runner = web.ServerRunner(web.Server(handler, access_log=None))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", http_port).start()
    server = aio.server(options=_UNLIMITED)
    if carrier == "http":
        infer = grpc.unary_unary_rpc_method_handler(ToHttp(port).grpc)
        service = grpc.method_handlers_generic_handler(
            "inference.GRPCInferenceService", {"ModelInfer": infer}
        )
        server.add_generic_rpc_handlers((service,))
    server.add_insecure_port(f"127.0.0.1:{grpc_port}")
    await server.start()
    await asyncio.Event().wait()


def main() -> None:
    """Serve until killed."""
    http_port, grpc_port, carrier, port = sys.argv[1:]
    import uvloop  # noqa: PLC0415  # only the child needs it

    uvloop.run(_serve(int(http_port), int(grpc_port), carrier, int(port)))


if __name__ == "__main__":
    main()
