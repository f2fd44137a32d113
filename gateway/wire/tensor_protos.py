"""TensorProto messages: read as tensors of the IR, and written from them.

Content is a view of the message, and so are texts. numpy decodes elements in typed fields. A typed
field may have fewer elements than the shape: the last one stands for all that follow.

Source: docs/protocols/tensorflow-serving.md, "5. Tensors over gRPC".
"""

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from gateway.ir.data import ArrayData, ItemsData, RawData, TensorData
from gateway.ir.datatypes import Datatype
from gateway.ir.errors import InvalidTensor, TooLarge, Unsupported
from gateway.ir.items import longest_of
from gateway.ir.limits import MessageLimits, check_shape
from gateway.ir.tensor import Shape, Tensor, as_items, as_numpy, as_raw
from gateway.ir.work import BYTE, FIELD, charge
from gateway.wire.protobuf import (
    I32,
    I64,
    LEN,
    MAX_FIELDS,
    TAIL_BYTES,
    VARINT,
    Field,
    FieldCounter,
    Parts,
    WireError,
    fields,
    int32,
    int64,
    put_bytes,
    put_message,
    put_tail,
    put_text,
    put_varint,
    read_varint,
    tag,
    varint,
)
from gateway.wire.protobuf_packed import fixed_run, repeated_bytes, varint_elements
from gateway.wire.tensorflow_datatypes import (
    DATATYPES,
    NUMBERS,
    VALUE_FIELDS,
    datatype_of,
    name_of,
)

_DTYPE: Final = tag(1, VARINT)
_SHAPE: Final = tag(2, LEN)
_CONTENT: Final = tag(4, LEN)
_TEXTS: Final = VALUE_FIELDS[Datatype.BYTES]
_TEXT: Final = tag(_TEXTS, LEN)
_DIM, _UNKNOWN_RANK, _SIZE = tag(2, LEN), tag(3, VARINT), tag(1, VARINT)
_KIND: Final = 7
_KEY, _VALUE = varint(tag(1, LEN)), varint(tag(2, LEN))

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
_FIELD_OF_TAG: Final[dict[int, int]] = {
    **{tag(number, LEN): number for number in _FIELD_NAMES},
    **{tag(number, VARINT): number for number in _VARINT_DTYPE},
    tag(5, I32): 5,
    tag(6, I64): 6,
}
_SPARE_FIELDS: Final = 64
_MANY_BYTES: Final = 1 << 16
# What the last elements of a message may stand for: nobody sent these bytes.
_FILLED_BYTES: Final = 16 << 20
_LENGTH_BYTES: Final = 4
_EMPTY: Final = memoryview(b"")


