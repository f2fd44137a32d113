"""Writes inference messages of Open Inference over gRPC from the tensor IR.

A message is one small header, followed by the raw data of large tensors, which is not joined.  Data
is always raw, as Triton and tritonclient write it: only this form has every datatype.
`InferEncoder` writes all messages; `FastInferEncoder` most of them, from cached parts and in half
the time.

Source: Open Inference Protocol, gRPC API; docs/protocols/open-inference.md, "5. Tensors over gRPC".
"""

import math
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any, Final, Protocol

import numpy as np

from gateway.accelerator import accelerated
from gateway.ir.context import NO_PARAMETERS, ModelRef, Parameter, Parameters
from gateway.ir.errors import Unsupported
from gateway.ir.tensors.data import ArrayData, RawData, SharedMemoryData, StreamedData
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.tensor import RequestedOutput, Shape, Tensor, as_raw
from gateway.protocols.oip.outputs import output_parameters
from gateway.protocols.oip.parameters import INT64_MAX, INT64_MIN, UINT64_MAX
from gateway.protocols.oip.shared_memory import join_shared
from gateway.wire.protobuf.wire_format import (
    I64,
    LEN,
    TAIL_BYTES,
    VARINT,
    Parts,
    WireError,
    put_bytes,
    put_double,
    put_int64s,
    put_tail,
    put_tail_head,
    put_text,
    put_varint,
    tag,
    varint,
)

_CACHE_ENTRIES = 512
EMPTY = memoryview(b"")


def _key(number: int, kind: int = LEN) -> bytes:
    return varint(tag(number, kind))


_MODEL_NAME, _MODEL_VERSION, _ID = _key(1), _key(2), _key(3)
_PARAMETERS, _TENSORS, _OUTPUTS = _key(4), _key(5), _key(6)
RAW_INPUTS, RAW_OUTPUTS = _key(7), _key(6)
_NAME, _DATATYPE, _SHAPE, _TENSOR_PARAMETERS = _key(1), _key(2), _key(3), _key(4)
_OUTPUT_PARAMETERS = _key(2)
_ENTRY_KEY, _ENTRY_VALUE = _key(1), _key(2)
_BOOL, _INT64, _STRING = _key(1, VARINT), _key(2, VARINT), _key(3)
_DOUBLE, _UINT64 = _key(4, I64), _key(5, VARINT)
_DATATYPES: Final = {
    each: _DATATYPE + varint(len(each.value)) + each.value.encode() for each in Datatype
}


class InferEncoder:
    """Writes inference messages, tensors in order.

    Messages repeat the descriptions of tensors: some hundred are cached.
    """

    def __init__(self) -> None:
        self._model = lru_cache(_CACHE_ENTRIES)(_model)
        self._tensor = lru_cache(_CACHE_ENTRIES)(_tensor)

    def request(
        self,
        model: ModelRef,
        request_id: str,
        parameters: Parameters,
        inputs: Sequence[Tensor],
        outputs: Sequence[RequestedOutput],
    ) -> Parts:
        """Write a ModelInferRequest.

        Raises:
            Unsupported: A tensor has no datatype or shape, or a value does not fit the message.
        """
        try:
            head = self._head(model, request_id, parameters, inputs)
            for output in outputs:
                head += _output(output.name, output_parameters(output))
        except WireError as error:
            raise Unsupported(f"request cannot be written: {error}", model=model) from error
        # The inputs in shared memory have no raw contents.
        return _with_data(head, RAW_INPUTS, inputs, None)

    def response(
        self,
        model: ModelRef,
        request_id: str,
        parameters: Parameters,
        outputs: Sequence[Tensor],
    ) -> Parts:
        """Write a ModelInferResponse.

        Raises:
            Unsupported: A tensor has no datatype or shape, or a value does not fit the message.
        """
        try:
            head = self._head(model, request_id, parameters, outputs)
        except WireError as error:
            raise Unsupported(f"reply cannot be written: {error}", model=model) from error
        # Clients count raw contents by outputs: an output in shared memory has empty ones.
        return _with_data(head, RAW_OUTPUTS, outputs, EMPTY)

    def _head(
        self, model: ModelRef, request_id: str, parameters: Parameters, tensors: Iterable[Tensor]
    ) -> bytearray:
        """Write the four fields and the descriptions at the beginning of both messages."""
        head = bytearray(self._model(model))
        if request_id:
            put_text(head, _ID, request_id)
        if parameters:
            _put_parameters(head, _PARAMETERS, parameters)
        for tensor in tensors:
            datatype, shape = tensor.datatype, tensor.shape
            if datatype is None or shape is None:
                missing = "datatype" if datatype is None else "shape"
                raise Unsupported(
                    f"tensor {tensor.name!r} has no {missing}: Open Inference needs one"
                )
            own = tensor.parameters
            if type(tensor.data) is SharedMemoryData:
                own = {**own, **join_shared(tensor.data)}
            if own:
                head += _tensor(tensor.name, datatype, shape, own)
            else:
                head += self._tensor(tensor.name, datatype, shape)
        return head


