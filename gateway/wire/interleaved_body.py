"""An arriving body with bytes of our own in between: what comes before each part of a message."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from gateway.ir.streaming_body import BodySink, StreamingBody


class InterleavedBody:
    """An `Arriving` that pours another one, and at some places what is to stand there.

    Args:
        source: Not poured yet.
        inserts: Places in it, from its `start` on and in order, and what comes before them.

    Attributes:
        left: What is still to be poured, inserts and all.
    """

    def __init__(self, source: StreamingBody, inserts: Iterable[tuple[int, bytes]]) -> None:
        self._source = source
        self._inserts = deque(inserts)
        self._at = source.start
        self._taker: BodySink | None = None
        self.start = source.start
        self.remaining_bytes = source.remaining_bytes + sum(
            [len(insert) for _, insert in self._inserts]
        )
        self.end = self.start + self.remaining_bytes

    @property
    def is_started(self) -> bool:
        """Whether pouring has begun."""
        return self._source.is_started

    @property
    def last_progress(self) -> float:
        """When some of the source was last poured."""
        return self._source.last_progress

    def pipe_to(self, taker: BodySink, /) -> None:
        """Give *taker* what is here, and the rest as it comes."""
        self._taker = taker
        self._source.pipe_to(self)

    def write(self, piece: memoryview, /) -> None:
        """Hand on the next bytes of the source, with what belongs before them and in between."""
        while self._inserts and self._inserts[0][0] < self._at + piece.nbytes:
            place, insert = self._inserts.popleft()
            before = place - self._at
            if before:
                self._give(piece[:before])
                piece = piece[before:]
                self._at = place
            self._give(memoryview(insert))
        self._at += piece.nbytes
        self._give(piece)
        if self._at == self._source.end:  # nothing may come after what stands here
            while self._inserts:
                self._give(memoryview(self._inserts.popleft()[1]))

    def _give(self, piece: memoryview) -> None:
        self.remaining_bytes -= piece.nbytes
        if self._taker is not None:
            self._taker.write(piece)

    def pause(self) -> None:
        """Give no more than was taken already."""
        self._source.pause()

    def resume(self) -> None:
        """Give more."""
        self._source.resume()

    def detach(self) -> None:
        """Give no more for good."""
        self._taker = None
        self._source.detach()

    async def read_all(self) -> memoryview:
        """Return the source's body, without what was put in between."""
        return await self._source.read_all()
