"""Calls whose inputs are part of a body that is still being received.

`streaming_body.py` has these bodies.
"""

from typing import Any, TypeGuard, TypeVar, cast

from gateway.ir.bodies.streaming_body import StreamingBody
from gateway.ir.calls import Call, InferRequest, StreamInferRequest, inference_of
from gateway.ir.tensors.data import RawData, StreamedData
from gateway.ir.tensors.tensor import Tensor

R = TypeVar("R")


def streaming_body_of(call: Call[Any], /) -> StreamingBody | None:
    """Return the body that the inputs of *call* are part of; None if all inputs are received."""
    origin = call.context.origin
    if origin is not None and origin.has_bytes:
        return None
    # On the path of every inference: a plain loop, and no function call for the usual kind.
    request = call if type(call) is InferRequest else inference_of(call)
    if request is None:
        return None
    for tensor in request.inputs:
        if type(tensor.data) is StreamedData:
            return tensor.data.source
    return None


def can_cut_through(call: Call[Any], /) -> TypeGuard[InferRequest]:
    """Return whether *call* is an inference whose last inputs are streamed, as in their body.

    They are not if a streamed input was removed or reordered, or other inputs follow.
    """
    if type(call) is not InferRequest:
        return False
    offset = None
    source = None
    for tensor in call.inputs:
        data = tensor.data
        if not isinstance(data, StreamedData):
            if offset is not None:
                return False
            continue
        if offset is None:
            source, offset = data.source, data.source.start
        if data.source is not source or data.start != offset:
            return False
        offset += data.size_bytes
    return source is not None and offset == source.end


async def with_buffered_body(call: Call[R], /) -> Call[R]:
    """Return *call* with all bytes of its inputs, when they are received.

    Raises:
        Unavailable: A part was already piped to a sink.
        Overloaded: The memory budget has no room for them.
    """
    source = streaming_body_of(call)
    if source is None:
        return call
    body = await source.read_all()
    if isinstance(call, InferRequest):
        return cast("Call[R]", _with_body(call, body))
    stream = cast("StreamInferRequest", call)
    return cast("Call[R]", stream.changed(request=_with_body(stream.request, body)))


def _with_body(call: InferRequest, body: memoryview) -> InferRequest:
    return call.changed(inputs=tuple([_raw_tensor(tensor, body) for tensor in call.inputs]))


def _raw_tensor(tensor: Tensor, body: memoryview) -> Tensor:
    data = tensor.data
    if not isinstance(data, StreamedData):
        return tensor
    view = RawData(body[data.start : data.start + data.size_bytes])
    return Tensor(tensor.name, tensor.datatype, tensor.shape, view, tensor.parameters)
