"""The addresses that workers share: had once, by the supervisor, before any worker starts."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

from gateway.config.load import LoadedConfig
from gateway.config.models import ListenerConfig, StreamConfig
from gateway.config.units import Address, StreamAddress
from gateway.transports.net.port_reservation import PortReservation
from gateway.transports.net.unix_socket import UnixSocket

_BACKLOG = 1024


class Addresses:
    """Holds every address that listeners name, and knows which port each 0 has become.

    Args:
        loaded: The configuration as it was read.

    Raises:
        OSError: An address cannot be had.

    Attributes:
        loaded: The configuration for the workers.
    """

    def __init__(self, loaded: LoadedConfig) -> None:
        self._guards: list[PortReservation] = []
        self._files: list[UnixSocket] = []
        self._sockets: dict[str, socket.socket] = {}
        try:
            listeners = [_settled(each, self._hold) for each in loaded.config.listeners]
            for each in loaded.config.listeners:
                for stream in each.streams:
                    self._open(stream)
        except BaseException:
            self.close()
            raise
        self.loaded = loaded.changed(listeners=tuple(listeners))

    def close(self) -> None:
        """Let go of all of them; harmless the second time."""
        for guard in self._guards:
            guard.close()
        self._guards.clear()
        for sock in self._sockets.values():
            sock.close()
        self._sockets.clear()
        for file in self._files:
            file.remove()
        self._files.clear()

    @property
    def sockets(self) -> dict[str, int]:
        """Descriptors of unix sockets, by address.

        All workers take connections from one queue, which is there from the start: clients that
        come before the first worker wait.
        """
        return {address: sock.fileno() for address, sock in self._sockets.items()}

    def _open(self, stream: StreamConfig) -> None:
        if stream.address.tcp is not None:
            return
        file = UnixSocket(stream.address.path, int(stream.mode, 8))
        sock = self._sockets[str(stream.address)] = file.bind()
        self._files.append(file)
        sock.listen(_BACKLOG)

    def _hold(self, address: Address) -> Address:
        guard = PortReservation(address.host, address.port)
        self._guards.append(guard)
        return Address(address.host, guard.port)


def _settled(listener: ListenerConfig, hold: Callable[[Address], Address]) -> ListenerConfig:
    changes: dict[str, Any] = {}
    if listener.http is not None:
        changes["http"] = hold(listener.http)
    if listener.grpc is not None:
        changes["grpc"] = hold(listener.grpc)
    changes["streams"] = tuple(
        stream
        if stream.address.tcp is None
        else stream.model_copy(update={"address": StreamAddress(tcp=hold(stream.address.tcp))})
        for stream in listener.streams
    )
    return listener.model_copy(update=changes)
