"""Decides who ended a call: the server with a status, or this side of the connection.

grpcio raises the same exception for both.  The texts of the C core and other facts distinguish
them.  In case of doubt it was the server, because a call that the server has seen must not be
repeated.
"""

import re
from dataclasses import dataclass

from grpc import StatusCode

from gateway.ir.errors import (
    ConnectFailure,
    DeadlineExceeded,
    GatewayError,
    TooLarge,
    Unavailable,
    UpstreamProtocolError,
)
from gateway.transports.net.wrong_port import MAYBE_HTTP, SERVES_HTTP

# Texts of the C core, 1.66 to 1.85.
_NOT_CONNECTED = (
    "failed to connect to all addresses",
    "errors resolving ",
    "DNS resolution failed",
    "empty address list",
)
# Of connections that were made, to servers that do not speak HTTP/2.
_HTTP1 = "Trying to connect an http1"
_NO_HTTP2 = ("Socket closed", "Connection reset by peer", "before receiving SETTINGS frame")
_BROKEN_OFF = "Stream removed ("
_TOO_LARGE = re.compile(r"CLIENT: Received message larger than max|Decompressed message larger")
_RESET = "RST_STREAM"
_SHOWN_CHARACTERS = 200


@dataclass(frozen=True, slots=True)
class Ending:
    """How a call ended.

    Attributes:
        is_connected: The channel has a working connection at this moment.
        is_late: The deadline we set has passed.
    """

    code: StatusCode
    details: str
    is_connected: bool
    is_late: bool


def local_failure(target: str, ending: Ending) -> GatewayError | None:
    """Return the error of a call that this side ended; None if the server replied."""
    return _KINDS.get(ending.code, _answered)(target, ending)


def _answered(_target: str, _ending: Ending) -> GatewayError | None:
    return None


def _unavailable(target: str, ending: Ending) -> GatewayError | None:
    why = _shown(ending.details)
    if not ending.is_connected and ending.details.startswith(_NOT_CONNECTED):
        return ConnectFailure(f"cannot connect to {target}: {_not_connected(ending.details)}")
    if ending.details.startswith(_BROKEN_OFF) or not ending.is_connected:
        return Unavailable(f"{target} broke the connection before it replied: {why}")
    return None


def _not_connected(details: str) -> str:
    if _HTTP1 in details:
        return SERVES_HTTP
    is_silent = any(text in details for text in _NO_HTTP2)
    return f"{_shown(details)}; {MAYBE_HTTP}" if is_silent else _shown(details)


def _deadline(target: str, ending: Ending) -> GatewayError | None:
    if ending.is_late:
        return DeadlineExceeded(f"no response from {target} in time")
    return None


def _exhausted(target: str, ending: Ending) -> GatewayError | None:
    if _TOO_LARGE.search(ending.details):
        return TooLarge(
            f"the response of {target} is too large: {_shown(ending.details)}",
            limit="message_bytes",
        )
    if ending.details.startswith(_BROKEN_OFF):
        return UpstreamProtocolError(f"response of {target}: {_shown(ending.details)}")
    return None


def _internal(target: str, ending: Ending) -> GatewayError | None:
    if ending.details.startswith(_BROKEN_OFF):
        return UpstreamProtocolError(f"response of {target}: {_shown(ending.details)}")
    return None


def _cancelled(target: str, ending: Ending) -> GatewayError | None:
    if _RESET in ending.details:  # a reset with CANCEL, without a cancellation on this side
        return UpstreamProtocolError(f"response of {target}: {_shown(ending.details)}")
    return None


_KINDS = {
    StatusCode.CANCELLED: _cancelled,
    StatusCode.UNAVAILABLE: _unavailable,
    StatusCode.DEADLINE_EXCEEDED: _deadline,
    StatusCode.RESOURCE_EXHAUSTED: _exhausted,
    StatusCode.INTERNAL: _internal,
}


def _shown(details: str) -> str:
    text = details.removeprefix(_BROKEN_OFF)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."
