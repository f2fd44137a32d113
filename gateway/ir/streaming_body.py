"""Request bodies that are still being received: piped to an upstream, or read to the end.

A server transport creates a `StreamingBody` for a large body as soon as it has the head. The client
transport of an upstream may pipe it to a sink, once (cut-through). Everything else reads the whole
body first, with `with_buffered_body`.
"""

from abc import ABC, abstractmethod
from typing import Any, Protocol, TypeVar, cast

from gateway.ir.calls import Call, InferRequest, StreamInferRequest, inference_of
from gateway.ir.data import RawData, StreamedData
from gateway.ir.tensor import Tensor


class BodySink(Protocol):
    """The destination of a streaming body."""

    def write(self, piece: memoryview, /) -> None:
        """Write the next bytes, which stay valid; `StreamingBody.pause` stops further writes."""
        ...


class StreamingBody(Protocol):
    """The body of a request, partly received.

    Attributes:
        start: Offset of the first byte that is piped; the bytes before it are already parsed.
        end: Size of the complete body.
    """

    @property
    def start(self) -> int: ...  # noqa: D102
    @property
    def end(self) -> int: ...  # noqa: D102

    @property
    def remaining_bytes(self) -> int:
        """Number of bytes that are not piped yet."""
        ...

    @property
    def is_started(self) -> bool:
        """Whether piping has started; it cannot restart, and `read_all` fails."""
        ...

    @property
    def last_progress(self) -> float:
        """Time of the last byte that was piped or received into memory, on `time.monotonic`."""
        ...

    def pipe_to(self, sink: BodySink, /) -> None:
        """Write the received bytes to *sink* before returning, and the rest as it is received."""
        ...

    def pause(self) -> None:
        """Stop writing until `resume`: the sink is full."""
        ...

    def resume(self) -> None:
        """Continue writing; does nothing if not paused."""
        ...

    def detach(self) -> None:
        """Stop writing for good: the sink is closed."""
        ...

    async def read_all(self) -> memoryview:
        """Return the complete body, from its first byte, when all of it is received.

        Raises:
            Unavailable: A part was piped and is no longer available.
            Overloaded: The memory budget has no room for it.
        """
        ...


class ForwardingBody(ABC):
    """Base of a `StreamingBody` that is the sink of another one, and changes or watches its bytes.

    Subclasses have `write`, which writes to `_sink` unless that is None.

    Args:
        source: Must not be started.
    """

    def __init__(self, source: StreamingBody) -> None:
        self._source = source
        self._sink: BodySink | None = None

    @property
    def is_started(self) -> bool:
        """Whether piping has begun."""
        return self._source.is_started

    @property
    def last_progress(self) -> float:
        """When bytes of the source were last piped or received."""
        return self._source.last_progress

    @abstractmethod
    def write(self, piece: memoryview, /) -> None:
        """Write the next bytes of the source."""

    def pipe_to(self, sink: BodySink, /) -> None:
        """Write to *sink* all bytes that have arrived, and the rest as it arrives."""
        self._sink = sink
        self._source.pipe_to(self)

    def pause(self) -> None:
        """Pause the source."""
        self._source.pause()

    def resume(self) -> None:
        """Resume the source."""
        self._source.resume()

    def detach(self) -> None:
        """Stop writing to the sink."""
        self._sink = None
        self._source.detach()

    async def read_all(self) -> memoryview:
        """Return the body of the source; raises what its `read_all` raises."""
        return await self._source.read_all()


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


def can_cut_through(call: InferRequest, /) -> bool:
    """Return whether the streamed inputs of *call* are its last, and unchanged from their body.

    They are not if a streamed input was removed or reordered, or other inputs follow.
    """
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
