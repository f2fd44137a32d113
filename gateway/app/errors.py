"""What keeps a gateway from starting, said in one line."""

from __future__ import annotations

from typing import Final

from gateway.ir.errors import GatewayError

REASONS: Final = (LookupError, ValueError, OSError, GatewayError)
"""What keeps a gateway from starting: a wrong option, a file, an address, a model."""


class StartError(Exception):
    """The gateway cannot start; the text is one line that says why."""


def reason_of(error: Exception) -> str:
    """Return what one of `REASONS` says, without a traceback's words."""
    if isinstance(error, OSError) and error.strerror:
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{error.strerror}"
    return str(error.args[0]) if error.args else type(error).__name__
