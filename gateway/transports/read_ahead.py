"""ReadAhead: lets a stream of responses be computed while its client does not read.

A call that is computed has released its places, and other clients need them.  Only its responses
wait for the client, and the memory budget counts them.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Self

from gateway.ir.errors import Overloaded
from gateway.session import READ_AHEAD_BYTES
from gateway.transports.reservation import (
    RESPONSE_OVERHEAD_BYTES,
    RESPONSE_PATIENCE_S,
    RESPONSE_UNCOUNTED_BYTES,
    Reservation,
    no_memory,
)
from gateway.transports.reserved_buffer import uncounted_bytes
from gateway.wire.http import Buffer


class ReadAhead:
    """The unread responses of one stream, as a context around the call that computes them.

    Its end waits until the client has read them, so the call must have ended before.

    Args:
        held: What counts them, empty.
        is_blocked: Returns whether something that was written waits for the client.
        drained: Waits until the client has read all, or enough.
        position: Returns how many bytes have been sent.
        give_way: Ends the stream, because it makes no progress while others wait for memory.
    """

    __slots__ = ("_drained", "_give_way", "_held", "_is_blocked", "_position", "_unread_bytes")

    def __init__(
        self,
        held: Reservation,
        is_blocked: Callable[[], bool],
        drained: Callable[[], Awaitable[None]],
        position: Callable[[], int],
        give_way: Callable[[Overloaded], None],
    ) -> None:
        self._held = held
        self._is_blocked = is_blocked
        self._drained = drained
        self._position = position
        self._give_way = give_way
        self._unread_bytes = 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: object, *_details: object) -> None:
        try:
            if kind is None:
                await self._drained()
        finally:
            self._held.close()

    async def admit(self, size: int, buffers: Sequence[Buffer]) -> None:
        """Count a response, and wait if too much is unread already.

        Args:
            size: How many bytes it has.
            buffers: The bytes, some of which the budget may count already.

        Raises:
            Overloaded: There is no memory for it.
        """
        is_blocked = self._is_blocked()
        if size <= RESPONSE_UNCOUNTED_BYTES and not is_blocked:
            return
        held = self._held
        before = held.size_bytes
        if not held.try_grow_response(uncounted_bytes(buffers) + RESPONSE_OVERHEAD_BYTES):
            raise no_memory(size)
        if not before:
            held.watch_progress(self._position, self._give_way, RESPONSE_PATIENCE_S)
        if is_blocked and self._unread_bytes > READ_AHEAD_BYTES:
            await self._drained()
            held.release(before)
            self._unread_bytes = 0
        self._unread_bytes += size + RESPONSE_OVERHEAD_BYTES

    def written(self) -> None:
        """Note that the response is written."""
        if not self._is_blocked():
            self._held.close()
            self._unread_bytes = 0
