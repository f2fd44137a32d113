"""When a server wants a refused call again: `Retry-After` of HTTP, and pushback of gRPC."""

import math
import re
from email.utils import parsedate_to_datetime
from typing import Any, Final

from gateway.wire.grpc import GrpcResponse
from gateway.wire.http import HttpResponse

_PUSHBACK: Final = "grpc-retry-pushback-ms"
_DIGITS: Final = re.compile(r"\d{1,9}", re.ASCII)
_MS_PER_S: Final = 1000


def retry_after_s(response: Any) -> float | None:
    """Return the seconds after which a server wants the call again; None if it does not say.

    Returns:
        `math.inf` for never.

    Source: RFC 9110, 10.2.3, "Retry-After"; gRPC proposal A6, "Pushback".
    """
    if isinstance(response, HttpResponse):
        text = response.headers.get("retry-after")
        return None if text is None else _of_http(text.strip(), response.headers.get("date"))
    if isinstance(response, GrpcResponse):
        values = [value for key, value in response.metadata if key == _PUSHBACK]
        return _of_grpc(values[0]) if values else None
    return None


def _of_http(text: str, sent_at: str | None) -> float | None:
    """Read seconds, or a date; whatever else it is says nothing.

    Args:
        text: The value.
        sent_at: When the server sent it, on its own clock, which ours may differ from.
    """
    if _DIGITS.fullmatch(text):
        return float(text)
    try:
        seconds = (
            parsedate_to_datetime(text) - parsedate_to_datetime(sent_at or "")
        ).total_seconds()
    except (ValueError, TypeError):
        return None
    return max(0.0, seconds)


def _of_grpc(text: str | bytes) -> float:
    """Read milliseconds; whatever else it is, as a negative number, means never."""
    if isinstance(text, str) and _DIGITS.fullmatch(text):
        return int(text) / _MS_PER_S
    return math.inf
