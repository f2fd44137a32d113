"""PortReservation: holds a TCP address for processes that share it with SO_REUSEPORT.

A socket that listens and accepts nothing would swallow its share of the connections, so this one is
only bound.  It decides which port 0 means, and keeps the address from others while it is open.  The
processes that share it must set SO_REUSEPORT and run as the same user.

Source: socket(7), SO_REUSEPORT.
"""

import errno
import os
import socket
from collections.abc import Sequence
from typing import Any

_ATTEMPTS = 16
# Errors of a machine without one of the two address families.
_NO_SUCH_FAMILY = frozenset({errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL})


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
        where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        try:
            self.port = _bind_all(self._sockets, host, port, is_shared=is_shared)
        except OSError as error:
            self.close()
            number = error.errno or 0  # negative for a name that has no address
            reason = os.strerror(number) if number > 0 else error.strerror or str(error)
            raise OSError(number, f"cannot listen on {where}: {reason}") from error

    def close(self) -> None:
        """Release the address. A second call does nothing."""
        for held in self._sockets:
            held.close()
        self._sockets.clear()


def _bind_all(sockets: list[socket.socket], host: str, port: int, *, is_shared: bool) -> int:
    """Bind every address of *host* to one port; return the port."""
    found = socket.getaddrinfo(
        host or None,
        port,
        type=socket.SOCK_STREAM,
        flags=socket.AI_PASSIVE | socket.AI_NUMERICSERV,
    )
    addresses = list(dict.fromkeys((family, where) for family, _, _, _, where in found))
    for attempt in range(_ATTEMPTS):
        try:
            return _bind_port(sockets, addresses, port, is_shared=is_shared)
        except OSError as error:
            for each in sockets:
                each.close()
            sockets.clear()
            # A port that is free in one family may be in use in the other.
            if port or error.errno != errno.EADDRINUSE or attempt == _ATTEMPTS - 1:
                raise
    raise AssertionError("the last attempt returns or raises")


def _bind_port(
    sockets: list[socket.socket],
    addresses: Sequence[tuple[socket.AddressFamily, tuple[Any, ...]]],
    port: int,
    *,
    is_shared: bool,
) -> int:
    missing: OSError | None = None
    for family, where in addresses:
        try:
            held = _bound_socket(family, (where[0], port, *where[2:]), is_shared=is_shared)
        except OSError as error:
            if error.errno not in _NO_SUCH_FAMILY:
                raise
            missing = error
            continue
        sockets.append(held)
        port = held.getsockname()[1]
    if not sockets and missing is not None:
        raise missing
    return port


def _bound_socket(
    family: socket.AddressFamily, where: tuple[Any, ...], *, is_shared: bool
) -> socket.socket:
    held = socket.socket(family, socket.SOCK_STREAM)
    try:
        if family == socket.AF_INET6:
            held.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        if is_shared:
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        # SO_REUSEADDR ignores lingering connections of a former server, but not a server that
        # listens.  SO_REUSEPORT, which counts when others bind, then admits those that share.
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(where)
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    except BaseException:
        held.close()
        raise
    return held
