"""The error of a gateway that cannot start, and the exceptions that cause it."""

from typing import Final

from gateway.ir.errors import GatewayError

REASONS: Final = (LookupError, ValueError, OSError, GatewayError)
"""Exceptions that stop the start: an invalid option, a file, an address, a model."""

RELOAD_LATE: Final = "it takes longer than 'lifecycle.reload.timeout' allows"
"""The reason of a reload that is given up."""


class StartError(Exception):
    """The gateway cannot start; the text is the reason, in one line."""


def reason_of(error: Exception) -> str:
    """Return the text of one of `REASONS`, in one line."""
    if isinstance(error, OSError) and error.strerror:
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{error.strerror}"
    return str(error.args[0]) if error.args else type(error).__name__
