"""A seeded search for the messages that cost most, per request and per byte, for each protocol.

Messages are legal in form, of any size and shape that the default limits allow or reject. Each is decoded,
handled by a model that returns its input, and its reply encoded. The most expensive ones are
varied further, and printed: `pytest -m slow -s tests/properties/test_costly_messages.py`.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import random
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, fields, replace
from typing import Any

import pytest

from gateway.backends import examples
from gateway.backends.python import PythonBackend
from gateway.frontend.frontend import Frontend
from gateway.ir.calls import Call
from gateway.ir.errors import NotFound
from gateway.ir.limits import DEFAULT_LIMITS
from gateway.policies.classify import Classify
from gateway.policies.complete.policy import Complete
from gateway.policies.complete.tensors import ALL_NEEDS
from gateway.registry import protocol
from gateway.schema import grps_pb2 as grps
from gateway.schema import open_inference_pb2 as oip
from gateway.schema import tensorrt_v1_pb2 as trtis
from gateway.wire.grpc import GrpcRequest
from gateway.wire.http import Headers, HttpRequest
from gateway.wire.stream import Frame
from tests.cases import brpc_oracle
from tests.cases import graphpipe_oracle as graphpipe
from tests.scheduling import slowness

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

LOOP_S = 0.1
# Of the event loop, for each byte: memory is read once, and given back. The largest have 180 MB.
LOOP_BYTE_S = 1e-9
BYTE_S = 2e-6
# What a message may cost however short it is, such as 4,096 elements of a compressed one.
BASE_S = 0.015
# TensorRT v1 does not tell datatypes, so that elements are not counted while a message is decoded.
BASE_V1_S = 0.03
SEED = 20_261_122
SAMPLES = 36
KEPT = 4
TRIES = 3
ELEMENTS = 4096  # as of `decompressed_elements`

SIZES = {"BYTES": 0, "BOOL": 1, "UINT8": 1, "INT32": 4, "INT64": 8, "FP32": 4, "FP64": 8}
CODES = {"BOOL": "?", "UINT8": "B", "INT32": "i", "INT64": "q", "FP32": "f", "FP64": "d"}


@dataclass(frozen=True)
class Shape:
    """What varies of a message; what a protocol has no form for makes no difference there.

    Attributes:
        lengths: Of BYTES elements, by turns.
        nested: In JSON: lists of lists of so many elements; 0 for a flat one.
        unpacked: In protobuf: each number is a field.
        typed: In protobuf: typed contents, not raw ones.
        junk: In protobuf: unknown fields of the tensor.
        classes: Requested; 0 for the values.
        rows: Items of a batch; 0 for none.
        coded: Compressed by gzip.
    """

    datatype: str = "FP32"
    count: int = 1000
    lengths: tuple[int, ...] = (0,)
    value: int = 1
    nested: int = 0
    unpacked: bool = False
    typed: bool = False
    junk: int = 0
    classes: int = 0
    rows: int = 0
    tensors: int = 1
    coded: bool = False


CHOICES: dict[str, Callable[[random.Random], Any]] = {
    "datatype": lambda rng: rng.choice(["BYTES", "BYTES", *SIZES]),
    "count": lambda rng: int(2 ** rng.uniform(4, 20)),
    "lengths": lambda rng: rng.choice([(0,), (1,), (0, 1), (3, 0, 7), (200,)]),
    "value": lambda rng: rng.choice([0, 1, 100, 127]),
    "nested": lambda rng: rng.choice([0, 0, 1, 2, 16]),
    "unpacked": lambda rng: rng.random() < 0.2,
    "typed": lambda rng: rng.random() < 0.5,
    "junk": lambda rng: rng.choice([0, 0, 0, 60, 5000]),
    "classes": lambda rng: rng.choice([0, 0, 1, 1000]),
    "rows": lambda rng: rng.choice([0, 0, 1, 1000]),
    "tensors": lambda rng: rng.choice([1, 1, 1, 3, 250]),
    "coded": lambda rng: rng.random() < 0.2,
}


def drawn(rng: random.Random) -> Shape:
    return Shape(**{name: choose(rng) for name, choose in CHOICES.items()})


def varied(shape: Shape, rng: random.Random) -> Shape:
    name = rng.choice([one.name for one in fields(Shape)])
    return replace(shape, **{name: CHOICES[name](rng)})


# -- messages

Wire = HttpRequest | GrpcRequest | Frame
Made = tuple[Wire, int]
"""A message, and its bytes on the wire."""


def elements(shape: Shape) -> bytes:
    """Return the elements of one tensor in wire form, as raw and binary tensors have them."""
    count = each(shape)
    if shape.datatype != "BYTES":
        return struct.pack(f"<{CODES[shape.datatype]}", shape.value % 2 or shape.value) * count
    turn = b"".join(struct.pack("<I", size) + b"x" * size for size in shape.lengths)
    remainder = count % len(shape.lengths)
    rest = b"".join(struct.pack("<I", size) + b"x" * size for size in shape.lengths[:remainder])
    return turn * (count // len(shape.lengths)) + rest


def each(shape: Shape) -> int:
    return max(1, shape.count // shape.tensors)


def dims(shape: Shape) -> list[int]:
    count = each(shape)
    if shape.nested and count % shape.nested == 0:
        return [count // shape.nested, shape.nested]
    return [count]


def names(shape: Shape) -> list[str]:
    return ["INPUT0", *[f"I{number}" for number in range(1, shape.tensors)]]


def model(shape: Shape) -> str:
    return f"identity_{shape.datatype.lower()}"


def posted(path: str, body: bytes, shape: Shape, *pairs: tuple[str, str]) -> Made:
    view, size, most = body, len(body), None
    if shape.coded:
        size = len(gzip.compress(body, 9))
        most = ELEMENTS + size
    headers = Headers((("Content-Length", str(size)), *pairs))
    return HttpRequest("POST", path, "", headers, (memoryview(view),), elements=most), size


def oip_json(shape: Shape) -> Made:
    text = {"BYTES": '"' + "x" * shape.lengths[0] + '"', "BOOL": "true"}
    one = text.get(shape.datatype, str(shape.value))
    wide = dims(shape)
    row = one if len(wide) == 1 else "[" + ",".join([one] * wide[1]) + "]"
    data = "[" + ",".join([row] * wide[0]) + "]"
    inputs = ",".join(
        f'{{"name":"{name}","datatype":"{shape.datatype}","shape":{json.dumps(wide)},"data":{data}}}'
        for name in names(shape)
    )
    body = f'{{"inputs":[{inputs}]{classified(shape)}}}'.encode()
    return posted(f"/v2/models/{model(shape)}/infer", body, shape)


def classified(shape: Shape) -> str:
    if not shape.classes:
        return ""
    outputs = [{"name": "OUTPUT0", "parameters": {"classification": shape.classes}}]
    return f',"outputs":{json.dumps(outputs)}'


def oip_binary(shape: Shape) -> Made:
    data = elements(shape)
    inputs = [
        {
            "name": name,
            "datatype": shape.datatype,
            "shape": dims(shape),
            "parameters": {"binary_data_size": len(data)},
        }
        for name in names(shape)
    ]
    text = f'{{"inputs":{json.dumps(inputs)}{classified(shape)}}}'.encode()
    length = ("Inference-Header-Content-Length", str(len(text)))
    return posted(f"/v2/models/{model(shape)}/infer", text + data * shape.tensors, shape, length)


_FIELDS = {"BOOL": 1, "INT32": 2, "INT64": 3, "UINT8": 4, "FP32": 6, "FP64": 7, "BYTES": 8}


def varint(value: int) -> bytes:
    return brpc_oracle.varint(value)


def field(number: int, data: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(data)) + data


def numbers(number: int, shape: Shape) -> bytes:
    """Return a repeated field of the tensor's elements, packed or not."""
    count = each(shape)
    if shape.datatype == "BYTES":
        turns = [field(number, b"x" * size) for size in shape.lengths]
        return b"".join(turns) * (count // len(turns)) + b"".join(turns[: count % len(turns)])
    if shape.datatype in ("FP32", "FP64"):
        one, kind = bytes(SIZES[shape.datatype]), 5 if shape.datatype == "FP32" else 1
    else:
        one, kind = varint(shape.value), 0
    if shape.unpacked:
        return (varint(number << 3 | kind) + one) * count
    return field(number, one * count)


def oip_grpc(shape: Shape) -> Made:
    head = oip.ModelInferRequest(model_name=model(shape)).SerializeToString()
    if shape.classes:
        output = oip.ModelInferRequest.InferRequestedOutputTensor(name="OUTPUT0")
        output.parameters["classification"].int64_param = shape.classes
        head += field(6, output.SerializeToString())
    typed = field(5, numbers(_FIELDS[shape.datatype], shape)) if shape.typed else b""
    parts = [head]
    for name in names(shape):
        tensor = oip.ModelInferRequest.InferInputTensor(
            name=name, datatype=shape.datatype, shape=dims(shape)
        )
        parts.append(field(5, tensor.SerializeToString() + b"\x7a\x00" * shape.junk + typed))
    if not shape.typed:
        parts += [field(7, elements(shape))] * shape.tensors
    return called("/inference.GRPCInferenceService/ModelInfer", b"".join(parts), shape)


def called(method: str, message: bytes, shape: Shape) -> Made:
    size, most = len(message), None
    if shape.coded:
        size = len(gzip.compress(message, 9))
        most = ELEMENTS + size
    return GrpcRequest(method, (memoryview(message),), elements=most), size


def v1_header(shape: Shape) -> trtis.InferRequestHeader:
    rows = shape.rows if shape.rows and each(shape) % shape.rows == 0 else 1
    header = trtis.InferRequestHeader(batch_size=rows)
    for name in names(shape):
        entry = header.input.add(name=name, dims=[each(shape) // rows])
        entry.batch_byte_size = len(elements(shape))
    output = header.output.add(name="OUTPUT0")
    if shape.classes:
        output.cls.count = shape.classes
    return header


def v1_http(shape: Shape) -> Made:
    header = ("NV-InferRequest", " ".join(str(v1_header(shape)).split()))
    return posted(f"/api/infer/{model(shape)}", elements(shape) * shape.tensors, shape, header)


def v1_grpc(shape: Shape) -> Made:
    request = trtis.InferRequest(model_name=model(shape), model_version=-1)
    request.meta_data.CopyFrom(v1_header(shape))
    request.raw_input.extend([elements(shape)] * shape.tensors)
    message = request.SerializeToString() + b"\x7a\x00" * shape.junk
    return called("/nvidia.inferenceserver.GRPCService/Infer", message, shape)


_GRAPHPIPE = {"UINT8": 1, "INT32": 5, "INT64": 7, "FP32": 10, "FP64": 11, "BYTES": 12}


def graphpipe_http(shape: Shape) -> Made:
    # The library that writes them takes a while for each string.
    count = min(each(shape), 50_000)
    shape = replace(shape, count=count, tensors=1, nested=0)
    if shape.datatype == "BOOL":
        shape = replace(shape, datatype="UINT8")
    number = _GRAPHPIPE[shape.datatype]
    tensor = graphpipe.PlainTensor(number, (count,), elements(shape))
    if shape.datatype == "BYTES":
        items = tuple(b"x" * shape.lengths[at % len(shape.lengths)] for at in range(count))
        tensor = graphpipe.PlainTensor(number, (count,), b"", items)
    request = graphpipe.PlainRequest(b"", ("INPUT0",), (tensor,), ("OUTPUT0",))
    return posted(f"/graphpipe/{model(shape)}", graphpipe.build_request(request), shape)


_GRPS = {"UINT8": (1, 4), "INT32": (5, 8), "INT64": (6, 9), "FP32": (7, 10), "BYTES": (9, 12)}


def grps_tensors(shape: Shape) -> bytes:
    datatype = shape.datatype if shape.datatype in _GRPS else "FP32"
    shape = replace(shape, datatype=datatype)
    kind = {
        "UINT8": grps.DT_UINT8,
        "INT32": grps.DT_INT32,
        "INT64": grps.DT_INT64,
        "FP32": grps.DT_FLOAT32,
        "BYTES": grps.DT_STRING,
    }[datatype]
    tensors = []
    for name in names(shape):
        head = field(1, name.encode()) + b"\x10" + varint(kind)
        head += field(3, b"".join(map(varint, dims(shape))))
        member = kind + 3
        tensors.append(field(1, head + b"\x9a\x7f\x00" * shape.junk + numbers(member, shape)))
    return field(2, model(shape).encode()) + field(5, b"".join(tensors))


def grps_json(shape: Shape) -> Made:
    member, kind = {
        "BYTES": ("flat_string", "DT_STRING"),
        "INT64": ("flat_int64", "DT_INT64"),
        "INT32": ("flat_int32", "DT_INT32"),
        "UINT8": ("flat_uint8", "DT_UINT8"),
    }.get(shape.datatype, ("flat_float32", "DT_FLOAT32"))
    datatype = shape.datatype if shape.datatype in ("BYTES", "INT64", "INT32", "UINT8") else "FP32"
    shape = replace(shape, datatype=datatype)
    one = '"' + "x" * shape.lengths[0] + '"' if datatype == "BYTES" else str(shape.value)
    count = each(shape)
    if shape.nested:
        row = "[" + ",".join([one] * shape.nested) + "]"
        body = f'{{"ndarray":[{",".join([row] * max(1, count // shape.nested))}],"model":"%s"}}'
    else:
        flat = ",".join([one] * count)
        tensor = f'"dtype":"{kind}","shape":[{count}],"{member}":[{flat}]}}'
        tensors = ",".join(f'{{"name":"{name}",{tensor}' for name in names(shape))
        body = f'{{"gtensors":{{"tensors":[{tensors}]}},"model":"%s"}}'
    text = body % model(shape)
    return posted(
        "/grps/v1/infer/predict", text.encode(), shape, ("Content-Type", "application/json")
    )


def grps_brpc(shape: Shape) -> Made:
    compress = brpc_oracle.GZIP if shape.coded else brpc_oracle.NONE
    request = brpc_oracle.Question("Predict", grps_tensors(shape), compress=compress)
    frame = request.bytes(1)
    return Frame((memoryview(frame),), 1), len(frame)


@dataclass(frozen=True)
class Target:
    """A form of a protocol: the codec, and what writes its messages."""

    spec: str
    carrier: str
    make: Callable[[Shape], Made]
    base_s: float = BASE_S


TARGETS = {
    "oip_json": Target("oip", "http", oip_json),
    "oip_binary": Target("oip", "http", oip_binary),
    "oip_grpc": Target("oip", "grpc", oip_grpc),
    "trtis_http": Target("trtis", "http", v1_http, BASE_V1_S),
    "trtis_grpc": Target("trtis", "grpc", v1_grpc, BASE_V1_S),
    "graphpipe_http": Target("graphpipe", "http", graphpipe_http),
    "grps_json": Target("grps", "http", grps_json),
    "grps_brpc": Target("grps", "stream", grps_brpc),
}


# -- the search


@dataclass(frozen=True)
class Cost:
    """What one message took: of the event loop, of all threads, for each byte beyond the base."""

    shape: Shape
    size: int
    loop_s: float
    all_s: float
    status: str
    base_s: float

    @property
    def byte_s(self) -> float:
        return max(0.0, self.all_s - self.base_s) / self.size


@asynccontextmanager
async def frontend_of(target: Target) -> Any:
    """Serve models that return their input, in the protocol of *target*."""
    spec = protocol(target.spec)
    binding: Any = getattr(spec, target.carrier)
    codec = binding.codec(DEFAULT_LIMITS, spec.options({}))
    backends = {}
    for datatype in SIZES:
        name = f"identity_{datatype.lower()}"
        backends[name] = PythonBackend(name, getattr(examples, name))
        await backends[name].start()
    services = {name: Classify(Complete(backend, ALL_NEEDS)) for name, backend in backends.items()}

    async def service(call: Call[Any], /) -> Any:
        if call.model is None or call.model.name not in services:
            raise NotFound("no such model")
        return await services[call.model.name](call)

    try:
        yield Frontend(codec, service)
    finally:
        for backend in backends.values():
            await backend.stop()


async def measured(frontend: Any, target: Target, shape: Shape) -> Cost:
    wire, size = target.make(shape)
    slow = slowness()
    await asyncio.sleep(0)
    loop, process = time.thread_time(), time.process_time()
    found = await frontend.handle(wire)
    loop, process = time.thread_time() - loop, time.process_time() - process
    slow = max(slow, slowness())
    loop, process = loop / slow, process / slow
    body: Any = getattr(found, "body", None) or getattr(found, "message", None)
    received = sum(map(len, body or getattr(found, "payload", ())))
    headers = getattr(found, "headers", None)
    received += 0 if headers is None else sum(len(value) for _, value in headers.pairs)
    status = str(getattr(found, "status", ""))
    return Cost(shape, size + received, loop, process, status, target.base_s)


def rounds(rng: random.Random, found: list[Cost]) -> Iterator[Shape]:
    """Yield shapes to try: half at random, then variations of the most expensive ones."""
    for _ in range(SAMPLES // 2):
        yield drawn(rng)
    for _ in range(SAMPLES - SAMPLES // 2):
        worst = sorted(found, key=lambda cost: cost.loop_s)[-KEPT:]
        worst += sorted(found, key=lambda cost: cost.byte_s)[-KEPT:]
        yield varied(rng.choice(worst).shape, rng)


async def confirmed(
    frontend: Any, target: Target, found: list[Cost], cost_of: Callable[[Cost], float]
) -> Cost:
    """Return the most expensive message, each as it is at its best.

    A collection of garbage may fall into a message, and other processes share the caches.
    """
    best = []
    for candidate in sorted(found, key=cost_of)[-KEPT:]:
        tries = [await measured(frontend, target, candidate.shape) for _ in range(TRIES)]
        best.append(min(tries, key=cost_of))
    return max(best, key=cost_of)


@pytest.mark.parametrize("name", TARGETS)
async def test_no_message_costs_much(name: str) -> None:
    """A message may use 100 ms of the event loop and 1 ns per byte, and 2 us per byte in all.

    The bytes are those of it and of its response.
    """
    target, rng, found = TARGETS[name], random.Random(SEED), list[Cost]()  # noqa: S311  # repeatable
    async with frontend_of(target) as frontend:
        await measured(frontend, target, Shape())
        for shape in rounds(rng, found):
            found.append(await measured(frontend, target, shape))
        worst = await confirmed(frontend, target, found, lambda cost: cost.loop_s)
        dearest = await confirmed(frontend, target, found, lambda cost: cost.byte_s)
    print(f"\n{name}: {len(found)} messages")
    print(f"  loop {worst.loop_s * 1e3:6.1f} ms, {worst.size} bytes, {worst.status}: {worst.shape}")
    print(f"  byte {dearest.byte_s * 1e6:6.3f} us, {dearest.size} bytes: {dearest.shape}")
    assert worst.loop_s <= LOOP_S + worst.size * LOOP_BYTE_S
    assert dearest.byte_s <= BYTE_S
