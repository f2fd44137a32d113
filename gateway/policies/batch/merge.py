"""Merging of requests along the batch axis, with one copy, and splitting of the reply, by views.

`row_count` and `batch_key` decide which requests can be merged; `Batch` decides when they are.
"""

import math
import struct
from collections.abc import Callable, Hashable, Sequence

import numpy as np

from gateway.ir.calls import InferRequest, InferResponse
from gateway.ir.context import REQUEST_ID, TRACING, Context, Need, Parameters
from gateway.ir.errors import InvalidTensor, UpstreamProtocolError
from gateway.ir.tensors.data import (
    ArrayData,
    ItemsData,
    JsonItemsData,
    RawData,
    SharedMemoryData,
    SlicedData,
    TensorData,
    UntypedData,
    check_items,
)
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.rows import IndependentRows
from gateway.ir.tensors.tensor import Tensor, as_items, as_numpy, as_raw
from gateway.policies.batch.padding import cut_width, pad_tensors, width_of

SHARED_NEEDS = frozenset({Need.NAMES, Need.DATATYPES, Need.SHAPES})
"""The needs of a reply that several callers share; each caller's codec adds the rest."""

_LENGTH = struct.Struct("<I")
_CALL_SPECIFIC = frozenset({*TRACING, REQUEST_ID})


def row_count(call: InferRequest) -> int:
    """Return the number of rows on the batch axis of *call*; 0 if it cannot be merged.

    A call in a sequence, with unknown members, with tensors in shared memory or elements of BYTES
    that are no strings, without rows, or without a common batch axis cannot be merged.
    """
    inputs = call.inputs
    is_single = call.sequence is not None or call.batch_size is not None or call.has_unknown
    if is_single or not inputs:
        return 0
    rows = (inputs[0].shape or (0,))[0]
    for tensor in inputs:
        shape, data = tensor.shape, tensor.data
        if tensor.datatype is None or not shape or shape[0] != rows:
            return 0
        if isinstance(data, SlicedData | SharedMemoryData | JsonItemsData | UntypedData):
            return 0
    if any(output.shared is not None for output in call.outputs):
        return 0
    if len(inputs) > 1 and len({tensor.name for tensor in inputs}) < len(inputs):
        return 0
    return rows


def batch_key(call: InferRequest) -> Hashable:
    """Return a key that is equal for calls that can be merged.

    It includes everything the target may read, except for the rows, ids and times.
    """
    ragged = call.rows if call.rows is not None and call.rows.lengths else None
    first = 1 if ragged is None else 2
    return (
        call.model,
        tuple(
            [
                (
                    tensor.name,
                    tensor.datatype,
                    (tensor.shape or ())[first:],
                    typed(tensor.parameters),
                )
                for tensor in in_canonical_order(call.inputs)
            ]
        ),
        None if ragged is None else ragged.of(()),
        tuple([(one.name, one.classes, typed(one.parameters)) for one in call.outputs]),
        typed(call.parameters),
        call.priority,
        shared_metadata(call.context),
    )


def in_canonical_order(inputs: Sequence[Tensor]) -> Sequence[Tensor]:
    """Return *inputs* in an order that is independent of the caller's."""
    return inputs if len(inputs) == 1 else sorted(inputs, key=lambda tensor: tensor.name)


def typed(parameters: Parameters) -> tuple[tuple[str, str, object], ...]:
    """Return parameters for comparison; unlike in Python, 1, 1.0 and True are different."""
    if not parameters:
        return ()
    return tuple(sorted((name, type(value).__name__, value) for name, value in parameters.items()))


def shared_metadata(context: Context) -> tuple[tuple[str, str], ...]:
    """Return the metadata that can change the reply: all except ids and trace headers."""
    return tuple([pair for pair in context.metadata if pair[0] not in _CALL_SPECIFIC])


def merge_requests(calls: Sequence[InferRequest]) -> InferRequest:
    """Return one call with the rows of all *calls*, which have the same batch key.

    It has the latest deadline, and the request id and trace headers of the first call.

    Raises:
        InvalidTensor: The data of a call does not match its shape.
    """
    first = calls[0]
    rows = sum([row_count(call) for call in calls])
    ordered = [_by_name(call, first) for call in calls]
    ragged = first.rows if first.rows is not None and first.rows.lengths else None
    inputs = tuple(
        [
            _merge_tensors(tensors, rows) if ragged is None else pad_tensors(tensors, ragged)
            for tensors in zip(*ordered, strict=True)
        ]
    )
    deadlines = [call.context.deadline for call in calls if call.context.deadline is not None]
    timeouts = [call.timeout_us for call in calls if call.timeout_us is not None]
    context = Context(
        metadata=first.context.metadata,
        request_id=first.context.request_id,
        deadline=max(deadlines) if len(deadlines) == len(calls) else None,
        needs=SHARED_NEEDS,
        client=first.context.client,  # a header may have its name: then it is that of all of them
    )
    return InferRequest(
        model=first.model,
        context=context,
        inputs=inputs,
        outputs=first.outputs,
        priority=first.priority,
        timeout_us=max(timeouts) if len(timeouts) == len(calls) else None,
        parameters=first.parameters,
        rows=_merge_rows(calls),
    )


def _merge_rows(calls: Sequence[InferRequest]) -> IndependentRows | None:
    found = [call.rows for call in calls if call.rows is not None]
    if len(found) < len(calls):
        return None
    return found[0].of(tuple([length for rows in found for length in rows.lengths]))


def _by_name(call: InferRequest, first: InferRequest) -> Sequence[Tensor]:
    """Return the inputs of *call* in the order of *first*'s."""
    inputs = call.inputs
    if all(one.name == other.name for one, other in zip(inputs, first.inputs, strict=True)):
        return inputs
    by_name = {tensor.name: tensor for tensor in inputs}
    return [by_name[tensor.name] for tensor in first.inputs]


