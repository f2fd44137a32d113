"""Datatypes of grps, with range checks of incoming values and widening of outgoing ones.

grps has neither booleans nor the wider unsigned integers nor bfloat16, and carries narrow types in
wide fields.  An incoming value out of its range is an error and never wraps.  An outgoing tensor
is widened where no value is lost.

Source: docs/protocols/grps.md, "3. Datatypes".
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from gateway.ir.errors import InvalidTensor, Unsupported
from gateway.ir.tensors.data import ArrayData, TensorData
from gateway.ir.tensors.datatypes import Datatype, fp32_of_bf16
from gateway.ir.tensors.tensor import Shape, Tensor, as_numpy

_INT64_MAX: Final = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class WireType:
    """A datatype of grps.

    Attributes:
        number: In protobuf.
        name: In JSON.
        field: Number of the field that holds the elements.
        member: Name of that field.
        datatype: In the IR.
        carrier: The numpy type of the field's elements; bytes for text.
    """

    number: int
    name: str
    field: int
    member: str
    datatype: Datatype
    carrier: npt.DTypeLike


WIRE_TYPES: Final = (
    WireType(1, "DT_UINT8", 4, "flat_uint8", Datatype.UINT8, "<u4"),
    WireType(2, "DT_INT8", 5, "flat_int8", Datatype.INT8, "<i4"),
    WireType(3, "DT_INT16", 6, "flat_int16", Datatype.INT16, "<i4"),
    WireType(4, "DT_INT32", 7, "flat_int32", Datatype.INT32, "<i4"),
    WireType(5, "DT_INT64", 8, "flat_int64", Datatype.INT64, "<i8"),
    WireType(6, "DT_FLOAT16", 9, "flat_float16", Datatype.FP16, "<f4"),
    WireType(7, "DT_FLOAT32", 10, "flat_float32", Datatype.FP32, "<f4"),
    WireType(8, "DT_FLOAT64", 11, "flat_float64", Datatype.FP64, "<f8"),
    WireType(9, "DT_STRING", 12, "flat_string", Datatype.BYTES, "O"),
)
BY_NUMBER: Final = {kind.number: kind for kind in WIRE_TYPES}
BY_NAME: Final = {kind.name: kind for kind in WIRE_TYPES}
BY_FIELD: Final = {kind.field: kind for kind in WIRE_TYPES}
BY_DATATYPE: Final = {kind.datatype: kind for kind in WIRE_TYPES}
MOST_DIM: Final = (1 << 32) - 1
"""The largest dimension of a tensor."""
_NAMES: Final = ", ".join(f"{kind.name} ({kind.number})" for kind in WIRE_TYPES)


def wire_type(tensor: str, dtype: int | str) -> WireType:
    """Return the datatype with the number or name *dtype*, for the tensor called *tensor*.

    Raises:
        InvalidTensor: The datatype does not exist, or is DT_INVALID.
    """
    kind = BY_NAME.get(dtype) if isinstance(dtype, str) else BY_NUMBER.get(dtype)
    if kind is None:
        raise InvalidTensor(f"tensor {tensor!r} has dtype {str(dtype)[:32]}: expected {_NAMES}")
    return kind


def kind_and_shape(tensor: Tensor) -> tuple[WireType, Shape]:
    """Return the datatype and the shape of a tensor that is written.

    Raises:
        Unsupported: It lacks one of them, or has too large a dimension.
    """
    datatype, shape = tensor.datatype, tensor.shape
    if datatype is None or shape is None:
        raise Unsupported(f"tensor {tensor.name!r} has no datatype or shape: grps needs both")
    if shape and max(shape) > MOST_DIM:
        raise Unsupported(
            f"tensor {tensor.name!r} has shape {list(shape)}: grps has dimensions up to {MOST_DIM}"
        )
    return BY_DATATYPE[datatype], shape


def narrowed(tensor: str, kind: WireType, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the values of a wide field in the dtype of their datatype; a copy unless equal.

    Args:
        tensor: For errors.
        kind: The datatype; not text.
        values: Of the field's own dtype, or wider.

    Raises:
        InvalidTensor: A value is out of range; the error has the first index.
    """
    dtype = kind.datatype.numpy_dtype
    if values.dtype == dtype or not values.size:
        return values.astype(dtype, copy=False)
    if kind.datatype.is_float:
        with np.errstate(over="ignore"):
            small = values.astype(dtype)
        lost = np.isinf(small) & np.isfinite(values)
    else:
        bounds = np.iinfo(dtype)
        lost = (values < bounds.min) | (values > bounds.max)
        small = values.astype(dtype)
    if lost.any():
        index = int(np.argmax(lost))
        raise InvalidTensor(
            f"tensor {tensor!r} has {values[index]} at index {index}, "
            f"out of the range of {kind.name}"
        )
    return small


def widened(tensor: Tensor) -> Tensor:
    """Return *tensor* in a datatype of grps; shares the data when it has one already.

    Raises:
        Unsupported: It has no datatype or shape, or a UINT64 value over 2**63 - 1.
    """
    datatype = tensor.datatype
    if datatype is None or tensor.shape is None:
        missing = "datatype" if datatype is None else "shape"
        raise Unsupported(f"tensor {tensor.name!r} has no {missing}: grps needs one")
    if datatype in BY_DATATYPE:
        return tensor
    target, widen = _WIDER[datatype]
    data: TensorData = ArrayData(widen(tensor.name, as_numpy(tensor)))
    return Tensor(tensor.name, target, tensor.shape, data, tensor.parameters)


def widened_datatype(datatype: Datatype) -> Datatype:
    """Return the datatype of *datatype* on the wire."""
    return datatype if datatype in BY_DATATYPE else _WIDER[datatype][0]


def carried(tensor: Tensor) -> npt.NDArray[Any]:
    """Return the elements of a numeric tensor for its field; floats little-endian.

    FP16 becomes float32; integers stay in their own dtype, which the varints do not show.
    """
    flat: npt.NDArray[Any] = as_numpy(tensor).reshape(-1)
    if tensor.datatype is Datatype.FP16:
        flat = flat.astype("<f4")
    return flat


def _of_bool(_name: str, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    # Raw bytes other than 0 and 1 are true as well, so numpy must not read them as booleans.
    truths: npt.NDArray[Any] = np.ascontiguousarray(values).view(np.uint8) != 0
    return truths.astype(np.uint8)


def _of_uint64(name: str, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    if values.size and int(values.max()) > _INT64_MAX:
        flat = values.reshape(-1)
        index = int(np.argmax(flat > _INT64_MAX))
        raise Unsupported(
            f"tensor {name!r} has {flat[index]} at index {index}, grps has no integer over "
            f"{_INT64_MAX}"
        )
    return values.astype("<i8")


_Widen = Callable[[str, npt.NDArray[Any]], npt.NDArray[Any]]
_WIDER: Final[dict[Datatype, tuple[Datatype, _Widen]]] = {
    Datatype.BOOL: (Datatype.UINT8, _of_bool),
    Datatype.UINT16: (Datatype.INT32, lambda _, values: values.astype("<i4")),
    Datatype.UINT32: (Datatype.INT64, lambda _, values: values.astype("<i8")),
    Datatype.UINT64: (Datatype.INT64, _of_uint64),
    Datatype.BF16: (Datatype.FP32, lambda _, values: fp32_of_bf16(values)),
}
