"""TensorProto messages: read as tensors of the IR, and written from them.

Content is a view of the message, and so are texts. numpy decodes elements in typed fields. A typed
field may have fewer elements than the shape: the last one stands for all that follow.

Source: docs/protocols/tensorflow-serving.md, "5. Tensors over gRPC".
"""

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from gateway.ir.errors import InvalidTensor, TooLarge, Unsupported
from gateway.ir.limits import MessageLimits, check_shape
from gateway.ir.tensors.data import ArrayData, ItemsData, RawData, TensorData
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.items import longest_of
from gateway.ir.tensors.tensor import Shape, Tensor, as_items, as_numpy, as_raw
from gateway.ir.work import BYTE, FIELD, charge
from gateway.wire.protobuf.messages import (
    FieldKind,
    MessageDescriptor,
    MessageField,
    elements_field,
    message_field,
)
from gateway.wire.protobuf.packed import (
    fixed_run,
    packed_varints,
    repeated_bytes,
    varint_elements,
)
from gateway.wire.protobuf.tensorflow_datatypes import (
    NUMBERS,
    VALUE_FIELDS,
    datatype_of,
    name_of,
)
from gateway.wire.protobuf.wire_format import (
    I32,
    I64,
    LEN,
    TAIL_BYTES,
    VARINT,
    FieldCounter,
    Parts,
    WireError,
    put_tail,
    read_varint,
    varint,
)

# dtypes of the varint fields as protobuf declares them.
_VARINT_DTYPE: Final[dict[int, npt.DTypeLike]] = {
    7: np.int32,
    10: np.int64,
    11: np.bool_,
    13: np.int32,
    16: np.uint32,
    17: np.uint64,
}
_FIELD_NAMES: Final[dict[int, str]] = {
    5: "float_val",
    6: "double_val",
    7: "int_val",
    8: "string_val",
    9: "scomplex_val",
    10: "int64_val",
    11: "bool_val",
    12: "dcomplex_val",
    13: "half_val",
    14: "resource_handle_val",
    15: "variant_val",
    16: "uint32_val",
    17: "uint64_val",
}
_SPARE_FIELDS: Final = 64
_MANY_BYTES: Final = 1 << 16
_FIXED: Final = (Datatype.FP32, Datatype.FP64)
# Work of one byte of integers that become varints, in items.
_VARINT_BYTE: Final = 10 * BYTE
# What the last elements of a message may stand for: nobody sent these bytes.
_FILLED_BYTES: Final = 16 << 20
_LENGTH_BYTES: Final = 4
_EMPTY: Final = memoryview(b"")
_WIRE_TYPES: Final = {5: I32, 6: I64, **dict.fromkeys(_VARINT_DTYPE, VARINT)}


class _TensorProto(NamedTuple):
    """A TensorProto whose values are not read yet.

    Attributes:
        number: Number of the datatype.
        shape: None for an unknown rank.
        content: The raw elements; empty for none.
        values: The elements in other fields, by the numbers of these.
    """

    number: int
    shape: Shape | None
    content: memoryview
    values: Mapping[int, Sequence[Any]]


def _shape_of(dims: Sequence[int], has_unknown_rank: bool) -> Shape | None:
    return None if has_unknown_rank else tuple(dims)


DIM: Final = MessageDescriptor(
    "TensorShapeProto.Dim", int, [MessageField(1, FieldKind.INT64, "size")], limit=_SPARE_FIELDS
)
TENSOR_SHAPE: Final = MessageDescriptor(
    "TensorShapeProto",
    _shape_of,
    [
        message_field(2, DIM, "dims", repeated=True),
        MessageField(3, FieldKind.BOOL, "unknown_rank"),
    ],
    limit=_SPARE_FIELDS,
    more="rank",
)
TENSOR: Final = MessageDescriptor(
    "TensorProto",
    _TensorProto,
    [
        MessageField(1, FieldKind.INT32, "number"),
        message_field(2, TENSOR_SHAPE, "shape"),
        MessageField(4, FieldKind.VIEW, "content"),
        *[
            elements_field(number, name, _WIRE_TYPES.get(number, LEN))
            for number, name in _FIELD_NAMES.items()
        ],
    ],
)
_CONTENT: Final = TENSOR.key("content")
_SHAPE: Final = TENSOR.key("shape")[0]
_TYPED_KEYS: Final = {
    each: TENSOR.key(_FIELD_NAMES[number]) for each, number in VALUE_FIELDS.items()
}
_TEXTS: Final = VALUE_FIELDS[Datatype.BYTES]
_TEXT: Final = TENSOR.key(_FIELD_NAMES[_TEXTS])
_BEGINNING_OF_BYTES: Final = bytes((*TENSOR.key("number"), NUMBERS[Datatype.BYTES]))


