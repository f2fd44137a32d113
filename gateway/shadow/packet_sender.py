"""PacketSender: sends messages to the shadow process, and never waits for it.

It gathers messages for some milliseconds, so that both processes wake up less often, and then sends
one packet in each turn of the event loop. What the socket does not take stays here as views.
"""

import asyncio
import os
import socket
from abc import ABC, abstractmethod
from collections.abc import Sequence

import structlog

from gateway.shadow.packets import PACKET_BYTES, PacketWriter

log = structlog.get_logger(__name__)


class PacketSender(ABC):
    """One end of a socket to the shadow process; used by one event loop.

    Args:
        sock: Non-blocking; it keeps the bounds of packets. It is not closed.
        gather_s: Time that messages may wait until a packet is full.

    Attributes:
        used_bytes: Bytes that wait for the socket.
        epoch: Names this sender in what the shadow process reports: an earlier one used the socket.
        last_number: Number of the last message that was queued; messages are numbered from 1.
    """

    def __init__(self, sock: socket.socket, gather_s: float) -> None:
        self._sock = sock
        self._gather_s = gather_s
        self.epoch = int.from_bytes(os.urandom(4), "big") | 1
        self._writer = PacketWriter(self.epoch)
        self.last_number = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_scheduled = self._is_waiting = False
        self._gathering: asyncio.TimerHandle | None = None
        self.used_bytes = 0

    @property
    def is_started(self) -> bool:
        """Whether it sends and receives."""
        return self._loop is not None

    @property
    def waiting(self) -> int:
        """Messages that wait for the socket."""
        return len(self._writer)

    def start(self) -> None:
        """Begin to send and to receive, on the running event loop."""
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._sock.fileno(), self._receive)
        self._schedule()

    @abstractmethod
    def _on_packet(self, packet: bytes) -> None:
        """Handle a packet of the shadow process."""

    def _queue(self, buffers: Sequence[bytes]) -> None:
        """Send a message soon. Its buffers are not copied."""
        self.last_number += 1
        self.used_bytes += self._writer.put(self.last_number, buffers)
        if self.used_bytes >= PACKET_BYTES or not self._gather_s:
            self._schedule()
        elif self._gathering is None and self._loop is not None:
            self._gathering = self._loop.call_later(self._gather_s, self._schedule)

    def _stop(self) -> None:
        """Send and receive nothing any more; what waits is left out."""
        if self._loop is None:
            return
        self._loop.remove_reader(self._sock.fileno())
        self._stop_waiting()
        if self._gathering is not None:
            self._gathering.cancel()
        self._writer.clear()
        self.used_bytes = 0
        self._loop = None

    def _schedule(self) -> None:
        if self._loop is not None and not self._is_scheduled and not self._is_waiting:
            self._is_scheduled = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        """Send one packet; wait until the socket is writable if it takes none."""
        self._is_scheduled = False
        if self._gathering is not None:
            self._gathering.cancel()
            self._gathering = None
        if self._loop is None or not self._writer:
            self._stop_waiting()
            return
        buffers, parts = self._writer.packet()
        try:
            self._sock.sendmsg(buffers)
        except (BlockingIOError, InterruptedError):
            if not self._is_waiting:
                self._is_waiting = True
                self._loop.add_writer(self._sock.fileno(), self._flush)
            return
        except OSError as error:  # no memory for it; the next turn tries again
            log.warning("calls not sent to the shadow process", reason=str(error))
            self._loop.call_later(1.0, self._schedule)
            return
        self.used_bytes -= self._writer.sent(parts)
        if self._writer:
            self._schedule()
        else:
            self._stop_waiting()

    def _stop_waiting(self) -> None:
        if self._is_waiting and self._loop is not None:
            self._is_waiting = False
            self._loop.remove_writer(self._sock.fileno())

    def _receive(self) -> None:
        try:
            packet = self._sock.recv(PACKET_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        if packet:
            self._on_packet(packet)
        elif self._loop is not None:  # the parent and the shadow process have exited
            self._loop.remove_reader(self._sock.fileno())
