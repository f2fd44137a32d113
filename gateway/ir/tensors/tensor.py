"""Tensors: a description, and data in any of the forms of `gateway.ir.tensors.data`.

`raw_tensor`, `array_tensor` and `items_tensor` build tensors and check the size against the shape.
`as_raw`, `as_numpy` and `as_items` read any form, and copy only where the form requires it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from msgspec import Struct, field

from gateway.accelerator import accelerated
from gateway.ir.context import NO_PARAMETERS, Parameters
from gateway.ir.errors import GatewayError, InvalidTensor, Unsupported
from gateway.ir.tensors.data import (
    ArrayData,
    ItemsData,
    JsonItemsData,
    RawData,
    SharedMemoryData,
    SlicedData,
    StreamedData,
    TensorData,
    UntypedData,
    as_bools,
    check_items,
    join_items,
    split_items,
)
from gateway.ir.tensors.datatypes import Datatype, datatype_of
from gateway.ir.tensors.items import LENGTH, ItemViews
from gateway.ir.work import charge

Shape = tuple[int, ...]

# On the path of every model: an Enum member lookup costs as much as a function call.
_BYTES: Final = Datatype.BYTES
_BOOL: Final = Datatype.BOOL
_SHOWN: Final = 40


class Tensor(Struct, frozen=True, eq=False):
    """One input or output of an inference.

    Two tensors are equal when their descriptions and the bytes of their wire form are equal.

    Attributes:
        name: "" where the protocol sends tensors by position.
        datatype: None where only the model defines it.
        shape: None where only the model defines it; no axis is -1. Includes the batch axis unless
            the message has a separate batch size.
        data: One of the forms of `gateway.ir.tensors.data`.
        parameters: Protocol-specific parameters, without reserved keys.
    """

    name: str
    datatype: Datatype | None
    shape: Shape | None
    data: TensorData
    parameters: Parameters = field(default_factory=dict)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Tensor):
            return NotImplemented
        return (
            self.name == other.name
            and self.datatype is other.datatype
            and self.shape == other.shape
            and dict(self.parameters) == dict(other.parameters)
            and _content(self) == _content(other)
        )

    __hash__ = None  # type: ignore[assignment]  # data may be large and writable

    @property
    def nbytes(self) -> int:
        """Size of the wire form, without encoding it; the first slice counts for all slices."""
        data = self.data
        if isinstance(data, SlicedData):
            return 0 if data.index else data.whole.nbytes
        if isinstance(data, SharedMemoryData | StreamedData | UntypedData):
            return data.size_bytes
        if isinstance(data, RawData):
            return data.view.nbytes
        if isinstance(data, ArrayData):
            return data.array.nbytes
        if isinstance(data, JsonItemsData):
            return sum(map(len, data.values))
        items = data.items
        size = items.nbytes if isinstance(items, ItemViews) else sum(map(len, items))
        return size + LENGTH.size * len(items)

    def renamed(self, name: str) -> Tensor:
        """Return the same tensor with another name; shares the data."""
        return Tensor(name, self.datatype, self.shape, self.data, self.parameters)


class RequestedOutput(Struct, frozen=True):
    """An output the caller requests.

    Attributes:
        name: The output's name in the model.
        classes: Number of classes for the classification extension; 0 for the plain tensor.
        parameters: Protocol-specific parameters, without reserved keys.
        shared: Where to store it in shared memory; None to return it in the reply.
    """

    name: str
    classes: int = 0
    parameters: Parameters = field(default_factory=dict)
    shared: SharedMemoryData | None = None


def raw_tensor(
    name: str,
    datatype: Datatype,
    shape: Shape,
    view: memoryview,
    parameters: Parameters = NO_PARAMETERS,
) -> Tensor:
    """Describe *view* as a tensor, without a copy.

    Args:
        name: Input or output name; may be empty where the protocol sends by position.
        datatype: Any datatype; the elements of BYTES are counted.
        shape: Full shape, batch included; every axis >= 0.
        view: Elements in wire form.
        parameters: Protocol-specific parameters.

    Raises:
        InvalidTensor: The bytes do not match shape and datatype.

    Source: Open Inference Protocol, "Tensor Data"; binary tensor extension.
    """
    count = math.prod(shape)
    if datatype is Datatype.BYTES:
        check_items(name, view, count)
        return Tensor(name, datatype, shape, RawData(view), parameters)
    expected = datatype.size_bytes * count
    if view.nbytes != expected:
        raise _size_mismatch(name, datatype, shape, view.nbytes)
    return Tensor(name, datatype, shape, RawData(view), parameters)


def streamed_tensor(
    name: str,
    datatype: Datatype,
    shape: Shape,
    data: StreamedData,
    parameters: Parameters = NO_PARAMETERS,
) -> Tensor:
    """Describe bytes that are still being received as a tensor.

    *datatype* is not BYTES.

    Raises:
        InvalidTensor: The size does not match shape and datatype.
    """
    if data.size_bytes != datatype.size_bytes * math.prod(shape):
        raise _size_mismatch(name, datatype, shape, data.size_bytes)
    return Tensor(name, datatype, shape, data, parameters)


def array_tensor(name: str, array: npt.NDArray[Any], datatype: Datatype | None = None) -> Tensor:
    """Describe a numpy array as a tensor; copies only text and object arrays (BYTES).

    Args:
        name: Input or output name.
        array: Any array whose dtype has a datatype; object arrays hold bytes or str.
        datatype: Required for BF16, whose array is uint16 bit patterns; else derived from the
            dtype.

    Raises:
        InvalidTensor: No datatype corresponds to the dtype, or it is not that of *datatype*.
    """
    if datatype and datatype is not Datatype.BYTES and array.dtype is datatype.numpy_dtype:
        return Tensor(name, datatype, array.shape, ArrayData(array))
    found = datatype_of(array.dtype)
    datatype = datatype or found
    if datatype is None:
        raise InvalidTensor(
            f"tensor {name!r} has numpy dtype {array.dtype}, which has no corresponding datatype"
        )
    if datatype is Datatype.BYTES and found is Datatype.BYTES:
        return Tensor(name, datatype, array.shape, ItemsData(_items_of(name, array)))
    if datatype.numpy_dtype != array.dtype.newbyteorder("<"):
        raise InvalidTensor(
            f"tensor {name!r} has numpy dtype {array.dtype}, {datatype.name} needs "
            f"{datatype.numpy_dtype}"
        )
    return Tensor(name, datatype, array.shape, ArrayData(array))


def items_tensor(
    name: str,
    shape: Shape,
    items: Sequence[bytes | memoryview],
    parameters: Parameters = NO_PARAMETERS,
) -> Tensor:
    """Describe BYTES elements as a tensor, without a copy.

    Raises:
        InvalidTensor: The number of elements is not the product of *shape*.
    """
    if len(items) != math.prod(shape):
        raise InvalidTensor(
            f"tensor {name!r} has {len(items)} elements, "
            f"shape {list(shape)} needs {math.prod(shape)}"
        )
    return Tensor(name, Datatype.BYTES, shape, ItemsData(items), parameters)


def as_raw(tensor: Tensor, /) -> memoryview:
    """Return the tensor's elements in wire form.

    Copies a list of BYTES elements, and an array that is not contiguous or not little-endian.

    Raises:
        InvalidTensor: A BYTES element is 4 GiB or longer, or the data is not in memory.
        Unsupported: An element of BYTES is no string.
    """
    data = tensor.data
    if isinstance(data, RawData):
        return data.view
    if isinstance(data, ArrayData):
        return _raw_of_array(tensor, data.array)
    if isinstance(data, ItemsData):
        return join_items(tensor.name, data.items)
    raise _unreadable(tensor.name, data)


@accelerated
def raw_array(tensor: Tensor) -> npt.NDArray[Any] | None:
    """Return raw numbers as a view of their bytes; None for other tensors, and for wrong ones."""
    datatype, shape, data = tensor.datatype, tensor.shape, tensor.data
    if datatype is None or shape is None or datatype is _BYTES or datatype is _BOOL:
        return None
    if type(data) is not RawData:
        return None
    try:  # half the cost of `frombuffer` and `reshape`, but accepts a buffer that is too long
        array: npt.NDArray[Any] = np.ndarray(shape, datatype.numpy_dtype, data.view)
    except (TypeError, ValueError):
        return None
    return array if array.nbytes == len(data.view) else None


def as_numpy(tensor: Tensor, /) -> npt.NDArray[Any]:
    """Return the tensor as an array of its shape.

    Raw data gives a read-only view, which may be unaligned; array data gives a view. BYTES copies
    into an array of dtype object that holds `bytes`. BF16 gives uint16 bit patterns. Every BOOL
    byte other than 0 is true, and copied if it is not 1.

    Raises:
        InvalidTensor: Datatype or shape is None, or the data does not match them.
        Unsupported: An element of BYTES is no string.
    """
    plain = raw_array(tensor)
    if plain is not None:
        return plain
    datatype, shape = tensor.datatype, tensor.shape
    if datatype is None or shape is None:
        raise InvalidTensor(f"tensor {tensor.name!r} has no datatype or shape yet")
    data = tensor.data
    if datatype is _BYTES:
        items = as_items(tensor)
        charge(len(items))
        array: npt.NDArray[Any] = np.empty(math.prod(shape), dtype=object)
        array[:] = list(map(bytes, items))
        return array.reshape(shape)
    if isinstance(data, RawData):
        size = data.view.nbytes
        try:
            array = np.ndarray(shape, datatype.numpy_dtype, data.view)
        except (TypeError, ValueError) as error:
            raise _size_mismatch(tensor.name, datatype, shape, size) from error
        if array.nbytes != size:
            raise _size_mismatch(tensor.name, datatype, shape, size)
        return as_bools(array) if datatype is _BOOL else array
    if isinstance(data, ArrayData):
        return data.array.reshape(shape)
    if isinstance(data, ItemsData):
        raise InvalidTensor(f"tensor {tensor.name!r} is {datatype.name} and has BYTES elements")
    raise _unreadable(tensor.name, data)


def as_items(tensor: Tensor, /) -> Sequence[bytes | memoryview]:
    """Return the elements of a BYTES tensor, views where they lie in a raw buffer.

    Raises:
        InvalidTensor: The tensor is not BYTES, or its length prefixes are invalid.
        Unsupported: An element is no string.
    """
    data = tensor.data
    if isinstance(data, ItemsData):
        return data.items
    if tensor.datatype is not Datatype.BYTES:
        found = "unknown" if tensor.datatype is None else tensor.datatype.name
        raise InvalidTensor(f"tensor {tensor.name!r} has datatype {found}; expected BYTES")
    if isinstance(data, ArrayData):
        raise InvalidTensor(f"BYTES tensor {tensor.name!r} holds a numpy array; expected elements")
    if not isinstance(data, RawData):
        raise _unreadable(tensor.name, data)
    return split_items(tensor.name, data.view)


def _content(tensor: Tensor) -> object:
    data = tensor.data
    if isinstance(data, SlicedData):
        return (data.whole, data.index, data.declared_bytes)
    if isinstance(data, JsonItemsData):
        return tuple(data.values)
    if isinstance(data, UntypedData):
        value = data.value
        plain = json.loads(value) if isinstance(value, bytes) else value
        plain = value.tolist() if isinstance(value, np.ndarray) else plain
        plain = bytes(plain) if isinstance(plain, memoryview) else plain
        place = (data.layout, data.place, data.rules, data.member, data.columns, data.shape)
        return (repr(plain), None if data.raw is None else bytes(data.raw), *place)
    return data if isinstance(data, SharedMemoryData | StreamedData) else as_raw(tensor)


def _items_of(name: str, array: npt.NDArray[Any]) -> list[bytes]:
    charge(array.size)
    items: list[bytes] = []
    for value in array.reshape(-1).tolist() if array.dtype.kind != "S" else _fixed(array):
        if isinstance(value, bytes):
            items.append(value)
        elif isinstance(value, str):
            items.append(value.encode())
        else:
            raise InvalidTensor(
                f"BYTES tensor {name!r} has an element of type {type(value).__name__}; "
                "expected bytes or str"
            )
    return items


def _fixed(array: npt.NDArray[Any]) -> list[bytes]:
    # numpy's S arrays cannot distinguish a trailing zero byte from padding, and drop both.
    return [bytes(value) for value in array.reshape(-1)]


def _size_mismatch(name: str, datatype: Datatype, shape: Shape, found: int) -> InvalidTensor:
    return InvalidTensor(
        f"tensor {name!r} has {found} bytes, "
        f"shape {list(shape)} of {datatype.name} needs {datatype.size_bytes * math.prod(shape)}"
    )


def _unreadable(
    name: str, data: SlicedData | SharedMemoryData | StreamedData | JsonItemsData | UntypedData
) -> GatewayError:
    if isinstance(data, UntypedData):
        return InvalidTensor(f"tensor {name!r} is JSON, whose datatype only the model knows")
    if isinstance(data, JsonItemsData):
        found = [index for index, value in enumerate(data.values) if not value.startswith(b'"')]
        index = found[0] if found else 0
        return Unsupported(
            f"tensor {name!r} has {data.values[index][:_SHOWN].decode(errors='replace')} at index "
            f"{index}: expected a string, because only JSON over HTTP carries other elements of "
            "BYTES"
        )
    if isinstance(data, StreamedData):
        return InvalidTensor(f"tensor {name!r} was read before its body was received")
    if isinstance(data, SharedMemoryData):
        return InvalidTensor(
            f"tensor {name!r} is in the shared memory region {data.region!r}, not in the message"
        )
    return InvalidTensor(
        f"tensor {name!r} is slice {data.index} of {data.whole.nbytes} bytes: its size is unknown "
        "until its datatype is known"
    )


def _raw_of_array(tensor: Tensor, array: npt.NDArray[Any]) -> memoryview:
    dtype = array.dtype if tensor.datatype is None else tensor.datatype.numpy_dtype
    if array.dtype is dtype and array.size and array.flags.c_contiguous:
        return array.data.cast("B")  # the usual case, at a third of the cost
    contiguous = np.ascontiguousarray(array, dtype=dtype)
    return contiguous.reshape(-1).view(np.uint8).data
