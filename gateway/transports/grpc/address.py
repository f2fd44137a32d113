"""Addresses of a gRPC server: whether one is free, and which port it got.

The C core writes to stderr when a port is in use, and reports no errno.  Therefore a socket of this
module tries the address first.
"""

import asyncio
import errno
import os

from gateway.transports.net.listening import bound_sockets

_UNIX = "unix:"


async def require_free(address: str) -> None:
    """Raise OSError, naming *address*, unless a server could listen on it now."""
    if address.startswith(_UNIX):
        await _require_no_listener(address)
        return
    for sock in await bound_sockets(*host_and_port(address)):
        sock.close()


def bound_address(address: str, port: int) -> str:
    """Return *address* with its real port."""
    if address.startswith(_UNIX):
        return address
    return f"{address.rpartition(':')[0]}:{port}"


def host_and_port(address: str) -> tuple[str, int]:
    """Return the parts of an address that is no unix socket. Raises OSError."""
    host, colon, port = address.rpartition(":")
    if not (host and colon and port.isascii() and port.isdigit() and int(port) < 1 << 16):
        raise _cannot_listen(address, errno.EINVAL, "expected host:port, with a port up to 65535")
    return host.strip("[]"), int(port)


async def _require_no_listener(address: str) -> None:
    """Raise OSError if a server listens; the C core replaces a socket file without a listener."""
    path = address.removeprefix(_UNIX)
    parent = os.path.dirname(path) or "."  # noqa: PTH120  # a path of bytes and text alike
    if not os.path.isdir(parent):  # noqa: ASYNC240, PTH112  # once, at start
        raise _cannot_listen(address, errno.ENOENT, f"no directory {parent}")
    try:
        _, writer = await asyncio.open_unix_connection(path)
    except (FileNotFoundError, ConnectionRefusedError):
        return
    except OSError as error:
        raise _cannot_listen(
            address, error.errno or errno.EIO, error.strerror or str(error)
        ) from error
    writer.close()
    raise _cannot_listen(address, errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))


def _cannot_listen(address: str, number: int, reason: str) -> OSError:
    return OSError(number, f"cannot listen on {address}: {reason}")
