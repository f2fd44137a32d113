"""The addresses that workers share; the supervisor reserves them before it starts a worker."""

import socket
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from gateway.app.listen.server_names import inherited_sockets, server_addresses
from gateway.config.load import LoadedConfig
from gateway.config.models import ListenerConfig, StreamConfig
from gateway.settings.units import Address, StreamAddress
from gateway.transports.net.listening import PortReservation
from gateway.transports.net.unix_socket import UnixSocket

_BACKLOG = 1024


class SharedSockets:
    """Reserves the TCP ports of all listeners, and opens their unix sockets.

    Args:
        loaded: The configuration as it was read.
        activated: Sockets of a service manager, see `app.activation`.

    Raises:
        OSError: An address is not available.

    Attributes:
        loaded: The configuration for the workers, with a reserved port instead of each port 0.
    """

    def __init__(
        self, loaded: LoadedConfig, activated: Mapping[str, socket.socket] = MappingProxyType({})
    ) -> None:
        self._reservations: list[PortReservation] = []
        self._files: list[UnixSocket] = []
        self._sockets: dict[str, socket.socket] = dict(activated)
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
        """Descriptors of the unix sockets, by address, and of those of a service manager.

        The workers share one accept queue of each, in which connections wait until the first
        worker starts.
        """
        return {address: sock.fileno() for address, sock in self._sockets.items()}

    def _open(self, stream: StreamConfig) -> None:
        if stream.address.tcp is not None or str(stream.address) in self._sockets:
            return
        file = UnixSocket(stream.address.path, int(stream.mode, 8))
        sock = self._sockets[str(stream.address)] = file.bind(replaces=self._hands_over)
        self._files.append(file)
        sock.listen(_BACKLOG)

    def _reserve(self, server: str, address: Address) -> Address:
        if inherited_sockets(server, self._sockets):
            return address
        reservation = PortReservation(address.host, address.port, is_shared=self._hands_over)
        self._reservations.append(reservation)
        return Address(address.host, reservation.port)


def _with_ports(
    listener: ListenerConfig, reserve: Callable[[str, Address], Address]
) -> ListenerConfig:
    """Return *listener* with reserved addresses."""
    changes: dict[str, Any] = {}
    if listener.address is not None:
        changes["address"] = reserve(f"{listener.name}.http+grpc", listener.address)
    if listener.http is not None:
        changes["http"] = reserve(f"{listener.name}.http", listener.http)
    if listener.grpc is not None:
        changes["grpc"] = reserve(f"{listener.name}.grpc", listener.grpc)
    names = [name for name, at in server_addresses(listener).items() if not isinstance(at, Address)]
    changes["streams"] = tuple(
        stream
        if stream.address.tcp is None
        else stream.model_copy(
            update={"address": StreamAddress(tcp=reserve(name, stream.address.tcp))}
        )
        for name, stream in zip(names, listener.streams, strict=True)
    )
    return listener.model_copy(update=changes)
