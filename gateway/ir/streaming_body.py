"""Bytes of a request that are still on their way: passed on as they come, or waited for.

A server transport makes an `Arriving` of a large body whose head has come. What writes the request
to an upstream may have it poured out, once; everything else waits for the whole (`ir.landing`).
"""

from __future__ import annotations

from typing import Any, Protocol, TypeVar, cast

from gateway.ir.calls import Call, InferRequest, StreamInferRequest, inference_of
from gateway.ir.data import RawData, StreamedData
from gateway.ir.tensor import Tensor


class BodySink(Protocol):
    """Where arriving bytes are poured."""

    def write(self, piece: memoryview, /) -> None:
        """Take the next bytes, which live on; `Arriving.hold` asks for a pause."""
        ...


class StreamingBody(Protocol):
    """The body of a request of which a part has come.

    Attributes:
        start: Where what is poured begins; before it stands what was read already.
        end: Size of the whole.
    """

    @property
    def start(self) -> int: ...  # noqa: D102
    @property
    def end(self) -> int: ...  # noqa: D102

    @property
    def remaining_bytes(self) -> int:
        """How many bytes are still to be poured."""
        ...

    @property
    def is_started(self) -> bool:
        """Whether pouring has begun: it cannot begin again, nor can the whole be had."""
        ...

    @property
    def last_progress(self) -> float:
        """When some of it was last poured, or received where it lands, on `time.monotonic`."""
        ...

    def pipe_to(self, taker: BodySink, /) -> None:
        """Give *taker* what is here, before this returns, and the rest as it comes."""
        ...

    def pause(self) -> None:
        """Give no more for now: the taker is full."""
        ...

    def resume(self) -> None:
        """Give more; harmless when nothing was held."""
        ...

    def detach(self) -> None:
        """Give no more for good: the taker has gone."""
        ...

    async def read_all(self) -> memoryview:
        """Return the whole body, from its first byte, when all of it has come.

        Raises:
            Unavailable: A part was poured, and is gone.
            Overloaded: There is no room for it.
        """
        ...


R = TypeVar("R")


def streaming_body_of(call: Call[Any], /) -> StreamingBody | None:
    """Return what the inputs of *call* wait for; None when everything is here."""
    # On the path of every inference: a plain loop, and no call for the usual kind.
    request = call if type(call) is InferRequest else inference_of(call)
    if request is None:
        return None
    for tensor in request.inputs:
        if type(tensor.data) is StreamedData:
            return tensor.data.source
    return None


def can_cut_through(call: InferRequest, /) -> bool:
    """Tell whether what is still to come is the end of *call*, as it lies in its source.

    It is not when inputs that wait were dropped or put in another order, or others follow them.
    """
    at = None
    source = None
    for tensor in call.inputs:
        data = tensor.data
        if not isinstance(data, StreamedData):
            if at is not None:
                return False
            continue
        if at is None:
            source, at = data.source, data.source.start
        if data.source is not source or data.start != at:
            return False
        at += data.size_bytes
    return source is not None and at == source.end


async def with_buffered_body(call: Call[R], /) -> Call[R]:
    """Return *call* with all bytes of its inputs, once they have come.

    Raises:
        Unavailable: They were passed on already.
        Overloaded: There is no room for them.
    """
    source = streaming_body_of(call)
    if source is None:
        return call
    body = await source.read_all()
    if isinstance(call, InferRequest):
        return cast("Call[R]", _with(call, body))
    stream = cast("StreamInferRequest", call)
    return cast("Call[R]", stream.changed(request=_with(stream.request, body)))


def _with(call: InferRequest, body: memoryview) -> InferRequest:
    return call.changed(inputs=tuple([_landed(tensor, body) for tensor in call.inputs]))


def _landed(tensor: Tensor, body: memoryview) -> Tensor:
    data = tensor.data
    if not isinstance(data, StreamedData):
        return tensor
    view = RawData(body[data.start : data.start + data.size_bytes])
    return Tensor(tensor.name, tensor.datatype, tensor.shape, view, tensor.parameters)
