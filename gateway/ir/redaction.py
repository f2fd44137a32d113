"""Redaction of error texts: segment names, addresses of servers, and what shows their program.

A client that knows the name of a server's own segment can overwrite it (CVE-2025-23320). The
callers decide which errors are redacted.
"""

import re
from typing import Final

from gateway.ir.context import Origin
from gateway.ir.errors import ErrorCode, GatewayError

_REDACTED: Final = "..."
# Texts hold names and data of clients: the patterns of words match them from their beginning and
# without backtracking, so that the time does not grow with the square of their length.
_KEY = re.compile(r"(\bkey:? )(?:'[^']*(?:'|$)|\"[^\"]*(?:\"|$))", re.IGNORECASE)
_FOLDER = r"/dev/shm(?:/[^\s'\",;)]*)?"  # noqa: S108  # where Linux keeps segments
_SEGMENT = re.compile(_FOLDER + r"|triton_python_backend_shm_region[\w.-]*")
_CLASS = re.compile(
    r"(?<![\w.])[\w.]++"
    r"(?:(?<=[\w.]Error)|(?<=[\w.]Exception)|(?<=[\w.]Input)|(?<=[\w.]Warning)) ?: "
)
# ('10.0.0.1', 80), oip+http://host:80/path, host:80, [::1]:80, 10.0.0.1 and unix:/path.
_ADDRESS = re.compile(
    r"\('[^']*', \d+(?:, \d+, \d+)?\)|(?<![\w+])[\w+]++://[^\s'\",;]+|unix:/[^\s'\",;]+"
    r"|\[[\da-fA-F:.]+\]:\d+"
    r"|(?<![\w.-])(?:[\w-]++\.)*+(?=[\w-]*?[a-zA-Z])[\w-]++:\d{2,5}(?![\w.])"
    r"|(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?::\d+)?(?![\w.])"
)
# Errors whose texts may name the server that a call was sent to.
_OF_UPSTREAMS: Final = frozenset(
    {
        ErrorCode.UNAVAILABLE,
        ErrorCode.DEADLINE_EXCEEDED,
        ErrorCode.BAD_UPSTREAM,
        ErrorCode.OVERLOADED,
    }
)
_FAILED: Final = "the model failed at its server; the log of the gateway has the cause"
# No codec has this name, so no codec sends this origin.
_WITHHELD: Final = Origin("", None)


def redact(text: str) -> str:
    """Return *text* with "..." in place of the names of shared memory segments."""
    return _SEGMENT.sub(_REDACTED, _KEY.sub(rf"\1'{_REDACTED}'", text))


def redacted_error(error: GatewayError) -> GatewayError:
    """Return *error*, or a copy without origin if its text has names of segments."""
    return _with_message(error, redact(error.message))


def without_addresses(error: GatewayError) -> GatewayError:
    """Return *error*, or a copy whose text has "..." in place of the addresses of servers.

    The text of a server's own reply is unchanged.
    """
    if error.origin is not None or error.code not in _OF_UPSTREAMS:
        return error
    return _with_message(error, _ADDRESS.sub(_REDACTED, error.message))


def brief_error(error: GatewayError) -> GatewayError:
    """Return an error of an upstream without its texts about failures and its class names."""
    if error.origin is None:
        return error
    if error.code is ErrorCode.UPSTREAM:
        return _with_message(error, _FAILED)
    return _with_message(error, _CLASS.sub("", error.message))


def _with_message(error: GatewayError, message: str) -> GatewayError:
    if message == error.message:
        return error
    copied = error.copy()
    copied.message = message
    copied.args = (message,)
    copied.__cause__ = None
    if error.origin is not None:
        copied.origin = _WITHHELD
    return copied
