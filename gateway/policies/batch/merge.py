"""Several requests as one along the batch axis, and its answer in parts. Pure.

`Batch` decides which requests are joined and when; here is which may be, how inputs become one
tensor with a single copy, and how outputs are divided by views.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Hashable, Sequence

import numpy as np

from gateway.ir.calls import InferRequest, InferResponse
from gateway.ir.context import REQUEST_ID, TRACING, Context, Need, Parameters
from gateway.ir.data import (
    ArrayData,
    ItemsData,
    RawData,
    SharedMemoryData,
    SlicedData,
    TensorData,
    check_items,
)
from gateway.ir.datatypes import Datatype
from gateway.ir.errors import InvalidTensor, UpstreamProtocolError
from gateway.ir.tensor import Tensor, as_items, as_numpy, as_raw

WHOLE = frozenset({Need.NAMES, Need.DATATYPES, Need.SHAPES})
"""What an answer needs that several callers share: each caller's own codec adds the rest."""

_LENGTH = struct.Struct("<I")
_OF_ONE_CALL = frozenset({*TRACING, REQUEST_ID})


def row_count(call: InferRequest) -> int:
    """Return how many rows *call* has on its batch axis; 0 for one that cannot be joined.

    That is one inside a sequence, one whose tensors lie in shared memory, one without rows, or one
    whose inputs do not say that they have one batch axis in common: its target will say so.
    """
    inputs = call.inputs
    if call.sequence is not None or call.batch_size is not None or not inputs:
        return 0
    rows = (inputs[0].shape or (0,))[0]
    for tensor in inputs:
        shape, data = tensor.shape, tensor.data
        if tensor.datatype is None or not shape or shape[0] != rows:
            return 0
        if isinstance(data, SlicedData | SharedMemoryData):
            return 0
    if any(output.shared is not None for output in call.outputs):
        return 0
    if len(inputs) > 1 and len({tensor.name for tensor in inputs}) < len(inputs):
        return 0
    return rows


def batch_key(call: InferRequest) -> Hashable:
    """Return what two calls must have in common to be joined.

    All that the target may look at, but for the rows themselves, ids and times.
    """
    return (
        call.model,
        tuple(
            [
                (tensor.name, tensor.datatype, (tensor.shape or ())[1:], typed(tensor.parameters))
                for tensor in in_canonical_order(call.inputs)
            ]
        ),
        tuple([(one.name, one.classes, typed(one.parameters)) for one in call.outputs]),
        typed(call.parameters),
        call.priority,
        crossing(call.context),
    )


def in_canonical_order(inputs: Sequence[Tensor]) -> Sequence[Tensor]:
    """Return *inputs* in the order that callers with another order get as well."""
    return inputs if len(inputs) == 1 else sorted(inputs, key=lambda tensor: tensor.name)


def typed(parameters: Parameters) -> tuple[tuple[str, str, object], ...]:
    """Return parameters for comparison: 1, 1.0 and true are equal in Python, not here."""
    if not parameters:
        return ()
    return tuple(sorted((name, type(value).__name__, value) for name, value in parameters.items()))


def crossing(context: Context) -> tuple[tuple[str, str], ...]:
    """Return the metadata that a target may answer by: all but what tells one call from another."""
    return tuple([pair for pair in context.metadata if pair[0] not in _OF_ONE_CALL])


def merge_requests(calls: Sequence[InferRequest]) -> InferRequest:
    """Return one call with the rows of all *calls*, which have one key.

    It has the deadline of the one that has most time, and the request id and trace of the first.

    Raises:
        InvalidTensor: The data of a call is not what its shape says.
    """
    first = calls[0]
    rows = sum([row_count(call) for call in calls])
    ordered = [_by_name(call, first) for call in calls]
    inputs = tuple([_joined_tensor(tensors, rows) for tensors in zip(*ordered, strict=True)])
    deadlines = [call.context.deadline for call in calls if call.context.deadline is not None]
    timeouts = [call.timeout_us for call in calls if call.timeout_us is not None]
    context = Context(
        metadata=first.context.metadata,
        request_id=first.context.request_id,
        deadline=max(deadlines) if len(deadlines) == len(calls) else None,
        needs=WHOLE,
    )
    return InferRequest(
        model=first.model,
        context=context,
        inputs=inputs,
        outputs=first.outputs,
        priority=first.priority,
        timeout_us=max(timeouts) if len(timeouts) == len(calls) else None,
        parameters=first.parameters,
    )


def _by_name(call: InferRequest, first: InferRequest) -> Sequence[Tensor]:
    """Return the inputs of *call* in the order of *first*'s."""
    inputs = call.inputs
    if all(mine.name == other.name for mine, other in zip(inputs, first.inputs, strict=True)):
        return inputs
    named = {tensor.name: tensor for tensor in inputs}
    return [named[tensor.name] for tensor in first.inputs]


