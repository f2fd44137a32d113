"""Error codes as the numbers GraphPipe answers carry, over HTTP and in messages, and back.

GraphPipe gives its error numbers no meaning. We write HTTP's, as ForestFlow does, so one table
serves the status line and the message.

Source: docs/protocols/graphpipe.md, "6. Errors".
"""

from __future__ import annotations

import re

from gateway.ir.errors import ErrorCode, GatewayError
from gateway.wire.errors import (
    HTTP_METHOD_NOT_ALLOWED,
    HTTP_STATUS,
    MethodNotAllowed,
    clip,
    read_error_text,
)

STATUS: dict[ErrorCode, int] = {**HTTP_STATUS, ErrorCode.OVERLOADED: 429}

OK = 200

# What breaks a line of text or a header; a message may be shown anywhere.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
_BYTES_PER_CHARACTER = 4


def status_of(error: GatewayError) -> int:
    """Return the number, of HTTP's, that *error* is answered with."""
    if isinstance(error, MethodNotAllowed):
        return HTTP_METHOD_NOT_ALLOWED
    return STATUS[error.code]


def printable(text: str, limit_bytes: int) -> str:
    """Return *text* without control characters, at most *limit_bytes* of UTF-8; never ""."""
    return clip(
        _CONTROL.sub("?", text[:limit_bytes]).strip() or "error without a text", limit_bytes
    )


def text_of(data: memoryview, limit_bytes: int) -> str:
    """Return untrusted bytes as a text that may be shown; "" when there is nothing in them."""
    text = read_error_text(data, limit_bytes * _BYTES_PER_CHARACTER).strip()
    return printable(text, limit_bytes) if text else ""
