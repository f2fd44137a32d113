"""HTTP messages as values: what HTTP transports and HTTP codecs exchange.

Nothing here belongs to a library: the reference and the native transport both fill these in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from msgspec import Struct

from gateway.ir.streaming_body import StreamingBody

Buffer = bytes | bytearray | memoryview

T = TypeVar("T")


class Headers:
    """Header fields in order, names in the spelling they came in; looked up without case.

    Frozen. Of a repeated field `get` gives the first.
    """

    __slots__ = ("_lowered", "_read", "_reader", "pairs")

    def __init__(self, pairs: Sequence[tuple[str, str]] = ()) -> None:
        self.pairs = tuple(pairs)
        self._lowered: tuple[tuple[str, str], ...] | None = None
        self._reader: Callable[[Headers], object] | None = None
        self._read: Any = None

    def parsed_with(self, reader: Callable[[Headers], T], /) -> T:
        """Return what *reader* makes of these fields alone; that of the last reader is kept.

        Transports remember heads that come again, and so with them what they were read as.
        Whatever *reader* raises is not kept.
        """
        if self._reader is not reader:
            self._read = reader(self)
            self._reader = reader
        found: T = self._read
        return found

    def get(self, name: str) -> str | None:
        """Return the first value of the field *name*, given in lower case; None if absent."""
        # A message has a dozen fields and is asked for two or three: an index would cost more.
        size = len(name)
        for key, value in self.pairs:
            if len(key) == size and key.lower() == name:
                return value
        return None

    def repeats(self, name: str) -> bool:
        """Tell whether the field *name*, given in lower case, is there more than once."""
        size = len(name)
        return len([0 for key, _ in self.pairs if len(key) == size and key.lower() == name]) > 1

    @property
    def lowered(self) -> tuple[tuple[str, str], ...]:
        """The fields in order, names in lower case; made once."""
        if self._lowered is None:
            self._lowered = tuple([(name.lower(), value) for name, value in self.pairs])
        return self._lowered

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return iter(self.pairs)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Headers) and self.pairs == other.pairs

    def __hash__(self) -> int:
        return hash(self.pairs)

    def __repr__(self) -> str:
        # Names only: values may be secrets.
        return f"Headers({[name for name, _ in self.pairs]})"


NO_HEADERS = Headers()


class HttpRequest(Struct, frozen=True):
    """One HTTP request, its content coding already undone.

    Attributes:
        method: In capitals.
        path: As on the wire, percent-encoded, without the query.
        query: Without the question mark; "" for none.
        headers: All of them, framing fields included.
        body: One read-only view on a server, any number of buffers from a codec.
        rest: What follows it and is still to come; None where all is here.
        deadline: On the clock of `time.monotonic`; None for none.
        request_id: Of the call, for an upstream; the transport writes it as the field
            `x-request-id`. "" for none, or where that is among *headers*.
    """

    method: str
    path: str
    query: str = ""
    headers: Headers = NO_HEADERS
    body: Sequence[Buffer] = ()
    deadline: float | None = None
    body_stream: StreamingBody | None = None
    request_id: str = ""

    @property
    def view(self) -> memoryview:
        """The body as one view; copies only when it has several buffers."""
        return view_of(self.body)

    def with_body_stream(self, rest: StreamingBody | None) -> HttpRequest:
        """Return the same request with *rest* to come."""
        parts = (self.method, self.path, self.query, self.headers, self.body, self.deadline)
        return HttpRequest(*parts, rest, self.request_id)


class HttpResponse(Struct, frozen=True):
    """One HTTP response, its content coding already undone, or one part of a streamed one.

    Attributes:
        status: Status code.
        headers: Without framing fields; the transport writes those.
        body: Never joined by a codec.
        compressible: The transport may apply a content coding the client accepts.
        request_id: Of the call, for the client; the transport writes it as the field
            `x-request-id`. "" for none.
    """

    status: int
    headers: Headers = NO_HEADERS
    body: Sequence[Buffer] = ()
    compressible: bool = False
    request_id: str = ""

    @property
    def view(self) -> memoryview:
        """The body as one view; copies only when it has several buffers."""
        return view_of(self.body)


def view_of(buffers: Sequence[Buffer]) -> memoryview:
    """Return buffers as one view of bytes; copies only when there are several."""
    if len(buffers) == 1:
        whole = buffers[0]
        return whole if type(whole) is memoryview else memoryview(whole)
    return memoryview(b"".join(buffers))


def size_of(buffers: Sequence[Buffer]) -> int:
    """Return the number of bytes in *buffers*, whose items must be of bytes format."""
    return len(buffers[0]) if len(buffers) == 1 else sum(map(len, buffers))
