"""Messages that cost much more to read than to send, and the cost of one of them for others.

A message is written for a running gateway with the default limits (work.yaml). `check_delay`
judges messages of one protocol; test_bounded_work.py judges by the processor time, too.
"""

from __future__ import annotations

import gzip
import json
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import grpc

from gateway.schema import open_inference_pb2 as pb
from tests.hostile.grpc_cases import varint
from tests.hostile.process import Gateway, eventually
from tests.hostile.wire import Answer, Raw, head, post
from tests.scheduling import delayed_s, slowness

INFER = "/inference.GRPCInferenceService/ModelInfer"
_PATIENCE_S = 120.0
_MAX_WAIT_S = 0.5
_ATTEMPTS = 3
_PAUSE_S = 0.005
_CALM_CHECKS = 5


@dataclass(frozen=True)
class Http:
    """A request over HTTP/1."""

    data: bytes

    @property
    def size(self) -> int:
        """Bytes on the wire."""
        return len(self.data)

    def send(self, gateway: Gateway) -> str:
        """Send it and return the status, and the text of an error."""
        with Raw(gateway.http) as raw:
            raw.socket.settimeout(_PATIENCE_S)
            raw.send([self.data])
            response = raw.answer()
        assert response is not None
        return f"{response.status} {_text(response)}"


@dataclass(frozen=True)
class Grpc:
    """A message of gRPC, alone in its call."""

    data: bytes
    method: str = INFER
    compression: grpc.Compression | None = None

    @property
    def size(self) -> int:
        """Bytes before they are compressed."""
        return len(self.data)

    def send(self, gateway: Gateway) -> str:
        """Send it and return the status, and the text of an error."""
        options = [
            ("grpc.max_send_message_length", -1),
            ("grpc.max_receive_message_length", -1),
            ("grpc.use_local_subchannel_pool", 1),
        ]
        with grpc.insecure_channel(gateway.address("main.grpc"), options=options) as channel:
            try:
                call = channel.unary_unary(self.method)
                call(self.data, timeout=_PATIENCE_S, compression=self.compression)
            except grpc.RpcError as error:
                return f"{error.code().name} {error.details()}"
        return "OK"


Message = Http | Grpc


@dataclass(frozen=True)
class Cost:
    """The cost of one message, in seconds of the machine for which limits are (`slowness`).

    Attributes:
        loop_s: Processor time of the thread of the event loop, without that of the health checks.
        all_s: Processor time of the whole process.
        waited_s: The longest time that a health check on another connection took, without the time
            for which the gateway's threads waited for a processor, where others ran.
        outcome: Status, and the text of an error.
    """

    loop_s: float
    all_s: float
    waited_s: float
    outcome: str


def cost_of(gateway: Gateway, message: Message) -> Cost:
    """Send *message* and return what it costs the gateway and others."""
    slow = slowness()
    with _Bystander(gateway) as bystander:
        pid = gateway.process.pid
        check_s = bystander.check_s()
        loop, process, delayed = _loop_s(gateway), gateway.cpu_s(), delayed_s(pid)
        checks = bystander.checks
        outcome = message.send(gateway)
        loop, process = _loop_s(gateway) - loop, gateway.cpu_s() - process
        loop -= check_s * (bystander.checks - checks)
        waited = bystander.longest_s - max(0.0, delayed_s(pid) - delayed)
    slow = max(slow, slowness())
    return Cost(loop / slow, process / slow, waited / slow, outcome)


def check_delay(gateway: Gateway, make: Callable[[], Message], expected: str) -> None:
    """Check that a message lets no other client wait, and that its status is the expected one."""
    costs = []
    for _ in range(_ATTEMPTS):
        costs.append(cost_of(gateway, make()))
        if costs[-1].waited_s <= _MAX_WAIT_S:
            break
    assert costs[-1].waited_s <= _MAX_WAIT_S, costs
    assert expected == costs[-1].outcome.split()[0], costs[-1]


def _loop_s(gateway: Gateway) -> float:
    """Return the processor time of the main thread, which is that of the event loop."""
    pid = gateway.process.pid
    text = Path(f"/proc/{pid}/task/{pid}/schedstat").read_text()
    return int(text.split()[0]) / 1e9


