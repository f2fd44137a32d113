"""Redaction of the names of shared memory segments in error texts.

A client that knows the name of a server's own segment can overwrite it (CVE-2025-23320). The
callers decide which errors are redacted.
"""

from __future__ import annotations

import re
from typing import Final

from gateway.ir.context import Origin
from gateway.ir.errors import GatewayError

_REDACTED: Final = "..."
_KEY = re.compile(r"(\bkey:? )(?:'[^']*(?:'|$)|\"[^\"]*(?:\"|$))", re.IGNORECASE)
_FOLDER = r"/dev/shm(?:/[^\s'\",;)]*)?"  # noqa: S108  # where Linux keeps segments
_SEGMENT = re.compile(_FOLDER + r"|triton_python_backend_shm_region[\w.-]*")
# No codec has this name, so no codec sends this origin.
_WITHHELD: Final = Origin("", None)


def redact(text: str) -> str:
    """Return *text* with "..." in place of the names of shared memory segments."""
    return _SEGMENT.sub(_REDACTED, _KEY.sub(rf"\1'{_REDACTED}'", text))


def redacted_error(error: GatewayError) -> GatewayError:
    """Return *error*, or a copy without origin if its text has names of segments."""
    message = redact(error.message)
    if message == error.message:
        return error
    copied = error.copy()
    copied.message = message
    copied.args = (message,)
    copied.__cause__ = None
    if error.origin is not None:
        copied.origin = _WITHHELD
    return copied
