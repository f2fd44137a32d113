"""Writes HTTP/1 responses: status line, fields and body in one call, or in chunks.

Both server implementations write directly to the transport: aiohttp's response objects would join
the buffers, and add a field with their version.
"""

import asyncio
import time
from collections.abc import Iterable
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus

from gateway.ir.context import REQUEST_ID
from gateway.transports.http.headers import is_writable, safe_value
from gateway.transports.http.request_head import Version
from gateway.wire.http import Buffer, Headers, HttpResponse, size_of

_REASONS = {status.value: status.phrase for status in HTTPStatus} | {499: "Client Closed Request"}
_BODILESS = frozenset({204, 304})
_VARIES = "Vary: Accept-Encoding\r\n"
# Up to this size, head and body are joined: one buffer costs less than two.
_JOINED_BYTES = 8192


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
    if response.status in _BODILESS:
        transport.write(_head(response, "", keep, version))
        return
    body = response.body
    size = len(body[0]) if len(body) == 1 else size_of(body)
    framing = f"Content-Length: {size}\r\n"
    if head_only and not body:  # the length of the response to GET is unknown (RFC 9110, 8.6)
        framing = ""
    if varies:
        framing = _VARIES + framing
    head = _head(response, framing, keep, version)
    if head_only or not size:
        transport.write(head)
    elif size <= _JOINED_BYTES:
        transport.write(b"".join([head, *body]))
    else:
        transport.writelines([head, *body])


def write_stream_head(
    transport: asyncio.Transport, response: HttpResponse, *, keep: bool, version: Version
) -> None:
    """Write the head of a streamed response; in HTTP/1.0 its end is that of the connection."""
    framing = "Transfer-Encoding: chunked\r\n" if version >= (1, 1) else ""
    transport.write(_head(response, framing, keep, version))


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


@lru_cache(2)
def _date(second: int) -> str:
    return f"Date: {formatdate(second, usegmt=True)}\r\n"


@lru_cache(256)
def _first_line(status: int) -> str:
    return f"HTTP/1.1 {status} {_REASONS.get(status, 'Status')}\r\n"


@lru_cache(1024)  # the same few names, message for message
def _begun(name: str) -> tuple[str, bool]:
    """Return a field's line up to its value, "" for one that is not written, and if it dates."""
    return f"{name}: " if is_writable(name) else "", name.lower() == "date"


def _head(response: HttpResponse, framing: str, keep: bool, version: Version) -> bytes:
    fields, dated = response.headers.parsed_with(_written)
    name, request_id = "", response.request_id
    if request_id:
        # As in `_written`: nearly all are safe.
        safe = request_id.isascii() and request_id.isprintable()
        name = f"{REQUEST_ID}: {request_id if safe else safe_value(request_id)}\r\n"
    date = "" if dated else _date(int(time.time()))  # noqa: TID251  # no duration
    last = "\r\n"
    if not keep:
        last = "Connection: close\r\n\r\n"
    elif version < (1, 1):
        last = "Connection: keep-alive\r\n\r\n"
    first = _first_line(response.status)
    return f"{first}{fields}{name}{framing}{date}{last}".encode("ascii")


def _written(headers: Headers) -> tuple[str, bool]:
    """Return the header fields as lines, and whether they include Date.

    Codecs use the same few header objects again and again, which cache the result.
    """
    text = ""
    dated = False
    for name, value in headers.pairs:
        line, dates = _begun(name)
        if line:
            # Most values are safe as they are; checking here is cheaper than a call.
            safe = value if value.isascii() and value.isprintable() else safe_value(value)
            text = f"{text}{line}{safe}\r\n"
            dated = dated or dates
    return text, dated