_TensorParts = tuple[bytes, bytes, int, "np.dtype[Any] | None"]
"""A tensor's field, the header of its raw contents, their size, and the dtype of an array."""

SharedField = Callable[[str, Datatype | None, Shape | None, SharedMemoryData], bytes]

FieldParts = Callable[[str, Datatype | None, Shape | None], _TensorParts]

# For a tensor that needs more checks: no data has this size.
_NO_PARTS: Final[_TensorParts] = (b"", b"", -1, None)


class FastInferEncoder:
    """Writes most inference messages: a model, an id, outputs by name, and raw tensors.

    The bytes are those of `InferEncoder`, in one piece except for large data.  The parts that
    depend on the description of a tensor alone are cached.

    Args:
        raw_key: `RAW_INPUTS` or `RAW_OUTPUTS`.
        unknown: A datatype that the reader may not have; `InferEncoder` decides.
        has_shared: Whether the reader has the extension of shared memory.

    Attributes:
        write: Writes a message; returns None where it has other parts, or is wrong.
    """

    def __init__(
        self, raw_key: bytes, unknown: Datatype | None = None, *, has_shared: bool = False
    ) -> None:
        cached = lru_cache(_CACHE_ENTRIES)
        parts, shared = field_parts(raw_key, unknown), cached(_shared) if has_shared else None
        self.write: MessageWriter = message_writer(cached(_model), parts, cached(_output), shared)


@accelerated
def field_parts(raw_key: bytes, unknown: Datatype | None) -> FieldParts:
    """Return a function that returns the parts of a tensor that depend on its description alone.

    Args:
        raw_key: The key of its raw contents.
        unknown: A datatype that needs more checks, as BYTES do.
    """

    @lru_cache(_CACHE_ENTRIES)
    def parts(name: str, datatype: Datatype | None, shape: Shape | None, /) -> _TensorParts:
        if datatype is None or shape is None or datatype in (unknown, Datatype.BYTES):
            return _NO_PARTS
        size = datatype.size_bytes * math.prod(shape)
        return _tensor(name, datatype, shape), raw_key + varint(size), size, datatype.numpy_dtype

    return parts


class MessageWriter(Protocol):
    """Writes an inference message; see `FastInferEncoder`."""

    def __call__(
        self,
        model: ModelRef,
        request_id: str,
        tensors: Sequence[Tensor],
        outputs: Sequence[RequestedOutput] = (),
        /,
    ) -> Sequence[bytes | memoryview] | None:
        """Write a message; None where it has other parts, or is wrong."""
        ...


@accelerated
def message_writer(
    model_field: Callable[[ModelRef], bytes],
    tensor_parts: FieldParts,
    output_field: Callable[[str], bytes],
    shared_field: SharedField | None = None,
) -> MessageWriter:
    """Return a function that writes inference messages from cached parts.

    Args:
        model_field: Returns the fields of a model.
        tensor_parts: Returns the parts of a tensor that depend on its description.
        output_field: Returns the field of a requested output.
        shared_field: Returns the field of an input in shared memory; None for other checks.
    """

    def write(
        model: ModelRef,
        request_id: str,
        tensors: Sequence[Tensor],
        outputs: Sequence[RequestedOutput] = (),
        /,
    ) -> Sequence[bytes | memoryview] | None:
        raws: list[bytes | memoryview] = []
        is_large = False
        try:
            parts: list[bytes | memoryview] = [model_field(model)]
            if request_id:
                encoded = request_id.encode()
                parts += (_ID, varint(len(encoded)), encoded)
            for tensor in tensors:
                field, raw_head, size, dtype = tensor_parts(
                    tensor.name, tensor.datatype, tensor.shape
                )
                data, is_plain = tensor.data, not tensor.parameters and size >= 0
                if shared_field is not None and is_plain and type(data) is SharedMemoryData:
                    place = shared_field(tensor.name, tensor.datatype, tensor.shape, data)
                    parts.append(place)
                    continue
                raw = _raw(tensor, size, dtype) if is_plain else None
                if raw is None or len(raw) != size:
                    return None
                if size > TAIL_BYTES:
                    is_large = True
                parts.append(field)
                raws += (raw_head, raw)
            if not all(map(_has_only_name, outputs)):
                return None
            parts += [output_field(output.name) for output in outputs]
        except ValueError:  # lone surrogates
            return None
        parts += raws
        return _gathered(parts) if is_large else (b"".join(parts),)

    return write


