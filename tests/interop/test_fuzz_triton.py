"""Well-formed messages of odd meaning against the real Triton, through the gateway.

Options, parameters, datatypes, shapes and sequence ids are not those that the models expect. Nothing
that the gateway lets through may end Triton or a model of it. The seed is printed with whatever ends
it, so `FUZZ_SEED` repeats its messages. `FUZZ_COUNT` sets the number of messages.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import random
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import grpc
import pytest

from gateway.schema import open_inference_pb2 as pb
from tests.interop.gateways import gateway_before
from tests.interop.sacrifice import Sacrifice, channel, infer_method, post, stream_method

pytestmark = [pytest.mark.interop, pytest.mark.slow, pytest.mark.timeout(900)]

COUNT = int(os.environ.get("FUZZ_COUNT", "3000"))
SEED = int(os.environ.get("FUZZ_SEED", "20260722"))
CHECK_EVERY = 60
AT_ONCE = 4
WAYS = ("http", "unary", "stream")
TIMEOUT_S = 5.0

MODELS = ("simple", "identity_fp32", "identity_bytes", "identity_bool", "fail_always")
SEQUENCES = ("sequence_number", "sequence_text")
DATATYPES = ("BOOL", "UINT8", "INT8", "INT32", "INT64", "UINT64", "FP16", "BF16", "FP32", "BYTES")
SIZES = {"BOOL": 1, "UINT8": 1, "INT8": 1, "INT32": 4, "INT64": 8, "UINT64": 8, "FP32": 4}
DIMS = (0, 1, 1, 2, 4, 16, 1000, 2**31 - 1, 2**40, 2**63 - 1, -1)
NUMBERS = (0, 1, 2, -1, 7, 1000, 2**31, 2**32 + 1, 2**63 - 1)
TEXTS = ("", "0", "x", "x" * 30, "../..", "triton_python_backend_shm_region_1", "\u00e9")
NAMES = (
    "classification", "binary_data", "binary_data_output", "sequence_id", "sequence_start",
    "sequence_end", "priority", "timeout", "headers", "shared_memory_region",
    "shared_memory_offset", "shared_memory_byte_size", "triton_enable_empty_final_response",
    "binary_data_size", "custom",
)  # fmt: skip


class Fuzzer:
    """Makes messages from a seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)  # noqa: S311  # it must be repeatable

    def message(self) -> dict[str, Any]:
        """Return a request as JSON, with its model under "model"."""
        choose = self._random.choice
        model = choose((*MODELS, *SEQUENCES))
        count = choose((1, 1, 1, 2, 0, 3))
        message: dict[str, Any] = {
            "model": model,
            "inputs": [self._input(index, model) for index in range(count)],
        }
        if self._often(0.5):
            message["outputs"] = [self._output() for _ in range(choose((1, 1, 2)))]
        if self._often(0.5) or model in SEQUENCES:
            message["parameters"] = self._parameters(model in SEQUENCES)
        if self._often(0.3):
            message["id"] = choose(TEXTS)
        return message

    def _often(self, share: float) -> bool:
        return self._random.random() < share

    def _input(self, index: int, model: str) -> dict[str, Any]:
        choose = self._random.choice
        datatype = choose(DATATYPES)
        shape = [
            choose(DIMS[:6] if self._often(0.8) else DIMS) for _ in range(choose((1, 2, 2, 3)))
        ]
        size = 1
        for dim in shape:
            size *= dim
        length = size if 0 <= size <= 2000 and self._often(0.9) else choose((0, 1, 5))
        name = "INPUT" if model in SEQUENCES else f"INPUT{index}"
        found: dict[str, Any] = {
            "name": name if self._often(0.9) else choose(TEXTS),
            "datatype": datatype,
            "shape": shape,
            "data": [self._element(datatype) for _ in range(length)],
        }
        if self._often(0.15):
            found["parameters"] = self._parameters(False)
        return found

    def _element(self, datatype: str) -> Any:
        if datatype == "BYTES":
            return self._random.choice(TEXTS)
        return self._often(0.5) if datatype == "BOOL" else self._random.choice((0, 1, 2, 100))

    def _output(self) -> dict[str, Any]:
        found: dict[str, Any] = {"name": self._random.choice(("OUTPUT0", "OUTPUT", "OUTPUT1", "x"))}
        if self._often(0.7):
            number = self._random.choice(NUMBERS)
            found["parameters"] = {"classification": number, **self._parameters(False)}
        return found

    def _parameters(self, sequence: bool) -> dict[str, Any]:
        names = self._random.sample(NAMES, self._random.choice((0, 1, 1, 2)))
        found = {name: self._random.choice((*NUMBERS, *TEXTS, True, False)) for name in names}
        if sequence:
            found["sequence_id"] = self._random.choice((*NUMBERS, *TEXTS))
            found["sequence_start"] = self._often(0.7)
            found["sequence_end"] = self._often(0.4)
        return found


