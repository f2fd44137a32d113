"""HeadReader: parses the heads of HTTP/1 requests incrementally, without I/O.

httptools (llhttp) parses the grammar.  This file limits the size of a head and finds its end.
`http.request_head` rejects a head that two parsers might read differently; `chunked` reads chunked
bodies.
"""

from typing import Final

import httptools

from gateway.transports.contract import ServerLimits
from gateway.transports.http.faults import HttpError
from gateway.transports.http.request_head import (
    Head,
    Version,
    head_too_large,
    malformed,
    too_many_fields,
)
from gateway.wire.message_cache import ParseCache

READ_BYTES: Final = 64 * 1024
"""The size of the read buffer for heads; only this part of a large body is copied."""

_END: Final = b"\r\n\r\n"
_CRLF: Final = b"\r\n"
_CR: Final = b"\r"
_LINE_ENDS: Final = (b"\r", b"\n")
_MAX_EMPTY_BYTES: Final = 32
_BLANKS: Final = b" \t"
# The bytes of a head without its target and fields: method, version, line ends.
_REST_BYTES: Final = 64
_MAX_CACHED: Final = 512
_MAX_CACHED_BYTES: Final = 1024
_VERSIONS: Final = {"1.1": (1, 1), "1.0": (1, 0)}


def end_of_head(tail: bytes, data: bytes, at: int) -> int:
    """Return the position after the next empty line from *at*, or the end of *data*.

    Args:
        tail: `tail_of` the data before.
        data: The new data.
        at: The start position.
    """
    if tail:
        found = (tail + data[at : at + len(_END) - 1]).find(_END)
        if found >= 0:
            return at + found + len(_END) - len(tail)
    found = data.find(_END, at)
    return len(data) if found < 0 else found + len(_END)


def tail_of(tail: bytes, piece: bytes) -> bytes:
    """Return the last bytes of a head so far, with which an empty line may begin."""
    return (tail + piece[1 - len(_END) :])[1 - len(_END) :]


class RequestHead:
    """A head as the client sent it.

    Attributes:
        raw: Its bytes, if they arrived in one piece and are few; else empty.
        fields: Names and values.
        should_close: The connection ends after the response: the client requests that, or an
            upgrade, after which HTTP/1 may not continue.
        length: Content-Length; None without one, or if it is not a number.
        is_chunked: It has a Transfer-Encoding.
        checked: The result of `http.request_head.read_head`; None before that call.
    """

    __slots__ = (
        "checked",
        "fields",
        "is_chunked",
        "length",
        "method",
        "raw",
        "should_close",
        "target",
        "version",
    )

    def __init__(  # all there is to say
        self,
        method: str,
        target: str,
        version: Version,
        fields: list[tuple[bytes, bytes]],
        *,
        closes: bool,
        length: int | None,
        chunked: bool,
    ) -> None:
        self.method = method
        self.target = target
        self.version = version
        self.fields = fields
        self.should_close = closes
        self.length = length
        self.is_chunked = chunked
        self.raw = b""
        self.checked: Head | None = None


class RequestHeadCache(ParseCache[RequestHead]):
    """A cache of valid heads by their bytes: clients repeat the same heads."""

    def __init__(self) -> None:
        super().__init__(_MAX_CACHED, _MAX_CACHED_BYTES)

    def note(self, head: RequestHead) -> None:
        """Add *head*, which is valid, if it was seen before."""
        if head.raw and self.should_admit(head.raw):
            self.put(head.raw, head)


