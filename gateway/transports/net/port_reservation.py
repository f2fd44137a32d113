"""PortReservation: holds a TCP address for processes that share it with SO_REUSEPORT.

A socket that listens and accepts nothing would swallow its share of the connections, so this one is
only bound.  It decides which port 0 means, and keeps the address from others while it is open.  The
processes that share it must set SO_REUSEPORT and run as the same user.

Source: socket(7), SO_REUSEPORT.
"""

import socket
from functools import partial
from typing import Any

from gateway.transports.net.listening import bind_all, cannot_listen


class PortReservation:
    """Holds one address, in both address families if the host has both.

    Args:
        host: The address; "" for every address.
        port: The port; 0 for a free one.
        is_shared: Another gateway may listen there, if it shares the port, too.

    Raises:
        OSError: The address is in use or invalid.
    """

    def __init__(self, host: str, port: int, *, is_shared: bool = False) -> None:
        self._sockets: list[socket.socket] = []
        try:
            rows = socket.getaddrinfo(
                host or None,
                port,
                type=socket.SOCK_STREAM,
                flags=socket.AI_PASSIVE | socket.AI_NUMERICSERV,
            )
            addresses = list(dict.fromkeys((family, where) for family, _, _, _, where in rows))
            self._sockets = bind_all(addresses, port, partial(_reserve, is_shared=is_shared))
        except OSError as error:
            raise cannot_listen(host, port, error) from error
        self.port: int = self._sockets[0].getsockname()[1]

    def close(self) -> None:
        """Release the address. A second call does nothing."""
        for held in self._sockets:
            held.close()
        self._sockets.clear()


def _reserve(held: socket.socket, where: tuple[Any, ...], *, is_shared: bool) -> None:
    if is_shared:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    # SO_REUSEADDR ignores lingering connections of a former server, but not a server that listens.
    # SO_REUSEPORT, which counts when others bind, then admits those that share.
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(where)
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
