"""Asks the admin port of a gateway whether it is alive: `gateway health --live [[--admin] ADDR]`.

A container asks every few seconds, so it imports neither typer nor another module of the gateway.
A dead model server does not matter: /livez is about the process of the gateway alone.
"""

import errno
import os
import socket
import sys
from collections.abc import Sequence
from typing import Final

DEFAULT_ADMIN: Final = "127.0.0.1:9901"
TIMEOUT_S: Final = 5.0
UNIX: Final = "unix:"
"""The prefix of the address of a unix socket; its path follows."""

HTTPS: Final = "https://"
"""The prefix of the address of an admin port with TLS."""

_SCHEME: Final = "http://"
TOKEN_VARIABLE: Final = "GATEWAY_ADMIN_TOKEN"  # noqa: S105  # its name
"""The environment variable with the token for the admin port."""

_OK: Final = b" 200 "
_REFUSED: Final = (b" 401 ", b" 403 ")
_STATUS_BYTES: Final = 13  # "HTTP/1.1 200 "
_LEAST_PORT: Final = 1
_LAST_PORT: Final = 65_535


def live_address(arguments: Sequence[str]) -> str | None:
    """Return the address that `health --live [[--admin] ADDR]` asks; None for other arguments."""
    if arguments[:2] != ["health", "--live"]:
        return None
    given = arguments[3:] if arguments[2:3] == ["--admin"] and arguments[3:] else arguments[2:]
    address = given[0] if given else DEFAULT_ADMIN
    # TLS, and all other flags, are left to the command line.
    return None if len(given) > 1 or address.startswith(("-", HTTPS)) else address


def run_live(address: str, timeout_s: float = TIMEOUT_S) -> int:
    """Ask, print the result, and return the exit status: 0 live, 1 not live, 2 usage error."""
    try:
        host, port = ("", 0) if address.startswith(UNIX) else _host_and_port(address)
    except ValueError:
        message = f"address of the admin port is {address!r}; expected HOST:PORT or unix:/path"
        sys.stderr.write(f"gateway: {message}\n")
        return 2
    try:
        if host:
            is_live = ask_live(host, port, timeout_s)
        else:
            is_live = _is_live(unix_connection(address.removeprefix(UNIX), timeout_s), "localhost")
    except OSError as error:
        reason = error.strerror or str(error)
        sys.stderr.write(f"gateway: no admin port of a gateway at {address}: {reason}\n")
        return 1
    return print_live(is_live)


def print_live(is_live: bool) -> int:
    """Print the result, and return the exit status."""
    sys.stdout.write("live\n" if is_live else "not live\n")
    return 0 if is_live else 1


def ask_live(host: str, port: int, timeout_s: float) -> bool:
    """Return whether the admin port responds to /livez with status 200.

    Raises:
        OSError: It cannot be reached, or does not respond in time.
    """
    return _is_live(socket.create_connection((host, port), timeout_s), f"{host}:{port}")


def unix_connection(path: str, timeout_s: float | None) -> socket.socket:
    """Return a connection to a unix socket. Raises OSError."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.settimeout(timeout_s)
        sock.connect(path)
    except OSError:
        sock.close()
        raise
    return sock


def _is_live(sock: socket.socket, host: str) -> bool:
    """Ask; raise OSError for a refusal, which says nothing about the gateway."""
    token = os.environ.get(TOKEN_VARIABLE)
    bearer = f"Authorization: Bearer {token}\r\n" if token else ""
    request = f"GET /livez HTTP/1.1\r\nHost: {host}\r\n{bearer}Connection: close\r\n\r\n"
    with sock:
        sock.sendall(request.encode())
        head = b""
        while len(head) < _STATUS_BYTES:
            received = sock.recv(_STATUS_BYTES - len(head))
            if not received:
                break
            head += received
    if head.endswith(_REFUSED):
        status = head[-4:-1].decode()
        reason = f"status {status}; {TOKEN_VARIABLE} is to have a token that admin.tokens allows"
        raise PermissionError(errno.EACCES, reason)
    return head.startswith(b"HTTP/1.") and head.endswith(_OK)


def _host_and_port(address: str) -> tuple[str, int]:
    host, _, port = address.removeprefix(_SCHEME).rstrip("/").rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isascii() or not port.isdecimal():
        raise ValueError(address)
    if not _LEAST_PORT <= int(port) <= _LAST_PORT:
        raise ValueError(address)
    return host, int(port)
