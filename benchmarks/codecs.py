"""Codecs alone: decoding and encoding one request, small, of 602,112 bytes and of 16 MiB.

The table has every registered codec, and a peer for some: the protobuf library, the builder and
reader of flatbuffers, and json with numpy. Tensors must not be touched, so 16 MiB may cost at most
1.2 times as much as 602,112 bytes. JSON must parse every number.
"""

import json
import math
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import simdjson

from benchmarks import graphpipe
from benchmarks.messages import HUGE, Case, grpc_request, huge, image, json_request, small
from benchmarks.peers import flatbuffers_read, flatbuffers_write
from gateway.ir.calls import InferRequest
from gateway.ir.context import ModelRef
from gateway.ir.errors import GatewayError
from gateway.ir.limits import MessageLimits
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.tensor import raw_tensor
from gateway.registry import PROTOCOLS, protocol
from gateway.schema.open_inference_pb2 import ModelInferRequest
from gateway.wire.grpc import GrpcRequest
from gateway.wire.http import HttpRequest
from gateway.wire.stream import Frame

SIMDJSON = "simdjson alone"
_BATCH_S = 0.02
_BATCHES = 15
Step = Callable[[], object]

_PEERS = {
    "oip.grpc": "protobuf",
    "oip.http JSON": "json + numpy",
    "graphpipe.http": "flatbuffers",
    graphpipe.NAME: "flatbuffers",
}


@dataclass(frozen=True)
class Timing:
    """The cost of one step of a codec.

    Attributes:
        micros: Small, 602,112 bytes, 16 MiB; nan if not measured.
        growth: The last value divided by the one before.
        peer_us: The value of a peer at 602,112 bytes, if there is one.
    """

    codec: str
    step: str
    micros: tuple[float, float, float]
    growth: float
    peer: str
    peer_us: float | None

    def document(self) -> dict[str, object]:
        """Return the row for JSON, which has no nan."""
        fields = asdict(self)
        fields["micros"] = [None if math.isnan(value) else value for value in self.micros]
        fields["growth"] = None if math.isnan(self.growth) else self.growth
        return fields


def measure(only: str) -> list[Timing]:
    """Time every codec whose name contains *only*."""
    cases = [small(), image(), huge()]
    found: list[Timing] = []
    for name, codec in _codecs():
        if only in name:
            found += _timings(name, [_request_steps(name, codec, case) for case in cases], cases)
    if only in "oip.http JSON":
        codec = dict(_codecs())["oip.http"]
        steps = [_json_step(codec, case) if case.name != HUGE else None for case in cases]
        found += _timings("oip.http JSON", steps, cases)
    if only in SIMDJSON:
        found += _timings(SIMDJSON, [_parse_step(case) for case in cases], cases)
    if only in graphpipe.NAME:
        found += _timings(graphpipe.NAME, [graphpipe.steps(case) for case in cases], cases)
    return found


def _codecs() -> Iterator[tuple[str, Any]]:
    limits = MessageLimits()
    for name in PROTOCOLS:
        spec = protocol(name)
        for binding in (spec.http, spec.grpc, spec.stream):
            if binding is not None:
                options = {spec.default_model: image().model} if spec.default_model else {}
                codec: Any = binding.codec(limits, spec.options(options))
                yield codec.name, codec


def _request_steps(name: str, codec: Any, case: Case) -> dict[str, Step] | None:
    """Return the steps of one request, or None if the codec cannot represent it."""
    request = InferRequest(
        model=ModelRef(case.model),
        inputs=tuple(_tensor(name, array) for name, array in case.inputs.items()),
    )
    try:
        sent = codec.encode_call(request)
        received = _as_received(sent)
        codec.decode_call(received)
    except GatewayError as error:
        print(f"  skipped: {name} with {case.name}: {error}", file=sys.stderr)
        return None
    return {
        "encode": lambda: codec.encode_call(request),
        "decode": lambda: codec.decode_call(received),
    }


