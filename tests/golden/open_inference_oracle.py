"""The content of Open Inference messages, read by json, numpy and the protobuf library alone.

Two messages with the same content are equal, whichever form their tensors are in: each tensor is
its name, datatype, shape, raw bytes and parameters.
"""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gateway.schema import open_inference_pb2 as pb
from gateway.wire.http import Headers

# About the form of one message, not about the inference.
_OF_FORM = ("binary_data_size", "binary_data", "binary_data_output")
_DTYPES = {
    "BOOL": "?", "UINT8": "u1", "UINT16": "<u2", "UINT32": "<u4", "UINT64": "<u8",
    "INT8": "i1", "INT16": "<i2", "INT32": "<i4", "INT64": "<i8",
    "FP16": "<f2", "FP32": "<f4", "FP64": "<f8",
}  # fmt: skip
_FIELDS = (
    "bool_contents", "int_contents", "int64_contents", "uint_contents", "uint64_contents",
    "fp32_contents", "fp64_contents",
)  # fmt: skip


class MessageTensor(NamedTuple):
    """One tensor."""

    name: str
    datatype: str
    shape: list[int]
    raw: bytes
    parameters: dict[str, Any]


class Message(NamedTuple):
    """A request or a response; `outputs` are those that a request names."""

    id: str
    model: tuple[str, str]
    parameters: dict[str, Any]
    tensors: list[MessageTensor]
    outputs: list[tuple[str, dict[str, Any]]]


def of_index(tensors: Mapping[str, Any]) -> list[tuple[str, str, list[int], bytes]]:
    """Return the tensors that an entry of the index has, as a client had them in numpy."""
    found = []
    for name, tensor in tensors.items():
        if "bytes_b64" in tensor:
            raw = _items(base64.b64decode(text) for text in tensor["bytes_b64"])
        elif tensor["datatype"] == "BF16":
            values = [float(value) for value in tensor["values"]]
            raw = (np.array(values, "<f4").view("<u4") >> 16).astype("<u2").tobytes()
        else:
            raw = _packed(tensor["datatype"], tensor["values"])
        found.append((name, tensor["datatype"], list(tensor["shape"]), raw))
    return found


def of_http(headers: Headers, body: bytes, key: str) -> Message:
    """Read an HTTP message; *key* is "inputs" of a request, "outputs" of a response."""
    length = headers.get("inference-header-content-length")
    end = len(body) if length is None else int(length)
    document = json.loads(body[:end])
    tensors = []
    for member in document[key]:
        parameters = member.get("parameters") or {}
        size = parameters.get("binary_data_size")
        if size is None:
            raw = _of_json(member["datatype"], member["data"])
        else:
            raw, end = body[end : end + size], end + size
        fields = (member["name"], member["datatype"], member["shape"])
        tensors.append(MessageTensor(*fields, raw, _custom(parameters)))
    assert end == len(body)
    requested = document.get("outputs") or [] if key == "inputs" else []
    model = ("", "")  # a request has it in its path; kserve's client repeats it in the body
    if key == "outputs":
        model = (document["model_name"], document.get("model_version") or "")
    return Message(
        document.get("id") or "",
        model,
        _custom(document.get("parameters") or {}),
        tensors,
        [(output["name"], _custom(output.get("parameters") or {})) for output in requested],
    )


def of_request(message: bytes) -> Message:
    """Read a ModelInferRequest."""
    found = pb.ModelInferRequest.FromString(message)
    outputs = [(output.name, _custom(_scalars(output.parameters))) for output in found.outputs]
    return _of_pb(found, found.inputs, found.raw_input_contents, outputs)


def of_response(message: bytes) -> Message:
    """Read a ModelInferResponse."""
    found = pb.ModelInferResponse.FromString(message)
    return _of_pb(found, found.outputs, found.raw_output_contents, [])


def _of_pb(
    message: Any, found: Iterable[Any], raws: Iterable[bytes], outputs: list[tuple[str, Any]]
) -> Message:
    remaining = iter(raws)
    tensors = []
    for tensor in found:
        raw = _of_contents(tensor.datatype, tensor.contents)
        if raw is None:
            raw = next(remaining)
        parameters = _custom(_scalars(tensor.parameters))
        tensors.append(
            MessageTensor(tensor.name, tensor.datatype, list(tensor.shape), raw, parameters)
        )
    assert not list(remaining)
    model = (message.model_name, message.model_version)
    return Message(message.id, model, _scalars(message.parameters), tensors, outputs)


def _of_contents(datatype: str, contents: pb.InferTensorContents) -> bytes | None:
    if contents.bytes_contents:
        return _items(contents.bytes_contents)
    for field in _FIELDS:
        values = getattr(contents, field)
        if values:
            return np.array(list(values)).astype(_DTYPES[datatype]).tobytes()
    return None


def _of_json(datatype: str, data: Any) -> bytes:
    flat: npt.NDArray[Any] = np.array(data, dtype=object).reshape(-1)
    if datatype == "BYTES":
        return _items(text.encode() for text in flat)
    return _packed(datatype, [np.nan if value is None else value for value in flat])


def _packed(datatype: str, values: Iterable[Any]) -> bytes:
    # One at a time: a list of large integers would become floats.
    dtype = np.dtype(_DTYPES[datatype])
    return b"".join(np.array(value, dtype).tobytes() for value in values)


def _items(items: Iterable[bytes]) -> bytes:
    return b"".join(struct.pack("<I", len(item)) + item for item in items)


def _scalars(parameters: Mapping[str, pb.InferParameter]) -> dict[str, Any]:
    found = {}
    for name, parameter in parameters.items():
        arm = parameter.WhichOneof("parameter_choice")
        assert arm is not None
        found[name] = getattr(parameter, arm)
    return found


def _custom(parameters: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in parameters.items() if key not in _OF_FORM}
