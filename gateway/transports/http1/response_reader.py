"""ResponseReader: parses one HTTP/1 response incrementally, without I/O.

httptools (llhttp) parses the head.  The result is cached by the bytes of the head.  A body of known
length is received into one buffer; a streamed body is returned in pieces.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

import httptools
from msgspec import Struct
from msgspec.structs import replace  # noqa: TID251  # a head is no call

from gateway.accelerator import accelerated
from gateway.ir.errors import MalformedMessage
from gateway.transports.http.client_rules import (
    HEADER_COUNT,
    HEADER_FIELD_BYTES,
    HEADER_LINE_BYTES,
    SERVER_FAILED,
    UpstreamErrors,
    response_fields,
)
from gateway.transports.http.headers import FRAMING
from gateway.transports.http.request_body import EMPTY
from gateway.transports.http1.chunked import ChunkReader
from gateway.transports.http1.head_reader import end_of_head, tail_of
from gateway.transports.http1.head_template import (
    END,
    HeadTemplate,
    Recognise,
    SplitHead,
    head_recogniser,
    header_template,
)
from gateway.transports.net.wrong_port import foreign_protocol
from gateway.transports.reservation import Reservation
from gateway.transports.reserved_buffer import ReservedBuffer
from gateway.wire.http import Headers, HttpResponse
from gateway.wire.message_cache import ParseCache

_BLANKS: Final = b" \t"
_HEAD_BYTES: Final = HEADER_LINE_BYTES + HEADER_COUNT * 1024
_INTERIM: Final = range(100, 200)
_SWITCHING: Final = 101
_BODILESS: Final = frozenset({204, 304})
_MAX_CACHED: Final = 512
_MAX_CACHED_BYTES: Final = 1024
_MAX_TEXT_BYTES: Final = 2048
_MAX_SPLIT_BYTES: Final = 16 * 1024
# So many heads after one that a template fills are not looked up in the cache.
_SAMPLED: Final = 7
# The fields whose values decide how a response is read. Any other value may differ in one template.
_FIXED: Final = frozenset(name.encode() for name in FRAMING - {"content-length"}) | {
    b"content-encoding"
}
_SMALL_BYTES: Final = 16 * 1024
_MAX_INTERIM: Final = 32


class ResponseHead(Struct, frozen=True):
    """The parsed head of a response.

    Attributes:
        headers: The fields that are not hop-by-hop.
        codings: The content codings.
        length: Content-Length; None if absent.
        is_chunked: Whether the body is chunked.
        is_persistent: Whether the connection may be used again.
        plain: The length of a body without any coding, on a connection that stays open; -1 for any
            other body.
    """

    status: int
    headers: Headers
    codings: list[str]
    length: int | None
    is_chunked: bool
    is_persistent: bool
    plain: int


@accelerated
def response_filler(
    head: ResponseHead, most_bytes: int
) -> Callable[[str, int, Headers], ResponseHead]:
    """Return a function that returns a head of the same text; see `HeadTemplate`.

    Args:
        head: The one that was parsed.
        most_bytes: The largest plain body; -1 where no body is plain.
    """

    def fill(_target: str, length: int, headers: Headers, /) -> ResponseHead:
        size = head.length if length < 0 else length
        plain = size if size is not None and size <= most_bytes else -1
        return ResponseHead(
            head.status, headers, head.codings, size, head.is_chunked, head.is_persistent, plain
        )

    return fill


class ResponseHeadCache(ParseCache[ResponseHead]):
    """A cache of valid heads by their bytes, and of templates: servers repeat the same few heads.

    Attributes:
        recognise: Reads a head by its template; see `head_recogniser`.
    """

    __slots__ = ("_templates", "_unsampled", "recognise")

    def __init__(self) -> None:
        super().__init__(_MAX_CACHED, _MAX_CACHED_BYTES)
        self._unsampled = 0
        self._templates: ParseCache[HeadTemplate[ResponseHead] | None] = ParseCache(
            _MAX_CACHED, _MAX_TEXT_BYTES
        )
        self.recognise: Recognise[ResponseHead] = head_recogniser(
            self._templates.get, _FIXED, _MAX_SPLIT_BYTES, 0
        )

    def complete_response(self, data: bytes) -> HttpResponse | None:
        """Return *data* as a complete response; None if its head is new or its body not plain.

        Most responses arrive like this.  Not for responses to HEAD.
        """
        at = data.find(END) + len(END)
        if at < len(END):
            return None
        if self._unsampled:  # heads of this server differ
            self._unsampled -= 1
            head, _ = self.recognise(data, 0, at)
        else:
            head = self.get(data[:at])
            if head is None:
                head, _ = self.recognise(data, 0, at)
                if head is not None:
                    self._unsampled = _SAMPLED
        if head is None or head.plain != len(data) - at:
            return None
        return HttpResponse(head.status, head.headers, (memoryview(data)[at:],))

    def note(
        self,
        raw: bytes,
        cut: SplitHead | None,
        head: ResponseHead,
        fields: Sequence[tuple[bytes, bytes]],
        peer: UpstreamErrors,
    ) -> None:
        """Add a valid head, if it was seen before.

        Args:
            raw: Its bytes.
            cut: Its text and its slots; None where no template is possible.
            head: The head that was parsed.
            fields: All of them.
            peer: Knows the size limit.
        """
        if self.should_admit(raw):
            self.put(raw, head)
        if cut is None or not self._templates.should_admit(cut[0]):
            return
        headers = header_template(head.headers, fields, cut, _FIXED)
        template = None
        if headers is not None:
            is_plain = is_plain_kind(head) and head.length is not None
            most_bytes = peer.most_bytes if is_plain else -1
            template = HeadTemplate(headers, response_filler(head, most_bytes))
        self._templates.put(cut[0], template)


def is_plain_kind(head: ResponseHead) -> bool:
    """Return whether a body of this head has no coding, and its connection stays open."""
    has_coding = head.is_chunked or head.codings or head.status in _BODILESS
    return head.is_persistent and not has_coding


class ResponseReader:
    """The response to one request.

    Args:
        peer: Creates the errors of this upstream, and holds its limits.
        method: The method of the request.
        heads: The cache of response heads of this upstream.
        streamed: Whether the caller wants the body in pieces.

    Attributes:
        is_started: A byte of the response has arrived.
        head: The parsed head; set once `has_head` is true.
        has_head: The head is complete.
        is_done: The response is complete.
        is_persistent: Whether the connection may be used again.
        reads_into_body: The body is received directly into `room`.
        is_behind: `feed` has used up its turn: feed the rest in the next turn of the loop.
        needs_memory: No more data may be fed before `grow` has returned.
        pieces: The parts of the body that have arrived.
    """

    head: ResponseHead

    __slots__ = (
        "_chunks",
        "_fields",
        "_has_odd_coding",
        "_heads",
        "_interim",
        "_is_complete",
        "_length",
        "_method",
        "_parser",
        "_peer",
        "_received",
        "_remaining",
        "_reservation",
        "_room",
        "_size",
        "_small",
        "_tail",
        "_whole",
        "has_head",
        "head",
        "is_behind",
        "is_done",
        "is_persistent",
        "is_started",
        "is_streamed",
        "pieces",
        "reads_into_body",
    )

    def __init__(
        self,
        peer: UpstreamErrors,
        method: str,
        heads: ResponseHeadCache | None = None,
        *,
        streamed: bool = False,
    ) -> None:
        self._peer = peer
        self._method = method
        self._heads = heads
        self._parser: httptools.HttpResponseParser | None = None
        self._fields: list[tuple[bytes, bytes]] = []
        self._size = 0
        self._tail = b""
        self._is_complete = False
        self._length: int | None = None
        self._chunks: ChunkReader | None = None
        self._has_odd_coding = False
        self._remaining = 0
        self._received = 0
        self._room: ReservedBuffer | None = None
        self._reservation: Reservation | None = None
        self._interim = 0
        self._whole: memoryview | None = None
        self._small: bytearray | None = None
        self.pieces: deque[memoryview | bytearray] = deque()
        self.is_behind = False
        self.is_streamed = streamed
        self.is_started = False
        self.has_head = False
        self.is_done = False
        self.is_persistent = False
        self.reads_into_body = False

    def feed(self, data: bytes) -> int:
        """Parse *data*; return how many of its bytes were used.

        Raises:
            UpstreamProtocolError: The response is malformed.
            TooLarge: The body exceeds `message_bytes`.
        """
        at, end = 0, len(data)
        self.is_behind = False
        if not self.is_started:
            self.is_started = True
            at = self._feed_cached(data)
        while at < end and not (self.is_done or self.is_behind):
            at = self._feed_body(data, at) if self.has_head else self._feed_head(data, at)
        return at

    def feed_eof(self) -> bool:
        """Handle the end of the connection; return whether the response is complete."""
        if self.has_head and self._length is None and self._chunks is None and not self.is_done:
            self.is_done = True
        return self.is_done

    def body(self) -> memoryview:
        """Return the body of a complete response that is not streamed."""
        if self._whole is not None:
            return self._whole
        if self._room is not None:
            return self._room.view
        if len(self.pieces) == 1:
            return memoryview(self.pieces[0]).toreadonly()
        return memoryview(b"".join(self.pieces)) if self.pieces else EMPTY

    def room(self) -> memoryview | None:
        """Return the buffer for the next bytes of a large body; None if there is none."""
        return None if self._room is None else self._room.room()

    def received(self, size: int) -> None:
        """Note that *size* bytes were written into `room`."""
        assert self._room is not None  # noqa: S101  # `room` returned a buffer
        self._room.advance(size)
        self.is_done = self._room.is_whole

    @property
    def needs_memory(self) -> bool:
        """Whether no more data may be fed before `grow` has returned."""
        if self._room is not None:
            return self._room.needs_memory
        return self._reservation is not None and self._reservation.size_bytes < self._received

    async def grow(self) -> None:
        """Wait for memory for more of the body. Raises Overloaded."""
        if self._room is not None:
            await self._room.wait()
        elif self._reservation is not None:
            await self._reservation.grow(max(0, self._received - self._reservation.size_bytes))

    def close(self) -> None:
        """End reading, and release the memory reservation."""
        self._parser = None  # it holds this object
        if self._reservation is not None and self._room is None:
            self._reservation.close()

    # -- the head

    def _feed_cached(self, data: bytes) -> int:
        """Look up a head that arrived in one piece, or add it; return its end, or 0."""
        heads, size = self._heads, data.find(END) + len(END)
        if heads is None or not len(END) < size <= _MAX_SPLIT_BYTES:
            return 0
        raw = data[:size]
        head, cut = heads.get(raw), None
        if head is None:
            head, cut = heads.recognise(data, 0, size)
        if head is not None:
            self.is_persistent, self._length = head.is_persistent, head.length
            self._chunks = ChunkReader() if head.is_chunked else None
            self._begin_body(head)
            return size
        self._feed_head(raw, 0)
        if self.has_head:  # not for an interim response
            heads.note(raw, cut, self.head, self._fields, self._peer)
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
            self._is_complete = True
        except httptools.HttpParserError as error:
            what = foreign_protocol(data) or f"a malformed response: {error}"
            raise self._peer.broken(what) from error
        if len(self._fields) > HEADER_COUNT or self._size > _HEAD_BYTES:
            raise self._peer.broken("a malformed response: its head is too large")
        if any(len(name) + len(value) > HEADER_FIELD_BYTES for name, value in self._fields):
            raise self._peer.broken("a malformed response: a header field is too large")
        if self._is_complete:
            self._finish_head(self._parser.get_status_code())
        return stop

    def _finish_head(self, status: int) -> None:
        self._parser = None  # it holds this object, and so the body
        if status in _INTERIM and status != _SWITCHING:
            self._interim += 1
            if self._interim > _MAX_INTERIM:
                raise self._peer.broken(f"more than {_MAX_INTERIM} interim responses")
            self._fields, self._is_complete = [], False
            self._length, self._chunks, self._tail = None, None, b""
            return
        if status == _SWITCHING:
            raise self._peer.broken("a change of protocol that was not requested")
        if self._has_odd_coding:
            raise self._peer.broken("a transfer coding that was not requested")
        self._begin_body(self._parsed_head(status))

    def _parsed_head(self, status: int) -> ResponseHead:
        headers, codings = response_fields(self._fields)
        if status == SERVER_FAILED:
            self.is_persistent = False
        length, chunked = self._length, self._chunks is not None
        head = ResponseHead(status, headers, codings, length, chunked, self.is_persistent, -1)
        if is_plain_kind(head) and length is not None and self._peer.accepts_size(length):
            return replace(head, plain=length)
        return head

    def _begin_body(self, head: ResponseHead) -> None:
        self.head = head
        self.has_head = True
        if self._method == "HEAD" or head.status in _BODILESS:
            self.is_done = True
        elif self._chunks is None and self._length is not None:
            if not self.is_streamed:
                self._peer.check_size(self._length)
            self._remaining = self._length
            self.is_done = not self._remaining
        elif self._chunks is None:
            self.is_persistent = False  # the body ends with the connection

    # -- the body

    def _feed_body(self, data: bytes, at: int) -> int:
        if self._chunks is not None:
            return self._feed_chunks(self._chunks, data, at)
        view = memoryview(data)
        if self._length is None:
            self._append(view[at:])
            self._reserve()
            return len(data)
        size = min(self._remaining, len(data) - at)
        if self.is_streamed:
            self._append(view[at : at + size])
            self._remaining -= size
            self.is_done = not self._remaining
        elif self._room is None and size == self._length:
            self._whole = view[at : at + size]  # small bodies arrive in one piece: no copy
            self.is_done = True
        else:
            room = self._room
            if room is None:
                held = self._peer.reservation()
                held.try_grow(held.step(0, self._length))
                room = self._room = ReservedBuffer(self._length, held, lasts=True)
                self.reads_into_body = True
            at = room.put(data, at)
            self.is_done = room.is_whole
            self.is_behind = room.needs_memory
            return at
        return at + size

    def _feed_chunks(self, reader: ChunkReader, data: bytes, at: int) -> int:
        try:
            pieces, stop = reader.feed(data, at)
        except MalformedMessage as error:
            raise self._peer.broken(f"a malformed body: {error.message}") from error
        for piece in pieces:
            self._append(piece)
        self.is_done = reader.is_done
        self._peer.check_chunks(reader.chunks, self._received)
        self.is_behind = stop < len(data) and not self.is_done
        self._reserve()
        return stop

    def _append(self, piece: memoryview) -> None:
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

    def _reserve(self) -> None:
        """Reserve memory for a body of unknown length, as it arrives; see `needs_memory`."""
        if self.is_streamed or self._received < _SMALL_BYTES:
            return
        held = self._reservation
        if held is None:
            held = self._reservation = self._peer.reservation()
        more = held.step(self._received, None)
        if more:
            held.try_grow(more)

    # -- httptools' callbacks

    def on_header(self, name: bytes, value: bytes) -> None:
        """Add a field, without the blanks after its value, which llhttp leaves there."""
        value = value.rstrip(_BLANKS)
        self._fields.append((name, value))
        lower = name.lower()
        if lower == b"content-length":
            self._length = int(value)  # llhttp accepts digits only
        elif lower == b"transfer-encoding":
            # The request had no TE field, so only chunks are allowed (RFC 9112 7.4).
            self._has_odd_coding = value.lower() != b"chunked" or self._chunks is not None
            self._chunks = ChunkReader()
        elif lower == b"keep-alive":
            self._peer.note_keep_alive(value.decode("latin-1"))

    def on_headers_complete(self) -> None:
        """Note the end of the head."""
        self._is_complete = True
        if self._parser is not None:
            self.is_persistent = self._parser.should_keep_alive()
