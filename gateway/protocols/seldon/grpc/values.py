"""`google.protobuf.ListValue` and `Value`: nested lists of numbers, texts and booleans.

A row of numbers has 11 bytes for each, which numpy reads and writes at once.

Source: docs/protocols/seldon.md, "4. gRPC".
"""

import math
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from gateway.ir.errors import InvalidOutput, InvalidRequest, TooLarge
from gateway.ir.limits import MessageLimits, check_count
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.tensor import Tensor, as_items, as_numpy
from gateway.ir.values.exact_values import whole_number
from gateway.ir.work import BYTE, charge, reserve
from gateway.wire.protobuf.wire_format import (
    I64,
    LEN,
    VARINT,
    TooManyFields,
    field_blocks,
    fields,
    float64,
    tag,
    text,
    varint,
)

_EACH: Final = tag(1, LEN)
_NULL, _BOOL = tag(1, VARINT), tag(4, VARINT)
_NUMBER: Final = tag(2, I64)
_TEXT, _STRUCT, _LIST = tag(3, LEN), tag(5, LEN), tag(6, LEN)
_KEY, _VALUE = tag(1, LEN), tag(2, LEN)
_HEAD: Final = np.frombuffer(bytes((_EACH, 9, _NUMBER)), np.uint8)
_NUMBER_BYTES: Final = 11
_FEW: Final = 64
# Work for one value that is read alone, in items.
_ONE: Final = 4
# A list, or a text of one character, with its place in a list.
_OBJECT_BYTES: Final = 72
_BITS: Final = (bytes((_EACH, 2, _BOOL, 0)), bytes((_EACH, 2, _BOOL, 1)))


