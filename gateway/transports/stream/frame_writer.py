"""FrameWriter: writes the responses of one connection of a framed byte stream.

Several tasks may write.  Each waits until the kernel has what it wrote, and memory is reserved for
large responses until then.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, Protocol

from gateway.ir.errors import GatewayError
from gateway.transports.client_shares import NO_CLIENT_SHARES, ClientShares
from gateway.transports.net.write_drain import drain_writes
from gateway.transports.read_ahead import ReadAhead
from gateway.transports.reservation import (
    RESPONSE_PATIENCE_S,
    RESPONSE_UNCOUNTED_BYTES,
    Reservation,
    no_memory,
)
from gateway.transports.stream.listener import StreamListenerState
from gateway.wire.http import Buffer, size_of
from gateway.wire.stream import Frame, Framer


class PendingFrame(Protocol):
    """A complete frame without a complete response; see `server_connection.FrameExchange`."""

    frame: Frame
    reservation: Reservation
    is_answered: bool

    def release_slot(self) -> None:
        """Release its slot: its response is computed."""


class FrameWriter:
    """Writes frames to one client.

    Args:
        listener: The state of the listener.
        framer: Frames the responses.
    """

    def __init__(self, listener: StreamListenerState, framer: Framer) -> None:
        self._listener = listener
        self._framer = framer
        self._transport: Any = None
        self._client = NO_CLIENT_SHARES
        self._turn = asyncio.Lock()
        self._is_writable = asyncio.Event()
        self._is_writable.set()

    def start(self, transport: Any, client: ClientShares) -> None:
        """Write to *transport*, whose client has *client* of the memory."""
        self._transport = transport
        self._client = client

    def close(self) -> None:
        """Write nothing more: the connection is lost."""
        self._transport = None

    def pause(self) -> None:
        """Note that the write buffer is full."""
        self._is_writable.clear()

    def resume(self) -> None:
        """Note that the write buffer is empty."""
        self._is_writable.set()

    def is_blocked(self) -> bool:
        """Return whether the client does not read what was written."""
        return not self._is_writable.is_set()

    def probe(self) -> None:
        """Write the beginning of a response, unless a failed write would show that nobody reads."""
        if self._is_writable.is_set():
            self._transport.write(self._framer.begin())

    def refusal(self, error: GatewayError) -> Frame:
        """Return the response that says *error*, after adding the client to it."""
        error.client = self._client.caller.client()
        return self._listener.frontend.reject(error)

    async def write(self, answer: Frame, pending: PendingFrame) -> None:
        """Write a frame, with the number of its question, and wait until the kernel has it.

        Raises:
            SlowReaderError: The client reads too slowly.
            ConnectionError: The client has left.
        """
        size = size_of(answer.payload)
        if size <= RESPONSE_UNCOUNTED_BYTES and not self._turn.locked():
            await self._write_now(answer, pending)
            return
        # Until the client has read it, the budget counts the response and not the request.
        pending.reservation.close()
        pending.frame = Frame((), pending.frame.correlation)
        held = self._listener.reservation(self._client)
        try:
            if held.try_grow_response(size):
                held.watch_progress(self._unwritten, self._give_way, RESPONSE_PATIENCE_S)
            else:
                answer = self.refusal(no_memory(size))
            await self._write_now(answer, pending)
        finally:
            held.close()

    async def relay(self, found: AsyncGenerator[Frame, None], pending: PendingFrame) -> None:
        """Write the frames of a stream, as far ahead of the client as allowed; raises as `write`.

        Args:
            found: The frames.
            pending: Their question, whose slot is released before the last frame has to wait.
        """
        held = self._listener.reservation(self._client)
        ahead = ReadAhead(held, self.is_blocked, self._drained, self._unwritten, self._give_way)
        async with ahead:
            async with aclosing(found) as answers:
                async for answer in answers:
                    await ahead.admit(size_of(answer.payload), answer.payload)
                    self._write_frame(answer, pending)
                    ahead.written()
            pending.release_slot()

    async def write_last(self, error: GatewayError) -> None:
        """Write *error*, which no frame asked for, and wait until the kernel has it."""
        self._transport.writelines(self._framer.send(self.refusal(error)))
        await self._flush()

    def _unwritten(self) -> int:
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def _give_way(self, _error: GatewayError) -> None:
        if self._transport is not None:
            self._transport.abort()

    async def _write_now(self, answer: Frame, pending: PendingFrame) -> None:
        async with self._turn:
            self._write_frame(answer, pending)
            await self._flush()

    def _write_frame(self, answer: Frame, pending: PendingFrame) -> None:
        """Write a frame, which may have to wait for the client."""
        if self._transport is None or self._transport.is_closing():
            raise ConnectionResetError("the client has left")
        buffers = self._framed(Frame(answer.payload, pending.frame.correlation))
        pending.is_answered = True
        self._transport.writelines(buffers)

    async def _drained(self) -> None:
        """Wait until the client has read what all tasks have written."""
        async with self._turn:
            await self._flush()

    def _framed(self, frame: Frame) -> list[Buffer]:
        try:
            return self._framer.send(frame)
        except GatewayError as error:  # no frame can carry it
            return self._framer.send(Frame(self.refusal(error).payload, frame.correlation))

    async def _flush(self) -> None:
        if not self._is_writable.is_set():
            await drain_writes(self._transport, self._is_writable, self._listener.limits)
