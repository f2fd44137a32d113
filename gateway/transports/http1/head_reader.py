"""HeadReader: parses the heads of HTTP/1 requests incrementally, without I/O.

httptools (llhttp) parses the grammar.  This file limits the size of a head and finds its end.
`http.request_head` rejects a head that two parsers might read differently; `chunked` reads chunked
bodies.
"""

from collections.abc import Callable, Sequence
from typing import Final

import httptools
from msgspec import Struct

from gateway.accelerator import accelerated
from gateway.transports.contract import ServerLimits
from gateway.transports.http.faults import HttpError
from gateway.transports.http.headers import FRAMING
from gateway.transports.http.request_head import (
    Head,
    Version,
    head_too_large,
    malformed,
    too_many_fields,
)
from gateway.transports.http1.head_template import (
    END,
    HeadTemplate,
    Recognise,
    SplitHead,
    head_recogniser,
    header_template,
)
from gateway.wire.http import Headers
from gateway.wire.message_cache import ParseCache

READ_BYTES: Final = 64 * 1024
"""The size of the read buffer for heads; only this part of a large body is copied."""

_CRLF: Final = b"\r\n"
_CR: Final = b"\r"
_LINEENDS: Final = (b"\r", b"\n")
_MAX_EMPTY_BYTES: Final = 32
_BLANKS: Final = b" \t"
# The bytes of a head without its target and fields: method, version, line ends.
_REST_BYTES: Final = 64
_MAX_CACHED: Final = 512
MAX_CACHED_BYTES: Final = 1024
"""The size of the longest head in the cache, without the empty line after it."""

_MAX_TEXT_BYTES: Final = 2048
# So many heads after one that a template fills are not looked up: to look at all costs 3 %.
_SAMPLED: Final = 15
_MAX_SPLIT_BYTES: Final = 16 * 1024
# The fields whose values decide how a request is read. Any other value may differ in one template.
_FIXED: Final = frozenset(name.encode() for name in FRAMING - {"content-length"}) | {
    b"accept-encoding",
    b"content-encoding",
    b"content-type",
    b"grpc-timeout",
    b"host",
    b"http2-settings",
    b"x-request-timeout",
}
_VERSIONS: Final = {"1.1": (1, 1), "1.0": (1, 0)}


def end_of_head(tail: bytes, data: bytes, at: int) -> int:
    """Return the position after the next empty line from *at*, or the end of *data*.

    Args:
        tail: `tail_of` the data before.
        data: The new data.
        at: The start position.
    """
    if tail:
        found = (tail + data[at : at + len(END) - 1]).find(END)
        if found >= 0:
            return at + found + len(END) - len(tail)
    found = data.find(END, at)
    return len(data) if found < 0 else found + len(END)


def tail_of(tail: bytes, piece: bytes) -> bytes:
    """Return the last bytes of a head so far, with which an empty line may begin."""
    return (tail + piece[1 - len(END) :])[1 - len(END) :]


class RequestHead(Struct):
    """A head as the client sent it.

    Attributes:
        method: In capitals.
        version: The HTTP version.
        should_close: The connection ends after the response: the client requests that, or an
            upgrade, after which HTTP/1 may not continue.
        length: Content-Length; None without one, or if it is not a number.
        is_chunked: It has a Transfer-Encoding.
        checked: The result of `http.request_head.read_head`; None before that call.
        target: As sent; "" for a head that a template has recognised.
        fields: Names and values; none for such a head.
        raw: Its bytes, if they arrived in one piece and are few; else empty.
        cut: Its text and its slots; None where no template is possible.
    """

    method: str
    version: Version
    should_close: bool
    length: int | None
    is_chunked: bool
    checked: Head | None = None
    target: str = ""
    fields: Sequence[tuple[bytes, bytes]] = ()
    raw: bytes = b""
    cut: SplitHead | None = None


@accelerated
def request_filler(head: RequestHead, checked: Head) -> Callable[[str, int, Headers], RequestHead]:
    """Return a function that returns a head of the same text; see `HeadTemplate`.

    Args:
        head: The one that was parsed.
        checked: The head after all checks.
    """

    def fill(target: str, length: int, headers: Headers, /) -> RequestHead:
        size = head.length if length < 0 else length
        path, _, query = target.partition("?")
        filled = Head(
            checked.method,
            path,
            query,
            headers,
            size,
            checked.is_chunked,
            checked.has_expectation,
            checked.has_content_coding,
            checked.wants,
            checked.timeout_s,
        )
        return RequestHead(
            head.method, head.version, head.should_close, size, head.is_chunked, filled
        )

    return fill


