"""Sockets that a service manager opened before it started the gateway, as systemd does.

Connections wait in them until the gateway serves. An inherited socket replaces the bind of the
address that its server has in the configuration, also with several workers.

Source: sd_listen_fds(3), systemd.socket(5).
"""

import os
import socket
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from typing import Final

from gateway.api.start_error import StartError
from gateway.app.listen.server_names import server_addresses
from gateway.config.models import ListenerConfig
from gateway.settings.units import UNIX, Address, StreamAddress

_FIRST: Final = 3
"""The descriptor after standard error."""

Where = Address | StreamAddress


def activated_sockets(
    listeners: Sequence[ListenerConfig], environ: MutableMapping[str, str] = os.environ
) -> dict[str, socket.socket]:
    """Return the inherited sockets by keys of `inherited_sockets`, unix sockets by their address.

    Args:
        listeners: All listeners.
        environ: The environment. Its variables are removed, so that no child process has them.

    Raises:
        StartError: A socket does not listen, or belongs to no server of the listeners.
    """
    pid, count = environ.pop("LISTEN_PID", ""), environ.pop("LISTEN_FDS", "")
    names = environ.pop("LISTEN_FDNAMES", "").split(":")
    if pid != str(os.getpid()) or not count.isdecimal():
        return {}
    servers = {
        name: (where, each) for each in listeners for name, where in server_addresses(each).items()
    }
    found: dict[str, socket.socket] = {}
    try:
        for index in range(int(count)):
            name = names[index] if index < len(names) else ""
            sock = found[name] = _opened(_FIRST + index, name)
            key = _key_of(sock, name, servers)
            found[f"{key}#{index}" if key in servers else key] = found.pop(name)
    except StartError:
        for sock in found.values():
            sock.close()
        raise
    return found


def _key_of(
    sock: socket.socket, name: str, servers: Mapping[str, tuple[Where, ListenerConfig]]
) -> str:
    """Return the name of the server that a socket is for; of a unix socket the address."""
    server = _server_of(sock, name, {name: where for name, (where, _) in servers.items()})
    where, listener = servers[server]
    if listener.transport == "reference" and where is listener.grpc:
        raise StartError(
            f"server {server}: its transport is 'reference', which cannot use an inherited "
            "socket; expected 'native' (listeners.transport)"
        )
    return str(where) if isinstance(where, StreamAddress) and where.tcp is None else server


def _opened(number: int, name: str) -> socket.socket:
    """Return an inherited socket, which no child process inherits by accident."""
    try:
        os.set_inheritable(number, False)
        sock = socket.socket(fileno=number)
        listens = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    except OSError as error:
        raise StartError(f"descriptor {number} ({name}) is no socket: {error.strerror}") from error
    if not listens:
        sock.close()
        raise StartError(
            f"socket {name!r} (descriptor {number}) does not listen; expected a stream socket of a "
            "service manager (Accept=no)"
        )
    return sock


def _server_of(sock: socket.socket, given: str, servers: Mapping[str, Where]) -> str:
    """Return the server that an inherited socket is for: by its name, else by its address."""
    # A port of both HTTP and gRPC has a server of both, with a name of both.
    for name in (given, f"{given.rpartition('.')[0]}.http+grpc"):
        if name in servers:
            return name
    bound = set(_addresses_of(sock))
    for name, where in servers.items():
        if str(where) in bound:
            return name
    raise StartError(
        f"inherited socket {given!r} belongs to no server; expected the name "
        f"{' or '.join(servers)} (FileDescriptorName=), or the address of one"
    )


def _addresses_of(sock: socket.socket) -> Iterator[str]:
    """Yield where a socket is bound, as configurations have it."""
    where = sock.getsockname()
    if sock.family == socket.AF_UNIX:
        yield f"{UNIX}:{where}"
        return
    host, port = where[:2]
    yield str(Address(host, port))
    if host in {"::", "0.0.0.0"}:  # noqa: S104  # what an empty host means
        yield str(Address("", port))