class _TensorFields:
    """The fields of a TensorProto.

    Args:
        number: Of the datatype, if it is known already.
        shapes: The parts of the shape that are known already.
    """

    __slots__ = ("content", "field", "number", "shapes", "values")

    def __init__(self, number: int, shapes: list[memoryview]) -> None:
        self.number = number
        self.shapes = shapes
        self.content = _EMPTY
        self.field = 0
        self.values: list[Any] = []

    def add(self, name: str, pairs: Sequence[Field]) -> None:
        """Add fields; of single ones the last counts."""
        for key, value in pairs:
            if key == _CONTENT:
                self.content = value
            elif key == _DTYPE:
                self.number = int32(value)
            elif key == _SHAPE:
                self.shapes.append(value)
            else:
                self._add_value(name, key, value)

    def _add_value(self, name: str, key: int, value: Any) -> None:
        found = _FIELD_OF_TAG.get(key)
        if found is None or (key & _KIND == LEN and found != _TEXTS and not len(value)):
            return  # unknown, or packed without an element
        if self.field not in (0, found):
            raise InvalidTensor(
                f"tensor {name!r} has both {_FIELD_NAMES[self.field]} and "
                f"{_FIELD_NAMES[found]}: expected one of them"
            )
        self.field = found
        self.values.append(value)


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
        number, shapes, at = _beginning(view)
        rest = view[at:]
        items = self._plain_texts(name, number, shapes, rest)
        found = _TensorFields(number, shapes)
        if items is None:
            found.add(name, self._rest(name, number, shapes, rest))
        number, content, values = found.number, found.content, found.values
        datatype = datatype_of(name, number)
        shape = _shape(name, found.shapes, self._limits)
        count = check_shape(name, datatype, shape, self._limits)
        if len(content):
            data: TensorData = _content(name, datatype, shape, content)
        elif items is not None:
            data = self._texts(name, count, items)
        elif values and found.field != VALUE_FIELDS[datatype]:
            own, needed = _FIELD_NAMES[found.field], _FIELD_NAMES[VALUE_FIELDS[datatype]]
            raise InvalidTensor(
                f"tensor {name!r} is {name_of(number)} and has {own}: expected {needed} or "
                "tensor_content"
            )
        elif datatype is Datatype.BYTES:
            data = self._texts(name, count, values)
        else:
            data = self._numbers(name, datatype, shape, values)
        return Tensor(name, datatype, shape, data)

    def _plain_texts(
        self, name: str, number: int, shapes: list[memoryview], rest: memoryview
    ) -> Sequence[memoryview] | None:
        """Return the elements of a usual BYTES tensor, which is nothing else from *rest* on."""
        if DATATYPES.get(number) is not Datatype.BYTES:
            return None
        count = check_shape(name, Datatype.BYTES, _shape(name, shapes, self._limits), self._limits)
        return repeated_bytes(rest, varint(_TEXT), count)

    def _rest(
        self, name: str, number: int, shapes: list[memoryview], rest: memoryview
    ) -> Sequence[tuple[int, Any]]:
        """Return the fields after the shape. Those with one element each are work."""
        datatype = DATATYPES.get(number)
        count = 0
        if datatype is not None and len(rest) > _SPARE_FIELDS:
            shape = _shape(name, shapes, self._limits)
            count = min(check_shape(name, datatype, shape, self._limits), len(rest) // 2)
        if datatype is Datatype.BYTES:  # each element is a field
            self._counter.remaining += count
            if count > _SPARE_FIELDS:
                charge(count * FIELD)
        return fields(rest, _SPARE_FIELDS + max(count, MAX_FIELDS), self._counter)

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
        if datatype.size_bytes > 2 and datatype.is_float:  # noqa: PLR2004  # halves are integers
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


def put_tensor(parts: Parts, key: bytes, name: str, tensor: Tensor) -> None:
    """Write an entry of a map of tensors: numbers as content, BYTES as texts.

    Large data stay where they are.

    Args:
        parts: The message so far.
        key: The field of the map.
        name: The key of the entry.
        tensor: With its datatype and shape.

    Raises:
        Unsupported: It has no datatype or shape.
        InvalidTensor: Its data do not match them.
        WireError: The name has lone surrogates.
    """
    inner = tensor_message(name, tensor)
    head = bytearray()
    put_text(head, _KEY, name)
    entry: Parts = [head]
    put_message(entry, _VALUE, inner)
    put_message(parts, key, entry)


def tensor_message(name: str, tensor: Tensor) -> Parts:
    """Return a TensorProto in parts: numbers as content, BYTES as texts.

    Args:
        name: Names the tensor in errors.
        tensor: With its datatype and shape.

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
        _put_content(inner, tensor, math.prod(shape) * datatype.size_bytes)
    return inner


@lru_cache(1024)
def _description(datatype: Datatype, shape: Shape) -> bytes:
    """Return the fields of datatype and shape."""
    head = bytearray()
    put_varint(head, varint(_DTYPE), NUMBERS[datatype])
    put_bytes(head, varint(_SHAPE), shape_message(shape))
    return bytes(head)


def shape_message(shape: Sequence[int] | None) -> bytes:
    """Return a TensorShapeProto; -1 is a variable dimension, None an unknown rank."""
    head = bytearray()
    if shape is None:
        put_varint(head, varint(_UNKNOWN_RANK), 1)
        return bytes(head)
    for dim in shape:
        inner = bytearray()
        if dim:
            put_varint(inner, varint(_SIZE), dim)
        put_bytes(head, varint(_DIM), inner)
    return bytes(head)


def read_shape(views: Sequence[memoryview], most: int) -> Shape | None:
    """Read a TensorShapeProto in parts, at most *most* dimensions; None for an unknown rank.

    Raises:
        WireError: It is no such message, or has too many dimensions.
    """
    dims = []
    for view in views:
        for key, value in fields(view, most):
            if key == _UNKNOWN_RANK and value:
                return None
            if key == _DIM:
                sizes = [found for inner, found in fields(value, _SPARE_FIELDS) if inner == _SIZE]
                dims.append(int64(sizes[-1]) if sizes else 0)
    return tuple(dims)


def _beginning(view: memoryview) -> tuple[int, list[memoryview], int]:
    """Return datatype and shape as most messages begin with them, and where they end."""
    number, shapes, at = 0, [], 0
    try:
        if len(view) and view[0] == _DTYPE:
            value, at = read_varint(view, 1)
            number = int32(value)
        if at < len(view) and view[at] == _SHAPE:
            size, start = read_varint(view, at + 1)
            if start + size <= len(view):
                at = start + size
                shapes.append(view[start:at])
    except WireError:
        return 0, [], 0
    return number, shapes, at


def _shape(name: str, views: Sequence[memoryview], limits: MessageLimits) -> Shape:
    shape = read_shape(views, limits.rank + _SPARE_FIELDS)
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
    key = varint(_TEXT)
    pieces: list[bytes | memoryview] = []
    for item in items:
        pieces += (key, varint(len(item)), item)
    written = b"".join(pieces)
    if len(written) <= TAIL_BYTES:
        inner[0] = bytearray(inner[0]) + written
    else:
        inner.append(memoryview(written))


def _put_content(inner: Parts, tensor: Tensor, expected: int) -> None:
    """Write the bytes of numbers; BOOL has 0 and 1 only, which TensorFlow takes as they are."""
    if tensor.datatype is Datatype.BOOL:
        tensor = Tensor(tensor.name, tensor.datatype, tensor.shape, ArrayData(as_numpy(tensor)))
    raw = as_raw(tensor)
    if len(raw) != expected:
        raise InvalidTensor(
            f"tensor {tensor.name!r} has {len(raw)} bytes, its shape needs {expected}"
        )
    if expected:
        put_tail(inner, varint(_CONTENT), raw)
