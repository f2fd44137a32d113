"""Arrays <-> PyTorch's tensors, and the datatypes of both.

PyTorch itself is an argument: importing this module must cost nothing.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from gateway.ir.datatypes import Datatype

# The names are PyTorch's attributes; older releases lack the unsigned ones above 8 bits.
_DTYPES = {
    Datatype.BOOL: "bool",
    Datatype.UINT8: "uint8",
    Datatype.UINT16: "uint16",
    Datatype.UINT32: "uint32",
    Datatype.UINT64: "uint64",
    Datatype.INT8: "int8",
    Datatype.INT16: "int16",
    Datatype.INT32: "int32",
    Datatype.INT64: "int64",
    Datatype.FP16: "float16",
    Datatype.FP32: "float32",
    Datatype.FP64: "float64",
    Datatype.BF16: "bfloat16",
}


def dtype_of(torch: Any, datatype: Datatype) -> Any:
    """Return PyTorch's dtype of a datatype; None where it has none, as for BYTES."""
    name = _DTYPES.get(datatype)
    return None if name is None else getattr(torch, name, None)


def datatype_of(torch: Any, dtype: Any) -> Datatype | None:
    """Return the datatype of PyTorch's *dtype*; None where there is none, as for complex64."""
    for datatype in _DTYPES:
        if dtype_of(torch, datatype) is dtype:
            return datatype
    return None


def tensor_of(torch: Any, array: npt.NDArray[Any], datatype: Datatype, *, copy: bool) -> Any:
    """Return *array* as a tensor of the CPU, which shares its memory where it can.

    Args:
        torch: The module.
        array: Of the datatype's dtype; an unaligned or strided one is copied.
        datatype: Not BYTES.
        copy: In any case: who writes into the tensor must not change what came in.
    """
    laid = np.require(array, requirements=("A", "C"))
    if copy and np.may_share_memory(laid, array):
        laid = laid.copy()
    if not laid.flags.writeable:
        laid = np.asarray(_Alias(laid))
    if datatype is Datatype.BF16:  # numpy has none: the bits go in as integers
        return torch.from_numpy(laid.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(laid)


class _Alias:
    """The same memory, not marked as read-only: PyTorch has no tensors that are.

    For those alone who are known not to write into it.
    """

    def __init__(self, array: npt.NDArray[Any]) -> None:
        interface = dict(array.__array_interface__)
        interface["data"] = (interface["data"][0], False)
        self.__array_interface__ = interface
        self._array = array  # the memory lives as long as this does


def array_of(torch: Any, tensor: Any) -> npt.NDArray[Any]:
    """Return a tensor of the CPU as an array that shares its memory; BF16 as bit patterns.

    What the model keeps for itself (weights, state) is copied: its next run may change it.
    """
    if not tensor.is_inference():  # it is older than this inference
        tensor = tensor.clone()
    if tensor.dtype is torch.bfloat16:
        bits: npt.NDArray[Any] = tensor.view(torch.int16).numpy().view(np.uint16)
        return bits
    array: npt.NDArray[Any] = tensor.numpy(force=True)
    return array


def named(result: Any) -> list[tuple[str, Any]]:
    """Return what a model returned, each with its name: its key or field, else OUTPUT__0 and on.

    None is left out: it is how a model says that it has nothing to give.
    """
    if isinstance(result, dict):
        pairs = [(str(name), value) for name, value in result.items()]
    elif hasattr(result, "_fields"):
        pairs = list(zip(result._fields, result, strict=True))
    else:
        several = result if isinstance(result, tuple | list) else (result,)
        pairs = [(f"OUTPUT__{n}", value) for n, value in enumerate(several)]
    return [(name, value) for name, value in pairs if value is not None]


def has_names(result: Any) -> bool:
    """Return whether what a model returned has names of its own."""
    return isinstance(result, dict) or hasattr(result, "_fields")
