"""The size of the inputs of an inference, as rules and quotas count it."""

from collections.abc import Iterable, Sequence
from math import prod
from typing import Any, Final

import numpy as np

from gateway.ir.calls import Call, InferRequest, OpaqueCall, inference_of
from gateway.ir.context import Parameter
from gateway.ir.tensors.data import ItemsData, RawData, UntypedData
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.items import LENGTH
from gateway.ir.tensors.tensor import Tensor
from gateway.ir.values.number_lists import leaves, nested_shape, unnested
from gateway.policies.access.rules import Size

_WIDEST: Final = 8
"""Bytes of an element whose datatype only the model knows, unless it is a text of more bytes."""
_TEXTS: Final = frozenset({str, dict})


def size_of(call: Call[Any]) -> Size:
    """Return the elements and bytes of all inputs of *call*; of other calls nothing.

    Bytes are elements times their size, of texts the sum of their lengths. Where only the model
    knows the datatype, they are a bound: no input has more. A call that the gateway forwards
    without reading it counts with its body.
    """
    request = inference_of(call)
    origin = call.context.origin
    if request is not None and origin is not None and origin.refusal is not None:
        length = _body_bytes(origin.wire)
        return Size(length, length)
    if request is None:
        length = _body_bytes(call.message.wire) if isinstance(call, OpaqueCall) else 0
        return Size(length, length)
    elements = size_bytes = 0
    for tensor in request.inputs:
        count, length = _size(tensor, request)
        elements += count
        size_bytes += length
    for value in request.flat_members.values():
        values: tuple[Parameter, ...] = value if isinstance(value, tuple) else (value,)
        elements += len(values)
        size_bytes += _bytes_of(values, has_texts=False)
    return Size(elements, size_bytes)


def _body_bytes(wire: Any) -> int:
    """Return the bytes of a request of any carrier."""
    buffers: Sequence[Any] = getattr(wire, "body", None) or getattr(wire, "message", None) or ()
    return sum(memoryview(each).nbytes for each in buffers)


def _size(tensor: Tensor, request: InferRequest) -> tuple[int, int]:
    if isinstance(tensor.data, UntypedData):
        return _untyped_size(tensor.data)
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


def _untyped_size(data: UntypedData) -> tuple[int, int]:
    """Return a bound of the elements and bytes of JSON without a datatype."""
    value, raw = data.value, 0 if data.raw is None else data.raw.nbytes
    if isinstance(value, memoryview):
        # Elements of a tensor, or one text.
        return (raw if data.rules.has_elements else 1), raw
    if isinstance(value, bytes):
        count = value.count(b",") + 1  # lists of numbers, of which none is empty
        length = count * _WIDEST
    elif isinstance(value, np.ndarray):
        count, length = value.size, value.size * _WIDEST
    else:
        flat = unnested(value, nested_shape(value)) if type(value) is list else [value]
        if flat is None:  # lists of different lengths, which are refused once the model is known
            flat = list(leaves(value))
        count, length = len(flat), _bytes_of(flat, has_texts=data.rules.has_texts)
    return count, max(length, raw)


def _bytes_of(values: Iterable[Any], *, has_texts: bool) -> int:
    """Return a bound of the bytes of elements of JSON; *has_texts*: texts may hold numbers."""
    least = _WIDEST if has_texts else 0
    return sum(
        [max(least, _text_size(each)) if type(each) in _TEXTS else _WIDEST for each in values]
    )


def _text_size(value: Any) -> int:
    """Return the bytes of a text, or of the text in an object with `b64`."""
    texts = [value] if isinstance(value, str) else value.values()
    return sum(len(each.encode("utf-8", "replace")) for each in texts if isinstance(each, str))
