"""Writes HTTP/1 responses: status line, fields and body in one call, or in chunks.

Both server implementations write directly to the transport: aiohttp's response objects would join
the buffers, and add a field with their version.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus
from typing import Final

from gateway.accelerator import accelerated
from gateway.ir.context import REQUEST_ID
from gateway.transports.http.headers import is_writable, safe_value
from gateway.transports.http.request_head import Version
from gateway.wire.http import (
    Buffer,
    Headers,
    HttpResponse,
    is_printable_ascii,
    size_of,
    write_fields,
)

_REASONS = {status.value: status.phrase for status in HTTPStatus} | {499: "Client Closed Request"}
_BODILESS = frozenset({204, 304})
_VARIES = b"Vary: Accept-Encoding\r\n"
_REQUEST_ID = f"{REQUEST_ID}: "
_LAST = b"\r\n"
_LAST_KEPT = b"Connection: keep-alive\r\n\r\n"
_LAST_CLOSED = b"Connection: close\r\n\r\n"
# Up to this size, head and body are joined: one buffer costs less than two.
_JOINED_BYTES = 8192
_NO_LENGTH = -1

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


def write_response(
    transport: asyncio.Transport,
    response: HttpResponse,
    keep: bool,
    version: Version,
    varies: bool = False,
    head_only: bool = False,
) -> None:
    """Write a complete *response*, with its exact length.

    Args:
        transport: The transport of the connection.
        response: The response; its body may be in several buffers.
        keep: Whether the connection stays open.
        version: The HTTP version of the request.
        varies: Whether the client's Accept-Encoding decides on the content coding.
        head_only: Whether the request was HEAD.
    """
    body = response.body
    size = len(body[0]) if len(body) == 1 else size_of(body)
    if response.status in _BODILESS:
        transport.write(response_text(response, _NO_LENGTH, keep, version))
    elif head_only:  # the length of the response to GET may be unknown (RFC 9110, 8.6)
        transport.write(
            response_text(response, size if body else _NO_LENGTH, keep, version, varies)
        )
    elif size <= _JOINED_BYTES:
        transport.write(response_text(response, size, keep, version, varies, body))
    else:
        transport.writelines([response_text(response, size, keep, version, varies), *body])


def write_stream_head(
    transport: asyncio.Transport, response: HttpResponse, *, keep: bool, version: Version
) -> None:
    """Write the head of a streamed response; in HTTP/1.0 its end is that of the connection."""
    last = b"Transfer-Encoding: chunked\r\n" if version >= (1, 1) else b""
    transport.write(response_text(response, _NO_LENGTH, keep, version, framing=last))


def write_part(transport: asyncio.Transport, body: Iterable[Buffer], version: Version) -> None:
    """Write one part of a streamed response; nothing when it is empty."""
    buffers = list(body)
    size = size_of(buffers)
    if not size:
        return
    if version >= (1, 1):
        buffers = [b"%x\r\n" % size, *buffers, b"\r\n"]
    transport.writelines(buffers)


def write_end(transport: asyncio.Transport, version: Version) -> None:
    """Write the end of a streamed response."""
    if version >= (1, 1):
        transport.write(b"0\r\n\r\n")


def write_continue(transport: asyncio.Transport) -> None:
    """Send "100 Continue" to a client that waits for it."""
    transport.write(CONTINUE)


@dataclass(frozen=True, slots=True)
class ResponseWriter:
    """What writes responses in a version of HTTP, with the arguments of the functions here."""

    complete: Callable[..., None]
    head: Callable[..., None]
    part: Callable[..., None]
    end: Callable[..., None]
    proceed: Callable[..., None]


HTTP1: Final = ResponseWriter(
    write_response, write_stream_head, write_part, write_end, write_continue
)


@lru_cache(2)
def _date(second: float) -> bytes:
    return f"Date: {formatdate(second, usegmt=True)}\r\n".encode()


@lru_cache(256)
def _first_line(status: int) -> bytes:
    return f"HTTP/1.1 {status} {_REASONS.get(status, 'Status')}\r\n".encode()


@lru_cache(1024)  # the same few names, message for message
def _field_prefix(name: str) -> tuple[str, bool]:
    """Return a field's line up to its value, "" for one that is not written, and if it dates."""
    return f"{name}: " if is_writable(name) else "", name.lower() == "date"


@accelerated
def response_text(
    response: HttpResponse,
    length: int,
    keep: bool,
    version: Version,
    varies: bool = False,
    body: Sequence[Buffer] = (),
    framing: bytes = b"",
) -> bytes:
    """Return the head of a response, and *body* after it; see `join_response`."""
    fields, has_date = response.headers.parsed_with(_written)
    end = _LAST
    if not keep:
        end = _LAST_CLOSED
    elif version < (1, 1):
        end = _LAST_KEPT
    if not has_date:
        end = _date(time.time() // 1) + end  # noqa: TID251  # no duration
    first = _first_line(response.status)
    return join_response(first, fields, response.request_id, varies, length, framing + end, body)


@accelerated
def join_response(
    first: bytes,
    fields: bytes,
    request_id: str,
    varies: bool,
    length: int,
    end: bytes,
    body: Sequence[Buffer],
) -> bytes:
    """Return the head of a response, and *body* after it.

    Args:
        first: The status line.
        fields: The lines of the codec's fields.
        request_id: "" for none.
        varies: Whether the client's Accept-Encoding decides on the content coding.
        length: The size of the body; -1 if it is not announced.
        end: Further lines, and the end of the head.
        body: Empty, or as many bytes as announced.
    """
    name = b""
    if request_id:
        is_safe = request_id.isascii() and request_id.isprintable()
        name = f"{_REQUEST_ID}{request_id if is_safe else safe_value(request_id)}\r\n".encode()
    size = b"Content-Length: %d\r\n" % length if length >= 0 else b""
    return b"".join((first, fields, name, _VARIES if varies else b"", size, end, *body))


def _written(headers: Headers) -> tuple[bytes, bool]:
    """Return the header fields as lines, and whether they include Date.

    Codecs use the same few header objects again and again, which cache the result.
    """
    return write_fields(headers, _written, response_lines)


@accelerated
def response_lines(pairs: tuple[tuple[str, str], ...]) -> tuple[bytes, bool]:
    """Return fields as lines, and whether they include Date."""
    text = ""
    dated = False
    for name, value in pairs:
        line, dates = _field_prefix(name)
        if line:
            safe = value if is_printable_ascii(value) else safe_value(value)
            text = f"{text}{line}{safe}\r\n"
            dated = dated or dates
    return text.encode("ascii"), dated