def as_grpc(message: dict[str, Any]) -> pb.ModelInferRequest | None:
    """Return a message for gRPC; None for one that it has no form for."""
    request = pb.ModelInferRequest(model_name=message["model"], id=message.get("id", ""))
    try:
        _put(request.parameters, message.get("parameters", {}))
        for tensor_document in message["inputs"]:
            tensor = request.inputs.add(
                name=tensor_document["name"], datatype=tensor_document["datatype"]
            )
            tensor.shape.extend(tensor_document["shape"])
            _put(tensor.parameters, tensor_document.get("parameters", {}))
            request.raw_input_contents.append(_raw(tensor_document))
        for output_document in message.get("outputs", ()):
            output = request.outputs.add(name=output_document["name"])
            _put(output.parameters, output_document.get("parameters", {}))
    except (ValueError, OverflowError):
        return None
    return request


def _put(parameters: Any, values: dict[str, Any]) -> None:
    for key, value in values.items():
        if isinstance(value, bool):
            parameters[key].bool_param = value
        elif isinstance(value, int):
            parameters[key].int64_param = value
        else:
            parameters[key].string_param = value


def _raw(tensor_document: dict[str, Any]) -> bytes:
    if tensor_document["datatype"] == "BYTES":
        texts = [text.encode() for text in tensor_document["data"]]
        return b"".join(len(text).to_bytes(4, "little") + text for text in texts)
    return bytes(SIZES.get(tensor_document["datatype"], 2) * len(tensor_document["data"]))


def send(http_address: str, opened: grpc.Channel, way: str, message: dict[str, Any]) -> None:
    """Send a message by HTTP, as a unary call or on a stream. Any reply is right."""
    body = {key: value for key, value in message.items() if key != "model"}
    if way == "http":
        path = f"/v2/models/{message['model']}/infer"
        with contextlib.suppress(TimeoutError):
            post(http_address, path, json.dumps(body).encode(), TIMEOUT_S)
        return
    request = as_grpc(message)
    if request is None:
        return
    with contextlib.suppress(grpc.RpcError):
        if way == "unary":
            infer_method(opened)(request, timeout=TIMEOUT_S)
        else:
            list(stream_method(opened)(iter([request]), timeout=TIMEOUT_S))


def _is_hurt(sacrifice: Sacrifice) -> bool:
    """Return whether Triton has ended, or a model of sequences does not reply."""
    if sacrifice.is_hurt():
        return True
    for model, sequence_id in (("sequence_number", 99), ("sequence_text", "fuzz")):
        tensor = {"name": "INPUT", "datatype": "INT32", "shape": [1, 1], "data": [1]}
        flags = {"sequence_id": sequence_id, "sequence_start": True, "sequence_end": True}
        body = json.dumps({"inputs": [tensor], "parameters": flags}).encode()
        address = sacrifice.server.http_address
        try:  # 2.51 refuses any text id with `oldest`, and that is an answer too
            post(address, f"/v2/models/{model}/infer", body, TIMEOUT_S)
        except (OSError, http.client.HTTPException):
            return True
    return False


@pytest.mark.parametrize("carrier", ["grpc", "http"])
def test_no_message_ends_triton(sacrifice: Sacrifice, carrier: str) -> None:
    """A message that ends it is reported with its seed; the server is started again."""
    fuzzer = Fuzzer(SEED)
    found: list[str] = []
    with (
        gateway_before(sacrifice.server, carrier) as gateway,
        channel(gateway.addresses["main.grpc"]) as opened,
        ThreadPoolExecutor(AT_ONCE) as threads,
    ):
        send_to = partial(send, gateway.addresses["main.http"], opened)
        for end in range(CHECK_EVERY, COUNT + 1, CHECK_EVERY):
            batch = [(WAYS[number % 3], fuzzer.message()) for number in range(CHECK_EVERY)]
            list(threads.map(send_to, *zip(*batch, strict=True)))  # raises what `send` raises
            if _is_hurt(sacrifice):
                found.append(f"seed {SEED}, messages to {end}: {json.dumps(batch)}")
                sacrifice.restart()
    assert [] == found, "\n".join(found)