def _merge_tensors(tensors: Sequence[Tensor], rows: int) -> Tensor:
    first = tensors[0]
    for tensor in tensors:
        _check_size(tensor)
    data: RawData | ItemsData | ArrayData
    if all(isinstance(tensor.data, RawData) for tensor in tensors):
        # The wire form of all rows is the concatenation of the wire forms, also for BYTES.
        data = RawData(memoryview(b"".join([as_raw(tensor) for tensor in tensors])))
    elif first.datatype is Datatype.BYTES:
        data = ItemsData([item for tensor in tensors for item in as_items(tensor)])
    else:
        data = ArrayData(np.concatenate([as_numpy(tensor) for tensor in tensors]))
    shape = (rows, *(first.shape or ())[1:])
    return Tensor(first.name, first.datatype, shape, data, first.parameters)


def _check_size(tensor: Tensor) -> None:
    """Reject data of the wrong size: it would shift rows into the reply of another caller."""
    count = math.prod(tensor.shape or ())
    data, datatype = tensor.data, tensor.datatype
    if isinstance(data, ItemsData):
        found, expected = len(data.items), count
    elif isinstance(data, JsonItemsData):
        found, expected = len(data.values), count
    elif datatype is Datatype.BYTES and isinstance(data, RawData):
        check_items(tensor.name, data.view, count)
        return
    elif isinstance(data, ArrayData):
        found, expected = data.array.size, count
    else:
        size_bytes = 0 if datatype is None else datatype.size_bytes
        found, expected = as_raw(tensor).nbytes, count * size_bytes
    if found != expected:
        kind = "elements" if isinstance(data, ItemsData | JsonItemsData | ArrayData) else "bytes"
        raise InvalidTensor(
            f"tensor {tensor.name!r} has {found} {kind}, its shape {list(tensor.shape or ())} "
            f"needs {expected}"
        )


def split_reply(reply: InferResponse, sizes: Sequence[int]) -> list[tuple[Tensor, ...]]:
    """Return the outputs of *reply* for each of the merged calls, as views.

    Args:
        reply: The reply to the merged call.
        sizes: Rows of each call, in order.

    Raises:
        UpstreamProtocolError: The first axis of an output is not the rows of all calls.
    """
    rows = sum(sizes)
    if reply.batch_size is not None:
        raise UpstreamProtocolError(
            f"the reply of model {str(reply.model)!r} has a batch size separate from its shapes",
            model=reply.model,
        )
    parts = []
    for tensor in reply.outputs:
        if not tensor.shape or tensor.shape[0] != rows:
            found = "no shape" if tensor.shape is None else f"shape {list(tensor.shape)}"
            raise UpstreamProtocolError(
                f"output {tensor.name!r} of model {str(reply.model)!r} has {found} for {rows} rows "
                f"of {len(sizes)} requests; expected the batch as its first axis",
                model=reply.model,
            )
        parts.append(_split(tensor, sizes))
    return list(zip(*parts, strict=True)) if parts else [() for _ in sizes]


def split_reply_of(reply: InferResponse, calls: Sequence[InferRequest]) -> list[tuple[Tensor, ...]]:
    """Return the outputs of *reply* for each of the merged *calls*, as `split_reply`.

    Outputs with an axis for the elements of padded rows have as many as the call itself.
    """
    outputs = split_reply(reply, [row_count(call) for call in calls])
    rows = calls[0].rows
    if rows is None or not rows.lengths:
        return outputs
    widths = list(map(width_of, calls))
    merged = max(widths)
    return [
        tuple([cut_width(tensor, width, merged, pads_left=rows.pads_left) for tensor in own])
        for own, width in zip(outputs, widths, strict=True)
    ]


def _split(tensor: Tensor, sizes: Sequence[int]) -> list[Tensor]:
    inner = (tensor.shape or ())[1:]
    rows = _slicer(tensor)
    found: list[Tensor] = []
    start = 0
    for size in sizes:
        data = rows(start, start + size)
        found.append(Tensor(tensor.name, tensor.datatype, (size, *inner), data, tensor.parameters))
        start += size
    return found


def _slicer(tensor: Tensor) -> Callable[[int, int], TensorData]:
    """Return a function that returns the data of a range of rows, as a view."""
    try:
        _check_size(tensor)
    except InvalidTensor as error:
        raise UpstreamProtocolError(error.message) from error
    data, shape = tensor.data, tensor.shape or ()
    per_row = math.prod(shape[1:])
    if isinstance(data, ItemsData):
        items = data.items
        return lambda start, stop: ItemsData(items[start * per_row : stop * per_row])
    if isinstance(data, JsonItemsData):
        values = data.values
        return lambda start, stop: JsonItemsData(values[start * per_row : stop * per_row])
    if isinstance(data, ArrayData):
        array = as_numpy(tensor)
        return lambda start, stop: ArrayData(array[start:stop])
    view = as_raw(tensor)
    if tensor.datatype is Datatype.BYTES:
        starts = _row_starts(view, shape[0], per_row)
        return lambda start, stop: RawData(view[starts[start] : starts[stop]])
    width = view.nbytes // shape[0]
    return lambda start, stop: RawData(view[start * width : stop * width])


def _row_starts(view: memoryview, rows: int, per_row: int) -> list[int]:
    """Return the offset of each row of *per_row* BYTES elements, and the end of the last one."""
    starts = [0]
    position = 0
    unpack = _LENGTH.unpack_from
    for _row in range(rows):
        for _element in range(per_row):
            position += _LENGTH.size + unpack(view, position)[0]
        starts.append(position)
    return starts
