"""Numbers of datatypes in GraphPipe, and tensors in their wire form.

GraphPipe has no BOOL and no BF16: they are sent as Uint8 and Float32.  A message does not tell them
apart, so `gateway.policies.complete` restores them from the model's declared datatypes.

Source: docs/protocols/graphpipe.md, "9. Datatypes and values".
"""

from collections.abc import Sequence

import numpy as np

from gateway.ir.errors import Unsupported
from gateway.ir.tensors.datatypes import Datatype, fp32_of_bf16
from gateway.ir.tensors.tensor import Tensor, as_items, as_numpy, as_raw
from gateway.protocols.graphpipe.flatbuffer_writer import WireTensor

NULL = 0
STRING = 12

# By number; 0, Null, is not a datatype.
DATATYPES: tuple[Datatype | None, ...] = (
    None,
    Datatype.UINT8,
    Datatype.INT8,
    Datatype.UINT16,
    Datatype.INT16,
    Datatype.UINT32,
    Datatype.INT32,
    Datatype.UINT64,
    Datatype.INT64,
    Datatype.FP16,
    Datatype.FP32,
    Datatype.FP64,
    Datatype.BYTES,
)
TYPE_NAMES = (
    "Null",
    "Uint8",
    "Int8",
    "Uint16",
    "Int16",
    "Uint32",
    "Int32",
    "Uint64",
    "Int64",
    "Float16",
    "Float32",
    "Float64",
    "String",
)

# Datatypes without a number in GraphPipe, and their substitutes on the wire.
SUBSTITUTES: dict[Datatype, Datatype] = {
    Datatype.BOOL: Datatype.UINT8,
    Datatype.BF16: Datatype.FP32,
}

NUMBERS: dict[Datatype, int] = {
    datatype: number for number, datatype in enumerate(DATATYPES) if datatype is not None
}
NUMBERS.update({datatype: NUMBERS[substitute] for datatype, substitute in SUBSTITUTES.items()})


def number_of(datatype: Datatype | None) -> int:
    """Return the number of *datatype* in metadata; Null when it is unknown."""
    return NULL if datatype is None else NUMBERS[datatype]


def wire_tensor(tensor: Tensor) -> WireTensor:
    """Return *tensor* in its wire form; copies BF16 (widened) and BYTES only.

    Raises:
        Unsupported: Its datatype or shape is unknown.
        InvalidTensor: Its data does not fit its datatype.
    """
    datatype, shape = tensor.datatype, tensor.shape
    if datatype is None or shape is None:
        raise Unsupported(
            f"tensor {tensor.name!r} has no {'datatype' if datatype is None else 'shape'}: "
            "GraphPipe needs both"
        )
    number = NUMBERS[datatype]
    if datatype is Datatype.BYTES:
        return WireTensor(number, shape, None, as_items(tensor))
    if datatype is Datatype.BF16:
        widened = fp32_of_bf16(as_numpy(tensor)).reshape(-1)
        return WireTensor(number, shape, widened.astype("<f4", copy=False).view(np.uint8).data)
    if datatype is Datatype.BOOL:  # a number there: 1 for every byte that is true
        flags = np.ascontiguousarray(as_numpy(tensor)).reshape(-1)
        return WireTensor(number, shape, flags.view(np.uint8).data)
    return WireTensor(number, shape, as_raw(tensor))


def wire_tensors(tensors: Sequence[Tensor]) -> list[WireTensor]:
    """Return the wire forms of *tensors*, in their order."""
    return [wire_tensor(tensor) for tensor in tensors]
