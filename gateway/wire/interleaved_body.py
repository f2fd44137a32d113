"""A streaming body with inserted bytes, such as the header of each field of a message."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from gateway.ir.streaming_body import BodySink, StreamingBody


class InterleavedBody:
    """A `StreamingBody` that pipes another one, with bytes inserted at some offsets.

    Args:
        source: Must not be started.
        inserts: Offsets in it, from its `start` on and in order, and the bytes before each.

    Attributes:
        remaining_bytes: Bytes that have not been piped, inserts included.
    """

    def __init__(self, source: StreamingBody, inserts: Iterable[tuple[int, bytes]]) -> None:
        self._source = source
        self._inserts = deque(inserts)
        self._at = source.start
        self._sink: BodySink | None = None
        self.start = source.start
        self.remaining_bytes = source.remaining_bytes + sum(
            [len(insert) for _, insert in self._inserts]
        )
        self.end = self.start + self.remaining_bytes

    @property
    def is_started(self) -> bool:
        """Whether piping has begun."""
        return self._source.is_started

    @property
    def last_progress(self) -> float:
        """When bytes of the source were last piped."""
        return self._source.last_progress

    def pipe_to(self, sink: BodySink, /) -> None:
        """Write to *sink* all bytes that have arrived, and the rest as it arrives."""
        self._sink = sink
        self._source.pipe_to(self)

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
        if self._sink is not None:
            self._sink.write(piece)

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
        """Return the source's body, without the inserts."""
        return await self._source.read_all()
