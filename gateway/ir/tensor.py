"""A tensor: a description, and data in whichever form it arrived.

The constructors check the size against the shape with Python integers, which do not wrap.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy.typing as npt
from msgspec import Struct, field

from gateway.ir.context import NO_PARAMETERS, Parameters
from gateway.ir.data import (
    ArrayData,
    ItemsData,
    RawData,
    SharedMemoryData,
    SlicedData,
    StreamedData,
    TensorData,
    as_raw,
    check_bools,
    check_items,
    wrong_size,
)
from gateway.ir.datatypes import Datatype, datatype_of
from gateway.ir.errors import InvalidTensor

Shape = tuple[int, ...]


class Tensor(Struct, frozen=True, eq=False):
    """One input or output of an inference.

    Two tensors are equal when their descriptions and the bytes of their wire form are.

    Attributes:
        name: "" where the protocol sends tensors by position.
        datatype: None where the protocol leaves it to the model.
        shape: None likewise; batch included unless the message keeps its batch size apart; never
            -1.
        data: One of the forms of `gateway.ir.data`.
        parameters: The protocol's own additions, reserved keys taken out.
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
        """Bytes of the wire form, counted without making it; of shares the first counts for all."""
        data = self.data
        if isinstance(data, SlicedData):
            return 0 if data.index else data.whole.nbytes
        if isinstance(data, SharedMemoryData | StreamedData):
            return data.size_bytes
        if isinstance(data, RawData):
            return data.view.nbytes
        if isinstance(data, ArrayData):
            return data.array.nbytes
        return sum(map(len, data.items)) + 4 * len(data.items)

    def renamed(self, name: str) -> Tensor:
        """Return the same tensor under another name; shares the data."""
        return Tensor(name, self.datatype, self.shape, self.data, self.parameters)


class RequestedOutput(Struct, frozen=True):
    """An output the caller asks for.

    Attributes:
        name: As the model names it.
        classes: Number of classes wanted by classification; 0 for the plain tensor.
        parameters: The protocol's own additions, reserved keys taken out.
        shared: Where in shared memory it shall be put; None for the answer itself.
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
        datatype: Any datatype; the elements of BYTES are found and counted.
        shape: Full shape, batch included; every axis >= 0.
        view: Elements in wire form.
        parameters: Kept as they are.

    Raises:
        InvalidTensor: The bytes do not agree with shape and datatype.

    Source: Open Inference Protocol, "Tensor Data"; binary tensor extension.
    """
    count = math.prod(shape)
    if datatype is Datatype.BYTES:
        check_items(name, view, count)
        return Tensor(name, datatype, shape, RawData(view), parameters)
    expected = datatype.size_bytes * count
    if view.nbytes != expected:
        raise wrong_size(name, datatype, shape, view.nbytes)
    if datatype is Datatype.BOOL:
        check_bools(name, view)
    return Tensor(name, datatype, shape, RawData(view), parameters)


def streamed_tensor(
    name: str,
    datatype: Datatype,
    shape: Shape,
    data: StreamedData,
    parameters: Parameters = NO_PARAMETERS,
) -> Tensor:
    """Describe bytes that are still to come as a tensor; *datatype* is neither BYTES nor BOOL.

    Raises:
        InvalidTensor: Their number does not agree with shape and datatype.
    """
    if data.size_bytes != datatype.size_bytes * math.prod(shape):
        raise wrong_size(name, datatype, shape, data.size_bytes)
    return Tensor(name, datatype, shape, data, parameters)


def array_tensor(name: str, array: npt.NDArray[Any], datatype: Datatype | None = None) -> Tensor:
    """Describe a numpy array as a tensor; copies only text and object arrays (BYTES).

    Args:
        name: Input or output name.
        array: Any array whose dtype has a datatype; object arrays hold bytes or str.
        datatype: Needed for BF16, whose array is uint16 bit patterns; else found from the dtype.

    Raises:
        InvalidTensor: The dtype has no datatype, or is not that of *datatype*.
    """
    if datatype and datatype is not Datatype.BYTES and array.dtype is datatype.numpy_dtype:
        return Tensor(name, datatype, array.shape, ArrayData(array))
    found = datatype_of(array.dtype)
    wanted = found if datatype is None else datatype
    if wanted is None:
        raise InvalidTensor(f"tensor {name!r} has numpy dtype {array.dtype}, which no datatype is")
    if wanted is Datatype.BYTES and found is Datatype.BYTES:
        return Tensor(name, wanted, array.shape, ItemsData(_items_of(name, array)))
    if wanted.numpy_dtype != array.dtype.newbyteorder("<"):
        raise InvalidTensor(
            f"tensor {name!r} has numpy dtype {array.dtype}, {wanted.name} needs "
            f"{wanted.numpy_dtype}"
        )
    return Tensor(name, wanted, array.shape, ArrayData(array))


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


def _content(tensor: Tensor) -> object:
    data = tensor.data
    if isinstance(data, SlicedData):
        return (data.whole, data.index, data.given_bytes)
    return data if isinstance(data, SharedMemoryData | StreamedData) else as_raw(tensor)


def _items_of(name: str, array: npt.NDArray[Any]) -> list[bytes]:
    items: list[bytes] = []
    for value in array.reshape(-1).tolist() if array.dtype.kind != "S" else _fixed(array):
        if isinstance(value, bytes):
            items.append(value)
        elif isinstance(value, str):
            items.append(value.encode())
        else:
            raise InvalidTensor(
                f"tensor {name!r} has an element of type {type(value).__name__}, "
                "BYTES needs bytes or str"
            )
    return items


def _fixed(array: npt.NDArray[Any]) -> list[bytes]:
    # numpy's S arrays cannot tell a trailing zero byte from padding: what it gives is what it has.
    return [bytes(value) for value in array.reshape(-1)]
