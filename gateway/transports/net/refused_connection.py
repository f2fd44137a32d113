"""A connection that is one too many: it is answered, and closed.

Closing at once would reset the connection, for the client has sent something by then, and the
response would be lost with it.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

_LINGER_S: Final = 1.0


class _Discard(asyncio.Protocol):
    """Reads and drops what comes, until the client closes or a second has passed."""

    def __init__(self, transport: Any) -> None:
        self._limit = asyncio.get_running_loop().call_later(_LINGER_S, transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  # asyncio's
        """Wait no longer."""
        self._limit.cancel()


def refuse_connection(transport: Any, response: bytes, *, linger: bool) -> None:
    """Write *response* and close the connection.

    Args:
        transport: Of the connection.
        response: In the protocol of the connection.
        linger: The descriptor may stay open until the client has read the response.
    """
    if not linger:
        transport.abort()
        return
    transport.set_protocol(_Discard(transport))
    transport.write(response)
    if transport.can_write_eof():
        transport.write_eof()
