"""Packed arrays of protobuf to and from numpy: the repeated scalar fields of tensors.

`wire_format.py` has fields, scalars and shapes.  numpy decodes varints, because a Python loop needs
0.3 us for each.

Source: Protocol Buffers, "Encoding", on packed repeated fields: a parser accepts packed and
unpacked occurrences of one field in any order.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Any

import numpy as np

from gateway.ir.errors import InvalidTensor
from gateway.ir.tensors.items import ItemViews, even_items, even_length
from gateway.ir.work import BYTE, charge
from gateway.wire.protobuf.wire_format import WireError, read_varint, varint

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from numpy.typing import DTypeLike, NDArray

    from gateway.ir.tensors.datatypes import Datatype

_MORE = 0x80
_LOW = 0x7F
_VARINT_BYTES = 10
_BLOCK_BYTES = 1 << 16
_FEW_FIELDS = 32
_FEW_INTEGERS = 64
_MANY_BYTES = 1 << 16
# Work of one byte of packed integers, in items.
_VARINT_BYTE = 10 * BYTE
# Items that one element of a repeated field is.
_EACH = 0.4


def varint_array(values: Iterable[int | memoryview], dtype: DTypeLike) -> NDArray[Any]:
    """Read a repeated bool, int32, int64, uint32 or uint64 field into a new array.

    Args:
        values: All occurrences in order, packed ones as views and others as integers.
        dtype: Booleans are true when not 0; integers keep their low bits, as in protobuf.

    Raises:
        WireError: A packed value does not end, or has more than ten bytes.
    """
    kind = np.dtype(dtype)
    runs: list[NDArray[Any]] = []
    singles: list[int] = []
    for value in values:
        if isinstance(value, int):
            singles.append(value)
            continue
        if singles:
            runs.append(np.array(singles, np.uint64).astype(kind))
            singles = []
        runs.append(_unpack(np.frombuffer(value, np.uint8), kind))
    if singles or not runs:
        runs.append(np.array(singles, np.uint64).astype(kind))
    return runs[0] if len(runs) == 1 else np.concatenate(runs)


def varint_elements(
    name: str,
    datatype: Datatype,
    values: Sequence[int | memoryview],
    dtype: DTypeLike,
    wide: DTypeLike,
    check_count: Callable[[int], None],
) -> NDArray[Any]:
    """Read the elements of a tensor from a varint field, checked against the range of *dtype*.

    Args:
        name: Name of the tensor, for errors.
        datatype: Its datatype, for errors.
        values: All occurrences of the field, as `varint_array` takes them.
        dtype: That of the elements.
        wide: That of the field, as protobuf declares it.
        check_count: Called with the number of elements before memory is allocated: one byte on the
            wire may become eight.

    Raises:
        InvalidTensor: An element is out of range.
        WireError: A packed value does not end, or has more than ten bytes.
    """
    size, found = _measure(values)
    if size > _MANY_BYTES:
        charge(size * _VARINT_BYTE)
    check_count(found)
    if size == found:  # every varint has one byte, below 128: in range of every datatype
        return varint_array(values, dtype)
    elements = varint_array(values, wide)
    if elements.dtype == dtype:
        return elements
    bounds = np.iinfo(dtype)
    outside = (elements < bounds.min) | (elements > bounds.max)
    if outside.any():
        index = int(np.argmax(outside))
        raise InvalidTensor(
            f"tensor {name!r} has {elements[index]} at index {index}: expected {datatype.name} "
            f"from {bounds.min} to {bounds.max}"
        )
    return elements.astype(dtype)


def _measure(values: Sequence[int | memoryview]) -> tuple[int, int]:
    """Count the bytes of all varints, 2 for each long one that is not packed, and the varints."""
    size = found = 0
    for value in values:
        if isinstance(value, int):
            size += 1 if value < _MORE else 2
            found += 1
        else:
            size += len(value)
            found += int(np.count_nonzero(np.frombuffer(value, np.uint8) < _MORE))
    return size, found


def fixed_run(values: Sequence[memoryview], size_bytes: int) -> memoryview:
    """Join the occurrences of a repeated fixed-size field, packed or not, to its raw elements.

    One occurrence, the usual case, is returned without a copy.

    Raises:
        WireError: The length of an occurrence is not a multiple of *size_bytes*.
    """
    for value in values:
        if len(value) % size_bytes:
            raise WireError(
                f"packed field has {len(value)} bytes: expected a multiple of {size_bytes}"
            )
    return values[0] if len(values) == 1 else memoryview(b"".join(values))


def repeated_bytes(view: memoryview, key: bytes, count: int) -> ItemViews | None:
    """Find the elements of a repeated bytes field that is all that a message has.

    Args:
        view: The message.
        key: The field's tag, of one byte.
        count: How many elements are expected.

    Returns:
        Views of the elements; None where there are few, other fields, or not *count* elements:
        then `fields` tells.
    """
    if count <= _FEW_FIELDS or len(view) < 2 * count:
        return None
    head = key + varint(len(view) // count - len(key) - 1)
    if len(view) // count < _MORE and even_length(view, count, head) is not None:
        return even_items(view, count, len(head))
    charge(count * _EACH, count)
    data = bytes(view)
    starts, ends = array("q"), array("q")
    at, end, expected = 0, len(data), key[0]
    try:
        while at < end and len(ends) < count:
            if data[at] != expected:
                return None
            size = data[at + 1]
            at += 2
            if size >= _MORE:
                size, at = read_varint(data, at - 1)
            starts.append(at)
            at += size
            ends.append(at)
    except IndexError:
        return None
    if at != end or len(ends) != count:
        return None
    return ItemViews(view, np.frombuffer(starts, np.int64), np.frombuffer(ends, np.int64))


def packed_varints(array: NDArray[Any]) -> memoryview:
    """Encode a boolean or integer array, flattened in row-major order, as packed varints."""
    flat = np.ascontiguousarray(array).reshape(-1)
    if flat.size <= _FEW_INTEGERS:
        few = flat.tolist()
        if few and min(few) >= 0 and max(few) < _MORE:
            return memoryview(bytes(few))
        return memoryview(b"".join(map(varint, few)))
    return _packed_bytes(flat) if flat.dtype == np.uint8 else _packed_wide(flat)


def _packed_bytes(flat: NDArray[np.uint8]) -> memoryview:
    high = flat >= _MORE
    # A byte above 127 is its own first byte, with the continuation bit, and 1 follows.
    places = np.arange(flat.size)
    places += np.cumsum(high)
    places -= high
    out = np.ones(flat.size + int(np.count_nonzero(high)), np.uint8)
    out[places] = flat
    return out.data


def _packed_wide(flat: NDArray[Any]) -> memoryview:
    values = flat.astype(np.uint64)
    if not values.size or values.max() < _MORE:
        return values.astype(np.uint8).data
    sizes = np.ones(values.shape, np.int64)
    for k in range(1, _VARINT_BYTES):
        sizes += values >= np.uint64(1 << 7 * k)
    starts = np.cumsum(sizes) - sizes
    out = np.empty(int(starts[-1] + sizes[-1]), np.uint8)
    for k in range(int(sizes.max())):
        here = np.flatnonzero(sizes > k)
        low = values[here] >> np.uint64(7 * k) & np.uint64(_LOW)
        out[starts[here] + k] = low | np.where(sizes[here] > k + 1, np.uint64(_MORE), np.uint64(0))
    return out.data


def _unpack(raw: NDArray[np.uint8], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Decode packed varints block by block, so that temporary arrays stay small."""
    count = np.count_nonzero(raw < _MORE)
    if count == raw.size:
        return raw.astype(dtype)
    if raw[-1] >= _MORE:
        raise WireError("packed field ends inside a varint")
    out = np.empty(count, dtype)
    at = done = 0
    while at < raw.size:
        block = raw[at : at + _BLOCK_BYTES]
        last = np.flatnonzero(block < _MORE)
        if not last.size:
            raise WireError(f"packed varint is longer than {_VARINT_BYTES} bytes")
        out[done : done + last.size] = _unpack_block(block, last)
        done += last.size
        at += int(last[-1]) + 1
    return out


def _unpack_block(block: NDArray[np.uint8], last: NDArray[np.intp]) -> NDArray[np.uint64]:
    """Decode the varints whose last bytes are at the offsets *last*."""
    first = np.empty_like(last)
    first[0] = 0
    first[1:] = last[:-1] + 1
    sizes = last - first + 1
    if sizes.max() > _VARINT_BYTES:
        raise WireError(f"packed varint is longer than {_VARINT_BYTES} bytes")
    used = block[: last[-1] + 1]
    shifts = (np.arange(used.size) - np.repeat(first, sizes)).astype(np.uint64) * np.uint64(7)
    return np.bitwise_or.reduceat((used & _LOW).astype(np.uint64) << shifts, first)
