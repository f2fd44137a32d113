"""Tensors of the checks: as the values that a check states, as arrays, and as what is printed.

This is imported both by the client scripts (in the clients' environment) and by the tests (in
the gateway's), so it needs numpy only; `ml_dtypes` is asked for where a BF16 array is made.
"""

import hashlib
import importlib
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

MAX_LISTED = 64
"""A tensor with more elements than this is printed as a digest of its bytes."""

Value = bool | int | float | bytes
Array = np.ndarray[Any, np.dtype[Any]]

NUMPY_NAMES = {
    "BOOL": "bool", "UINT8": "uint8", "UINT16": "uint16", "UINT32": "uint32", "UINT64": "uint64",
    "INT8": "int8", "INT16": "int16", "INT32": "int32", "INT64": "int64",
    "FP16": "float16", "FP32": "float32", "FP64": "float64", "BYTES": "object",
}  # fmt: skip


@dataclass(frozen=True)
class Tensor:
    """A tensor by its values, flat and in row-major order."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    values: tuple[Value, ...]


def as_array(tensor: Tensor) -> Array:
    """Return a new array of *tensor*'s values; BF16 needs `ml_dtypes`."""
    if tensor.datatype == "BYTES":
        array = np.empty(len(tensor.values), object)
        array[:] = tensor.values
    elif tensor.datatype == "BF16":
        # It comes with tritonclient: the gateway's environment, where mypy runs, has it not.
        array = np.array(tensor.values, importlib.import_module("ml_dtypes").bfloat16)
    else:
        array = np.array(tensor.values, NUMPY_NAMES[tensor.datatype])
    return array.reshape(tensor.shape)


def printed(name: str, datatype: str, shape: tuple[int, ...], array: Array) -> dict[str, Any]:
    """Return what is printed of an output: its values, or a digest where they are many."""
    described = {"name": name, "datatype": datatype, "shape": list(shape)}
    if array.size > MAX_LISTED:
        digest = hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()
        return {**described, "sha256": digest}
    return {**described, "values": [_printed_value(each) for each in array.ravel().tolist()]}


def printed_tensor(tensor: Tensor) -> dict[str, Any]:
    """Return what `printed` gives for *tensor*; a BF16 one may not be large."""
    if tensor.datatype == "BF16":
        # Its values are exact in FP32, and print the same.
        stand_in = as_array(Tensor(tensor.name, "FP32", tensor.shape, tensor.values))
        return printed(tensor.name, "BF16", tensor.shape, stand_in)
    return printed(tensor.name, tensor.datatype, tensor.shape, as_array(tensor))


def _printed_value(value: object) -> object:
    if isinstance(value, bytes):
        return value.decode("latin-1")
    if isinstance(value, str):
        # tritonclient leaves BYTES that came as JSON text as str: their bytes are its UTF-8.
        return value.encode().decode("latin-1")
    if isinstance(value, float) and (
        not math.isfinite(value) or math.copysign(1, value) < 0 == value
    ):
        return repr(value)
    return value
