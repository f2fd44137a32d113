"""One HTTP/1 answer, read as it comes; pure.

The head's grammar is llhttp's, by httptools; what it said once of the same bytes is remembered. A
body of known length goes straight into one buffer, or out in pieces where the answer is a stream.
"""

from __future__ import annotations

from collections import deque
from typing import Final

import httptools
from msgspec import Struct

from gateway.ir.errors import MalformedMessage
from gateway.transports.admission import Reservation
from gateway.transports.http.client_rules import (
    HEADER_COUNT,
    HEADER_FIELD_BYTES,
    HEADER_LINE_BYTES,
    UpstreamErrors,
    answer_fields,
)
from gateway.transports.http.request_body import EMPTY
from gateway.transports.http1.chunked import ChunkReader
from gateway.transports.http1.head_reader import end_of_head, tail_of
from gateway.transports.reserved_buffer import ReservedBuffer
from gateway.wire.http import Headers, HttpResponse
from gateway.wire.message_cache import ParseCache

_BLANKS: Final = b" \t"
_HEAD_BYTES: Final = HEADER_LINE_BYTES + HEADER_COUNT * 1024
_INTERIM: Final = range(100, 200)
_SWITCHING: Final = 101
_BODILESS: Final = frozenset({204, 304})
_END: Final = b"\r\n\r\n"
_REMEMBERED: Final = 512
_REMEMBERED_BYTES: Final = 1024
_SMALL_BYTES: Final = 16 * 1024
_MOST_INTERIM: Final = 32

CHUNKS: Final = 65_536
"""A response may have so many chunks, and then one for each `CHUNK_BYTES`."""

CHUNK_BYTES: Final = 1024


class ResponseHead(Struct, frozen=True):
    """What the head of an answer says.

    Attributes:
        headers: Fields that cross a hop.
        codings: Of its content.
        length: Content-Length; None for none.
        chunked: The body comes in chunks.
        keeps: The connection may be used again.
        plain: Length of a body that is to be taken as it is, before more on the same connection;
            -1 for any other.
    """

    status: int
    headers: Headers
    codings: list[str]
    length: int | None
    chunked: bool
    keeps: bool
    plain: int


class ResponseHeadCache(ParseCache[ResponseHead]):
    """Heads that were found right, by their bytes: servers send the same ones again and again."""

    def __init__(self) -> None:
        super().__init__(_REMEMBERED, _REMEMBERED_BYTES)

    def complete_response(self, data: bytes) -> HttpResponse | None:
        """Return the answer that is *data*, unless its head is new or there is more to do.

        Nearly all come so. Not for questions for the head alone.
        """
        at = data.find(_END) + len(_END)
        head = self.get(data[:at])
        if head is None or head.plain != len(data) - at:
            return None
        return HttpResponse(head.status, head.headers, (memoryview(data)[at:],))


