"""Messages of any size in packets of a socket pair that keeps their bounds.

A packet has parts of one or several messages. Each part says where it belongs, so either end may
begin anew at any time: what lacks its beginning is left out.
"""

import socket
import struct
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Final

from msgspec import Struct

PACKET_BYTES: Final = 128 * 1024
"""Largest packet. The default buffer of a socket takes one of 208 KiB."""

Sender = tuple[int, int]
"""A serving process: the number of its socket, and its epoch."""

_MAX_BUFFERS: Final = 256
_PART: Final = struct.Struct("!IQQQI")
"""Epoch of the sender, number and size of the message, offset and size of the part."""


class Outgoing(Struct):
    """A message that is not sent completely.

    Attributes:
        number: Rises by one with each message.
        size: The size of all its buffers in bytes.
        at: Bytes that are sent.
    """

    number: int
    size: int
    buffers: deque[memoryview]
    at: int = 0


class PacketWriter:
    """Cuts a queue of messages into packets.

    Args:
        epoch: Names this sender among those that used the socket before it.
    """

    def __init__(self, epoch: int) -> None:
        self._epoch = epoch
        self._queue: deque[Outgoing] = deque()

    def __len__(self) -> int:
        return len(self._queue)

    def put(self, number: int, buffers: Sequence[bytes]) -> int:
        """Queue a message without a copy, and return its size in bytes."""
        size = sum(map(len, buffers))
        self._queue.append(Outgoing(number, size, deque([memoryview(each) for each in buffers])))
        return size

    def clear(self) -> None:
        """Leave out every message that is not sent completely."""
        self._queue.clear()

    def packet(self) -> tuple[list[memoryview | bytes], list[tuple[Outgoing, int]]]:
        """Return the buffers of the next packet, and how much of which message they are."""
        buffers: list[memoryview | bytes] = []
        parts: list[tuple[Outgoing, int]] = []
        room = PACKET_BYTES
        for message in self._queue:
            if room <= _PART.size or len(buffers) >= _MAX_BUFFERS:
                break
            views, size = message.buffers, message.size - message.at
            if size > room - _PART.size or len(views) > 1:
                views, size = _beginning(views, room - _PART.size, _MAX_BUFFERS)
            header = _PART.pack(self._epoch, message.number, message.size, message.at, size)
            buffers += [header, *views]
            parts.append((message, size))
            room -= _PART.size + size
        return buffers, parts

    def sent(self, parts: Sequence[tuple[Outgoing, int]]) -> int:
        """Note that a packet was sent; return the number of bytes of messages in it."""
        total = 0
        for message, size in parts:
            total += size
            message.at += size
            if message.at == message.size:
                self._queue.popleft()
            else:
                _remove(message.buffers, size)
        return total


def _beginning(buffers: deque[memoryview], room: int, count: int) -> tuple[deque[memoryview], int]:
    views: deque[memoryview] = deque()
    size = 0
    for view in buffers:
        if size == room or len(views) == count:
            break
        views.append(view[: room - size])
        size += views[-1].nbytes
    return views, size


def _remove(buffers: deque[memoryview], size: int) -> None:
    while size:
        if size < buffers[0].nbytes:
            buffers[0] = buffers[0][size:]
            return
        size -= buffers.popleft().nbytes


class PacketReader:
    """Joins the packets of a socket to messages."""

    def __init__(self) -> None:
        self._key = (0, 0)
        self._message = bytearray()
        self._at = 0

    def receive(self, packet: bytes) -> Iterator[tuple[int, int, memoryview]]:
        """Yield epoch, number and bytes of each message that *packet* completes."""
        view, at = memoryview(packet), 0
        while at < len(packet):
            epoch, number, total, offset, size = _PART.unpack_from(packet, at)
            at += _PART.size
            part = view[at : at + size]
            at += size
            if not offset:
                if size == total:
                    yield epoch, number, part
                    continue
                self._key, self._message, self._at = (epoch, number), bytearray(total), 0
            elif self._key != (epoch, number) or offset != self._at:
                continue  # its beginning went to a process that has died
            self._message[offset : offset + size] = part
            self._at = offset + size
            if self._at == total:
                message, self._message, self._key = self._message, bytearray(), (0, 0)
                yield epoch, number, memoryview(message)


def socket_pair() -> tuple[socket.socket, socket.socket]:
    """Return two connected sockets that keep the bounds of packets and never block."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for each in (ours, theirs):
        each.setblocking(False)
        each.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8 * PACKET_BYTES)
    return ours, theirs
