"""Writing answers of HTTP/1: status line, fields and body in one go, or in chunks.

Straight to the socket's transport, for both makes of the server: aiohttp's own response objects
join what we hold in pieces, and name their versions in a field.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus

from gateway.transports.headers import writable
from gateway.transports.http_head import Version
from gateway.wire.http import Buffer, HttpResponse, size_of

_REASONS = {status.value: status.phrase for status in HTTPStatus} | {499: "Client Closed Request"}
_BODILESS = frozenset({204, 304})


def write_response(
    transport: asyncio.Transport,
    response: HttpResponse,
    *,
    keep: bool,
    version: Version,
    head_only: bool = False,
) -> None:
    """Write *response* whole, with its exact length.

    Args:
        transport: Of the connection.
        response: Its body may be in several buffers.
        keep: Whether the connection stays open.
        version: Of the request.
        head_only: The request was HEAD.
    """
    if response.status in _BODILESS:
        head = _head(response, (), keep=keep, version=version)
        transport.write(head)
        return
    length = ("Content-Length", str(size_of(response.body)))
    head = _head(response, (length,), keep=keep, version=version)
    if head_only or not response.body:
        transport.write(head)
    else:
        transport.writelines([head, *response.body])


def write_stream_head(
    transport: asyncio.Transport, response: HttpResponse, *, keep: bool, version: Version
) -> None:
    """Write the head of a streamed response; in HTTP/1.0 its end is that of the connection."""
    extra = (("Transfer-Encoding", "chunked"),) if version >= (1, 1) else ()
    transport.write(_head(response, extra, keep=keep, version=version))


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
    return f"Date: {formatdate(second, usegmt=True)}"


def _head(
    response: HttpResponse,
    extra: Iterable[tuple[str, str]],
    *,
    keep: bool,
    version: Version,
) -> bytes:
    status = response.status
    lines = [f"HTTP/1.1 {status} {_REASONS.get(status, 'Status')}"]
    lines += [f"{name}: {value}" for name, value in writable(response.headers)]
    lines += [f"{name}: {value}" for name, value in extra]
    if response.headers.get("date") is None:
        lines.append(_date(int(time.time())))  # noqa: TID251  # a date, not a duration
    if not keep:
        lines.append("Connection: close")
    elif version < (1, 1):
        lines.append("Connection: keep-alive")
    return ("\r\n".join(lines) + "\r\n\r\n").encode("ascii")
