"""A streaming body with inserted bytes, such as the header of each field of a message."""

from collections import deque
from collections.abc import Iterable

from gateway.ir.streaming_body import ForwardingBody, StreamingBody


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
        if self._sink is not None:
            self._sink.write(piece)
