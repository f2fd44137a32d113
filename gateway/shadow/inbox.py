"""Inbox: the sockets of the shadow process to all serving processes, for one receiver."""

import asyncio
import socket
from collections.abc import Callable, Mapping
from typing import Final, Generic, Protocol, TypeVar

from msgspec import Struct

from gateway.shadow.packets import PACKET_BYTES, PacketReader, Sender
from gateway.shadow.records.transfer import (
    Confirmation,
    SampleMessage,
    decode_message,
    encode_confirmation,
)

# More than a socket holds. A process that still sends cannot delay the end.
_LAST_PACKETS: Final = 4096

M_contra = TypeVar("M_contra", contravariant=True)
M = TypeVar("M")


class Receiver(Protocol[M_contra]):
    """Receives the messages of serving processes: a recorder, a mirror, or the sinks of events."""

    @property
    def has_room(self) -> bool:
        """Whether it takes further messages now."""
        ...

    def put(self, sender: Sender, number: int, message: M_contra, size: int, /) -> None:
        """Take a message; never waits and never raises."""
        ...


class Inbox(Generic[M]):
    """Passes the messages of all serving processes to a receiver, and confirmations back.

    Args:
        sockets: By the number of the serving process.
        decode: Reads a message.
        announcement: The confirmation that announces this process.
    """

    def __init__(
        self,
        sockets: Mapping[int, socket.socket],
        decode: Callable[[memoryview], M],
        announcement: Struct,
    ) -> None:
        self._decode = decode
        self._announcement = announcement
        self._sockets = sockets
        self._readers = {number: PacketReader() for number in sockets}
        self._unsent: dict[int, list[Struct]] = {number: [] for number in sockets}
        self._loop = asyncio.get_running_loop()
        self._receiver: Receiver[M] | None = None
        self._is_reading = False

    def start(self, receiver: Receiver[M]) -> None:
        """Announce this process, and begin to read."""
        self._receiver = receiver
        for number in self._sockets:
            self._unsent[number].append(self._announcement)
        self._send_confirmations()
        self._resume()

    def stop(self) -> None:
        """Read what the sockets hold, and nothing after it."""
        self._pause()
        for number in self._sockets:
            for _ in range(_LAST_PACKETS):
                if not self._receive(number):
                    break

    def confirm_soon(self, number: int, confirmation: Struct) -> None:
        """Send a confirmation; called on the thread of the recorder."""
        self._loop.call_soon_threadsafe(self.confirm, number, confirmation)

    def confirm(self, number: int, confirmation: Struct) -> None:
        """Send a confirmation."""
        self._unsent[number].append(confirmation)
        self._send_confirmations()
        if self._receiver is not None and self._receiver.has_room:
            self._resume()

    def _send_confirmations(self) -> None:
        """Send what the sockets take; the rest follows with the next confirmation."""
        for number, unsent in self._unsent.items():
            while unsent:
                try:
                    self._sockets[number].send(encode_confirmation(unsent[0]))
                except (BlockingIOError, InterruptedError):
                    break
                except (BrokenPipeError, ConnectionResetError):  # the gateway has exited
                    unsent.clear()
                    break
                del unsent[0]

    def _resume(self) -> None:
        if not self._is_reading:
            self._is_reading = True
            for number, sock in self._sockets.items():
                self._loop.add_reader(sock.fileno(), self._receive, number)

    def _pause(self) -> None:
        if self._is_reading:
            self._is_reading = False
            for sock in self._sockets.values():
                self._loop.remove_reader(sock.fileno())

    def _receive(self, number: int) -> bool:
        """Read one packet; return whether there may be another."""
        assert self._receiver is not None  # noqa: S101  # `start` sets it
        try:
            packet = self._sockets[number].recv(PACKET_BYTES)
        except (BlockingIOError, InterruptedError):
            return False
        except ConnectionResetError:  # the gateway has exited; what it sent can still be read
            return True
        if not packet:
            return False
        for epoch, place, view in self._readers[number].receive(packet):
            self._receiver.put((number, epoch), place, self._decode(view), view.nbytes)
        if not self._receiver.has_room:
            self._pause()
        return True


def sample_inbox(sockets: Mapping[int, socket.socket]) -> Inbox[SampleMessage]:
    """Return the inbox of a capture or a migration."""
    return Inbox(sockets, decode_message, Confirmation())
