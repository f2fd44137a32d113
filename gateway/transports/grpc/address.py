"""Addresses of a gRPC server: whether one is free, and which port it got.

The C core writes to stderr when a port is in use, and reports no errno.  Therefore a socket of this
module tries the address first.
"""

import asyncio
import errno
import os
import socket

_UNIX = "unix:"


async def require_free(address: str) -> None:
    """Raise OSError, naming *address*, unless a server could listen on it now."""
    try:
        if address.startswith(_UNIX):
            await _require_no_listener(address.removeprefix(_UNIX))
        else:
            await _require_bindable(*host_and_port(address))
    except OSError as error:
        reason = error.strerror or str(error)
        raise OSError(error.errno, f"cannot listen on {address}: {reason}") from error


def bound_address(address: str, port: int) -> str:
    """Return *address* with its real port."""
    if address.startswith(_UNIX):
        return address
    return f"{address.rpartition(':')[0]}:{port}"


def host_and_port(address: str) -> tuple[str, int]:
    """Return the parts of an address that is no unix socket. Raises OSError."""
    host, colon, port = address.rpartition(":")
    if not (host and colon and port.isascii() and port.isdigit() and int(port) < 1 << 16):
        raise OSError(errno.EINVAL, "expected host:port, with a port from 0 to 65535")
    return host.strip("[]"), int(port)


async def _require_bindable(host: str, port: int) -> None:
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE | socket.AI_NUMERICSERV
    )
    for family, kind, protocol, _, where in found:
        with socket.socket(family, kind, protocol) as probe:
            # As the server itself: connections of a former one may linger in TIME_WAIT.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            probe.bind(where)


async def _require_no_listener(path: str) -> None:
    """Raise OSError if a server listens; the C core replaces a socket file without a listener."""
    parent = os.path.dirname(path) or "."  # noqa: PTH120  # a path of bytes and text alike
    if not os.path.isdir(parent):  # noqa: ASYNC240, PTH112  # once, at start
        raise OSError(errno.ENOENT, f"no directory {parent}")
    try:
        _, writer = await asyncio.open_unix_connection(path)
    except (FileNotFoundError, ConnectionRefusedError):
        return
    writer.close()
    raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
