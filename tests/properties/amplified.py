"""Messages with one part repeated a million times, for every codec, and what reading each one takes.

The messages come from the codecs of the registry: a small legal message in which each list, object,
text and number of JSON, and each field of protobuf, grows in its turn.  Forms that only some codecs
read stand in `SEEDS`.  `measured` reads a message in a process of its own, as the gateway does.
"""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import resource
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any, cast

from gateway.concurrency.offload import limit_memory
from gateway.frontend.frontend import Frontend
from gateway.ir.calls import (
    InferRequest,
    InferResponse,
    ModelMetadataRequest,
    ServerStatusRequest,
)
from gateway.ir.context import ModelRef
from gateway.ir.errors import GatewayError
from gateway.ir.metadata import ModelMetadata, TensorMetadata
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.tensor import Tensor, items_tensor, raw_tensor
from gateway.ir.work import BUILT_TIMES
from gateway.policies.complete.policy import Complete
from gateway.processes.process import freeze_startup_objects, keep_large_buffers
from gateway.transports.memory_budget import MemoryBudget
from gateway.transports.reservation import BuildReservation
from gateway.upstream import Upstream
from gateway.wire.grpc import GrpcResponse
from gateway.wire.http import Headers, HttpRequest, HttpResponse
from tests.properties.carries import CARRIES, WAYS, Carries
from tests.properties.registered import REGISTERED, body_of, with_body

MODEL = "m"
JSON = "application/json"
FORM = "application/x-www-form-urlencoded"
PARTS = "multipart/form-data; boundary=b"
"""Of a form of one part, see `part`."""

# The smallest elements of JSON, and some that are cheap to send and dear to keep.
ELEMENTS = ("0", "0.5", "null", '""', '"ab"', "[]", "[0]", "{}", '{"a":0}')
_TEXTS = (b"a", b"\\n", b"\\u0031", "é".encode(), "\N{GRINNING FACE}".encode())


@dataclass(frozen=True)
class Seed:
    """A small legal message.

    Attributes:
        codec: As registered.
        name: Tells it from other seeds of the codec.
        wire: The message.
        call: What it is the response to; None for a request.
        options: Of the listener or the upstream.
        texts: The input of the model is of BYTES, not of FP32.
    """

    codec: str
    name: str
    wire: Any
    call: Any = None
    options: Any = None
    texts: bool = False


@dataclass(frozen=True)
class Taken:
    """What one message took.

    Attributes:
        size: Bytes of the message.
        rise: Bytes by which the memory of the process rose at most while it was read and answered.
        reserved: Bytes that were reserved of the memory budget for it, at most.
        turn_s: The longest time of a processor for which no other call got a turn.
        outcome: Status and text of the response, or the error.
    """

    size: int
    rise: int
    reserved: int
    turn_s: float
    outcome: str


def post(path: str, body: str | bytes, content_type: str = JSON, query: str = "") -> HttpRequest:
    """Return a request."""
    data = body.encode() if isinstance(body, str) else body
    headers = Headers((("Content-Type", content_type), ("Content-Length", str(len(data)))))
    return HttpRequest("POST", path, query, headers, (memoryview(data),))


def part(name: str, value: bytes) -> bytes:
    """Return a multipart form of one part."""
    head = b'--b\r\nContent-Disposition: form-data; name="%b"\r\n\r\n' % name.encode()
    return head + value + b"\r\n--b--\r\n"


def answer(body: str, content_type: str = JSON, status: int = 200) -> HttpResponse:
    """Return a response."""
    return HttpResponse(
        status, Headers((("Content-Type", content_type),)), (memoryview(body.encode()),)
    )


