"""Converts between numpy arrays and PyTorch tensors, and their datatypes.

PyTorch is an argument, so that importing this module does not import PyTorch.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from gateway.ir.tensors.datatypes import Datatype

# Attributes of PyTorch; older releases have no unsigned types above 8 bits.
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
    """Return PyTorch's dtype of a datatype; None if it has none, as for BYTES."""
    name = _DTYPES.get(datatype)
    return None if name is None else getattr(torch, name, None)


def datatype_of(torch: Any, dtype: Any) -> Datatype | None:
    """Return the datatype of PyTorch's *dtype*; None if there is none, as for complex64."""
    for datatype in _DTYPES:
        if dtype_of(torch, datatype) is dtype:
            return datatype
    return None


def tensor_of(torch: Any, array: npt.NDArray[Any], datatype: Datatype, *, copy: bool) -> Any:
    """Return *array* as a CPU tensor, which shares its memory if possible.

    Args:
        torch: The module.
        array: An array of the datatype's dtype; copied if it is unaligned or not contiguous.
        datatype: Any but BYTES.
        copy: Always copy, because the caller writes into the tensor.
    """
    contiguous = np.require(array, requirements=("A", "C"))
    if copy and np.may_share_memory(contiguous, array):
        contiguous = contiguous.copy()
    if not contiguous.flags.writeable:
        contiguous = np.asarray(_WritableAlias(contiguous))
    if datatype is Datatype.BF16:  # numpy has no such dtype: the bits are converted as integers
        return torch.from_numpy(contiguous.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(contiguous)


class _WritableAlias:
    """The memory of an array, marked as writable, because PyTorch has no read-only tensors.

    Use it only if nothing writes into the tensor.
    """

    def __init__(self, array: npt.NDArray[Any]) -> None:
        interface = dict(array.__array_interface__)
        interface["data"] = (interface["data"][0], False)
        self.__array_interface__ = interface
        self._array = array  # keeps the memory alive


def array_of(torch: Any, tensor: Any) -> npt.NDArray[Any]:
    """Return a CPU tensor as an array that shares its memory; BF16 as bit patterns.

    Tensors that the model keeps (weights, state) are copied, because its next run may change them.
    """
    if not tensor.is_inference():  # created before this inference
        tensor = tensor.clone()
    if tensor.dtype is torch.bfloat16:
        bits: npt.NDArray[Any] = tensor.view(torch.int16).numpy().view(np.uint16)
        return bits
    array: npt.NDArray[Any] = tensor.numpy(force=True)
    return array


def named(result: Any) -> list[tuple[str, Any]]:
    """Return the outputs of a model with their names: key, field, or OUTPUT__0, OUTPUT__1, ...

    None means that the model has no such output.
    """
    if isinstance(result, dict):
        pairs = [(str(name), value) for name, value in result.items()]
    elif hasattr(result, "_fields"):
        pairs = list(zip(result._fields, result, strict=True))
    else:
        values = result if isinstance(result, tuple | list) else (result,)
        pairs = [(f"OUTPUT__{n}", value) for n, value in enumerate(values)]
    return [(name, value) for name, value in pairs if value is not None]


def has_names(result: Any) -> bool:
    """Return whether the outputs of a model have names."""
    return isinstance(result, dict) or hasattr(result, "_fields")