class ResponseReader:
    """The answer to one request.

    Args:
        peer: Whose it is; words errors, and limits sizes.
        method: Of the request.
        streamed: Its body is wanted in pieces, as it comes.
        known: Heads of this peer.

    Attributes:
        begun: A byte of it has come.
        head: What its head says; there once `head_read`.
        head_read: Its head has come.
        done: It is whole.
        keeps: The connection may be used again after it.
        lands: Its body is received in `room`.
        is_behind: More was fed than its turn allows: feed the rest in the next.
        is_short: No more may come before `grow` has returned.
    """

    head: ResponseHead

    __slots__ = (
        "_chunks",
        "_complete",
        "_fields",
        "_held",
        "_interim",
        "_known",
        "_left",
        "_length",
        "_method",
        "_odd_coding",
        "_parser",
        "_peer",
        "_received",
        "_room",
        "_size",
        "_small",
        "_tail",
        "_whole",
        "begun",
        "done",
        "head",
        "head_read",
        "is_behind",
        "keeps",
        "lands",
        "pieces",
        "streamed",
    )

    def __init__(
        self,
        peer: UpstreamErrors,
        method: str,
        known: ResponseHeadCache | None = None,
        *,
        streamed: bool = False,
    ) -> None:
        self._peer = peer
        self._method = method
        self._known = known
        self._parser: httptools.HttpResponseParser | None = None
        self._fields: list[tuple[bytes, bytes]] = []
        self._size = 0
        self._tail = b""
        self._complete = False
        self._length: int | None = None
        self._chunks: ChunkReader | None = None
        self._odd_coding = False
        self._left = 0
        self._received = 0
        self._room: ReservedBuffer | None = None
        self._held: Reservation | None = None
        self._interim = 0
        self._whole: memoryview | None = None
        self._small: bytearray | None = None
        self.pieces: deque[memoryview | bytearray] = deque()
        self.is_behind = False
        self.streamed = streamed
        self.begun = False
        self.head_read = False
        self.done = False
        self.keeps = False
        self.lands = False

    def feed(self, data: bytes) -> int:
        """Take *data*; return how much of it belongs to the answer.

        Raises:
            UpstreamProtocolError: It is no answer.
            TooLarge: It is too large.
        """
        at, end = 0, len(data)
        self.is_behind = False
        if not self.begun:
            self.begun = True
            at = self._feed_known(data)
        while at < end and not (self.done or self.is_behind):
            at = self._feed_body(data, at) if self.head_read else self._feed_head(data, at)
        return at

    def ended(self) -> bool:
        """Take the end of the connection; return whether the answer is whole with it."""
        if self.head_read and self._length is None and self._chunks is None and not self.done:
            self.done = True
        return self.done

    def body(self) -> memoryview:
        """Return the body of an answer that is whole and was not streamed."""
        if self._whole is not None:
            return self._whole
        if self._room is not None:
            return self._room.view
        if len(self.pieces) == 1:
            return memoryview(self.pieces[0]).toreadonly()
        return memoryview(b"".join(self.pieces)) if self.pieces else EMPTY

    def room(self) -> memoryview | None:
        """Return where the next bytes of a large body go; None for no such place."""
        return None if self._room is None else self._room.room()

    def received(self, size: int) -> None:
        """Note that *size* bytes have been put into `room`."""
        assert self._room is not None  # noqa: S101  # there was room in it
        self._room.advance(size)
        self.done = self._room.is_whole

    @property
    def is_short(self) -> bool:
        """Whether nothing may come before `grow` has returned."""
        if self._room is not None:
            return self._room.is_short
        return self._held is not None and self._held.size_bytes < self._received

    async def grow(self) -> None:
        """Wait for memory for more of it. Raises Overloaded."""
        if self._room is not None:
            await self._room.wait()
        elif self._held is not None:
            await self._held.grow(max(0, self._received - self._held.size_bytes))

    def close(self) -> None:
        """Read no more of it: the parser, which holds it, is let go of."""
        self._parser = None
        if self._held is not None and self._room is None:
            self._held.close()

    # -- the head

    def _feed_known(self, data: bytes) -> int:
        """Take a head that came in one piece and is known, or becomes so; return its end, or 0."""
        known, size = self._known, data.find(_END) + len(_END)
        if known is None or not len(_END) < size <= _REMEMBERED_BYTES:
            return 0
        raw = data[:size]
        head = known.get(raw)
        if head is not None:
            self.keeps, self._length = head.keeps, head.length
            self._chunks = ChunkReader() if head.chunked else None
            self._begin_body(head)
            return size
        self._feed_head(raw, 0)
        if self.head_read and known.should_admit(raw):  # not of an interim answer
            known.put(raw, self.head)
        return size

    def _feed_head(self, data: bytes, at: int) -> int:
        stop = end_of_head(self._tail, data, at)
        piece = data[at:stop]
        self._size += len(piece)
        self._tail = tail_of(self._tail, piece)
        if self._parser is None:
            self._parser = httptools.HttpResponseParser(self)
        try:
            self._parser.feed_data(piece)
        except httptools.HttpParserUpgrade:
            self._complete = True
        except httptools.HttpParserError as error:
            raise self._peer.broken(f"a malformed answer: {error}") from error
        if len(self._fields) > HEADER_COUNT or self._size > _HEAD_BYTES:
            raise self._peer.broken("a malformed answer: its head is too large")
        if any(len(name) + len(value) > HEADER_FIELD_BYTES for name, value in self._fields):
            raise self._peer.broken("a malformed answer: a header field is too large")
        if self._complete:
            self._take_head(self._parser.get_status_code())
        return stop

    def _take_head(self, status: int) -> None:
        self._parser = None  # it holds this answer, and so the body
        if status in _INTERIM and status != _SWITCHING:
            self._interim += 1
            if self._interim > _MOST_INTERIM:
                raise self._peer.broken(f"more than {_MOST_INTERIM} interim responses")
            self._fields, self._complete = [], False
            self._length, self._chunks, self._tail = None, None, b""
            return
        if status == _SWITCHING:
            raise self._peer.broken("a change of protocol that nobody asked for")
        if self._odd_coding:
            raise self._peer.broken("a transfer coding that nobody asked for")
        self._begin_body(self._said(status))

    def _said(self, status: int) -> ResponseHead:
        headers, codings = answer_fields(self._fields)
        length, chunked, plain = self._length, self._chunks is not None, -1
        usual = self.keeps and not (chunked or codings or status in _BODILESS)
        if usual and length is not None and self._peer.accepts_size(length):
            plain = length
        return ResponseHead(status, headers, codings, length, chunked, self.keeps, plain)

    def _begin_body(self, head: ResponseHead) -> None:
        self.head = head
        self.head_read = True
        if self._method == "HEAD" or head.status in _BODILESS:
            self.done = True
        elif self._chunks is None and self._length is not None:
            if not self.streamed:
                self._peer.check_size(self._length)
            self._left = self._length
            self.done = not self._left
        elif self._chunks is None:
            self.keeps = False  # its end is the connection's

    # -- the body

    def _feed_body(self, data: bytes, at: int) -> int:
        if self._chunks is not None:
            return self._feed_chunks(self._chunks, data, at)
        view = memoryview(data)
        if self._length is None:
            self._take(view[at:])
            self._hold()
            return len(data)
        size = min(self._left, len(data) - at)
        if self.streamed:
            self._take(view[at : at + size])
            self._left -= size
            self.done = not self._left
        elif self._room is None and size == self._length:
            self._whole = view[at : at + size]  # small bodies come in one piece: no copy
            self.done = True
        else:
            room = self._room
            if room is None:
                held = self._peer.reservation()
                held.try_grow(held.step(0, self._length))
                room = self._room = ReservedBuffer(self._length, held, lasts=True)
                self.lands = True
            at = room.put(data, at)
            self.done = room.is_whole
            self.is_behind = room.is_short
            return at
        return at + size

    def _feed_chunks(self, reader: ChunkReader, data: bytes, at: int) -> int:
        try:
            pieces, stop = reader.feed(data, at)
        except MalformedMessage as error:
            raise self._peer.broken(f"a malformed body: {error.message}") from error
        for piece in pieces:
            self._take(piece)
        self.done = reader.done
        if reader.chunks > CHUNKS + self._received // CHUNK_BYTES:
            raise self._peer.broken(f"a body of {self._received} bytes in {reader.chunks} chunks")
        self.is_behind = stop < len(data) and not self.done
        self._hold()
        return stop

    def _take(self, piece: memoryview) -> None:
        self._received += piece.nbytes
        self._peer.check_size(self._received)
        if piece.nbytes >= _SMALL_BYTES:
            self._small = None
            self.pieces.append(piece)
        elif self._small is None or not self.pieces or self.pieces[-1] is not self._small:
            # A view of a small piece would hold all that was received with it.
            self._small = bytearray(piece)
            self.pieces.append(self._small)
        else:
            self._small += piece

    def _hold(self) -> None:
        """Reserve what has come of a body whose length is not known; see `is_short`."""
        if self.streamed or self._received < _SMALL_BYTES:
            return
        held = self._held
        if held is None:
            held = self._held = self._peer.reservation()
        more = held.step(self._received, None)
        if more:
            held.try_grow(more)

    # -- httptools' callbacks

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a field; the blanks behind its value, which llhttp leaves, are not part of it."""
        value = value.rstrip(_BLANKS)
        self._fields.append((name, value))
        lower = name.lower()
        if lower == b"content-length":
            self._length = int(value)  # digits: llhttp takes nothing else
        elif lower == b"transfer-encoding":
            # None was asked for; chunks are every server's right.
            self._odd_coding = value.lower() != b"chunked" or self._chunks is not None
            self._chunks = ChunkReader()

    def on_headers_complete(self) -> None:
        """Note the end of the head."""
        self._complete = True
        if self._parser is not None:
            self.keeps = self._parser.should_keep_alive()
