"""Connections of framed byte streams whose frames name their clients."""

import asyncio
from collections.abc import Awaitable

from msgspec.structs import replace  # noqa: TID251  # of messages, not of calls

from gateway.ir.context import Client
from gateway.ir.errors import GatewayError, Unauthenticated
from gateway.transports.authentication import MAX_DRAINED_BYTES
from gateway.transports.callers import IdentifiedCaller
from gateway.transports.reservation import Reservation
from gateway.transports.stream.listener import StreamListenerState
from gateway.transports.stream.server_connection import PendingFrame, StreamConnection
from gateway.wire.stream import Frame


class AuthenticatedStreamConnection(StreamConnection):
    """A connection that asks for the client of each frame before it reserves memory.

    A frame that arrives in pieces is asked for as soon as its metadata is there.
    """

    def __init__(self, listener: StreamListenerState, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(listener, loop)
        self._data = ""
        self._has_data = False  # whether the frame that was asked about last brought data
        self._results: dict[Reservation, Client | GatewayError] = {}

    # -- frames under way

    def _hold(self) -> None:
        if self._framer.wanted and self._room is None and self._may_continue():
            super()._hold()

    def _may_continue(self) -> bool:
        """Return whether memory may be reserved for the incomplete frame."""
        result = self._results.get(self._partial)
        if result is None:
            frame = self._framer.incomplete()
            if frame is None:
                return False
            try:
                found = self._identified(frame)
            except GatewayError as error:
                self._deny_partial(frame, error)
                return False
            if not isinstance(found, Client):
                self._room = self._loop.create_task(self._wait_for_client(frame, found))
                return False
            result = self._results[self._partial] = found
        return isinstance(result, Client)

    async def _wait_for_client(self, frame: Frame, found: Awaitable[Client]) -> None:
        try:
            client = await found
        except GatewayError as error:
            self._room = None
            self._deny_partial(frame, error)
        else:
            self._room = None
            self._results[self._partial] = client
            self._hold()
        self._advance()

    def _deny_partial(self, frame: Frame, error: GatewayError) -> None:
        """Refuse a frame when it is complete; at once if that would take many bytes."""
        self._results[self._partial] = error.with_traceback(None)
        if self._framer.wanted > MAX_DRAINED_BYTES:
            self._queue.append(PendingFrame(frame, self._partial, is_late=False))
            self._partial = self._new_lease()
            self._end_reading(None)

    # -- complete frames

    async def _admit_and_ask(self, pending: PendingFrame) -> None:
        try:
            known = self._results.pop(pending.reservation, None)
            self._has_data = known is not None  # of a frame in pieces that is not known any more
            found = self._identified(pending.frame) if known is None else known
            has_data = self._has_data
            if isinstance(found, GatewayError):
                raise found
            client = found if isinstance(found, Client) else await found
        except GatewayError as error:
            pending.reservation.close()
            caller = self._client.caller
            assert isinstance(caller, IdentifiedCaller)  # noqa: S101  # see `_identified`
            caller.last = caller.unnamed()  # the frame before may have named a client
            await self._refuse(pending, error)
            if self._listener.closes_denied and isinstance(error, Unauthenticated):
                self._end_reading(None)
            return
        frame = pending.frame
        if has_data:
            frame = self._listener.without_credentials(frame)
        pending.frame = replace(frame, client=client)
        await super()._admit_and_ask(pending)

    def _identified(self, frame: Frame) -> Client | Awaitable[Client]:
        """Return the client of a frame. Raises GatewayError."""
        listener, caller = self._listener, self._client.caller
        authentication = listener.authentication
        assert isinstance(caller, IdentifiedCaller)  # noqa: S101  # the listener asks for clients
        assert authentication is not None  # noqa: S101
        data, method = listener.credentials(frame)
        # What one frame brings holds until another frame brings something else.
        self._has_data = bool(data)
        self._data = data or self._data
        return authentication.client(caller, (), method, self._data)
