"""Responds to a connection above a limit, and closes it.

A close with unread data would be a reset, and the client would lose the response.
"""

import asyncio
from typing import Any, Final

from gateway.transports.net.sockets import end_output

_LINGER_S: Final = 1.0


class _Discard(asyncio.Protocol):
    """Reads and drops data until the client closes, or for one second."""

    def __init__(self, transport: Any) -> None:
        self._limit = asyncio.get_running_loop().call_later(_LINGER_S, transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  # asyncio's
        """Cancel the timer."""
        self._limit.cancel()


def refuse_connection(transport: Any, response: bytes, *, linger: bool) -> None:
    """Write *response* and close the connection.

    Args:
        transport: The transport of the connection.
        response: The response, in the protocol of the connection.
        linger: Whether the descriptor may stay open until the client has read the response.
    """
    if not linger:
        transport.abort()
        return
    transport.set_protocol(_Discard(transport))
    transport.write(response)
    end_output(transport)