def _joined_tensor(tensors: Sequence[Tensor], rows: int) -> Tensor:
    first = tensors[0]
    for tensor in tensors:
        _check_size(tensor)
    data: RawData | ItemsData | ArrayData
    if all(isinstance(tensor.data, RawData) for tensor in tensors):
        # The wire forms of rows, end to end, are the wire form of all: BYTES as well.
        data = RawData(memoryview(b"".join([as_raw(tensor) for tensor in tensors])))
    elif first.datatype is Datatype.BYTES:
        data = ItemsData([item for tensor in tensors for item in as_items(tensor)])
    else:
        data = ArrayData(np.concatenate([as_numpy(tensor) for tensor in tensors]))
    shape = (rows, *(first.shape or ())[1:])
    return Tensor(first.name, first.datatype, shape, data, first.parameters)


def _check_size(tensor: Tensor) -> None:
    """Refuse data that would move the rows of others: a caller must never see them."""
    count = math.prod(tensor.shape or ())
    data, datatype = tensor.data, tensor.datatype
    if isinstance(data, ItemsData):
        found, expected = len(data.items), count
    elif datatype is Datatype.BYTES and isinstance(data, RawData):
        check_items(tensor.name, data.view, count)
        return
    elif isinstance(data, ArrayData):
        found, expected = data.array.size, count
    else:
        size_bytes = 0 if datatype is None else datatype.size_bytes
        found, expected = as_raw(tensor).nbytes, count * size_bytes
    if found != expected:
        kind = "elements" if isinstance(data, ItemsData | ArrayData) else "bytes"
        raise InvalidTensor(
            f"tensor {tensor.name!r} has {found} {kind}, its shape {list(tensor.shape or ())} "
            f"needs {expected}"
        )


def split_reply(reply: InferResponse, sizes: Sequence[int]) -> list[tuple[Tensor, ...]]:
    """Return the outputs of *reply* for each of the calls that were joined, as views.

    Args:
        reply: The answer to the joined call.
        sizes: Rows of each call, in order.

    Raises:
        UpstreamProtocolError: An output has not the rows of all calls as its first axis.
    """
    rows = sum(sizes)
    if reply.batch_size is not None:
        raise UpstreamProtocolError(
            f"the answer of model {str(reply.model)!r} keeps its batch size apart from its shapes",
            model=reply.model,
        )
    divided = []
    for tensor in reply.outputs:
        if not tensor.shape or tensor.shape[0] != rows:
            found = "no shape" if tensor.shape is None else f"shape {list(tensor.shape)}"
            raise UpstreamProtocolError(
                f"output {tensor.name!r} of model {str(reply.model)!r} has {found} for {rows} rows "
                f"of {len(sizes)} requests: to answer each, its first axis must be the batch",
                model=reply.model,
            )
        divided.append(_divided(tensor, sizes))
    return list(zip(*divided, strict=True)) if divided else [() for _ in sizes]


def _divided(tensor: Tensor, sizes: Sequence[int]) -> list[Tensor]:
    inner = (tensor.shape or ())[1:]
    rows = _slicer(tensor)
    found: list[Tensor] = []
    begin = 0
    for size in sizes:
        data = rows(begin, begin + size)
        found.append(Tensor(tensor.name, tensor.datatype, (size, *inner), data, tensor.parameters))
        begin += size
    return found


def _slicer(tensor: Tensor) -> Callable[[int, int], TensorData]:
    """Return what gives the data from one row up to another, as a view."""
    try:
        _check_size(tensor)
    except InvalidTensor as error:
        raise UpstreamProtocolError(error.message) from error
    data, shape = tensor.data, tensor.shape or ()
    each = math.prod(shape[1:])
    if isinstance(data, ItemsData):
        items = data.items
        return lambda begin, end: ItemsData(items[begin * each : end * each])
    if isinstance(data, ArrayData):
        array = as_numpy(tensor)
        return lambda begin, end: ArrayData(array[begin:end])
    view = as_raw(tensor)
    if tensor.datatype is Datatype.BYTES:
        starts = _row_starts(view, shape[0], each)
        return lambda begin, end: RawData(view[starts[begin] : starts[end]])
    width = view.nbytes // shape[0]
    return lambda begin, end: RawData(view[begin * width : end * width])


def _row_starts(view: memoryview, rows: int, each: int) -> list[int]:
    """Return where each row of *each* BYTES elements begins, and where the last one ends."""
    starts = [0]
    position = 0
    unpack = _LENGTH.unpack_from
    for _row in range(rows):
        for _element in range(each):
            position += _LENGTH.size + unpack(view, position)[0]
        starts.append(position)
    return starts
