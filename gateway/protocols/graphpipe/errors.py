"""Error codes to and from the numbers in GraphPipe responses, over HTTP and in messages.

GraphPipe defines no error numbers.  The gateway writes those of HTTP, as ForestFlow does, so one
table serves the status line and the message.

Source: docs/protocols/graphpipe.md, "6. Errors".
"""

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

# Characters that break a line of text or a header.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
_BYTES_PER_CHARACTER = 4


def status_of(error: GatewayError) -> int:
    """Return the HTTP status of *error*, which is also its number in a message."""
    if isinstance(error, MethodNotAllowed):
        return HTTP_METHOD_NOT_ALLOWED
    return STATUS[error.code]


def printable(text: str, limit_bytes: int) -> str:
    """Return *text* without control characters, at most *limit_bytes* of UTF-8; never ""."""
    return clip(
        _CONTROL.sub("?", text[:limit_bytes]).strip() or "error without a text", limit_bytes
    )


def text_of(data: memoryview, limit_bytes: int) -> str:
    """Return untrusted bytes as printable text; "" when there is none."""
    text = read_error_text(data, limit_bytes * _BYTES_PER_CHARACTER).strip()
    return printable(text, limit_bytes) if text else ""