class RequestHeadCache(ParseCache[RequestHead]):
    """A cache of valid heads by their bytes, and of templates: clients repeat the same heads.

    Args:
        limits: The limits of the listener.

    Attributes:
        recognise: Reads a head by its template; see `head_recogniser`.
    """

    def __init__(self, limits: ServerLimits) -> None:
        super().__init__(_MAX_CACHED, MAX_CACHED_BYTES)
        self._templates: ParseCache[HeadTemplate[RequestHead] | None] = ParseCache(
            _MAX_CACHED, _MAX_TEXT_BYTES
        )
        most = min(_MAX_SPLIT_BYTES, limits.header_field_bytes, limits.header_total_bytes)
        self.recognise: Recognise[RequestHead] = head_recogniser(
            self._templates.get, _FIXED, most - limits.header_count, limits.header_line_bytes
        )

    def note(self, head: RequestHead) -> None:
        """Add *head*, which is valid, if it was seen before."""
        if head.raw and self.should_admit(head.raw):
            self.put(head.raw, head)
        cut, checked = head.cut, head.checked
        head.cut = None
        if cut is None or checked is None or not self._templates.should_admit(cut[0]):
            return
        headers = header_template(checked.headers, head.fields, cut, _FIXED)
        is_same = headers is not None and head.target == cut[1]
        template = None
        if is_same and headers is not None:
            template = HeadTemplate(headers, request_filler(head, checked))
        self._templates.put(cut[0], template)


class HeadReader:
    """Parses the heads of one connection, one after the other.

    Args:
        limits: The limits of the listener.
        head_cache: The cache of the listener.

    Attributes:
        head_cache: The cache of the listener.
        size: How many bytes of an incomplete head have arrived.
        unsampled: How many of the next heads are not looked up in the cache.
    """

    __slots__ = (
        "_cut",
        "_fields",
        "_is_chunked",
        "_is_complete",
        "_length",
        "_limits",
        "_parser",
        "_raw",
        "_should_close",
        "_tail",
        "_target",
        "head_cache",
        "size",
        "unsampled",
    )

    def __init__(self, limits: ServerLimits, head_cache: RequestHeadCache) -> None:
        self._limits = limits
        self.head_cache = head_cache
        self.unsampled = 0
        self.forget()

    def forget(self) -> None:
        """Start with a new head."""
        self._parser: httptools.HttpRequestParser | None = None
        self._raw = b""
        self._cut: SplitHead | None = None
        self._target = b""
        self._fields: list[tuple[bytes, bytes]] = []
        self.size = 0
        self._tail = b""
        self._is_complete = False
        self._length: int | None = None
        self._is_chunked = False
        self._should_close = False

    @property
    def is_started(self) -> bool:
        """Whether a part of a head has arrived."""
        return self.size > 0

    def known(self, data: bytes, at: int, end: int) -> RequestHead | None:
        """Return a head that needs no parser: it is in the cache, or has a template.

        Args:
            data: Has the head.
            at: Where it begins.
            end: Where it ends, after the empty line.
        """
        cache, raw = self.head_cache, b""
        if self.unsampled:  # heads of this client differ
            self.unsampled -= 1
        elif end - at <= MAX_CACHED_BYTES + len(END):
            raw = data[at:end]
            cached = cache.get(raw)
            if cached is not None:
                return cached
        head, self._cut = cache.recognise(data, at, end)
        if head is None:
            self.unsampled = 0
        elif raw:
            self.sample(raw, head)
        return head

    def sample(self, raw: bytes, head: RequestHead) -> None:
        """Cache a head that a template has recognised if it repeats; look up few of the next."""
        self.unsampled = _SAMPLED
        if self.head_cache.should_admit(raw):
            self.head_cache.put(raw, head)

    def feed(self, data: bytes, at: int) -> tuple[RequestHead | None, int]:
        """Parse *data* from *at* up to the end of a head.

        Returns:
            The head, or None if it is incomplete; and the position after the parsed data.

        Raises:
            HttpError: The data is not a head, or the head is too large.
        """
        if self._parser is None:
            if data.startswith(_LINEENDS, at):
                return self._skip_empty_lines(data, at)
            end = data.find(END, at) + len(END)
            if end >= len(END):
                head = self.known(data, at, end)
                if head is not None:
                    return head, end
                if end - at <= MAX_CACHED_BYTES + len(END):
                    self._raw = data[at:end]
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
        self._tail, self.size = (_CR, 1) if is_cut else (b"", 0)
        return self.feed(data, at) if at < len(data) else (None, at)

    def _read(self, parser: httptools.HttpRequestParser, piece: bytes) -> None:
        self.size += len(piece)
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
            not self._is_complete and self.size - target > limits.header_total_bytes + _REST_BYTES
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
        is_whole = self.size == len(self._raw)
        head = RequestHead(
            parser.get_method().decode("ascii"),
            _VERSIONS.get(version) or _version(version),
            self._should_close,
            self._length,
            self._is_chunked,
            None,
            target,
            self._fields,
            self._raw if is_whole else b"",
            self._cut,
        )
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
