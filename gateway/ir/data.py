"""The forms of tensor data, and three ways to read any of them.

Data stays in the form it arrived in; `as_raw`, `as_numpy` and `as_items` convert on demand and
copy only where the form leaves no choice.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from gateway.ir.datatypes import Datatype
from gateway.ir.errors import InvalidTensor

if TYPE_CHECKING:
    from gateway.ir.streaming_body import StreamingBody
    from gateway.ir.tensor import Shape, Tensor

_LENGTH = struct.Struct("<I")
_FEW = 8
# On the path of every model: to look a member up in an Enum costs as much as a call.
_BYTES: Final = Datatype.BYTES


class RawData(Struct, frozen=True, eq=False):
    """Elements as they lie on the wire: little-endian, row-major, no padding.

    BYTES elements are each a 4-byte little-endian length and then the bytes.
    """

    view: memoryview


class ArrayData(Struct, frozen=True, eq=False):
    """A numpy array of the datatype's dtype; not for BYTES."""

    array: npt.NDArray[Any]


class ItemsData(Struct, frozen=True, eq=False):
    """The elements of a BYTES tensor, in row-major order."""

    items: Sequence[bytes | memoryview]


class SlicedData(Struct, frozen=True, eq=False):
    """One tensor's share of a buffer in which several lie end to end, in wire form.

    Where it ends depends on the datatypes of all of them, which the model knows: `Complete` turns
    it into `RawData`.

    Attributes:
        whole: The buffer.
        index: Place of this tensor's share, counted from 0.
        given_bytes: The size that the sender told; None where it did not.
    """

    whole: memoryview
    index: int
    given_bytes: int | None = None


class SharedMemoryData(Struct, frozen=True):
    """Elements that lie in a registered region of shared memory, or shall be put there.

    Attributes:
        region: Its registered name.
        offset: Into the region, bytes.
    """

    region: str
    offset: int
    size_bytes: int


class StreamedData(Struct, frozen=True, eq=False):
    """Elements as `RawData` has them, which are still on their way; not of BYTES or BOOL.

    Attributes:
        source: What they are a part of.
        start: Where in it they begin.
    """

    source: StreamingBody
    start: int
    size_bytes: int


TensorData = RawData | ArrayData | ItemsData | SlicedData | SharedMemoryData | StreamedData


def as_raw(tensor: Tensor, /) -> memoryview:
    """Return the tensor's elements in wire form.

    Copies when the data is a list of BYTES elements, or an array that is not contiguous or not
    little-endian.

    Raises:
        InvalidTensor: A BYTES element is 4 GiB or longer, or the bytes are not here.
    """
    data = tensor.data
    if isinstance(data, RawData):
        return data.view
    if isinstance(data, ArrayData):
        return _raw_of_array(tensor, data.array)
    if isinstance(data, ItemsData):
        return _raw_of_items(tensor.name, data.items)
    raise _elsewhere(tensor.name, data)


def as_numpy(tensor: Tensor, /) -> npt.NDArray[Any]:
    """Return the tensor as an array of its shape.

    A view where the data is raw (then read-only, perhaps unaligned) or an array; BYTES becomes an
    array of dtype object holding `bytes`, which copies; BF16 is uint16 bit patterns.

    Raises:
        InvalidTensor: Datatype or shape is not known yet, or the data does not fit them.
    """
    datatype, shape = tensor.datatype, tensor.shape
    if datatype is None or shape is None:
        raise InvalidTensor(f"tensor {tensor.name!r} has no datatype or shape yet")
    data = tensor.data
    if datatype is _BYTES:
        array: npt.NDArray[Any] = np.empty(math.prod(shape), dtype=object)
        for index, item in enumerate(as_items(tensor)):
            array[index] = bytes(item)
        return array.reshape(shape)
    if isinstance(data, RawData):
        size = data.view.nbytes
        try:  # half the cost of `frombuffer` and `reshape`, but it takes a buffer that is too long
            array = np.ndarray(shape, datatype.numpy_dtype, data.view)
        except (TypeError, ValueError) as error:
            raise wrong_size(tensor.name, datatype, shape, size) from error
        if array.nbytes != size:
            raise wrong_size(tensor.name, datatype, shape, size)
        return array
    if isinstance(data, ArrayData):
        return data.array.reshape(shape)
    if isinstance(data, ItemsData):
        raise InvalidTensor(f"tensor {tensor.name!r} is {datatype.name} and has BYTES elements")
    raise _elsewhere(tensor.name, data)


def as_items(tensor: Tensor, /) -> Sequence[bytes | memoryview]:
    """Return the elements of a BYTES tensor, views where they lie in a raw buffer.

    Raises:
        InvalidTensor: The tensor is not BYTES, or its length prefixes are broken.
    """
    data = tensor.data
    if isinstance(data, ItemsData):
        return data.items
    if tensor.datatype is not Datatype.BYTES:
        found = "unknown" if tensor.datatype is None else tensor.datatype.name
        raise InvalidTensor(f"tensor {tensor.name!r} is {found}, not BYTES: it has no elements")
    if isinstance(data, ArrayData):
        raise InvalidTensor(f"tensor {tensor.name!r} holds an array where BYTES has elements")
    if not isinstance(data, RawData):
        raise _elsewhere(tensor.name, data)
    return split_items(tensor.name, data.view)