def _tensor(name: str, array: npt.NDArray[Any]) -> Any:
    datatype = {"int32": Datatype.INT32, "float32": Datatype.FP32}[array.dtype.name]
    return raw_tensor(name, datatype, array.shape, memoryview(array.tobytes()))


def _as_received(sent: Any) -> Any:
    """Return a message as a server receives it, with its body in one read-only view."""
    if isinstance(sent, HttpRequest):
        body = (memoryview(b"".join(sent.body)),)
        return HttpRequest(sent.method, sent.path, sent.query, sent.headers, body)
    if isinstance(sent, GrpcRequest):
        return GrpcRequest(sent.method, (memoryview(b"".join(sent.message)),), sent.metadata)
    return Frame((memoryview(b"".join(sent.payload)),), sent.correlation)


def _json_step(codec: Any, case: Case) -> dict[str, Step]:
    body = memoryview(json_request(case).body)
    wire = HttpRequest("POST", f"/v2/models/{case.model}/infer", body=(body,))
    return {"decode": lambda: codec.decode_call(wire)}


def _parse_step(case: Case) -> dict[str, Step] | None:
    """Return the parsing step alone, down to the numbers of the first input as a buffer."""
    if case.name == HUGE:
        return None
    body, parser = json_request(case).body, simdjson.Parser()
    of_type: Any = "d" if case.inputs[next(iter(case.inputs))].dtype.kind == "f" else "i"

    def parse() -> object:
        document: Any = parser.parse(body)
        numbers = document["inputs"][0]["data"].as_buffer(of_type=of_type)
        return memoryview(numbers).nbytes

    return {"decode": parse}


def _timings(
    codec: str, steps: list[dict[str, Step] | None], cases: list[Case]
) -> Iterator[Timing]:
    names = dict.fromkeys(name for found in steps if found for name in found)
    for name in names:
        first, second, third = (
            float("nan") if found is None else micros(found[name]) for found in steps
        )
        peer = _peer(codec, name, cases[1])
        yield Timing(
            codec,
            name,
            (first, second, third),
            third / second,
            "" if peer is None else _PEERS[codec],
            None if peer is None else micros(peer),
        )


def _peer(codec: str, step: str, case: Case) -> Step | None:
    found: dict[tuple[str, str], Step] = {}
    if codec == "oip.grpc":
        body = grpc_request(case).body
        found[codec, "decode"] = lambda: _by_protobuf(body)
        found[codec, "encode"] = lambda: grpc_request(case)
    elif codec == "oip.http JSON":
        text = json_request(case).body
        found[codec, "decode"] = lambda: _by_json(text)
    elif codec == "graphpipe.http":
        array = case.inputs["X"]
        message = flatbuffers_write(array)
        found[codec, "encode"] = lambda: flatbuffers_write(array)
        found[codec, "decode"] = lambda: flatbuffers_read(message)
    elif codec == graphpipe.NAME:
        found |= {(codec, name): peer for name, peer in graphpipe.peers(case).items()}
    return found.get((codec, step))


def _by_protobuf(body: bytes) -> list[npt.NDArray[Any]]:
    message = ModelInferRequest.FromString(body)
    return [np.frombuffer(raw, np.float32) for raw in message.raw_input_contents]


def _by_json(text: bytes) -> list[npt.NDArray[Any]]:
    return [
        np.array(one["data"], np.float32).reshape(one["shape"])
        for one in json.loads(text)["inputs"]
    ]


def micros(step: Step) -> float:
    """Return the CPU time of *step* in microseconds, the minimum of several batches."""
    step()
    started_s = time.process_time()
    step()
    once = max(time.process_time() - started_s, 1e-7)
    count = max(1, int(_BATCH_S / once))
    best = float("inf")
    for _ in range(_BATCHES):
        started_s = time.process_time()
        for _ in range(count):
            step()
        best = min(best, (time.process_time() - started_s) / count)
    return best * 1e6
