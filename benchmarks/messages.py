"""Requests of the load, and responses of the canned servers, as bytes.

They are written with json, numpy and the protobuf library, not with the codecs of the gateway. So
the check of the responses notices a codec that loses data.
"""

import base64
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from gateway.schema.open_inference_pb2 import ModelInferRequest, ModelInferResponse

Arrays = Mapping[str, npt.NDArray[Any]]

JSON_TYPE = "application/json"
BINARY_TYPE = "application/octet-stream"
LENGTH_FIELD = "Inference-Header-Content-Length"
GRPC_METHOD = "/inference.GRPCInferenceService/ModelInfer"

SMALL = "small"
HUGE = "16 MiB"
FORMS = 1024

_NAMES = {"int32": "INT32", "float32": "FP32", "float64": "FP64"}
_TYPES = {name: np.dtype(text) for text, name in _NAMES.items()}


@dataclass(frozen=True)
class Message:
    """A request or a response.

    Attributes:
        body: HTTP body, or gRPC message without its prefix.
        fields: HTTP fields, with the content type.
    """

    body: bytes
    fields: tuple[tuple[str, str], ...] = field(default=())


@dataclass(frozen=True)
class Case:
    """One inference: the model, its inputs and its outputs."""

    name: str
    model: str
    inputs: Arrays
    outputs: Arrays


def small() -> Case:
    """Two INT32 tensors of 1 x 16 in each direction, as in Triton's `simple` model."""
    left = np.arange(16, dtype=np.int32).reshape(1, 16)
    right = np.full((1, 16), 3, np.int32)
    return Case(
        SMALL,
        "add_sub",
        {"INPUT0": left, "INPUT1": right},
        {"OUTPUT0": left + right, "OUTPUT1": left - right},
    )


def image() -> Case:
    """One FP32 tensor of 602,112 bytes as input, 4,000 bytes as output."""
    pixels = np.random.default_rng(7).random((1, 3, 224, 224), np.float32)
    scores = np.linspace(0, 1, 1000, dtype=np.float32).reshape(1, 1000)
    return Case("602 KB", "sum_and_empty", {"X": pixels}, {"OUTPUT0": scores})


def variations(case: Case) -> Iterator[Case]:
    """Yield the case with other numbers, some shorter and some longer."""
    random = np.random.default_rng(11)
    for digits in (1, 2, 3, 5, 7, 9) * 5:
        inputs = {
            name: random.integers(-(10**digits), 10**digits, array.shape, array.dtype)
            for name, array in case.inputs.items()
        }
        yield Case(case.name, case.model, inputs, case.outputs)


def differing(case: Case, write: Callable[[Case], Message]) -> Iterator[Message]:
    """Yield requests that have names, shapes, ids and a header of their own.

    There are twice as many of them as the gateway's caches of message forms hold.
    """
    random = np.random.default_rng(13)
    for number in range(FORMS):
        shape = (1, 1 + number % 31)
        inputs = {
            f"{name}_{number}": random.integers(-1000, 1000, shape, array.dtype)
            for name, array in case.inputs.items()
        }
        message = write(Case(case.name, case.model, inputs, case.outputs))
        document = {"id": f"call-{number}", **json.loads(message.body)}
        tenant = ("X-Tenant", f"tenant-{number}")
        yield Message(_dump(document), (*message.fields, tenant))


