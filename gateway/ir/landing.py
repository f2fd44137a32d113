"""Calls whose tensors are still arriving: finding them, and waiting until they are here.

Only what passes bytes on as they come may let such a call through; before everything else stands
`policies.land`, or it calls `landed` itself.
"""

from __future__ import annotations

from typing import Any, TypeVar, cast

from gateway.ir.arriving import Arriving
from gateway.ir.calls import Call, InferRequest, StreamInferRequest, inference_of
from gateway.ir.data import ArrivingData, RawData
from gateway.ir.tensor import Tensor

R = TypeVar("R")


def arriving_in(call: Call[Any], /) -> Arriving | None:
    """Return what the inputs of *call* wait for; None when everything is here."""
    # On the path of every inference: a plain loop, and no call for the usual kind.
    request = call if type(call) is InferRequest else inference_of(call)
    if request is None:
        return None
    for tensor in request.inputs:
        if type(tensor.data) is ArrivingData:
            return tensor.data.source
    return None


def can_pass(call: InferRequest, /) -> bool:
    """Tell whether what is still to come is the end of *call*, as it lies in its source.

    It is not when inputs that wait were dropped or put in another order, or others follow them.
    """
    at = None
    source = None
    for tensor in call.inputs:
        data = tensor.data
        if not isinstance(data, ArrivingData):
            if at is not None:
                return False
            continue
        if at is None:
            source, at = data.source, data.source.start
        if data.source is not source or data.start != at:
            return False
        at += data.size_bytes
    return source is not None and at == source.end


async def landed(call: Call[R], /) -> Call[R]:
    """Return *call* with all bytes of its inputs, once they have come.

    Raises:
        Unavailable: They were passed on already.
        Overloaded: There is no room for them.
    """
    source = arriving_in(call)
    if source is None:
        return call
    body = await source.whole()
    if isinstance(call, InferRequest):
        return cast("Call[R]", _with(call, body))
    stream = cast("StreamInferRequest", call)
    return cast("Call[R]", stream.changed(request=_with(stream.request, body)))


def _with(call: InferRequest, body: memoryview) -> InferRequest:
    return call.changed(inputs=tuple([_landed(tensor, body) for tensor in call.inputs]))


def _landed(tensor: Tensor, body: memoryview) -> Tensor:
    data = tensor.data
    if not isinstance(data, ArrivingData):
        return tensor
    view = RawData(body[data.start : data.start + data.size_bytes])
    return Tensor(tensor.name, tensor.datatype, tensor.shape, view, tensor.parameters)
