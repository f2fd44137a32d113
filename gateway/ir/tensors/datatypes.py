"""Datatypes of tensor elements, their sizes, and conversion to and from numpy dtypes.

The names are those of the Open Inference Protocol; each protocol has its own table of them.
"""

import enum

import numpy as np
import numpy.typing as npt

# numpy has no bfloat16: arrays hold its bits as uint16, and fp32_of_bf16 converts them to values.
_CODES = {
    "BOOL": "?",
    "UINT8": "u1",
    "UINT16": "<u2",
    "UINT32": "<u4",
    "UINT64": "<u8",
    "INT8": "i1",
    "INT16": "<i2",
    "INT32": "<i4",
    "INT64": "<i8",
    "FP16": "<f2",
    "FP32": "<f4",
    "FP64": "<f8",
    "BF16": "<u2",
    "BYTES": "O",
}


_BF16_INFINITY = 0x7F80
_BF16_HALF = 0x8000


class Datatype(enum.Enum):
    """The element type of a tensor.

    Source: Open Inference Protocol, "Tensor Data Types"; BF16 is Triton's addition.
    """

    BOOL = "BOOL"
    UINT8 = "UINT8"
    UINT16 = "UINT16"
    UINT32 = "UINT32"
    UINT64 = "UINT64"
    INT8 = "INT8"
    INT16 = "INT16"
    INT32 = "INT32"
    INT64 = "INT64"
    FP16 = "FP16"
    FP32 = "FP32"
    FP64 = "FP64"
    BF16 = "BF16"
    BYTES = "BYTES"

    size_bytes: int
    """Bytes of one element; 0 for BYTES, whose elements vary in size."""

    numpy_dtype: np.dtype
    """Little-endian dtype; uint16 bit patterns for BF16, object for BYTES."""

    is_integer: bool
    is_float: bool

    def __init__(self, _name: str) -> None:
        code = _CODES[_name]
        self.numpy_dtype = np.dtype(code)
        self.size_bytes = 0 if code == "O" else self.numpy_dtype.itemsize
        self.is_integer = "INT" in _name
        self.is_float = _name in {"FP16", "FP32", "FP64", "BF16"}

    __hash__ = object.__hash__


_BY_DTYPE = {
    datatype.numpy_dtype: datatype for datatype in Datatype if datatype is not Datatype.BF16
}


def datatype_of(dtype: npt.DTypeLike) -> Datatype | None:
    """Return the datatype of a numpy dtype; None if it has none.

    Ignores byte order, maps text and byte strings to BYTES, and never returns BF16.
    """
    found = np.dtype(dtype)
    if found.kind in "SU":
        return Datatype.BYTES
    return _BY_DTYPE.get(found.newbyteorder("<"))


def fp32_of_bf16(bits: npt.NDArray[np.uint16]) -> npt.NDArray[np.float32]:
    """Widen bfloat16 bit patterns to FP32 values; exact; copies."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def bf16_of_fp32(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    """Round FP32 values to bfloat16 bit patterns, ties to even; NaN stays NaN; copies."""
    bits = np.ascontiguousarray(values, dtype="<f4").view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    quiet_nan = (bits >> 16) | 0x40
    return np.where(np.isnan(values), quiet_nan, rounded).astype(np.uint16)


def bf16_of_fp64(values: npt.NDArray[np.float64]) -> npt.NDArray[np.uint16] | None:
    """Round to bfloat16 once, ties to even; None when a finite value becomes infinite."""
    with np.errstate(over="ignore", invalid="ignore"):
        single = values.astype(np.float32)
        rest = np.abs(values) - np.abs(single.astype(np.float64))
    bits = single.view(np.uint32)
    # FP32 may lie between two values of BF16 because it was rounded itself.
    is_tie = (bits & 0xFFFF) == _BF16_HALF
    bits = bits + (is_tie & (rest > 0)).astype(np.uint32) - (is_tie & (rest < 0)).astype(np.uint32)
    found = bf16_of_fp32(bits.view(np.float32))
    is_infinite = (found & 0x7FFF) == _BF16_INFINITY
    return None if bool(np.any(is_infinite & np.isfinite(values))) else found