def usual(carries: Carries) -> tuple[InferRequest, InferResponse]:
    """Return an inference of two inputs, as far as *carries* allows."""
    data = memoryview(bytes(range(8)))
    tensors: tuple[Tensor, ...] = (
        raw_tensor("x", Datatype.INT32, (1, 2), data),
        items_tensor("y", (1, 2), [b"ab", b"c"]),
    )
    if carries.most_tensors == 1:
        tensors = (raw_tensor("x", Datatype.INT64, (1,), data),)
    model = carries.model or ModelRef(MODEL)
    call = InferRequest(model=model, inputs=tensors)
    return call, InferResponse(model=model, outputs=tensors)


_CALL = InferRequest(
    model=ModelRef(MODEL), inputs=(raw_tensor("x", Datatype.FP32, (1,), memoryview(bytes(4))),)
)
_MULTIPART = part("data", b"[1]")

SEEDS: tuple[Seed, ...] = (
    Seed(
        "mlflow.http",
        "split",
        post("/invocations", '{"dataframe_split":{"columns":["x"],"index":[0],"data":[[1]]}}'),
    ),
    Seed("mlflow.http", "records", post("/invocations", '{"dataframe_records":[{"x":1}]}')),
    Seed("mlflow.http", "instances", post("/invocations", '{"instances":[[1]],"params":{"p":1}}')),
    Seed("mlflow.http", "texts", post("/invocations", '{"instances":["a"]}'), texts=True),
    Seed("mlflow.http", "inputs", post("/invocations", '{"inputs":{"x":[1]}}')),
    Seed("mlflow.http", "csv", post("/invocations", "x\n1\n", "text/csv")),
    Seed("mlflow.http", "lines", post("/invocations", "[1]\n", "application/jsonlines")),
    Seed("mlflow.http", "reply", answer('{"predictions":{"x":[1]}}'), _CALL),
    Seed(
        "tfs.http",
        "instances",
        post("/v1/models/m:predict", '{"instances":[[1]],"signature_name":"s"}'),
    ),
    Seed(
        "tfs.http",
        "texts",
        post("/v1/models/m:predict", '{"instances":["a",{"b64":"YQ=="}]}'),
        texts=True,
    ),
    Seed("tfs.http", "objects", post("/v1/models/m:predict", '{"instances":[{"x":[1]}]}')),
    Seed("tfs.http", "inputs", post("/v1/models/m:predict", '{"inputs":{"x":[1]}}')),
    Seed(
        "tfs.http",
        "examples",
        post("/v1/models/m:classify", '{"examples":[{"x":[1]}],"context":{"c":1}}'),
    ),
    Seed("tfs.http", "reply", answer('{"predictions":[[1]]}'), _CALL),
    Seed("tfs.http", "outputs", answer('{"outputs":{"x":[1]}}'), _CALL),
    Seed(
        "seldon.http",
        "ndarray",
        post(
            "/api/v1.0/predictions",
            '{"meta":{"tags":{"a":1}},"data":{"names":["x"],"ndarray":[[1]]}}',
        ),
    ),
    Seed(
        "seldon.http",
        "texts",
        post("/api/v1.0/predictions", '{"data":{"ndarray":[["a"]]}}'),
        texts=True,
    ),
    Seed(
        "seldon.http",
        "tensor",
        post("/api/v1.0/predictions", '{"data":{"tensor":{"shape":[1,1],"values":[1]}}}'),
    ),
    Seed(
        "seldon.http",
        "tftensor",
        post(
            "/api/v1.0/predictions",
            '{"data":{"tftensor":{"dtype":"DT_FLOAT","tensorShape":{"dim":[{"size":1}]},"floatVal":[1]}}}',
        ),
    ),
    Seed("seldon.http", "json", post("/api/v1.0/predictions", '{"jsonData":[1]}')),
    Seed("seldon.http", "str", post("/api/v1.0/predictions", '{"strData":"a"}'), texts=True),
    Seed("seldon.http", "bin", post("/api/v1.0/predictions", '{"binData":"YQ=="}'), texts=True),
    Seed(
        "seldon.http",
        "reply",
        answer(
            '{"data":{"names":["x"],"ndarray":[[1]]},"meta":{"metrics":[{"key":"k","type":"GAUGE","value":1}]}}'
        ),
        _CALL,
    ),
    Seed("torchserve.http", "json", post("/predictions/m", '{"data":[1]}')),
    Seed("torchserve.http", "texts", post("/predictions/m", '["a"]'), texts=True),
    Seed("torchserve.http", "reply", answer('{"x":[1]}'), _CALL),
    Seed("grps.http", "ndarray", post("/grps/v1/infer/predict", '{"model":"m","ndarray":[[1]]}')),
    Seed(
        "grps.http", "map", post("/grps/v1/infer/predict", '{"model":"m","gmap":{"s_i32":{"a":1}}}')
    ),
    Seed(
        "grps.http",
        "str",
        post("/grps/v1/infer/predict", '{"model":"m","str_data":"a"}'),
        texts=True,
    ),
    Seed(
        "openai.http",
        "embeddings",
        post("/v1/embeddings", '{"model":"m","input":["a"]}'),
        texts=True,
    ),
    Seed("openai.http", "tokens", post("/v1/embeddings", '{"model":"m","input":[[1]]}')),
    Seed(
        "openai.http",
        "rerank",
        post("/v1/rerank", '{"model":"m","query":"a","documents":["a",{"text":"b"}]}'),
        texts=True,
    ),
    Seed(
        "openai.http",
        "completions",
        post("/v1/completions", '{"model":"m","prompt":["a"],"stop":["b"]}'),
        texts=True,
    ),
    Seed(
        "oip.http",
        "generate",
        post("/v2/models/m/generate", '{"text_input":"a","parameters":{"p":1}}'),
        texts=True,
    ),
    Seed(
        "oip.http",
        "fp16",
        post(
            "/v2/models/m/infer",
            '{"inputs":[{"name":"x","datatype":"FP32","shape":[1],"data":[[1.5]],"parameters":{"p":1}}],"outputs":[{"name":"x"}],"parameters":{"p":1}}',
        ),
    ),
)