def sized(nbytes: int) -> Case:
    """One FP32 tensor of *nbytes* as input, 64 bytes as output."""
    values = np.zeros((1, nbytes // 4), np.float32)
    scores = np.linspace(0, 1, 16, dtype=np.float32).reshape(1, 16)
    return Case(size_name(nbytes), image().model, {"X": values}, {"OUTPUT0": scores})


def size_name(nbytes: int) -> str:
    """Return a power of two as "64 KiB"."""
    return f"{nbytes >> 20} MiB" if nbytes >= 1 << 20 else f"{nbytes >> 10} KiB"


def huge() -> Case:
    """One FP32 tensor of 16 MiB as input, 4,000 bytes as output."""
    values = np.zeros((4, 1024, 1024), np.float32)
    return Case(HUGE, image().model, {"X": values}, image().outputs)


def signature(case: Case) -> dict[str, object]:
    """Return the signature of the model for the configuration."""
    return {
        kind: [_described(*pair) for pair in arrays.items()]
        for kind, arrays in (("inputs", case.inputs), ("outputs", case.outputs))
    }


def json_request(case: Case) -> Message:
    """Encode a request with `data` lists."""
    inputs = [_described(*pair) | {"data": _listed(pair[1])} for pair in case.inputs.items()]
    return Message(_dump({"inputs": inputs}), (("Content-Type", JSON_TYPE),))


def rows_request(case: Case) -> Message:
    """Encode a request with one object for each row, as TensorFlow Serving has it."""
    columns = [_nested(array) for array in case.inputs.values()]
    rows = [dict(zip(case.inputs, row, strict=True)) for row in zip(*columns, strict=True)]
    return Message(_dump({"instances": rows}), (("Content-Type", JSON_TYPE),))


def rows_reply(case: Case) -> Message:
    """Encode the response to `rows_request`."""
    columns = [_nested(array) for array in case.outputs.values()]
    rows = [dict(zip(case.outputs, row, strict=True)) for row in zip(*columns, strict=True)]
    return Message(_dump({"predictions": rows}), (("Content-Type", JSON_TYPE),))


def columns_request(case: Case) -> Message:
    """Encode a request with one nested list for each input, as MLflow has it."""
    columns = {name: _nested(array) for name, array in case.inputs.items()}
    return Message(_dump({"inputs": columns}), (("Content-Type", JSON_TYPE),))


def json_reply(case: Case) -> Message:
    """Encode a response with `data` lists."""
    outputs = [_described(*pair) | {"data": _listed(pair[1])} for pair in case.outputs.items()]
    document = {"model_name": case.model, "model_version": "1", "outputs": outputs}
    return Message(_dump(document), (("Content-Type", JSON_TYPE),))


def binary_request(case: Case) -> Message:
    """Encode a request with binary tensors that asks for binary outputs."""
    document = {
        "parameters": {"binary_data_output": True},
        "inputs": [_sized(*pair) for pair in case.inputs.items()],
    }
    return _with_binary(document, case.inputs)


def binary_reply(case: Case) -> Message:
    """Encode a response with binary tensors."""
    document = {
        "model_name": case.model,
        "model_version": "1",
        "outputs": [_sized(*pair) for pair in case.outputs.items()],
    }
    return _with_binary(document, case.outputs)


def grpc_request(case: Case) -> Message:
    """Encode a ModelInferRequest with raw tensors."""
    message = ModelInferRequest(model_name=case.model)
    for name, array in case.inputs.items():
        datatype = _NAMES[array.dtype.name]
        message.inputs.add(name=name, datatype=datatype, shape=array.shape)
        message.raw_input_contents.append(array.tobytes())
    return Message(message.SerializeToString())


def grpc_reply(case: Case) -> Message:
    """Encode a ModelInferResponse with raw tensors."""
    message = ModelInferResponse(model_name=case.model, model_version="1")
    for name, array in case.outputs.items():
        datatype = _NAMES[array.dtype.name]
        message.outputs.add(name=name, datatype=datatype, shape=array.shape)
        message.raw_output_contents.append(array.tobytes())
    return Message(message.SerializeToString())


def transcoder_request(case: Case) -> Message:
    """Encode a ModelInferRequest in proto3 JSON with typed contents, for Envoy's transcoder."""
    member = {"INT32": "int_contents", "FP32": "fp32_contents"}
    inputs = []
    for name, array in case.inputs.items():
        described = _described(name, array)
        described["contents"] = {member[str(described["datatype"])]: _listed(array)}
        inputs.append(described)
    document = {"model_name": case.model, "inputs": inputs}
    return Message(_dump(document), (("Content-Type", JSON_TYPE),))


def read_http(message: Message) -> Arrays:
    """Return the outputs of an HTTP response, JSON or binary."""
    fields = {name.lower(): value for name, value in message.fields}
    length = int(fields.get(LENGTH_FIELD.lower(), len(message.body)))
    document = json.loads(message.body[:length])
    rest = message.body[length:]
    outputs: dict[str, npt.NDArray[Any]] = {}
    for output in document["outputs"]:
        dtype, shape = _TYPES[output["datatype"]], output["shape"]
        if "data" in output:
            array = np.array(output["data"], dtype)
        else:
            size = output["parameters"]["binary_data_size"]
            array, rest = np.frombuffer(rest[:size], dtype), rest[size:]
        outputs[output["name"]] = array.reshape(shape)
    return outputs


def read_rows(case: Case, message: Message) -> Arrays:
    """Return the outputs of a response with columns or rows: objects, or values of one output."""
    found = json.loads(message.body)["predictions"]
    if isinstance(found, list) and len(case.outputs) == 1:
        found = dict.fromkeys(case.outputs, found)
    elif isinstance(found, list):
        found = {name: [row[name] for row in found] for name in case.outputs}
    return {name: np.array(found[name], array.dtype) for name, array in case.outputs.items()}


def read_grpc(message: Message) -> Arrays:
    """Return the outputs of a ModelInferResponse."""
    answer = ModelInferResponse.FromString(message.body)
    outputs: dict[str, npt.NDArray[Any]] = {}
    for index, output in enumerate(answer.outputs):
        dtype = _TYPES[output.datatype]
        if answer.raw_output_contents:
            array = np.frombuffer(answer.raw_output_contents[index], dtype)
        else:
            array = np.array(output.contents.int_contents or output.contents.fp64_contents, dtype)
        outputs[output.name] = array.reshape(tuple(output.shape))
    return outputs


def read_transcoded(message: Message) -> Arrays:
    """Return the outputs of a ModelInferResponse in proto3 JSON."""
    document = json.loads(message.body)
    raws = document["rawOutputContents"]
    return {
        output["name"]: np.frombuffer(base64.b64decode(raw), _TYPES[output["datatype"]]).reshape(
            [int(dim) for dim in output["shape"]]
        )
        for output, raw in zip(document["outputs"], raws, strict=True)
    }


def same(found: Arrays, expected: Arrays) -> bool:
    """Return whether two sets of outputs are equal, with shapes and datatypes."""
    return found.keys() == expected.keys() and all(
        found[name].dtype == array.dtype and np.array_equal(found[name], array)
        for name, array in expected.items()
    )


def _described(name: str, array: npt.NDArray[Any]) -> dict[str, object]:
    return {"name": name, "shape": list(array.shape), "datatype": _NAMES[array.dtype.name]}


def _sized(name: str, array: npt.NDArray[Any]) -> dict[str, object]:
    return _described(name, array) | {"parameters": {"binary_data_size": array.nbytes}}


def _listed(array: npt.NDArray[Any]) -> Sequence[object]:
    flat = array.reshape(-1)
    if array.dtype == np.float32:
        return _listed_floats(flat.tobytes())
    values: list[object] = flat.tolist()
    return values


@lru_cache(maxsize=4)
def _listed_floats(data: bytes) -> Sequence[float]:
    """Return numbers by their shortest texts, of about seven digits; many jobs send one image."""
    return [float(str(value)) for value in np.frombuffer(data, np.float32)]


def _nested(array: npt.NDArray[Any]) -> list[Any]:
    """Return the lists of an array, with the same elements as `_listed`."""
    values = np.array(_listed(array), object).reshape(array.shape)
    found: list[Any] = values.tolist()
    return found


def _with_binary(document: Mapping[str, object], arrays: Arrays) -> Message:
    head = _dump(document)
    body = head + b"".join(array.tobytes() for array in arrays.values())
    return Message(body, (("Content-Type", BINARY_TYPE), (LENGTH_FIELD, str(len(head)))))


def _dump(document: Mapping[str, object]) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode()
