"""Requests and replies row by row: each row of a request as a request, and replies put together."""

from collections.abc import Sequence

import numpy as np

from gateway.ir.calls import InferRequest, InferResponse
from gateway.ir.errors import UpstreamProtocolError
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.tensor import Tensor, array_tensor, as_items, as_numpy, items_tensor
from gateway.policies.batch.merge import split_reply_of
from gateway.policies.batch.padding import pad_columns


def split_rows(call: InferRequest) -> list[InferRequest]:
    """Return each row of *call* as a call, without its padding.

    Args:
        call: With independent rows on the first axis of all inputs.
    """
    rows = call.rows
    count = (call.inputs[0].shape or (0,))[0]
    columns = [_split(tensor, call) for tensor in call.inputs]
    lengths = rows.lengths if rows is not None else ()
    return [
        call.changed(
            id="",
            inputs=tuple([column[at] for column in columns]),
            rows=rows.of(lengths[at : at + 1]) if rows is not None else None,
        )
        for at in range(count)
    ]


def has_rows(reply: InferResponse, count: int) -> bool:
    """Return whether the first axis of each output has *count* rows, so that they can be split."""
    return reply.batch_size is None and all(
        (tensor.shape or ())[:1] == (count,) for tensor in reply.outputs
    )


def row_replies(reply: InferResponse, rows: Sequence[InferRequest]) -> list[InferResponse]:
    """Return the reply to each of the merged *rows*."""
    return [reply.changed(outputs=outputs, id="") for outputs in split_reply_of(reply, rows)]


def join_rows(call: InferRequest, replies: Sequence[InferResponse]) -> InferResponse:
    """Return the replies to the rows of *call* as its reply.

    Raises:
        UpstreamProtocolError: They do not fit together.
    """
    first = replies[0]
    names = [tensor.name for tensor in first.outputs]
    if any([tensor.name for tensor in reply.outputs] != names for reply in replies):
        raise UpstreamProtocolError(
            f"the replies of model {str(call.model)!r} to the rows of one request have different "
            "outputs",
            model=call.model,
        )
    outputs = [
        _join([reply.outputs[at] for reply in replies], call) for at in range(len(first.outputs))
    ]
    return first.changed(outputs=tuple(outputs), id=call.id)


def _split(tensor: Tensor, call: InferRequest) -> list[Tensor]:
    shape = tensor.shape or ()
    inner = (1, *shape[1:])
    if tensor.datatype is Datatype.BYTES:
        items = as_items(tensor)
        per_row = len(items) // max(1, shape[0])
        return [
            items_tensor(tensor.name, inner, items[at : at + per_row], tensor.parameters)
            for at in range(0, len(items), per_row)
        ]
    array = as_numpy(tensor)
    rows = call.rows
    parts = [array[at : at + 1] for at in range(len(array))]
    if rows is not None and rows.lengths:
        width = array.shape[1]
        parts = [
            part[:, width - length :] if rows.pads_left else part[:, :length]
            for part, length in zip(parts, rows.lengths, strict=True)
        ]
    return [array_tensor(tensor.name, part, tensor.datatype) for part in parts]


def _join(tensors: Sequence[Tensor], call: InferRequest) -> Tensor:
    first = tensors[0]
    shapes = {(tensor.datatype, (tensor.shape or ())[1:]) for tensor in tensors}
    rows = call.rows
    if len(shapes) > 1 and (
        rows is None or not rows.lengths or len({(kind, shape[1:]) for kind, shape in shapes}) > 1
    ):
        raise UpstreamProtocolError(
            f"the rows of output {first.name!r} have different shapes or datatypes, and do not fit "
            "together",
            model=call.model,
        )
    if first.datatype is Datatype.BYTES:
        items = [item for tensor in tensors for item in as_items(tensor)]
        return items_tensor(first.name, (len(tensors), *(first.shape or ())[1:]), items)
    arrays = [as_numpy(tensor) for tensor in tensors]
    if len(shapes) > 1 and rows is not None:
        return array_tensor(first.name, pad_columns(arrays, 0, rows), first.datatype)
    return array_tensor(first.name, np.concatenate(arrays), first.datatype)