def _raw(tensor: Tensor, size: int, dtype: "np.dtype[Any] | None") -> bytes | memoryview | None:
    """Return the raw contents of a tensor, of an array only if they are *size* bytes of *dtype*."""
    data = tensor.data
    if type(data) is RawData:
        return data.view
    if type(data) is not ArrayData or data.array.nbytes != size or data.array.dtype is not dtype:
        return None
    return data.array.tobytes() if size <= TAIL_BYTES else as_raw(tensor)


def _has_only_name(output: RequestedOutput) -> bool:
    return not output.parameters and not output.classes and output.shared is None


def _model(model: ModelRef) -> bytes:
    """Write the fields of a message with the model."""
    head = bytearray()
    if model.name:
        put_text(head, _MODEL_NAME, model.name)
    if model.version:
        put_text(head, _MODEL_VERSION, model.version)
    return bytes(head)


def _tensor(
    name: str, datatype: Datatype, shape: Shape, parameters: Parameters = NO_PARAMETERS
) -> bytes:
    """Write the field of a tensor."""
    inner = _description(name, datatype, shape)
    _put_parameters(inner, _TENSOR_PARAMETERS, parameters)
    head = bytearray()
    put_bytes(head, _TENSORS, inner)
    return bytes(head)


def _shared(
    name: str, datatype: Datatype | None, shape: Shape | None, data: SharedMemoryData
) -> bytes:
    """Write the field of a tensor in shared memory, which has no other parameters."""
    assert datatype is not None  # noqa: S101  # the caller looked
    assert shape is not None  # noqa: S101
    return _tensor(name, datatype, shape, join_shared(data))


def _output(name: str, parameters: Parameters = NO_PARAMETERS) -> bytes:
    """Write the field of a requested output."""
    inner = bytearray()
    put_text(inner, _NAME, name)
    _put_parameters(inner, _OUTPUT_PARAMETERS, parameters)
    head = bytearray()
    put_bytes(head, _OUTPUTS, inner)
    return bytes(head)


def _description(name: str, datatype: Datatype, shape: Shape) -> bytearray:
    inner = bytearray()
    put_text(inner, _NAME, name)
    inner += _DATATYPES[datatype]
    if shape:
        put_int64s(inner, _SHAPE, shape)
    return inner


def between(tensors: Iterable[Tensor]) -> list[tuple[int, bytes]]:
    """Return the bytes before each streamed input except the first, with offsets in their source.

    See `wire.interleaved_body`: the message's own bytes end with those before the first.
    """
    waiting = [tensor.data for tensor in tensors if isinstance(tensor.data, StreamedData)]
    return [(data.start, RAW_INPUTS + varint(data.size_bytes)) for data in waiting[1:]]


def _with_data(
    head: bytearray, key: bytes, tensors: Iterable[Tensor], shared: memoryview | None
) -> Parts:
    """Write raw contents after a header; *shared* for those in shared memory, None for nothing."""
    parts: Parts = [head]
    for tensor in tensors:
        data = tensor.data
        if type(data) is RawData:
            put_tail(parts, key, data.view)
        elif type(data) is StreamedData:  # its bytes follow the message, see `between`
            put_tail_head(parts, key, data.size_bytes)
            break
        elif type(data) is not SharedMemoryData:
            put_tail(parts, key, as_raw(tensor))
        elif shared is not None:
            put_tail(parts, key, shared)
    return parts


def _gathered(pieces: Iterable[bytes | memoryview]) -> list[bytes | memoryview]:
    """Join a message in pieces, except for large ones, which stay separate."""
    parts: list[bytes | memoryview] = []
    small: list[bytes | memoryview] = []
    for piece in pieces:
        if len(piece) <= TAIL_BYTES:
            small.append(piece)
            continue
        if small:
            parts.append(b"".join(small))
            small.clear()
        parts.append(piece)
    if small:
        parts.append(b"".join(small))
    return parts


def _put_parameters(head: bytearray, key: bytes, parameters: Parameters) -> None:
    for name, value in parameters.items():
        entry = bytearray()
        put_text(entry, _ENTRY_KEY, name)
        put_bytes(entry, _ENTRY_VALUE, _parameter(name, value))
        put_bytes(head, key, entry)


def _parameter(name: str, value: Parameter) -> bytearray:
    inner = bytearray()
    if isinstance(value, bool):
        put_varint(inner, _BOOL, value)
    elif isinstance(value, str):
        put_text(inner, _STRING, value)
    elif isinstance(value, float):
        put_double(inner, _DOUBLE, value)
    elif INT64_MIN <= value <= INT64_MAX:
        put_varint(inner, _INT64, value)
    elif 0 < value <= UINT64_MAX:
        put_varint(inner, _UINT64, value)
    else:
        raise Unsupported(f"parameter {name!r} is {value}: expected an integer of 64 bits")
    return inner