class TensorProtoReader:
    """Reads the tensors of one message, with limits for all of them together.

    Args:
        limits: The limits of a message.
        counter: Counts the fields of the whole message.
    """

    def __init__(self, limits: MessageLimits, counter: FieldCounter) -> None:
        self._limits = limits
        self._counter = counter
        self._unfilled = _FILLED_BYTES

    def read(self, name: str, view: memoryview) -> Tensor:
        """Read one TensorProto; content and texts are views of it.

        Raises:
            InvalidTensor: Datatype, shape and data contradict each other.
            Unsupported: No tensor of a model has the datatype.
            TooLarge: A limit is exceeded.
            WireError: The bytes are not a message.
        """
        found = self._plain_texts(name, view)
        if found is None:
            found = TENSOR.read((view,), self._limits, self._counter)
        own, *others = found.values or (0,)
        if others:
            raise InvalidTensor(
                f"tensor {name!r} has both {_FIELD_NAMES[own]} and {_FIELD_NAMES[others[0]]}: "
                "expected one of them"
            )
        datatype = datatype_of(name, found.number)
        shape = _known_shape(name, found.shape)
        count = check_shape(name, datatype, shape, self._limits)
        values = found.values.get(own, ())
        if len(found.content):
            data: TensorData = _content(name, datatype, shape, found.content)
        elif own not in (0, VALUE_FIELDS[datatype]):
            needed = _FIELD_NAMES[VALUE_FIELDS[datatype]]
            raise InvalidTensor(
                f"tensor {name!r} is {name_of(found.number)} and has {_FIELD_NAMES[own]}: "
                f"expected {needed} or tensor_content"
            )
        elif datatype is Datatype.BYTES:
            data = self._texts(name, count, values)
        else:
            data = self._numbers(name, datatype, shape, values)
        return Tensor(name, datatype, shape, data)

    def _plain_texts(self, name: str, view: memoryview) -> _TensorProto | None:
        """Return a usual tensor of BYTES: its datatype, its shape, and nothing but elements.

        Of another one that begins as such, each element may be a field.
        """
        if view[:2] != _BEGINNING_OF_BYTES:
            return None
        shapes, rest = _leading_shape(view[2:])
        shape = _known_shape(name, TENSOR_SHAPE.read(shapes, self._limits))
        count = check_shape(name, Datatype.BYTES, shape, self._limits)
        items = repeated_bytes(rest, _TEXT, count)
        if items is not None:
            return _TensorProto(view[1], shape, _EMPTY, {_TEXTS: items})
        if len(rest) > _SPARE_FIELDS:
            count = min(count, len(rest) // 2)
            self._counter.remaining += count
            if count > _SPARE_FIELDS:
                charge(count * FIELD)
        return None

    def _texts(self, name: str, count: int, values: Sequence[memoryview]) -> TensorData:
        found = len(values)
        _check_count(name, found, count)
        _, longest = longest_of(values) if found else (0, 0)
        if longest > self._limits.bytes_element_size:
            raise TooLarge(
                f"tensor {name!r} has an element of {longest} bytes, "
                f"at most {self._limits.bytes_element_size} are allowed",
                limit="bytes_element_size",
            )
        if found == count:
            return ItemsData(values)
        last = values[-1] if found else _EMPTY
        self._charge_fill(name, (count - found) * (len(last) + _LENGTH_BYTES))
        return ItemsData([*values, *([last] * (count - found))])

    def _numbers(
        self, name: str, datatype: Datatype, shape: Shape, values: Sequence[Any]
    ) -> TensorData:
        count = math.prod(shape)
        if not values:
            self._charge_fill(name, count * datatype.size_bytes)
            return ArrayData(np.zeros(shape, datatype.numpy_dtype)) if count else RawData(_EMPTY)
        if datatype in _FIXED:
            run = fixed_run(values, datatype.size_bytes)
            _check_count(name, len(run) // datatype.size_bytes, count)
            if len(run) == count * datatype.size_bytes:
                return RawData(run)
            array: npt.NDArray[Any] = np.frombuffer(run, datatype.numpy_dtype)
        else:
            array = _integers(name, datatype, count, values)
            if array.size == count:
                return ArrayData(array.reshape(shape))
        self._charge_fill(name, (count - array.size) * datatype.size_bytes)
        whole = np.full(count, array[-1], datatype.numpy_dtype)
        whole[: array.size] = array
        return ArrayData(whole.reshape(shape))

    def _charge_fill(self, name: str, size_bytes: int) -> None:
        """Charge elements that the message does not have."""
        self._unfilled -= size_bytes
        if self._unfilled < 0:
            raise TooLarge(
                f"tensor {name!r} has fewer elements than its shape, and the last one stands for "
                f"{size_bytes} bytes: expected all elements, because at most {_FILLED_BYTES} bytes "
                "of one message are filled"
            )
        if size_bytes > _MANY_BYTES:
            charge(size_bytes * BYTE)


def tensor_message(name: str, tensor: Tensor, *, is_content: bool = True) -> Parts:
    """Return a TensorProto in parts: numbers as content or in their typed field, BYTES as texts.

    Args:
        name: Names the tensor in errors.
        tensor: With its datatype and shape.
        is_content: Whether numbers are written as content.

    Raises:
        Unsupported: It has no datatype or shape.
        InvalidTensor: Its data do not match them.
    """
    datatype, shape = tensor.datatype, tensor.shape
    if datatype is None or shape is None:
        raise Unsupported(f"tensor {name!r} has no datatype or shape: TensorFlow needs both")
    inner: Parts = [bytearray(_description(datatype, shape))]
    if datatype is Datatype.BYTES:
        _put_texts(inner, tensor)
    else:
        _put_numbers(inner, tensor, datatype, math.prod(shape), is_content)
    return inner


@lru_cache(1024)
def _description(datatype: Datatype, shape: Shape) -> bytes:
    """Return the fields of datatype and shape."""
    return b"".join(TENSOR.write(number=NUMBERS[datatype], shape=shape_message(shape)))


def shape_message(shape: Sequence[int] | None) -> Parts:
    """Return a TensorShapeProto; -1 is a variable dimension, None an unknown rank."""
    if shape is None:
        return TENSOR_SHAPE.write(unknown_rank=True)
    return TENSOR_SHAPE.write(dims=[DIM.write(size=size) for size in shape])


def _leading_shape(view: memoryview) -> tuple[Sequence[memoryview], memoryview]:
    """Return the shape that a message begins with, if it does, and what follows."""
    try:
        if len(view) and view[0] == _SHAPE:
            size, start = read_varint(view, 1)
            if start + size <= len(view):
                return (view[start : start + size],), view[start + size :]
    except WireError:
        pass
    return (), view


def _known_shape(name: str, shape: Shape | None) -> Shape:
    if shape is None:
        raise InvalidTensor(f"tensor {name!r} has an unknown rank: expected a shape")
    return shape


def _content(name: str, datatype: Datatype, shape: Shape, content: memoryview) -> TensorData:
    if datatype is Datatype.BYTES:
        raise Unsupported(f"tensor {name!r} is DT_STRING with tensor_content: expected string_val")
    expected = math.prod(shape) * datatype.size_bytes
    if len(content) != expected:
        raise InvalidTensor(
            f"tensor {name!r} has {len(content)} bytes of tensor_content, shape {list(shape)} of "
            f"{datatype.name} needs {expected}"
        )
    return RawData(content)


def _integers(
    name: str, datatype: Datatype, count: int, values: Sequence[int | memoryview]
) -> npt.NDArray[Any]:
    """Return the elements of a varint field, checked against the range of the datatype."""
    # Those of half_val are bits.
    dtype: np.dtype[Any] = np.dtype("<u2") if datatype.is_float else datatype.numpy_dtype
    wide = _VARINT_DTYPE[VALUE_FIELDS[datatype]]
    elements: npt.NDArray[Any] = varint_elements(
        name, datatype, values, dtype, wide, lambda found: _check_count(name, found, count)
    )
    return elements.view(datatype.numpy_dtype)


def _check_count(name: str, found: int, most: int) -> None:
    if found > most:
        raise InvalidTensor(f"tensor {name!r} has {found} elements: its shape has {most}")


def _put_texts(inner: Parts, tensor: Tensor) -> None:
    items = as_items(tensor)
    if len(items) > _SPARE_FIELDS:
        charge(len(items))
    pieces: list[bytes | memoryview] = []
    for item in items:
        pieces += (_TEXT, varint(len(item)), item)
    written = b"".join(pieces)
    if len(written) <= TAIL_BYTES:
        inner[0] = bytearray(inner[0]) + written
    else:
        inner.append(memoryview(written))


def _put_numbers(
    inner: Parts, tensor: Tensor, datatype: Datatype, count: int, is_content: bool
) -> None:
    """Write numbers; BOOL has 0 and 1 only, which TensorFlow takes as they are."""
    if datatype is Datatype.BOOL:
        tensor = Tensor(tensor.name, datatype, tensor.shape, ArrayData(as_numpy(tensor)))
    raw = as_raw(tensor)
    if len(raw) != count * datatype.size_bytes:
        raise InvalidTensor(
            f"tensor {tensor.name!r} has {len(raw)} bytes, its shape needs "
            f"{count * datatype.size_bytes}"
        )
    if not count:
        return
    if is_content:
        put_tail(inner, _CONTENT, raw)
        return
    if datatype not in _FIXED:
        charge(len(raw) * _VARINT_BYTE)
        # The bits of a half are an integer.
        dtype = np.dtype("<u2") if datatype.is_float else datatype.numpy_dtype
        raw = packed_varints(np.frombuffer(raw, dtype))
    put_tail(inner, _TYPED_KEYS[datatype], raw)
