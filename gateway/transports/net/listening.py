"""Sockets that listen on TCP: bound here, because the event loop would look each address up.

Its look-ups, also those of numbers, wait in threads that slow look-ups of other names may hold.
"""

import errno
import os
import socket
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Final

from gateway.transports.net.look_up import look_up
from gateway.transports.net.tls_server import Listening

BACKLOG: Final = 1024

_ATTEMPTS: Final = 16
# Errors of a machine without one of the two address families.
_NO_SUCH_FAMILY: Final = frozenset({errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL})
_EVERY: Final = ("0.0.0.0", "::")  # noqa: S104  # what "" means

Where = tuple[socket.AddressFamily, tuple[Any, ...]]
"""A family, and an address of it as sockets have it."""


async def listen(
    host: str,
    port: int,
    serve: Callable[[socket.socket], Awaitable[Listening]],
    *,
    reuse_port: bool = False,
    inherited: Sequence[socket.socket] = (),
) -> list[Listening]:
    """Listen on every address of *host*; return a server for each.

    Args:
        host: A name or an address; "" for every address of both families.
        port: The port; 0 for a free one, the same on each address.
        serve: Listens on a bound socket.
        reuse_port: Whether other processes listen on the port too.
        inherited: Sockets that listen already, instead of binding the address.

    Raises:
        OSError: The address is in use or invalid.
    """
    sockets = list(inherited) or await bound_sockets(host, port, reuse_port=reuse_port)
    servers: list[Listening] = []
    try:
        for sock in sockets:  # one after the other, so that each server is closed if one fails
            server = await serve(sock)
            servers.append(server)
    except BaseException as error:
        for server in servers:
            server.close()
        for sock in sockets[len(servers) :]:
            sock.close()
        if isinstance(error, OSError):
            raise cannot_listen(host, port, error) from error
        raise
    return servers


async def bound_sockets(host: str, port: int, *, reuse_port: bool = False) -> list[socket.socket]:
    """Return a socket for each address of *host*, which do not listen yet; as for `listen`."""

    def bind(sock: socket.socket, where: tuple[Any, ...]) -> None:
        # Connections of a former server may linger in TIME_WAIT.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if reuse_port:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.bind(where)

    try:
        return bind_all(addresses_of(await look_up(host) if host else _EVERY), port, bind)
    except OSError as error:
        raise cannot_listen(host, port, error) from error


def addresses_of(hosts: Sequence[str]) -> list[Where]:
    """Return IP addresses as sockets have them. Raises OSError."""
    flags = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV
    rows = [
        row
        for host in hosts
        for row in socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM, flags=flags)
    ]
    return list(dict.fromkeys((family, where) for family, _, _, _, where in rows))


def bind_all(
    addresses: Sequence[Where], port: int, bind: Callable[[socket.socket, tuple[Any, ...]], None]
) -> list[socket.socket]:
    """Return a socket for each address, all of one port.

    An address of a family that the machine lacks is left out, unless there is no other.

    Args:
        addresses: At least one.
        port: The port; 0 for a free one.
        bind: Sets the options of a socket, and binds it.

    Raises:
        OSError: An address is in use or invalid.
    """
    for attempt in range(_ATTEMPTS):
        sockets: list[socket.socket] = []
        try:
            _bind_port(sockets, addresses, port, bind)
        except OSError as error:
            for each in sockets:
                each.close()
            # A port that is free in one family may be in use in the other.
            if port or error.errno != errno.EADDRINUSE or attempt == _ATTEMPTS - 1:
                raise
        else:
            return sockets
    raise AssertionError("the last attempt returns or raises")


def cannot_listen(host: str, port: int, error: OSError) -> OSError:
    """Return *error* with the address."""
    where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    number = error.errno or 0  # negative for a name that has no address
    reason = os.strerror(number) if number > 0 else error.strerror or str(error)
    return OSError(number, f"cannot listen on {where}: {reason}")


def address_of(sock: Any) -> str:
    """Return where a socket listens, "host:port" or "unix:/path"."""
    if sock.family == socket.AF_UNIX:
        return f"unix:{sock.getsockname()}"
    host, port = sock.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _bind_port(
    sockets: list[socket.socket],
    addresses: Sequence[Where],
    port: int,
    bind: Callable[[socket.socket, tuple[Any, ...]], None],
) -> None:
    missing: OSError | None = None
    for family, where in addresses:
        try:
            sockets.append(_bound_socket(family, (where[0], port, *where[2:]), bind))
        except OSError as error:
            if error.errno not in _NO_SUCH_FAMILY:
                raise
            missing = error
            continue
        port = sockets[-1].getsockname()[1]
    if not sockets and missing is not None:
        raise missing


def _bound_socket(
    family: socket.AddressFamily,
    where: tuple[Any, ...],
    bind: Callable[[socket.socket, tuple[Any, ...]], None],
) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        bind(sock, where)
    except BaseException:
        sock.close()
        raise
    return sock


class PortReservation:
    """Holds one address, in both address families if the host has both, for several processes.

    A socket that listens and accepts nothing would swallow its share of the connections, so this
    one is only bound.  It decides which port 0 means, and keeps the address from others while it is
    open.  The processes that share it must set SO_REUSEPORT and run as the same user.

    Args:
        host: The address; "" for every address.
        port: The port; 0 for a free one.
        is_shared: Another gateway may listen there, if it shares the port, too.

    Raises:
        OSError: The address is in use or invalid.

    Source: socket(7), SO_REUSEPORT.
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
