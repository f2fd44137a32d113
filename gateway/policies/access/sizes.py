"""The size of the inputs of an inference, as rules and quotas count it."""

from math import prod
from typing import Any

from gateway.ir.calls import Call, InferRequest, inference_of
from gateway.ir.context import Parameter
from gateway.ir.data import ItemsData, RawData
from gateway.ir.datatypes import Datatype
from gateway.ir.items import LENGTH
from gateway.ir.tensor import Tensor
from gateway.policies.access.rules import Size


def size_of(call: Call[Any]) -> Size:
    """Return the elements and bytes of all inputs of *call*; of other calls nothing.

    Bytes are elements times their size, of texts the sum of their lengths. An input whose shape or
    datatype only the model knows counts with its bytes in the body.
    """
    request = inference_of(call)
    if request is None:
        return Size()
    elements = size_bytes = 0
    for tensor in request.inputs:
        count, length = _size(tensor, request)
        elements += count
        size_bytes += length
    for value in request.flat_members.values():
        values: tuple[Parameter, ...] = value if isinstance(value, tuple) else (value,)
        elements += len(values)
        size_bytes += sum(len(str(each).encode("utf-8", "replace")) for each in values)
    return Size(elements, size_bytes)


def _size(tensor: Tensor, request: InferRequest) -> tuple[int, int]:
    rows = 1 if request.batch_size is None else request.batch_size
    shape, datatype = tensor.shape, tensor.datatype
    count = None if shape is None else prod(shape) * rows
    if datatype is None:
        length = tensor.nbytes
        return (length if count is None else count), length
    if datatype is Datatype.BYTES:
        length = _text_bytes(tensor, count)
        return (length if count is None else count), length
    if count is None:
        count = tensor.nbytes // datatype.size_bytes
    return count, count * datatype.size_bytes


def _text_bytes(tensor: Tensor, count: int | None) -> int:
    """Return the sum of the lengths of texts, without the prefixes of their wire form."""
    data = tensor.data
    if isinstance(data, ItemsData):
        return tensor.nbytes - LENGTH.size * len(data.items)
    if isinstance(data, RawData) and count is not None:
        return max(0, tensor.nbytes - LENGTH.size * count)
    return tensor.nbytes
