"""The error of a gateway that cannot start, and the exceptions that cause it."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from gateway.ir.errors import GatewayError
from gateway.telemetry.faults import FAULTS

REASONS: Final = (LookupError, ValueError, OSError, GatewayError)
"""Exceptions that stop the start: an invalid option, a file, an address, a model."""

RELOAD_LATE: Final = "it takes longer than 'lifecycle.reload.timeout' allows"
"""The reason of a reload that is given up."""


class StartError(Exception):
    """The gateway cannot start; the text is the reason, in one line."""


@contextmanager
def starting(part: str) -> Iterator[None]:
    """Guard a step of the start in which a part of a package may run.

    Raises:
        StartError: The part raised it, or anything else: then it names the part.
    """
    try:
        yield
    except StartError:
        raise
    except FAULTS as error:
        raise StartError(f"{part} cannot start: {type(error).__name__}: {error}") from error


def reason_of(error: Exception) -> str:
    """Return the text of one of `REASONS`, in one line."""
    if isinstance(error, OSError) and error.strerror:
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{error.strerror}"
    return str(error.args[0]) if error.args else type(error).__name__