class HeadReader:
    """Parses the heads of one connection, one after the other.

    Args:
        limits: The limits of the listener.
        head_cache: The cache of the listener.
    """

    def __init__(self, limits: ServerLimits, head_cache: RequestHeadCache) -> None:
        self._limits = limits
        self._head_cache = head_cache
        self.forget()

    def forget(self) -> None:
        """Start with a new head."""
        self._parser: httptools.HttpRequestParser | None = None
        self._raw = b""
        self._target = b""
        self._fields: list[tuple[bytes, bytes]] = []
        self._size = 0
        self._tail = b""
        self._is_complete = False
        self._length: int | None = None
        self._is_chunked = False
        self._should_close = False

    @property
    def is_started(self) -> bool:
        """Whether a part of a head has arrived."""
        return self._size > 0

    def feed(self, data: bytes, at: int) -> tuple[RequestHead | None, int]:
        """Parse *data* from *at* up to the end of a head.

        Returns:
            The head, or None if it is incomplete; and the position after the parsed data.

        Raises:
            HttpError: The data is not a head, or the head is too large.
        """
        if self._parser is None:
            found = data.find(_END, at)
            end = found + len(_END)
            raw = data[at:end] if 0 <= found - at <= _MAX_CACHED_BYTES else b""
            cached = self._head_cache.get(raw)
            if cached is not None:
                return cached, end
            if data.startswith(_LINE_ENDS, at):
                return self._skip_empty_lines(data, at)
            self._raw = raw
            self._parser = httptools.HttpRequestParser(self)
        elif self._tail == _CR:
            return self._skip_empty_lines(data, at)
        end = len(data)
        while at < end and not self._is_complete:
            stop = end_of_head(self._tail, data, at)
            piece = data if not at and stop == end else data[at:stop]
            self._read(self._parser, piece)
            at = stop
            self._check_growth()
        return (self._finish(self._parser) if self._is_complete else None), at

    def _skip_empty_lines(self, data: bytes, at: int) -> tuple[RequestHead | None, int]:
        """Skip empty lines before a head, and go on as `feed` does.

        llhttp would also skip a CR or an LF alone, at which other parsers stop.

        Source: RFC 9112, section 2.2.
        """
        # The tail is a CR whose LF has not arrived before.
        begin = self._tail + data[at : at + _MAX_EMPTY_BYTES + 1]
        size = len(begin) - len(begin.lstrip(_CRLF))
        at += size - len(self._tail)
        is_cut = size % 2 == 1 and at == len(data)
        if size > _MAX_EMPTY_BYTES or begin[:size] != _CRLF * (size // 2) + _CR * is_cut:
            raise malformed("expected at most 16 empty lines of CR LF before the request line")
        self._parser = httptools.HttpRequestParser(self) if is_cut else None
        self._tail, self._size = (_CR, 1) if is_cut else (b"", 0)
        return self.feed(data, at) if at < len(data) else (None, at)

    def _read(self, parser: httptools.HttpRequestParser, piece: bytes) -> None:
        self._size += len(piece)
        self._tail = tail_of(self._tail, piece)
        try:
            parser.feed_data(piece)
        except httptools.HttpParserUpgrade:
            self._should_close = True
        except httptools.HttpParserError as error:
            raise malformed(str(error)) from error

    def _check_growth(self) -> None:
        limits = self._limits
        if len(self._fields) > limits.header_count:
            raise too_many_fields(limits)
        target = len(self._target)
        if target > limits.header_line_bytes or (
            not self._is_complete and self._size - target > limits.header_total_bytes + _REST_BYTES
        ):
            raise head_too_large(limits)

    def _finish(self, parser: httptools.HttpRequestParser) -> RequestHead:
        version = parser.get_http_version()
        try:
            target = self._target.decode("ascii")
        except UnicodeDecodeError as error:
            raise HttpError(
                400, "the request target has characters that are not ASCII", close=True
            ) from error
        head = RequestHead(
            parser.get_method().decode("ascii"),
            target,
            _VERSIONS.get(version) or _version(version),
            self._fields,
            closes=self._should_close,
            length=self._length,
            chunked=self._is_chunked,
        )
        head.raw = self._raw if self._size == len(self._raw) else b""
        self.forget()
        return head

    # -- httptools' callbacks

    def on_url(self, part: bytes) -> None:
        """Add a part of the target."""
        self._target += part

    def on_header(self, name: bytes, value: bytes) -> None:
        """Add a field, without the blanks after its value, which llhttp leaves there."""
        value = value.rstrip(_BLANKS)
        self._fields.append((name, value))
        size = len(name)
        if size == len(b"content-length") and name.lower() == b"content-length":
            self._length = int(value) if value.isdigit() else None
        elif size == len(b"transfer-encoding") and name.lower() == b"transfer-encoding":
            self._is_chunked = True
        elif size == len(b"upgrade") and name.lower() == b"upgrade":
            self._should_close = True

    def on_headers_complete(self) -> None:
        """Note the end of the head."""
        self._is_complete = True
        # The parser resets this state right after a request without a body.
        if self._parser is not None and not self._parser.should_keep_alive():
            self._should_close = True


def _version(text: str) -> Version:
    major, _, minor = text.partition(".")
    return int(major), int(minor)
