"""ReservedBuffer: the memory of a message of known length, reserved as the message arrives.

The whole length is mapped at once, so that nothing is copied twice; the kernel provides pages only
for the bytes that are written.  The budget counts the bytes that have arrived, one step ahead.
"""

from collections.abc import Sequence
from typing import Any
from weakref import finalize

import numpy as np

from gateway.transports.reservation import Reservation
from gateway.wire.http import Buffer


class CountedMemory(np.ndarray[tuple[int], np.dtype[np.uint8]]):
    """Memory that the budget counts until it is freed."""


def uncounted_bytes(buffers: Sequence[Buffer]) -> int:
    """Return how many bytes of *buffers* the budget does not count yet."""
    return sum([len(each) for each in buffers if not _is_counted(each)])


def _is_counted(buffer: Any) -> bool:
    return isinstance(buffer, memoryview) and isinstance(buffer.obj, CountedMemory)


def message_memory(size: int, held: Reservation, *, lasts: bool) -> memoryview:
    """Return memory of *size* bytes; see `ReservedBuffer`."""
    pooled = None if lasts else held.pooled(size)
    if pooled is not None:
        return pooled
    # A bytearray would be filled with zeros first.
    memory = np.empty(size, np.uint8)
    if lasts:
        memory = memory.view(CountedMemory)
        finalize(memory, held.close).atexit = False
    return memory.data


class ReservedBuffer:
    """A buffer that is filled from its beginning.

    Args:
        size: The size of the message.
        held: The reservation of the message, which holds nothing else.
        lasts: Whether the reservation lasts until the message is freed, which is a response.

    Attributes:
        filled: How many bytes have arrived.
    """

    __slots__ = ("_reservation", "_size", "_view", "filled")

    def __init__(self, size: int, held: Reservation, *, lasts: bool = False) -> None:
        held.allocated(size)
        self._size = size
        self._reservation = held
        self._view = message_memory(size, held, lasts=lasts)
        self.filled = 0

    def __del__(self) -> None:
        self._reservation.allocated(-self._size)

    @property
    def is_whole(self) -> bool:
        """Whether the message is complete."""
        return self.filled == self._size

    @property
    def needs_memory(self) -> bool:
        """Whether no more data may be written before `wait` has returned."""
        return self.filled == self._reservation.size_bytes and self.filled < self._size

    @property
    def reserved_ahead(self) -> int:
        """How many more bytes may arrive before more memory is reserved."""
        return self._reservation.size_bytes - self.filled

    @property
    def view(self) -> memoryview:
        """The message, read-only."""
        return self._view.toreadonly()

    def room(self) -> memoryview | None:
        """Return the buffer for the next bytes; None if no data may be written."""
        filled = self.filled
        return (
            self._view[filled : self._reservation.size_bytes]
            if filled < self._reservation.size_bytes
            else None
        )

    def advance(self, size: int) -> bool:
        """Note that *size* bytes were written into `room`, and reserve the next step.

        Returns:
            Whether there is room for more.
        """
        filled = self.filled = self.filled + size
        held = self._reservation
        if held.size_bytes < self._size and (more := held.step(filled, self._size)):
            held.try_grow(more)
        return filled < held.size_bytes

    def put(self, data: bytes | memoryview, at: int = 0) -> int:
        """Copy *data* from *at*, as far as memory is reserved; return the position after it."""
        end = len(data)
        with memoryview(data) as view:
            while at < end and (room := self.room()) is not None:
                size = min(len(room), end - at)
                room[:size] = view[at : at + size]
                self.advance(size)
                at += size
        return at

    async def wait(self) -> None:
        """Wait for memory for the next step. Raises Overloaded."""
        if self.needs_memory:
            await self._reservation.grow(self._reservation.step(self.filled, self._size))