class ValueReader:
    """Reads the values of one message, with limits for all of them together.

    Args:
        limits: `json_depth` and `bytes_elements` are enforced.
        place: Names the values in errors.
    """

    def __init__(self, limits: MessageLimits, place: str) -> None:
        self._limits = limits
        self._place = place
        self._count = self._size = 0

    def array(self, view: memoryview) -> Any:
        """Return a ListValue as nested lists, or as an array of doubles.

        Raises:
            InvalidRequest: A value is none.
            TooLarge: A limit is exceeded.
            WireError: The bytes are not a message.
        """
        self._size = len(view)
        found = self._list(view, 1)
        if isinstance(found, np.ndarray):
            return found
        kinds = set(map(type, found))
        if kinds == {np.ndarray} and len({row.size for row in found}) == 1:
            return np.stack(found)
        return [_plain(each) for each in found]

    def value(self, view: memoryview) -> Any:
        """Return a Value as Python objects; numbers without a fraction are integers, as in JSON."""
        self._size = len(view)
        return _json(self._value(view, 1))

    def _list(self, view: memoryview, depth: int) -> Any:
        if depth > self._limits.json_depth:
            raise TooLarge(
                f"{self._place} is nested too deep, at most {self._limits.json_depth} levels are "
                "allowed",
                limit="json_depth",
            )
        numbers = _numbers(view)
        if numbers is not None:
            self._add(numbers.size, 0)
            return numbers
        most = self._limits.bytes_elements - self._count
        charge(min(len(view) // 2, most) / 2)
        values: list[Any] = []
        try:
            for some in field_blocks(view, max(most, 1)):
                self._add(len(some), _ONE)
                values += [self._value(value, depth) for key, value in some if key == _EACH]
        except TooManyFields as error:
            raise TooLarge(
                f"{self._place} has more than {self._limits.bytes_elements} values "
                "(bytes_elements)",
                limit="bytes_elements",
            ) from error
        return values

    def _value(self, view: memoryview, depth: int) -> Any:
        found = fields(view, _FEW)
        if not found:
            raise InvalidRequest(f"{self._place} has a value without a kind: expected a number")
        key, value = found[-1]
        if key == _NUMBER:
            return float64(value)
        if key == _TEXT:
            return text(value, self._place)
        if key == _BOOL:
            return bool(value)
        if key == _LIST:
            return self._list(value, depth + 1)
        if key == _STRUCT:
            return self._struct(value, depth + 1)
        return None

    def _struct(self, view: memoryview, depth: int) -> dict[str, Any]:
        if depth > self._limits.json_depth:
            raise TooLarge(f"{self._place} is nested too deep", limit="json_depth")
        members: dict[str, Any] = {}
        found = fields(view, self._limits.json_keys)
        self._add(len(found), _ONE)
        for key, entry in found:
            if key != _EACH:
                continue
            parts = dict(fields(entry, _FEW))
            name = text(parts.get(_KEY, memoryview(b"")), self._place)
            members[name] = self._value(parts.get(_VALUE, memoryview(b"\x08\x00")), depth)
        return members

    def _add(self, count: int, items: float) -> None:
        if items:
            self._count += count
            check_count(
                f"values in {self._place}",
                self._count,
                self._limits.bytes_elements,
                "bytes_elements",
            )
            reserve(self._size, count * _OBJECT_BYTES)
        charge(count * items)


def _numbers(view: memoryview) -> npt.NDArray[Any] | None:
    """Return a list of numbers only; None for any other list."""
    size = len(view)
    if not size or size % _NUMBER_BYTES:
        return None
    charge(size * BYTE)
    rows = np.frombuffer(view, np.uint8).reshape(-1, _NUMBER_BYTES)
    if not (rows[:, :3] == _HEAD).all():
        return None
    return np.ascontiguousarray(rows[:, 3:]).view("<f8").reshape(-1)


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.tolist()
    return [_plain(each) for each in value] if type(value) is list else value


def _json(value: Any) -> Any:
    value = value.tolist() if isinstance(value, np.ndarray) else value
    if type(value) is list:
        return [_json(each) for each in value]
    if type(value) is dict:
        return {name: _json(each) for name, each in value.items()}
    return whole_number(value)


def list_value(tensor: Tensor, doubles: npt.NDArray[Any] | None) -> bytes:
    """Return a ListValue nested as a tensor; a scalar is a list of one.

    Args:
        tensor: With its datatype and shape.
        doubles: Its numbers; None for BYTES and BOOL.

    Raises:
        InvalidOutput: An element of BYTES is not UTF-8.
    """
    shape = tensor.shape or (1,)
    width = shape[-1]
    rows = _rows(tensor, doubles, width, math.prod(shape[:-1]))
    for axis in range(len(shape) - 2, -1, -1):
        dim, count = shape[axis], math.prod(shape[:axis])
        rows = [b"".join(map(_entry, rows[at * dim : (at + 1) * dim])) for at in range(count)]
    return rows[0] if rows else b""


def _entry(row: bytes) -> bytes:
    """Return a list as an entry of another one."""
    inner = varint(_LIST) + varint(len(row)) + row
    return varint(_EACH) + varint(len(inner)) + inner


def _rows(tensor: Tensor, doubles: npt.NDArray[Any] | None, width: int, count: int) -> list[bytes]:
    """Return the lists of the last axis."""
    if doubles is not None:
        flat = np.ascontiguousarray(doubles, "<f8").reshape(-1)
        charge(flat.nbytes * BYTE + count)
        out = np.empty((flat.size, _NUMBER_BYTES), np.uint8)
        out[:, :3] = _HEAD
        out[:, 3:] = flat.view(np.uint8).reshape(-1, 8)
        data = out.tobytes()
        size = width * _NUMBER_BYTES
        return [data[at * size : (at + 1) * size] for at in range(count)]
    elements = _elements(tensor)
    return [b"".join(elements[at * width : (at + 1) * width]) for at in range(count)]


def _elements(tensor: Tensor) -> list[bytes]:
    if tensor.datatype is Datatype.BOOL:
        flat = as_numpy(tensor).reshape(-1).tolist()
        charge(len(flat))
        return [_BITS[each] for each in flat]
    items = as_items(tensor)
    charge(len(items))
    found = []
    for index, item in enumerate(items):
        try:
            str(item, "utf-8")
        except UnicodeDecodeError:
            raise InvalidOutput(
                f"output {tensor.name!r} has bytes at index {index} that are not UTF-8: expected "
                "text"
            ) from None
        inner = varint(_TEXT) + varint(len(item)) + bytes(item)
        found.append(varint(_EACH) + varint(len(inner)) + inner)
    return found
