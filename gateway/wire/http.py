"""HTTP messages as values, which HTTP transports and codecs exchange.

The reference and the native transport use the same types; none of them belongs to a library.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, TypeVar

from msgspec import Struct

from gateway.accelerator import accelerated
from gateway.ir.bodies.streaming_body import StreamingBody
from gateway.ir.context import NO_CLIENT, Client
from gateway.wire.heads.fields import pairs_without

Buffer = bytes | bytearray | memoryview

T = TypeVar("T")

_PART_BYTES = 1 << 18
_UNREAD: Any = (None, None)


@accelerated
def is_printable_ascii(text: str) -> bool:
    """Return whether *text* has printable ASCII characters only, as values of headers may."""
    return text.isascii() and text.isprintable()


class Headers:
    """Header fields in order, names as on the wire; looked up without regard to case.

    Frozen.  Of a repeated field `get` returns the first value.

    Args:
        pairs: The fields.
        lowered: The same with names in lower case, if they are at hand.
        positions: The place of the first field of each name in lower case, if they are at hand.

    Attributes:
        positions: Where the first value of each name stands.
    """

    __slots__ = ("_lowered", "_read", "pairs", "positions")

    def __init__(
        self,
        pairs: Sequence[tuple[str, str]] = (),
        lowered: tuple[tuple[str, str], ...] | None = None,
        positions: Mapping[str, int] | None = None,
    ) -> None:
        self.pairs = tuple(pairs)
        self._lowered = lowered
        # In one piece, for headers that are remembered are read on two threads.
        self._read: tuple[Callable[[Headers], object] | None, Any] = _UNREAD
        self.positions = positions

    def parsed_with(self, reader: Callable[[Headers], T], /) -> T:
        """Return the result of *reader* for these fields, which is cached for the last reader.

        Transports cache the heads of repeated messages, and with them this result.  *reader* must
        depend on these fields alone.  An exception is not cached.
        """
        last, found = self._read
        if last is not reader:
            found = reader(self)
            self._read = reader, found
        read: T = found
        return read

    def get(self, name: str) -> str | None:
        """Return the first value of the field *name*, in lower case; None if absent."""
        if self.positions is not None:
            place = self.positions.get(name)
            return None if place is None else self.pairs[place][1]
        # A message has a dozen fields, of which two or three are read: an index would cost more.
        size = len(name)
        for key, value in self.pairs:
            if len(key) == size and key.lower() == name:
                return value
        return None

    def repeats(self, name: str) -> bool:
        """Return whether the field *name*, in lower case, occurs more than once."""
        if self.positions is not None and len(self.positions) == len(self.pairs):
            return False
        size = len(name)
        return len([0 for key, _ in self.pairs if len(key) == size and key.lower() == name]) > 1

    def without(
        self, names: AbstractSet[str], positions: Mapping[str, int] | None = None
    ) -> Headers:
        """Return the fields whose names, in lower case, are not in *names*; itself for all.

        Args:
            names: The names that are left out.
            positions: Those of the result, if they are at hand.
        """
        pairs, lowered = self.pairs, self._lowered
        kept = pairs_without(pairs, names)
        if kept is pairs:
            return self
        if lowered is not None:
            lowered = kept if lowered is pairs else pairs_without(lowered, names)
        found = Headers(kept, lowered, positions)
        if positions is None and self.positions is not None:
            places: dict[str, int] = {}
            for place, (name, _) in enumerate(found.lowered):
                places.setdefault(name, place)
            found.positions = places
        return found

    @property
    def lowered(self) -> tuple[tuple[str, str], ...]:
        """The fields in order, names in lower case; computed once."""
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


class ExtendedHeaders(Headers):
    """Fields that many messages have, and after them those of one message.

    A writer caches its result for the former with them, and makes only the latter anew.

    Attributes:
        base: The fields that many messages have.
        more: Fields of one message alone.
    """

    __slots__ = ("base", "more")

    def __init__(self, base: Headers, more: tuple[tuple[str, str], ...]) -> None:
        # As in the base class, without a second call.
        self.pairs = base.pairs + more
        self._lowered = self.positions = None
        self._read = _UNREAD
        self.base = base
        self.more = more


def write_fields(
    headers: Headers,
    write_all: Callable[[Headers], tuple[bytes, bool]],
    write: Callable[[tuple[tuple[str, str], ...]], tuple[bytes, bool]],
) -> tuple[bytes, bool]:
    """Return the bytes of fields, and whether a date is among them; those of a base are cached.

    Args:
        headers: The fields.
        write_all: The function that calls this one, whose results headers cache.
        write: Writes names and values.
    """
    if not isinstance(headers, ExtendedHeaders):
        return write(headers.pairs)
    base, is_dated = headers.base.parsed_with(write_all)
    more, dates = write(headers.more)
    return base + more, is_dated or dates


class HttpRequest(Struct, frozen=True):
    """One HTTP request, its content already decoded.

    Attributes:
        method: In capitals.
        path: As on the wire, percent-encoded, without the query.
        query: Without the question mark; "" for none.
        headers: All of them, framing fields included.
        body: One read-only view on a server, any number of buffers from a codec.
        deadline: On the clock of `time.monotonic`; None for none.
        body_stream: The part of the body that has not arrived; None where the body is complete.
        request_id: Of the call, for an upstream; the transport writes it as the field
            `x-request-id`. "" for none, or where *headers* contain it.
        elements: Maximum number of elements, because the message was compressed; None for no limit
            beyond the usual ones. See `gateway.ir.work.inflated`.
        client: The sender, on a server.
    """

    method: str
    path: str
    query: str = ""
    headers: Headers = NO_HEADERS
    body: Sequence[Buffer] = ()
    deadline: float | None = None
    body_stream: StreamingBody | None = None
    request_id: str = ""
    elements: int | None = None
    client: Client = NO_CLIENT

    @property
    def size_bytes(self) -> int:
        """Bytes of the body, the part that has not arrived included."""
        parts = self.body
        if self.body_stream is not None:
            return self.body_stream.end
        return len(parts[0]) if len(parts) == 1 else size_of(parts)

    @property
    def view(self) -> memoryview:
        """The body as one view; copies only when it has several buffers."""
        return view_of(self.body)

    def with_body_stream(self, rest: StreamingBody | None) -> HttpRequest:
        """Return the same request with *rest* after its body."""
        parts = (self.method, self.path, self.query, self.headers, self.body, self.deadline)
        return HttpRequest(*parts, rest, self.request_id, client=self.client)


class HttpResponse(Struct, frozen=True):
    """One HTTP response, its content already decoded, or one part of a streamed one.

    Attributes:
        status: Status code.
        headers: Without framing fields; the transport writes those.
        body: Codecs do not join its buffers.
        is_compressible: The transport may apply a content coding that the client accepts.
        request_id: Of the call, for the client; the transport writes it as the field
            `x-request-id`. "" for none.
    """

    status: int
    headers: Headers = NO_HEADERS
    body: Sequence[Buffer] = ()
    is_compressible: bool = False
    request_id: str = ""

    @property
    def size_bytes(self) -> int:
        """Bytes of the body."""
        parts = self.body
        return len(parts[0]) if len(parts) == 1 else size_of(parts)

    @property
    def view(self) -> memoryview:
        """The body as one view; copies only when it has several buffers."""
        return view_of(self.body)


def with_headers(response: HttpResponse, pairs: Sequence[tuple[str, str]]) -> HttpResponse:
    """Return a response with more headers."""
    if not pairs:
        return response
    headers = Headers((*response.headers.pairs, *pairs))
    return HttpResponse(
        response.status, headers, response.body, response.is_compressible, response.request_id
    )


def response_parts(response: HttpResponse) -> Iterator[HttpResponse]:
    """Yield a response in parts: a large one is sent with little memory at a time."""
    view = response.view
    if len(view) <= _PART_BYTES:
        yield response
        return
    for first in range(0, len(view), _PART_BYTES):
        yield HttpResponse(response.status, response.headers, (view[first : first + _PART_BYTES],))


def media_type(value: str | None) -> str:
    """Return the type in a header Content-Type, in lower case; "" for none."""
    return "" if value is None else value.partition(";")[0].strip().lower()


def view_of(buffers: Sequence[Buffer]) -> memoryview:
    """Return buffers as one view of bytes; copies only when there are several."""
    if len(buffers) == 1:
        only = buffers[0]
        return only if type(only) is memoryview else memoryview(only)
    return memoryview(b"".join(buffers))


def size_of(buffers: Sequence[Buffer]) -> int:
    """Return the number of bytes in *buffers*, whose items must be of bytes format."""
    return len(buffers[0]) if len(buffers) == 1 else sum(map(len, buffers))


@accelerated
def wire_bytes(wire: Any) -> int:
    """Return the bytes of a request or a response on the wire."""
    size: int = wire.size_bytes
    return size