_BULK: Mapping[str, tuple[str, bytes]] = {
    "tfs.http": ("/v1/models/m:predict", b'{"instances":[%b]}'),
    "mlflow.http": ("/invocations", b'{"instances":[%b]}'),
    "torchserve.http": ("/predictions/m", b"[%b]"),
    "seldon.http": ("/api/v1.0/predictions", b'{"data":{"ndarray":[%b]}}'),
    "oip.http": ("/v2/models/m/infer", b'{"inputs":[{"name":"x",%b}]}'),
}

LONG, SHORT = 1_000_000, 100_000
"""Repetitions: of the slow edition, and of the one in the normal run."""
LONGEST_TURN_S, MORE_BYTES = 0.2, 16 << 20
_IN_FLIGHT_BYTES = 256 << 20


def forms(count: int) -> Iterator[Seed]:
    """Yield the forms that are neither JSON nor protobuf, with *count* repetitions."""
    for codec, path, field in (
        ("torchserve.http", "/predictions/m", "data"),
        ("seldon.http", "/api/v1.0/predictions", "json"),
    ):
        start = f"{field}=".encode()
        for name, text in {
            "escapes": start + b"%31" * count,
            "plus": start + b"+" * count + b"[1]",
            "fields": b"&".join([b"a=1"] * count),
            "no fields": b"&" * count,
            "escaped name": b"%61" * count + b"=1",
            "no escapes": start + b"1" * count,
            "bad escapes": start + b"%" * count,
            "elements": start + b"[" + b"1," * count + b"1]",
            "escaped elements": start + b"[" + b"%30," * count + b"1]",
        }.items():
            yield Seed(codec, f"form {name}", post(path, text, FORM))
        for name, text in {
            "one part": part(field, b"[" + b"1," * count + b"1]"),
            "parts": b"\r\n".join(
                [b'--b\r\nContent-Disposition: form-data; name="a"\r\n\r\n1'] * (count // 10)
            )
            + b"\r\n--b--",
            "boundaries": b"--b\r\n" * count,
            "head": b'--b\r\nContent-Disposition: form-data; name="%b"\r\n\r\n1\r\n--b--'
            % (b";a=1" * count),
            "lines": b"--b\r\n"
            + b"a:b\r\n" * count
            + b'Content-Disposition: form-data; name="a"\r\n\r\n1\r\n--b--',
            "data": part("strData", b"x" * count),
        }.items():
            yield Seed(codec, f"multipart {name}", post(path, text, PARTS), texts=True)
        yield Seed(
            codec, "query", post(path, b"", JSON, query=f"{field}=" + "%31" * (count // 100))
        )
    for codec, (path, body) in _BULK.items():
        for name, element, some in (
            ("digits", b"1", count * 17 // 10),
            ("fractions", b"0.5", count),
            ("rows", b"[1]", count // 2),
            ("texts", b'"some text"', count * 2 // 5),
            ("objects", b'{"X":1}', count * 9 // 10),
            ("long fractions", b"0." + b"1" * 140, count // 10),
        ):
            is_text, elements = name == "texts", b",".join([element] * some)
            if codec == "oip.http":
                datatype = b"BYTES" if is_text else b"FP32"
                head = b'"datatype":"%b","shape":[%d],"data":[' % (datatype, some)
                elements = head + elements + b"]"
            yield Seed(codec, f"bulk {name}", post(path, body % elements), texts=is_text)
    for name, text in {
        "lines": b"[1]\n" * count,
        "numbers": b"1\n" * count,
        "objects": b'{"x":1}\n' * count,
        "empty lines": b"\n" * count + b"1",
        "texts": b'"a"\n' * count,
    }.items():
        texts = name == "texts"
        yield Seed(
            "mlflow.http",
            f"jsonlines {name}",
            post("/invocations", text, "application/jsonlines"),
            texts=texts,
        )
    for name, text in {
        "rows": b"x\n" + b"1\n" * count,
        "columns": b"1," * count + b"1",
        "cells": b"x,y\n" + b"1,2\n" * count,
        "empty": b"x\n" + b"\n" * count,
        "quotes": b"x\n" + b'""\n' * count,
        "commas": b"x\n" + b"," * count,
        "carriage returns": b"x\n" + b"\r" * count,
        "one cell": b"x\n1" + b"1" * count,
    }.items():
        yield Seed("mlflow.http", f"csv {name}", post("/invocations", text, "text/csv"))
    header = b'batch_size: 1 input { name: "x" } output { name: "x" } '
    most = min(count, 60_000)  # bytes, as transports read no longer headers
    for name, text in {
        "dims": header + b'input { name: "x" ' + b"dims:1 " * (most // 7) + b"}",
        "outputs": header + b"output{}" * (most // 8),
        "inputs": header + b"input{}" * (most // 7),
        "spaces": header + b" " * most,
        "digits": header + b"id: " + b"1" * most,
    }.items():
        headers = Headers((("NV-InferRequest", text.decode()), ("Content-Length", "4")))
        yield Seed(
            "trtis.http",
            f"header {name}",
            HttpRequest("POST", "/api/infer/m", "", headers, (memoryview(bytes(4)),)),
        )
    for name, text in {
        "models": b'model_status { key: "m" value { config { name: "m" } } } ' * (count // 20),
        "digits": b'id: "a" uptime_ns: ' + b"1" * count,
        "escapes": b'id: "' + b"\\061" * count + b'"',
        "unknown": b"a:1 " * count,
    }.items():
        yield Seed(
            "trtis.http",
            f"status {name}",
            answer(text.decode(), "text/plain"),
            ServerStatusRequest(),
        )


def messages(count: int = LONG, only: str = "") -> Iterator[Seed]:
    """Yield every message, for each codec of the registry.

    A part that several ways of a codec have grows in the first of them alone.
    """
    seen: set[tuple[str, bool, str]] = set()
    for seed in (*SEEDS, *_of_ways()):
        body, tail = b"".join(map(bytes, body_of(seed.wire))), b""
        if seed.codec.endswith(".http") and body[:1] in (b"{", b"["):
            document, end = json.JSONDecoder().raw_decode(body.decode("latin-1"))
            tail = body[end:]
            grown: Any = grown_json(document, count)
        elif seed.codec.endswith(".grpc") or seed.codec.endswith(".brpc"):
            grown = _grown_frames(seed, body, count)
        else:
            grown = grown_flatbuffers(body, count)
        for name, make in grown:
            key = (seed.codec, seed.call is None, name)
            if key not in seen and f"{seed.codec} {seed.name}: {name}".startswith(only):
                seen.add(key)
                data = make() + tail
                yield Seed(
                    seed.codec,
                    f"{seed.name}: {name}",
                    with_body(seed.wire, data),
                    seed.call,
                    seed.options,
                    seed.texts,
                )
    for seed in forms(count):
        if f"{seed.codec} {seed.name}".startswith(only):
            yield seed


def _of_ways() -> Iterator[Seed]:
    """Yield a request and a response of each way in which tensors travel."""
    for way in WAYS:
        call, reply = usual(way)
        made = way.registered.make
        upstream, listener = made(way.upstream), made(way.listener)
        if way.codec.startswith("trtis"):
            call, reply = call.changed(batch_size=1), reply.changed(batch_size=1)
        request = with_body(wire := upstream.encode_call(call), b"".join(map(bytes, body_of(wire))))
        response = listener.encode_reply(listener.decode_call(request), reply)
        response = with_body(response, b"".join(map(bytes, body_of(response))))
        yield Seed(way.codec, f"{way.way} request", request, None, way.listener)
        yield Seed(way.codec, f"{way.way} reply", response, call, way.upstream)
    for codec in sorted({way.codec for way in CARRIES} & {"seldon.grpc", "torchserve.grpc"}):
        request = REGISTERED[codec].make({}).encode_call(_CALL)
        yield Seed(codec, "request", with_body(request, b"".join(map(bytes, body_of(request)))))
        yield Seed(codec, "reply", GrpcResponse((memoryview(b"\x0a\x01a"),)), _CALL)


def grown_json(document: Any, count: int) -> Iterator[tuple[str, Any]]:
    """Yield texts of *document* in which one value is *count* times as long."""
    mark = "\x00grow\x00"
    quoted = json.dumps(mark).encode()
    for place, value, replaced in _places(document, ()):
        where = ".".join(map(str, place)) or "document"
        text = json.dumps(replaced(mark), separators=(",", ":")).encode()
        for name, new in _grown_values(value, count):
            yield f"{where} {name}", lambda text=text, new=new: text.replace(quoted, new())


def _grown_values(value: Any, count: int) -> Iterator[tuple[str, Any]]:
    if isinstance(value, list):
        for element in ELEMENTS:
            yield (
                f"list of {element}",
                lambda element=element: b"[" + b",".join([element.encode()] * count) + b"]",
            )
        if value:
            one = json.dumps(value[0], separators=(",", ":")).encode()
            yield (
                "list of its own",
                lambda: b"[" + b",".join([one] * (count * 3 // len(one))) + b"]",
            )
    elif isinstance(value, dict):
        own = json.dumps(value, separators=(",", ":")).encode()[:-1]
        comma = b"," if value else b""
        yield (
            "keys",
            lambda: own + comma + b",".join([b'"%x":0' % at for at in range(count)]) + b"}",
        )
        yield (
            "a list of an unknown member",
            lambda: own + comma + b'"zz":[' + b",".join([b"[]"] * count) + b"]}",
        )
    elif isinstance(value, str):
        for each in _TEXTS:
            yield f"text of {each!r}", lambda each=each: b'"' + each * count + b'"'
        yield "text with one wide character", lambda: b'"' + b"a" * (2 * count) + _TEXTS[-1] + b'"'
    else:
        yield "digits", lambda: b"1" * count
        yield "fraction", lambda: b"0." + b"1" * count
        yield "exponent", lambda: b"1e" + b"1" * count


def _places(
    value: Any, place: tuple[Any, ...]
) -> Iterator[tuple[tuple[Any, ...], Any, Callable[[Any], Any]]]:
    """Yield each value of a document, with a function that returns the document with another one."""
    yield place, value, lambda new: new
    items = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for key, each in items:
        for where, found, replaced in _places(each, (*place, key)):
            yield (
                where,
                found,
                lambda new, key=key, replaced=replaced: _with(value, key, replaced(new)),  # type: ignore[misc]  # of a loop
            )


def _with(value: Any, key: Any, new: Any) -> Any:
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[key] = new
    return copy


def varint(value: int) -> bytes:
    """Write a number of protobuf."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*out, value))


def fields(data: bytes) -> list[tuple[int, int, bytes]] | None:
    """Return number, wire type and content of each field of a message; None if it is none."""
    found, at = [], 0
    try:
        while at < len(data):
            tag, at = _varint(data, at)
            number, kind = tag >> 3, tag & 7
            if not number:
                return None
            if kind == 0:
                start = at
                _, at = _varint(data, at)
                found.append((number, kind, data[start:at]))
                continue
            if kind == 2:
                size, at = _varint(data, at)
            elif kind in (1, 5):
                size = 8 if kind == 1 else 4
            else:
                return None
            if at + size > len(data):
                return None
            found.append((number, kind, data[at : at + size]))
            at += size
    except IndexError:
        return None
    return found


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


def written(found: list[tuple[int, int, bytes]]) -> bytes:
    """Write the fields of a message."""
    parts = []
    for number, kind, content in found:
        parts.append(varint(number << 3 | kind))
        if kind == 2:
            parts.append(varint(len(content)))
        parts.append(content)
    return b"".join(parts)


def grown_protobuf(data: bytes, count: int, place: str = "") -> Iterator[tuple[str, Any]]:
    """Yield messages in which one field, known or not, occurs *count* times more."""
    found = fields(data)
    if found is None:
        return
    numbers = {number for number, _, _ in found} | set(range(1, 17)) | {31}
    for number in sorted(numbers):
        tag = number << 3
        yield f"{place}{number} empty", lambda tag=tag: data + (varint(tag | 2) + b"\0") * count
        yield f"{place}{number} number", lambda tag=tag: data + (varint(tag) + b"\1") * count
        yield (
            f"{place}{number} packed",
            lambda tag=tag: data + varint(tag | 2) + varint(count) + b"\1" * count,
        )
        yield (
            f"{place}{number} inner",
            lambda tag=tag: data + (varint(tag | 2) + b"\2\x0a\0") * (count // 2),
        )
    yield f"{place}group", lambda: data + b"\xfb\1" + b"\x08\1" * count + b"\xfc\1"
    for at, (number, kind, content) in enumerate(found):
        if kind == 2 and content and fields(content):
            for name, new in grown_protobuf(content, count, f"{place}{number}."):
                yield (
                    name,
                    lambda at=at, number=number, kind=kind, new=new: written(
                        [*found[:at], (number, kind, new()), *found[at + 1 :]]
                    ),
                )


def _grown_frames(seed: Seed, body: bytes, count: int) -> Iterator[tuple[str, Any]]:
    if not seed.codec.endswith(".brpc"):
        yield from grown_protobuf(body, count)
        return
    meta_size = int.from_bytes(body[8:12], "big")
    meta, message = body[12 : 12 + meta_size], body[12 + meta_size :]
    for name, new in grown_protobuf(meta, count, "meta "):
        yield name, lambda new=new: _frame(new(), message)
    for name, new in grown_protobuf(message, count):
        yield name, lambda new=new: _frame(meta, new())


def _frame(meta: bytes, message: bytes) -> bytes:
    sizes = (len(meta) + len(message)).to_bytes(4, "big") + len(meta).to_bytes(4, "big")
    return b"PRPC" + sizes + meta + message


def grown_flatbuffers(body: bytes, count: int) -> Iterator[tuple[str, Any]]:
    """Yield messages in which one word of 32 bits is *count*, and one is an offset to a long end."""
    long = body + bytes(4 * count)
    ends = body + count.to_bytes(4, "little") * (count + 1)
    for at in range(0, len(body) - 3, 4):
        yield (
            f"word {at} count",
            lambda at=at: long[:at] + count.to_bytes(4, "little") + long[at + 4 :],
        )
        yield (
            f"word {at} offset",
            lambda at=at: ends[:at] + (len(body) - at).to_bytes(4, "little") + ends[at + 4 :],
        )


# -- what reading a message takes


_OF_MODEL = {"datatype": Datatype.FP32}


async def _model(call: Any) -> Any:
    """Return the inputs of an inference as its outputs, and the metadata that fit."""
    if isinstance(call, InferRequest):
        return InferResponse(model=call.model or ModelRef(MODEL), outputs=tuple(call.inputs))
    if isinstance(call, ModelMetadataRequest):
        one = (TensorMetadata("x", _OF_MODEL["datatype"], None),)
        return ModelMetadata(name=MODEL, inputs=one, outputs=one)
    raise GatewayError("another call")


async def answered(seed: Seed, datatype: Datatype | None = None) -> str:
    """Return how a message is answered, or the error that it becomes.

    Args:
        seed: The message.
        datatype: Of the input and the output of its model; that of the seed by default.
    """
    codec = REGISTERED[seed.codec].make(seed.options or {})
    _OF_MODEL["datatype"] = datatype or (Datatype.BYTES if seed.texts else Datatype.FP32)
    if seed.call is None:
        frontend = Frontend(codec, Complete(_model, codec.needs))
        found: Any = await frontend.handle(seed.wire)
        text = (
            b"".join(bytes(each[:200]) for each in body_of(found))[:200].decode("utf-8", "replace")
            if hasattr(found, "__class__") and not hasattr(found, "__anext__")
            else "stream"
        )
        return f"{getattr(found, 'status', '')} {getattr(found, 'details', '')} {text}"
    try:
        await Upstream("u", codec, cast("Any", _Client(seed.wire)))(seed.call)
    except GatewayError as error:
        return f"{type(error).__name__} {error.message[:200]}"
    return "OK"


class _Client:
    def __init__(self, wire: Any) -> None:
        self._wire = wire

    async def send(self, _wire: Any, /, *, deadline: float | None, decode: Any) -> Any:
        found = decode(self._wire)
        return await found if asyncio.iscoroutine(found) else found


def measured(seed: Seed) -> Taken:
    """Read a message in a process of its own, and return what it takes."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        resource.setrlimit(resource.RLIMIT_CPU, (6, 7))
        try:
            os.write(write, pickle.dumps(asyncio.run(_measured(seed))))
            code = 0
        except BaseException as error:  # noqa: BLE001  # the parent reports it
            os.write(write, pickle.dumps(repr(error)[:2000]))
        finally:
            os._exit(code)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        found = pickle.loads(pipe.read() or pickle.dumps("died: out of CPU time"))  # noqa: S301  # our own child wrote it
    os.waitpid(pid, 0)
    if isinstance(found, str):
        return Taken(0, 0, 0, 0.0, f"FOREIGN {found}")
    return cast("Taken", found)


async def _measured(seed: Seed) -> Taken:
    size = sum(map(len, body_of(seed.wire)))
    for name, value in getattr(getattr(seed.wire, "headers", None), "pairs", ()):
        size += len(name) + len(value)
    size += len(getattr(seed.wire, "query", ""))
    memory = Memory()
    before = _status("VmRSS")
    task = asyncio.ensure_future(answered(seed))
    longest, last = 0.0, time.process_time()
    while not task.done():
        await asyncio.sleep(0.001)
        now = time.process_time()
        longest, last = max(longest, now - last), now
    outcome = task.result()
    return Taken(size, _status("VmHWM") - before, memory.most, longest, outcome)


class Memory:
    """The budget of a gateway for what long work of this event loop builds.

    Attributes:
        most: The bytes that were reserved, at most.
    """

    def __init__(self, limit_bytes: int = _IN_FLIGHT_BYTES) -> None:
        self.most = 0
        self._budget = MemoryBudget(limit_bytes)
        limit_memory(lambda: _Recorded(self))

    def new(self) -> BuildReservation:
        """Return an empty reservation."""
        return BuildReservation(self._budget, 0.0)

    def look(self) -> None:
        """Note what is reserved."""
        self.most = max(self.most, self._budget.used)


class _Recorded:
    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._held = memory.new()

    async def grow(self, size: int) -> None:
        await self._held.grow(size)
        self._memory.look()

    def try_grow(self, size: int) -> bool:
        found = self._held.try_grow(size)
        self._memory.look()
        return found

    def close(self) -> None:
        self._held.close()


def _status(name: str) -> int:
    with Path("/proc/self/status").open() as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith(name)) << 10


@cache
def small_messages() -> Mapping[str, Sequence[Seed]]:
    """Return the messages that grow, by their codecs."""
    found: dict[str, list[Seed]] = {}
    for seed in (*SEEDS, *_of_ways()):
        found.setdefault(seed.codec, []).append(seed)
    return found


def _faults(cost: Taken) -> str:
    """Return what is wrong with what a message took; "" for nothing."""
    found = []
    if cost.rise > BUILT_TIMES * cost.size + MORE_BYTES + cost.reserved:
        reserved = f", of which {cost.reserved >> 20} were reserved" if cost.reserved else ""
        found.append(f"memory rose by {cost.rise >> 20} MiB{reserved}")
    if cost.turn_s > LONGEST_TURN_S:
        found.append(f"others waited {cost.turn_s:.2f} s")
    if cost.outcome.startswith(("FOREIGN", "500")):
        found.append("a foreign error")
    return ", ".join(found)


def main(name: str, count: int, some: int = 0) -> int:
    """Print the messages that take too much, and return how many they are.

    Args:
        name: Of a codec as registered, and how the names of its messages begin.
        count: Repetitions.
        some: How many messages, spread over all of them; 0 for all.
    """
    freeze_startup_objects()  # as the gateway
    keep_large_buffers(1 << 20)  # what is free is not kept
    wrong = 0
    step = max(sum(1 for _ in messages(1, name)) // some, 1) if some else 1
    for seed in islice(messages(count, name), 0, None, step):
        cost = measured(seed)
        if cost.turn_s > LONGEST_TURN_S:  # other processes lengthen turns: the best of three counts
            cost = min((cost, measured(seed), measured(seed)), key=lambda each: each.turn_s)
        faults = _faults(cost)
        if faults:
            wrong += 1
            size = f"{cost.size / 1e6:.1f} MB"
            print(f"{seed.codec} {seed.name}: {size}: {faults}: {cost.outcome[:120]}", flush=True)
    return wrong


if __name__ == "__main__":
    repetitions, some, *names = sys.argv[1:]
    wrong = 0
    for each in names:
        # In a process of its own: one that has read other messages hides what this one takes.
        pid = os.fork()
        if not pid:
            os._exit(min(main(each, int(repetitions), int(some)), 100))
        wrong += os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) != 0
    sys.exit(wrong)
