"""RefusedConnection: replies to the first frame of a connection above a limit, and closes it.

It is for protocols whose response has the number of its request, so that the request is read first.
"""

import asyncio
from typing import Any, Final

from gateway.ir.errors import GatewayError
from gateway.transports.net.refused_connection import refuse_connection
from gateway.wire.stream import Frame, Framer

FIRST_FRAME_S: Final = 1.0
"""A client that sends no frame within this time gets no response."""

_MOST_BYTES: Final = 64 * 1024


class RefusedConnection(asyncio.Protocol):
    """A connection that is refused.

    Args:
        transport: Its transport.
        framer: Reads the first frame, of at most 64 KiB.
        answer: The error, without a number.
    """

    def __init__(self, transport: Any, framer: Framer, answer: Frame) -> None:
        self._transport = transport
        self._framer = framer
        self._answer = answer
        self._received = 0
        self._timer = asyncio.get_running_loop().call_later(FIRST_FRAME_S, transport.abort)

    def data_received(self, data: bytes) -> None:
        """Reply to the first frame; close without a response if none comes."""
        self._received += len(data)
        try:
            frames = self._framer.receive(data)
        except GatewayError:  # it has no number to answer
            frames = []
            self._received = _MOST_BYTES
        if frames:
            answer = Frame(self._answer.payload, frames[0].correlation)
            self._timer.cancel()
            refuse_connection(self._transport, b"".join(self._framer.send(answer)), linger=True)
        elif self._received >= _MOST_BYTES or self._framer.fault is not None:
            self._transport.abort()

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002  # asyncio's
        """Cancel the timer."""
        self._timer.cancel()
