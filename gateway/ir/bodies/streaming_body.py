"""Request bodies that are still being received: piped to an upstream, or read to the end.

A server transport creates a `StreamingBody` for a large body as soon as it has the head. The client
transport of an upstream may pipe it to a sink, once (cut-through). Everything else reads the whole
body first. `streamed_inputs.py` has the calls whose inputs are part of such a body.

Cut-through: the call of a large binary request may begin before its body is complete. The transport
asks the frontend how many bytes it needs first (the JSON part, whose length is a header). It passes
on these bytes with a `StreamingBody` for the rest. In the call, such tensors have a size and a
position, but no bytes. By default no layer meets one: `policies/buffer_body` stands before all
layers that read tensors. An upstream reads the whole body too, unless its codec and its client can
forward it.

When they can, the bytes flow from one connection to the other without a task and without a copy. A
sink that is full pauses the source, and then the client. Forwarded bytes are gone, so nothing is
retried. A client that disconnects or is too slow cancels the call. A response may arrive early: it
is sent at once, and the rest of the body is dropped. The timeout of the route restarts while bytes
move. Slow senders occupy slots, so at most a quarter of a listener's requests may be forwarded like
this.
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable
from typing import Protocol


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

    Subclasses have `write`, which passes bytes on with `forward`.

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

    def forward(self, piece: memoryview) -> None:
        """Write *piece* to the sink, unless that is closed."""
        if self._sink is not None:
            self._sink.write(piece)

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


class InterleavedBody(ForwardingBody):
    """A `StreamingBody` that pipes another one, with bytes inserted at some offsets.

    Args:
        source: Must not be started.
        inserts: Offsets in it, from its `start` on and in order, and the bytes before each.

    Attributes:
        remaining_bytes: Bytes that have not been piped, inserts included.
    """

    def __init__(self, source: StreamingBody, inserts: Iterable[tuple[int, bytes]]) -> None:
        super().__init__(source)
        self._inserts = deque(inserts)
        self._at = source.start
        self.start = source.start
        self.remaining_bytes = source.remaining_bytes + sum(
            [len(insert) for _, insert in self._inserts]
        )
        self.end = self.start + self.remaining_bytes

    def write(self, piece: memoryview, /) -> None:
        """Write the next bytes of the source, with the inserts before and between them."""
        while self._inserts and self._inserts[0][0] < self._at + piece.nbytes:
            offset, insert = self._inserts.popleft()
            before = offset - self._at
            if before:
                self._write(piece[:before])
                piece = piece[before:]
                self._at = offset
            self._write(memoryview(insert))
        self._at += piece.nbytes
        self._write(piece)
        if self._at == self._source.end:  # the inserts at the end
            while self._inserts:
                self._write(memoryview(self._inserts.popleft()[1]))

    def _write(self, piece: memoryview) -> None:
        self.remaining_bytes -= piece.nbytes
        self.forward(piece)
