"""DivideRows: sends an inference with many rows as several, and joins the replies.

Some servers take few rows in one request. The calls are sent one after the other, and all fail if
one does.
"""

from collections.abc import Sequence
from typing import Any, TypeVar, cast

import numpy as np

from gateway.ir.calls import Call, InferRequest, InferResponse
from gateway.ir.errors import UpstreamProtocolError
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.tensor import Tensor, array_tensor, as_items, as_numpy, items_tensor
from gateway.ir.text_tasks import COMPLETION_TOKENS, PROMPT_TOKENS
from gateway.service import ReplyCoroutine, Service

R = TypeVar("R")


class DivideRows:
    """Divides inferences along the first axis of their longest inputs of texts; others pass.

    Args:
        inner: The service to call.
        most: Most rows of one call.
    """

    def __init__(self, inner: Service, most: int) -> None:
        self._inner = inner
        self._most = most

    def __call__(self, call: Call[R], /) -> ReplyCoroutine[R]:
        """Call *inner*, several times for an inference with more rows than it takes.

        Raises:
            UpstreamProtocolError: The replies do not fit together.
        """
        if type(call) is InferRequest and _rows(call) > self._most:
            # The reply to an InferRequest is an InferResponse, which is its R.
            return cast("ReplyCoroutine[R]", self._divided(call))
        return self._inner(call)

    async def _divided(self, call: InferRequest) -> InferResponse:
        count = _rows(call)
        replies = [
            await self._inner(
                call.changed(
                    inputs=tuple(
                        [
                            _part(tensor, begin, begin + self._most)
                            if (tensor.shape or ())[:1] == (count,)
                            else tensor
                            for tensor in call.inputs
                        ]
                    )
                )
            )
            for begin in range(0, count, self._most)
        ]
        return join_replies(replies)


def _rows(call: InferRequest) -> int:
    """Return the number of texts in the longest input; other datatypes have no rows here."""
    shapes = [each.shape for each in call.inputs if each.datatype is Datatype.BYTES]
    return max([shape[0] for shape in shapes if shape], default=0)


def _part(tensor: Tensor, begin: int, end: int) -> Tensor:
    shape = tensor.shape or ()
    rows = min(end, shape[0]) - begin
    if tensor.datatype is Datatype.BYTES:
        items = as_items(tensor)
        each = len(items) // max(shape[0], 1)
        chosen = items[begin * each : end * each]
        return items_tensor(tensor.name, (rows, *shape[1:]), chosen, tensor.parameters)
    return array_tensor(tensor.name, as_numpy(tensor)[begin:end], tensor.datatype)


def join_replies(replies: Sequence[InferResponse]) -> InferResponse:
    """Return the replies to the parts of one request as one, with the sum of their tokens.

    Raises:
        UpstreamProtocolError: They do not fit together.
    """
    first = replies[0]
    outputs = [
        _join([reply.outputs[at] for reply in replies if at < len(reply.outputs)], first)
        for at in range(len(first.outputs))
    ]
    parameters: dict[str, Any] = dict(first.parameters)
    for name in (PROMPT_TOKENS, COMPLETION_TOKENS):
        tokens = [reply.parameters.get(name) for reply in replies]
        if all(type(each) is int for each in tokens):
            parameters[name] = sum(cast("list[int]", tokens))
    return first.changed(outputs=tuple(outputs), parameters=parameters)


def _join(tensors: Sequence[Tensor], reply: InferResponse) -> Tensor:
    first = tensors[0]
    shapes = [tensor.shape or () for tensor in tensors]
    if len({shape[1:] for shape in shapes}) > 1 or len({each.datatype for each in tensors}) > 1:
        raise UpstreamProtocolError(
            f"the parts of output {first.name!r} have different shapes or datatypes: the request "
            "was divided, and its replies do not fit together",
            model=reply.model,
        )
    if first.datatype is Datatype.BYTES:
        items = [item for tensor in tensors for item in as_items(tensor)]
        shape = (sum(shape[0] for shape in shapes), *shapes[0][1:])
        return items_tensor(first.name, shape, items)
    whole = np.concatenate([as_numpy(tensor) for tensor in tensors])
    return array_tensor(first.name, whole, first.datatype)