class _Bystander:
    """Requests the gateway's health again and again, on a connection of its own."""

    def __init__(self, gateway: Gateway) -> None:
        self.longest_s = 0.0
        self.checks = 0
        self._gateway = gateway
        self._done = threading.Event()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(_PATIENCE_S)
        return self

    def __exit__(self, *_exc: object) -> None:
        self._done.set()
        self._thread.join()

    def check_s(self) -> float:
        """Return what a health check takes of the event loop while nothing else is asked."""
        checks, started_s = self.checks, _loop_s(self._gateway)
        assert eventually(lambda: self.checks >= checks + _CALM_CHECKS)
        return (_loop_s(self._gateway) - started_s) / (self.checks - checks)

    def _run(self) -> None:
        with Raw(self._gateway.http) as raw:
            raw.socket.settimeout(_PATIENCE_S)
            while not self._done.wait(_PAUSE_S):
                started_s = time.monotonic()
                raw.send([head("GET", "/v2/health/live")])
                response = raw.answer()
                assert response is not None
                assert response.status == 200
                if self._ready.is_set():
                    self.longest_s = max(self.longest_s, time.monotonic() - started_s)
                self.checks += 1
                self._ready.set()


def _text(response: Answer) -> str:
    if response.status < 400:
        return ""
    return response.get("nv-status") or response.body[:300].decode("utf-8", "replace")


# -- parts of messages


def field(number: int, data: bytes) -> bytes:
    """Write a field of bytes."""
    return varint(number << 3 | 2) + varint(len(data)) + data


def oip_grpc(*tensors: bytes, model: str = "identity_fp32", raws: tuple[bytes, ...] = ()) -> bytes:
    """Write a ModelInferRequest of serialized *tensors*."""
    parts = [field(1, model.encode()), *[field(5, one) for one in tensors]]
    return b"".join([*parts, *[field(7, raw) for raw in raws]])


def tensor(name: str, datatype: str, shape: tuple[int, ...], rest: bytes = b"") -> bytes:
    """Write an InferInputTensor; *rest* is more of its fields."""
    made = pb.ModelInferRequest.InferInputTensor(name=name, datatype=datatype, shape=shape)
    return bytes(made.SerializeToString()) + rest


def oip_binary(inputs: list[dict[str, Any]], data: bytes, *fields: str, model: str) -> bytes:
    """Write a request of the binary extension; each input declares its size."""
    text = json.dumps({"inputs": inputs}).encode()
    length = f"Inference-Header-Content-Length: {len(text)}"
    return post(text + data, length, *fields, path=f"/v2/models/{model}/infer")


def binary_input(name: str, datatype: str, shape: list[int], size: int) -> dict[str, Any]:
    """Return an input whose data follow the JSON."""
    about = {"name": name, "datatype": datatype, "shape": shape}
    return {**about, "parameters": {"binary_data_size": size}}


def oip_json(data: str, shape: list[int], datatype: str, model: str, more: str = "") -> Http:
    """Return a request in JSON with one input."""
    text = (
        f'{{"inputs":[{{"name":"INPUT0","datatype":"{datatype}","shape":{json.dumps(shape)},'
        f'"data":{data}}}]{more}}}'
    )
    return Http(post(text.encode(), path=f"/v2/models/{model}/infer"))


# -- the rows of S1


def unpacked_floats() -> Grpc:
    """Return 200 tensors of 65,000 floats that are not packed."""
    contents = field(5, b"\x35\x00\x00\x00\x00" * 65_000)
    return Grpc(oip_grpc(*[tensor(f"i{n}", "FP32", (65_000,), contents) for n in range(200)]))


def unknown_fields() -> Grpc:
    """Return 256 tensors of 65,000 unknown empty fields."""
    return Grpc(
        oip_grpc(*[tensor(f"i{n}", "FP32", (1,), b"\x7a\x00" * 65_000) for n in range(256)])
    )


def many_inputs_of_empty_items() -> Http:
    """Return 15 binary inputs of 10^6 empty BYTES elements each."""
    inputs = [binary_input(f"I{n}", "BYTES", [1_000_000], 4_000_000) for n in range(15)]
    return Http(oip_binary(inputs, bytes(60_000_000), model="identity_bytes"))


def map_entries() -> Grpc:
    """Return 1,000 entries of a map, each with 8,000 keys."""
    entry = field(4, field(1, b"") * 8_000)
    return Grpc(oip_grpc() + entry * 1_000)


