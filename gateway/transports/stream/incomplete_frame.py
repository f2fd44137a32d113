"""IncompleteFrame: the memory and the client of a frame that is still arriving.

Where clients are asked for, that happens as soon as the metadata of the frame has arrived, and
before memory is reserved for the rest.
"""

import asyncio
from collections.abc import Awaitable
from typing import Protocol

from gateway.ir.context import Client
from gateway.ir.errors import GatewayError
from gateway.transports.authentication import MAX_DRAINED_BYTES
from gateway.transports.client_shares import NO_CLIENT_SHARES, ClientShares
from gateway.transports.reservation import Reservation
from gateway.transports.stream.identification import FrameIdentification
from gateway.transports.stream.listener import StreamListenerState
from gateway.wire.stream import Frame, Framer


class FrameReceiver(Protocol):
    """The part of a connection that an incomplete frame uses."""

    def advance(self) -> None:
        """Go on, because something has changed."""

    def end_reading(self, error: GatewayError | None) -> None:
        """Read nothing more; after the pending responses, send *error* and close."""

    def enqueue(self, frame: Frame, reservation: Reservation, *, is_late: bool = False) -> None:
        """Handle a frame when it is its turn."""


class IncompleteFrame:
    """The frame that is arriving on one connection, one after another.

    Args:
        connection: The connection.
        listener: The state of the listener.
        framer: Has the bytes of the frame.
    """

    def __init__(
        self, connection: FrameReceiver, listener: StreamListenerState, framer: Framer
    ) -> None:
        self._connection = connection
        self._listener = listener
        self._framer = framer
        self._client = NO_CLIENT_SHARES
        self._identification: FrameIdentification | None = None
        self._lease = listener.reservation(self._client)
        self._waiting: asyncio.Task[None] | None = None

    def start(self, client: ClientShares, identification: FrameIdentification | None) -> None:
        """Receive from a client; *identification* names it, None where nobody asks."""
        self._client = client
        self._identification = identification
        self._lease = self._listener.reservation(client)

    @property
    def is_waiting(self) -> bool:
        """Whether nothing is read until there is memory, or the client is known."""
        return self._waiting is not None

    def complete(self) -> Reservation:
        """Return what holds the memory of the frame, which is complete; the next one begins."""
        lease, self._lease = self._lease, self._listener.reservation(self._client)
        lease.stop_watching()
        return lease

    def drop(self) -> None:
        """Drop the frame, of which nothing more is read."""
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None
        self._lease.close()

    def close(self) -> None:
        """Drop the frame of a connection that is lost, and the connection."""
        self.drop()
        del self._connection

    def hold(self) -> None:
        """Reserve memory for the frame, one step ahead."""
        wanted, held = self._framer.wanted, self._lease
        if not wanted or self._waiting is not None or not self._is_client_known():
            return
        if not held.size_bytes:
            held.watch_progress(self._position, self._stop)
        more = held.step(self._framer.held, wanted)
        if more > 0 and not held.try_grow(more):
            self._waiting = asyncio.get_running_loop().create_task(self._wait_for_room(more))

    def _position(self) -> int:
        return self._framer.held

    def _stop(self, error: GatewayError) -> None:
        self._connection.end_reading(error)
        self._connection.advance()

    async def _wait_for_room(self, size: int) -> None:
        try:
            await self._lease.grow(size)
        except GatewayError as error:
            self._waiting = None
            self._connection.end_reading(error.with_traceback(None))
        else:
            self._waiting = None
        self._connection.advance()

    def _is_client_known(self) -> bool:
        """Return whether the client of the frame may send it."""
        identification = self._identification
        if identification is None:
            return True
        result = identification.results.get(self._lease)
        if result is None:
            frame = self._framer.incomplete()
            if frame is None:
                return False
            try:
                found, _ = identification.ask(frame)
            except GatewayError as error:
                self._deny(identification, frame, error)
                return False
            if not isinstance(found, Client):
                waiting = self._wait_for_client(identification, frame, found)
                self._waiting = asyncio.get_running_loop().create_task(waiting)
                return False
            result = identification.results[self._lease] = found
        return isinstance(result, Client)

    async def _wait_for_client(
        self, identification: FrameIdentification, frame: Frame, found: Awaitable[Client]
    ) -> None:
        try:
            client = await found
        except GatewayError as error:
            self._waiting = None
            self._deny(identification, frame, error)
        else:
            self._waiting = None
            identification.results[self._lease] = client
            self.hold()
        self._connection.advance()

    def _deny(self, identification: FrameIdentification, frame: Frame, error: GatewayError) -> None:
        """Refuse a frame when it is complete; at once if that would take many bytes."""
        identification.results[self._lease] = error.with_traceback(None)
        if self._framer.wanted > MAX_DRAINED_BYTES:
            lease, self._lease = self._lease, self._listener.reservation(self._client)
            self._connection.enqueue(frame, lease)
            self._connection.end_reading(None)
