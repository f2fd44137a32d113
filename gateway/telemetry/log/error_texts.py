"""How much of a server's error text is shown where people read it: log, status, pages, spans.

The text may quote what a client has sent. Clients get it whole, and a capture has its own rules.
"""

from typing import ClassVar, Final

from gateway.ir.errors import GatewayError

FULL: Final = "full"
_SHOWN: Final = 120
_MARK: Final = "server said: "


class _Setting:
    """The setting of the process."""

    is_full: ClassVar[bool] = False


def configure(setting: str) -> None:
    """Show texts from now on as `telemetry.log.server_errors` says."""
    _Setting.is_full = setting == FULL


def brief_text(text: str) -> str:
    """Return the first 120 characters of a server's text, or what the setting shows.

    It is marked as that of a server; "" stays as it is.
    """
    if not text or _Setting.is_full:
        return text
    rest = len(text) - _SHOWN
    cut = f"{text[:_SHOWN]}... ({rest} more characters)" if rest > 0 else text
    return f"{_MARK}{cut}"


def _is_of_request(error: GatewayError) -> bool:
    """Return whether the gateway refused a request, which is then the origin of the error."""
    # Only requests have a sender.
    wire = None if error.origin is None else error.origin.wire
    return error.client is not None or hasattr(wire, "client")


def error_text(error: BaseException | str) -> str:
    """Return the text of an error for people, with the part that a server wrote cut and marked."""
    if not isinstance(error, GatewayError):
        return str(error)
    found: BaseException | None = error
    while isinstance(found, GatewayError):
        if found.origin is not None and not _is_of_request(found):
            return error.message.replace(found.message, brief_text(found.message), 1)
        found = found.__cause__
    return error.message