def classified(count: int, classes: int) -> Http:
    """Return a request for the best *classes* of *count* values."""
    about = binary_input("INPUT0", "FP32", [count], 4 * count)
    outputs = [{"name": "OUTPUT0", "parameters": {"classification": classes}}]
    text = json.dumps({"inputs": [about], "outputs": outputs}).encode()
    data = struct.pack("<4096f", *range(4096)) * (count // 4096)
    data += bytes(4 * count - len(data))
    length = f"Inference-Header-Content-Length: {len(text)}"
    return Http(post(text + data, length, path="/v2/models/identity_fp32/infer"))


def classified_over_grpc(count: int, classes: int) -> Grpc:
    """Return the same request as a message of gRPC."""
    outputs = pb.ModelInferRequest(
        outputs=[{"name": "OUTPUT0", "parameters": {"classification": {"int64_param": classes}}}]
    ).SerializeToString()
    raws = (struct.pack(f"<{count}f", *range(count)),)
    return Grpc(oip_grpc(tensor("INPUT0", "FP32", (count,)), raws=raws) + outputs)


def top_million() -> Http:
    """Return a classification of 4e6 values that requests the best 10^6."""
    return classified(4_000_000, 1_000_000)


def top_five() -> Http:
    """Return a classification of 15e6 values that requests the best five."""
    return classified(15_000_000, 5)


def rank_31() -> Http:
    """Return JSON nested to rank 31, with few elements in many lists."""
    count = 225_000
    row = "[" * 30 + "1" + "]" * 30
    data = "[" + ",".join([row] * count) + "]"
    return oip_json(data, [count, *[1] * 30], "FP32", "identity_fp32")


def empty_items_over_http() -> Http:
    """Return 10^6 empty BYTES elements, binary."""
    inputs = [binary_input("INPUT0", "BYTES", [1_000_000], 4_000_000)]
    return Http(oip_binary(inputs, bytes(4_000_000), model="identity_bytes"))


def empty_items_over_grpc() -> Grpc:
    """Return 10^6 empty BYTES elements, raw."""
    one = tensor("INPUT0", "BYTES", (1_000_000,))
    return Grpc(oip_grpc(one, model="identity_bytes", raws=(bytes(4_000_000),)))


def items_of_two_lengths() -> Grpc:
    """Return 10^6 BYTES elements that are empty and of one byte by turns, raw."""
    one = tensor("INPUT0", "BYTES", (1_000_000,))
    raw = (bytes(4) + b"\1\0\0\0a") * 500_000
    return Grpc(oip_grpc(one, model="identity_bytes", raws=(raw,)))


def typed_empty_items() -> Grpc:
    """Return 10^6 empty BYTES elements in typed contents."""
    contents = field(5, b"\x42\x00" * 1_000_000)
    return Grpc(oip_grpc(tensor("INPUT0", "BYTES", (1_000_000,), contents), model="identity_bytes"))


def grps_integers() -> Http:
    """Return JSON of grps with 7e6 integers and without a model."""
    flat = ",".join(["1"] * 7_000_000)
    text = (
        '{"gtensors":{"tensors":[{"name":"INPUT0","dtype":"DT_INT64","shape":[7000000],'
        f'"flat_int64":[{flat}]}}]}}}}'
    )
    return Http(
        post(text.encode(), "Content-Type: application/json", path="/grps/v1/infer/predict")
    )


def many_dimensions() -> Grpc:
    """Return a shape of 20.8e6 dimensions, packed in many pieces."""
    pieces = field(3, b"\1" * 320) * 65_000
    return Grpc(oip_grpc(tensor("INPUT0", "FP32", (), pieces)))


def lists_of_one() -> Http:
    """Return JSON with a list for each element."""
    count = 3_900_000
    return oip_json(f"[{','.join(['[1]'] * count)}]", [count, 1], "FP32", "identity_fp32")


def late_float() -> Http:
    """Return a float behind 3.9e6 integers where only integers may be."""
    count = 3_900_000
    data = f"[{','.join(['1'] * (count - 1))},1.5]"
    return oip_json(data, [count], "INT64", "identity_int64")


def many_ones() -> Http:
    """Return 7.8e6 integers in JSON."""
    count = 7_800_000
    return oip_json(f"[{','.join(['1'] * count)}]", [count], "INT64", "identity_int64")


def many_texts() -> Http:
    """Return 10^6 empty texts in JSON."""
    count = 1_000_000
    data = ",".join(['""'] * count)
    return oip_json(f"[{data}]", [count], "BYTES", "identity_bytes")


def compressed_items() -> Http:
    """Return 250,000 empty BYTES elements in 1.1 KB."""
    inputs = [binary_input("INPUT0", "BYTES", [250_000], 1_000_000)]
    text = json.dumps({"inputs": inputs}).encode()
    body = gzip.compress(text + bytes(1_000_000))
    fields = (f"Inference-Header-Content-Length: {len(text)}", "Content-Encoding: gzip")
    return Http(post(body, *fields, path="/v2/models/identity_bytes/infer"))


def compressed_items_over_grpc() -> Grpc:
    """Return 250,000 empty BYTES elements in a compressed message."""
    one = tensor("INPUT0", "BYTES", (250_000,))
    data = oip_grpc(one, model="identity_bytes", raws=(bytes(1_000_000),))
    return Grpc(data, compression=grpc.Compression.Gzip)


def groups() -> Grpc:
    """Return one unknown group with 10^7 fields in it."""
    return Grpc(oip_grpc() + b"\x7b" + b"\x08\x01" * 10_000_000 + b"\x7c")


def classified_batch() -> Http:
    """Return a classification of 10^6 items of a batch, of two values each."""
    about = binary_input("INPUT0", "FP32", [1_000_000, 2], 8_000_000)
    outputs = [{"name": "OUTPUT0", "parameters": {"classification": 1}}]
    text = json.dumps({"inputs": [about], "outputs": outputs}).encode()
    length = f"Inference-Header-Content-Length: {len(text)}"
    return Http(post(text + bytes(8_000_000), length, path="/v2/models/identity_fp32/infer"))


def json_response() -> Http:
    """Return 4e6 numbers in wire form, whose response is JSON."""
    inputs = [binary_input("INPUT0", "FP32", [4_000_000], 16_000_000)]
    data = struct.pack("<4096f", *[value / 7 for value in range(4096)]) * 977
    return Http(oip_binary(inputs, data[:16_000_000], model="identity_fp32"))


ROWS: dict[str, Callable[[], Message]] = {
    make.__name__: make
    for make in (
        unpacked_floats,
        unknown_fields,
        many_inputs_of_empty_items,
        map_entries,
        top_million,
        rank_31,
        empty_items_over_http,
        empty_items_over_grpc,
        items_of_two_lengths,
        typed_empty_items,
        top_five,
        grps_integers,
        many_dimensions,
        lists_of_one,
        late_float,
        many_ones,
        many_texts,
        compressed_items,
        compressed_items_over_grpc,
        groups,
        classified_batch,
        json_response,
    )
}
"""The table of S1, and what was found since, by name."""


# -- inputs that a model does not have


def other_json() -> Http:
    """Return 10^6 numbers in JSON of which one does not fit, for an input that is not there."""
    data = ",".join(["1"] * 1_000_000)
    text = (
        '{"inputs":[{"name":"OTHER","datatype":"INT64","shape":[1000001],'
        f'"data":[1.5,{data}]}}]}}'
    )
    return Http(post(text.encode(), path="/v2/models/identity_int64/infer"))


def other_typed() -> Grpc:
    """Return 500,001 BYTES elements where 500,000 are declared."""
    contents = field(5, b"\x42\x00" * 500_001)
    return Grpc(oip_grpc(tensor("OTHER", "BYTES", (500_000,), contents), model="identity_bytes"))


def other_grps() -> Http:
    """Return 10^6 integers and a text in JSON of grps."""
    data = ",".join(["1"] * 1_000_000)
    text = (
        '{"model":"identity_int64","gtensors":{"tensors":[{"name":"OTHER","dtype":"DT_INT64",'
        f'"shape":[1000001],"flat_int64":["x",{data}]}}]}}}}'
    )
    return Http(
        post(text.encode(), "Content-Type: application/json", path="/grps/v1/infer/predict")
    )


OTHER_INPUTS: dict[str, Callable[[], Message]] = {
    make.__name__: make for make in (other_json, other_typed, other_grps)
}
"""Long messages whose elements are wrong as well, by name."""
