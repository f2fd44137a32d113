"""The addresses that workers share; the supervisor reserves them before it starts a worker."""

import socket
from collections.abc import Callable
from typing import Any

from gateway.config.load import LoadedConfig
from gateway.config.models import ListenerConfig, StreamConfig
from gateway.settings.units import Address, StreamAddress
from gateway.transports.net.port_reservation import PortReservation
from gateway.transports.net.unix_socket import UnixSocket

_BACKLOG = 1024


class SharedSockets:
    """Reserves the TCP ports of all listeners, and opens their unix sockets.

    Args:
        loaded: The configuration as it was read.

    Raises:
        OSError: An address is not available.

    Attributes:
        loaded: The configuration for the workers, with a reserved port instead of each port 0.
    """

    def __init__(self, loaded: LoadedConfig) -> None:
        self._reservations: list[PortReservation] = []
        self._files: list[UnixSocket] = []
        self._sockets: dict[str, socket.socket] = {}
        self._hands_over = loaded.config.lifecycle.hand_over
        try:
            listeners = [_with_ports(each, self._reserve) for each in loaded.config.listeners]
            for listener in loaded.config.listeners:
                for stream in listener.streams:
                    self._open(stream)
        except BaseException:
            self.close()
            raise
        self.loaded = loaded.changed(listeners=tuple(listeners))

    def close(self) -> None:
        """Release all addresses; idempotent."""
        for reservation in self._reservations:
            reservation.close()
        self._reservations.clear()
        for sock in self._sockets.values():
            sock.close()
        self._sockets.clear()
        for file in self._files:
            file.remove()
        self._files.clear()

    @property
    def sockets(self) -> dict[str, int]:
        """Descriptors of the unix sockets, by address.

        The workers share one accept queue. Connections wait in it until the first worker starts.
        """
        return {address: sock.fileno() for address, sock in self._sockets.items()}

    def _open(self, stream: StreamConfig) -> None:
        if stream.address.tcp is not None:
            return
        file = UnixSocket(stream.address.path, int(stream.mode, 8))
        sock = self._sockets[str(stream.address)] = file.bind(replaces=self._hands_over)
        self._files.append(file)
        sock.listen(_BACKLOG)

    def _reserve(self, address: Address) -> Address:
        reservation = PortReservation(address.host, address.port, is_shared=self._hands_over)
        self._reservations.append(reservation)
        return Address(address.host, reservation.port)


def _with_ports(listener: ListenerConfig, reserve: Callable[[Address], Address]) -> ListenerConfig:
    """Return *listener* with reserved addresses."""
    changes: dict[str, Any] = {}
    if listener.address is not None:
        changes["address"] = reserve(listener.address)
    if listener.http is not None:
        changes["http"] = reserve(listener.http)
    if listener.grpc is not None:
        changes["grpc"] = reserve(listener.grpc)
    changes["streams"] = tuple(
        stream
        if stream.address.tcp is None
        else stream.model_copy(update={"address": StreamAddress(tcp=reserve(stream.address.tcp))})
        for stream in listener.streams
    )
    return listener.model_copy(update=changes)
