"""Holding a TCP address for processes that share it with SO_REUSEPORT, without listening on it.

A socket that listens and accepts nothing would swallow its share of the connections, so this one is
only bound: it settles which port is meant by 0, and keeps others from the address as long as it is
open. Who shares it must set SO_REUSEPORT and run as the same user.

Source: socket(7), SO_REUSEPORT.
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Sequence
from typing import Any

_ATTEMPTS = 16
# What a machine without one of the two families says of it.
_NO_SUCH_FAMILY = frozenset({errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL})


class PortReservation:
    """Holds one address, in both families where the host has both.

    Args:
        host: To hold; "" for every address.
        port: 0 picks one that is free.

    Raises:
        OSError: A server listens there, or the address cannot be had for another reason.
    """

    def __init__(self, host: str, port: int) -> None:
        self._sockets: list[socket.socket] = []
        where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        try:
            self.port = _held(self._sockets, host, port)
        except OSError as error:
            self.close()
            number = error.errno or 0  # negative for a name that has no address
            reason = os.strerror(number) if number > 0 else error.strerror or str(error)
            raise OSError(number, f"cannot listen on {where}: {reason}") from error

    def close(self) -> None:
        """Let go of the address; harmless the second time."""
        for held in self._sockets:
            held.close()
        self._sockets.clear()


def _held(sockets: list[socket.socket], host: str, port: int) -> int:
    """Bind every address of *host* to one port, and return that."""
    found = socket.getaddrinfo(
        host or None,
        port,
        type=socket.SOCK_STREAM,
        flags=socket.AI_PASSIVE | socket.AI_NUMERICSERV,
    )
    addresses = list(dict.fromkeys((family, where) for family, _, _, _, where in found))
    for attempt in range(_ATTEMPTS):
        try:
            return _bound(sockets, addresses, port)
        except OSError as error:
            for each in sockets:
                each.close()
            sockets.clear()
            # A port that was free in one family may be taken in the other.
            if port or error.errno != errno.EADDRINUSE or attempt == _ATTEMPTS - 1:
                raise
    raise AssertionError("the last attempt returns or raises")


def _bound(
    sockets: list[socket.socket],
    addresses: Sequence[tuple[socket.AddressFamily, tuple[Any, ...]]],
    port: int,
) -> int:
    missing: OSError | None = None
    for family, where in addresses:
        try:
            held = _bound_socket(family, (where[0], port, *where[2:]))
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


def _bound_socket(family: socket.AddressFamily, where: tuple[Any, ...]) -> socket.socket:
    held = socket.socket(family, socket.SOCK_STREAM)
    try:
        if family == socket.AF_INET6:
            held.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        # Binding fails where anybody listens, sharing or not, but for connections of a former
        # server that linger. From then on only those who share may come: what the options are
        # counts when the others bind.
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(where)
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    except BaseException:
        held.close()
        raise
    return held