def wrong_size(name: str, datatype: Datatype, shape: Shape, found: int) -> InvalidTensor:
    """Return the error that a tensor has *found* bytes, and not those that its shape needs."""
    return InvalidTensor(
        f"tensor {name!r} has {found} bytes, "
        f"shape {list(shape)} of {datatype.name} needs {datatype.size_bytes * math.prod(shape)}"
    )


def split_items(name: str, view: memoryview, expected: int | None = None) -> list[memoryview]:
    """Split the wire form of a BYTES tensor into its elements, as views.

    Args:
        name: Named in errors.
        view: Elements, each a 4-byte little-endian length and then that many bytes.
        expected: Number of elements there must be; None for any.

    Raises:
        InvalidTensor: A length runs over the end, or the count is not as expected.

    Source: Open Inference Protocol, binary tensor extension, "BYTES".
    """
    items: list[memoryview] = []
    position, end = 0, view.nbytes
    unpack = _LENGTH.unpack_from
    while position + 4 <= end:
        start = position + 4
        stop = start + unpack(view, position)[0]
        if stop > end or len(items) == expected:
            break
        items.append(view[start:stop])
        position = stop
    if position != end or (expected is not None and len(items) != expected):
        raise InvalidTensor(_broken_items(name, view, len(items), expected))
    return items


def _elsewhere(name: str, data: SlicedData | SharedMemoryData | StreamedData) -> InvalidTensor:
    if isinstance(data, StreamedData):
        return InvalidTensor(f"tensor {name!r} has not arrived: it was asked for too early")
    if isinstance(data, SharedMemoryData):
        return InvalidTensor(
            f"tensor {name!r} lies in the shared memory region {data.region!r}, not in the message"
        )
    return InvalidTensor(
        f"tensor {name!r} is share {data.index} of {data.whole.nbytes} bytes, and its size is not "
        "known before its datatype is"
    )


def check_items(name: str, view: memoryview, expected: int) -> None:
    """Check that the wire form of a BYTES tensor has *expected* elements, without keeping them.

    Raises:
        InvalidTensor: A length runs over the end, or the count is another.
    """
    end = view.nbytes
    unpack = _LENGTH.unpack_from
    if expected > _FEW and end % expected == 0 and end // expected >= _LENGTH.size:
        # Often all elements are of one length: then one comparison says so.
        rows = np.frombuffer(view, dtype=np.uint8).reshape(expected, -1)
        lengths = rows[:, : _LENGTH.size].copy().view("<u4")
        if bool((lengths == end // expected - _LENGTH.size).all()):
            return
    position = found = 0
    while position + 4 <= end and found < expected:
        stop = position + 4 + unpack(view, position)[0]
        if stop > end:
            break
        position = stop
        found += 1
    if position != end or found != expected:
        raise InvalidTensor(_broken_items(name, view, found, expected))


def check_bools(name: str, view: memoryview) -> None:
    """Check that the wire form of a BOOL tensor holds nothing but 0 and 1.

    Raises:
        InvalidTensor: There is another byte.
    """
    if view.nbytes and np.frombuffer(view, np.uint8).max() > 1:
        raise InvalidTensor(
            f"tensor {name!r} has a byte other than 0 and 1, BOOL needs one of these"
        )


def _broken_items(name: str, view: memoryview, found: int, expected: int | None) -> str:
    if expected is not None and found == expected:
        return f"tensor {name!r} has bytes after its {expected} BYTES elements"
    needed = "" if expected is None else f", its shape needs {expected}"
    return (
        f"tensor {name!r}: {view.nbytes} bytes hold only {found} whole BYTES elements{needed}; "
        "each is a 4-byte little-endian length followed by its bytes"
    )


def _raw_of_array(tensor: Tensor, array: npt.NDArray[Any]) -> memoryview:
    dtype = array.dtype if tensor.datatype is None else tensor.datatype.numpy_dtype
    if array.dtype is dtype and array.size and array.flags.c_contiguous:
        return array.data.cast("B")  # the usual one, at a third of the cost
    laid = np.ascontiguousarray(array, dtype=dtype)
    return laid.reshape(-1).view(np.uint8).data


def _raw_of_items(name: str, items: Sequence[bytes | memoryview]) -> memoryview:
    parts: list[bytes | memoryview] = []
    pack = _LENGTH.pack
    try:
        for item in items:
            parts.append(pack(len(item)))
            parts.append(item)
    except struct.error as error:
        raise InvalidTensor(f"tensor {name!r} has an element of 4 GiB or more") from error
    return memoryview(b"".join(parts))
