"""The oracle of GraphPipe tests: flatc's classes and the flatbuffers package, and nothing of ours.

Reads messages into plain values and builds them from the same, so that what our codec reads and
writes is compared with an independent implementation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import flatbuffers  # type: ignore[import-untyped]
import numpy as np

from gateway.schema import graphpipe_fb

fb: Any = graphpipe_fb

STRING = 12


@dataclass(frozen=True)
class PlainTensor:
    """A tensor in plain values; `data` for numeric types, `items` for String.

    With `both` it is built with both fields, of which one is empty: that is legal.
    """

    number: int
    shape: tuple[int, ...]
    data: bytes = b""
    items: tuple[bytes, ...] = ()
    both: bool = field(default=False, compare=False)


@dataclass(frozen=True)
class PlainRequest:
    """An InferRequest in plain values."""

    config: bytes
    input_names: tuple[str, ...]
    tensors: tuple[PlainTensor, ...]
    output_names: tuple[str, ...]


@dataclass(frozen=True)
class PlainIO:
    """An IOMetadata in plain values."""

    name: str
    description: str
    shape: tuple[int, ...] | None
    number: int


@dataclass(frozen=True)
class PlainMetadata:
    """A MetadataResponse in plain values."""

    name: str
    version: str
    server: str
    description: str
    inputs: tuple[PlainIO, ...]
    outputs: tuple[PlainIO, ...]


def read_request(data: bytes) -> PlainRequest | None:
    """Read a request; None for one for metadata."""
    root: Any = fb.Request.GetRootAs(data, 0)
    kind: int = root.ReqType()
    assert kind in (fb.Req.InferRequest, fb.Req.MetadataRequest)
    table = root.Req()
    if kind == fb.Req.MetadataRequest:
        return None
    request: Any = fb.InferRequest()
    request.Init(table.Bytes, table.Pos)
    return PlainRequest(
        request.Config() or b"",
        _texts(request.InputNames, request.InputNamesLength()),
        _each(_tensor, request.InputTensors, request.InputTensorsLength()),
        _texts(request.OutputNames, request.OutputNamesLength()),
    )


def read_response(data: bytes) -> tuple[tuple[PlainTensor, ...], tuple[tuple[int, str], ...]]:
    """Read an InferResponse: its tensors and its errors."""
    response: Any = fb.InferResponse.GetRootAs(data, 0)
    errors = _each(
        lambda error: (error.Code(), error.Message().decode()),
        response.Errors,
        response.ErrorsLength(),
    )
    tensors = _each(_tensor, response.OutputTensors, response.OutputTensorsLength())
    return tensors, errors


def has_both_vectors(data: bytes) -> bool:
    """Tell whether an InferResponse has tensors and errors both, if empty: clients need that."""
    response: Any = fb.InferResponse.GetRootAs(data, 0)
    return not response.OutputTensorsIsNone() and not response.ErrorsIsNone()


def read_metadata(data: bytes) -> PlainMetadata:
    """Read a MetadataResponse."""
    metadata: Any = fb.MetadataResponse.GetRootAs(data, 0)
    name, version, server, description = (
        (text or b"").decode()
        for text in (
            metadata.Name(),
            metadata.Version(),
            metadata.Server(),
            metadata.Description(),
        )
    )
    return PlainMetadata(
        name,
        version,
        server,
        description,
        _each(_io, metadata.Inputs, metadata.InputsLength()),
        _each(_io, metadata.Outputs, metadata.OutputsLength()),
    )


def build_request(request: PlainRequest, *, trim: bool = False, prefix: bool = False) -> bytes:
    """Build a request; with *trim*, leave out what is empty, as some writers do."""
    builder = flatbuffers.Builder(64)
    tensors = _vector(builder, [_build_tensor(builder, each, trim) for each in request.tensors])
    fields: list[tuple[Callable[[Any, int], None], int]] = []
    if request.config or not trim:
        fields.append((fb.InferRequestAddConfig, builder.CreateString(request.config)))
    if request.input_names or not trim:
        names = _strings(builder, [name.encode() for name in request.input_names])
        fields.append((fb.InferRequestAddInputNames, names))
    if request.output_names or not trim:
        names = _strings(builder, [name.encode() for name in request.output_names])
        fields.append((fb.InferRequestAddOutputNames, names))
    fb.InferRequestStart(builder)
    fb.InferRequestAddInputTensors(builder, tensors)
    for add, place in fields:
        add(builder, place)
    member = fb.InferRequestEnd(builder)
    fb.RequestStart(builder)
    fb.RequestAddReqType(builder, fb.Req.InferRequest)
    fb.RequestAddReq(builder, member)
    root = fb.RequestEnd(builder)
    if prefix:
        builder.FinishSizePrefixed(root)
    else:
        builder.Finish(root)
    return bytes(builder.Output())


def build_response(
    tensors: Sequence[PlainTensor],
    errors: Sequence[tuple[int, str]] = (),
    *,
    claimed_errors: int | None = None,
    trim: bool = False,
) -> bytes:
    """Build an InferResponse.

    With *claimed_errors* the vector of errors has that count and no elements: what the Python
    package's servers send on flatbuffers 2.0.7 and later.
    """
    builder = flatbuffers.Builder(64)
    outputs = _vector(builder, [_build_tensor(builder, tensor, trim) for tensor in tensors])
    if claimed_errors is not None:
        fb.InferResponseStartErrorsVector(builder, claimed_errors)
        failures = builder.EndVector()
    else:
        failures = _vector(builder, [_build_error(builder, *error) for error in errors])
    fb.InferResponseStart(builder)
    if tensors or not trim:
        fb.InferResponseAddOutputTensors(builder, outputs)
    if errors or claimed_errors is not None or not trim:
        fb.InferResponseAddErrors(builder, failures)
    builder.Finish(fb.InferResponseEnd(builder))
    return bytes(builder.Output())


def build_metadata(metadata: PlainMetadata) -> bytes:
    """Build a MetadataResponse."""
    builder = flatbuffers.Builder(64)
    texts = [
        builder.CreateString(text)
        for text in (metadata.name, metadata.version, metadata.server, metadata.description)
    ]
    inputs = _vector(builder, [_build_io(builder, each) for each in metadata.inputs])
    outputs = _vector(builder, [_build_io(builder, each) for each in metadata.outputs])
    fb.MetadataResponseStart(builder)
    fb.MetadataResponseAddName(builder, texts[0])
    fb.MetadataResponseAddVersion(builder, texts[1])
    fb.MetadataResponseAddServer(builder, texts[2])
    fb.MetadataResponseAddDescription(builder, texts[3])
    fb.MetadataResponseAddInputs(builder, inputs)
    fb.MetadataResponseAddOutputs(builder, outputs)
    builder.Finish(fb.MetadataResponseEnd(builder))
    return bytes(builder.Output())


def _tensor(tensor: Any) -> PlainTensor:
    shape = tuple(tensor.Shape(axis) for axis in range(tensor.ShapeLength()))
    if tensor.Type() == STRING:
        items = tuple(tensor.StringVal(index) for index in range(tensor.StringValLength()))
        return PlainTensor(STRING, shape, b"", items)
    data = tensor.DataAsNumpy() if tensor.DataLength() else np.empty(0, np.uint8)
    return PlainTensor(tensor.Type(), shape, data.tobytes())


def _io(entry: Any) -> PlainIO:
    shape = tuple(entry.Shape(axis) for axis in range(entry.ShapeLength()))
    return PlainIO(
        entry.Name().decode(),
        (entry.Description() or b"").decode(),
        None if entry.ShapeIsNone() else shape,
        entry.Type(),
    )


def _texts(get: Callable[[int], bytes], count: int) -> tuple[str, ...]:
    return tuple(get(index).decode() for index in range(count))


def _each(read: Callable[[Any], Any], get: Callable[[int], Any], count: int) -> tuple[Any, ...]:
    return tuple(read(get(index)) for index in range(count))


def _vector(builder: Any, places: Sequence[int], width: int = 4) -> int:
    builder.StartVector(width, len(places), width)
    for place in reversed(places):
        builder.PrependUOffsetTRelative(place)
    made: int = builder.EndVector()
    return made


def _strings(builder: Any, items: Sequence[bytes]) -> int:
    return _vector(builder, [builder.CreateString(item) for item in items])


def _shape(builder: Any, shape: Sequence[int]) -> int:
    builder.StartVector(8, len(shape), 8)
    for dim in reversed(shape):
        builder.PrependInt64(dim)
    made: int = builder.EndVector()
    return made


def _build_tensor(builder: Any, tensor: PlainTensor, trim: bool) -> int:
    shape = _shape(builder, tensor.shape)
    is_string = tensor.number == STRING
    data = _strings(builder, tensor.items) if is_string else builder.CreateByteVector(tensor.data)
    other = _strings(builder, [])
    fb.TensorStart(builder)
    fb.TensorAddType(builder, tensor.number)
    if tensor.shape or not trim:
        fb.TensorAddShape(builder, shape)
    if tensor.both:
        (fb.TensorAddData if is_string else fb.TensorAddStringVal)(builder, other)
    if is_string:
        fb.TensorAddStringVal(builder, data)
    elif tensor.data or not trim:
        fb.TensorAddData(builder, data)
    made: int = fb.TensorEnd(builder)
    return made


def _build_error(builder: Any, code: int, text: str) -> int:
    message = builder.CreateString(text)
    fb.ErrorStart(builder)
    fb.ErrorAddCode(builder, code)
    fb.ErrorAddMessage(builder, message)
    made: int = fb.ErrorEnd(builder)
    return made


def _build_io(builder: Any, entry: PlainIO) -> int:
    name = builder.CreateString(entry.name)
    description = builder.CreateString(entry.description)
    shape = None if entry.shape is None else _shape(builder, entry.shape)
    fb.IOMetadataStart(builder)
    fb.IOMetadataAddName(builder, name)
    fb.IOMetadataAddDescription(builder, description)
    if shape is not None:
        fb.IOMetadataAddShape(builder, shape)
    fb.IOMetadataAddType(builder, entry.number)
    made: int = fb.IOMetadataEnd(builder)
    return made
