"""Options of TCP sockets: half-open connections are found out, small writes are not delayed."""

from __future__ import annotations

import contextlib
import fcntl
import resource
import select
import socket
import struct
import sys
import termios
from typing import Any

_IDLE_S = 30
_INTERVAL_S = 10
_PROBES = 3
_USER_TIMEOUT_MS = 30_000
_DESCRIPTOR_SHARE = 0.9
_UNLIMITED = 1 << 20
_STATE_CLOSED = 7  # linux/tcp_states.h, TCP_CLOSE
_STATE_ENDED = 8  # TCP_CLOSE_WAIT


def tune(sock: Any) -> None:
    """Set keepalive 30/10/3, TCP_USER_TIMEOUT 30 s and TCP_NODELAY, where *sock* is TCP."""
    if sock is None or sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for name, value in (
        ("TCP_KEEPIDLE", _IDLE_S),
        ("TCP_KEEPINTVL", _INTERVAL_S),
        ("TCP_KEEPCNT", _PROBES),
        ("TCP_USER_TIMEOUT", _USER_TIMEOUT_MS),
    ):
        option = getattr(socket, name, None)  # Linux has them all, others some
        if option is not None:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)


def peer_refused(sock: Any) -> bool:
    """Return whether the peer has reset the connection: it is gone, not merely done sending."""
    return _state(sock) == _STATE_CLOSED


def peer_ended(sock: Any) -> bool:
    """Return whether the peer of a TCP connection sends nothing more, read so far or not."""
    return _state(sock) == _STATE_ENDED


def peer_missing(sock: Any, size: int) -> bool:
    """Return whether *size* bytes more can never come: the peer ended, and they are not waiting."""
    if peer_refused(sock):
        return True
    if not peer_ended(sock):
        return False
    waiting: bytes = fcntl.ioctl(sock.fileno(), termios.FIONREAD, bytes(4))
    return int.from_bytes(waiting, sys.byteorder) < size


def _state(sock: Any) -> int | None:
    option = getattr(socket, "TCP_INFO", None)
    if option is None or sock is None or sock.family not in (socket.AF_INET, socket.AF_INET6):
        return None
    try:
        info: bytes = sock.getsockopt(socket.IPPROTO_TCP, option, 8)
    except OSError:  # already closed on our side: nothing is known of the peer
        return None
    return info[0]


def reset_when_closed(sock: Any) -> None:
    """Let closing *sock* tell the peer at once that nothing is read any more, where it is TCP."""
    if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def peer_gone(sock: Any) -> bool:
    """Return whether the peer of a connection has gone, where that can be seen.

    A unix socket tells at once; TCP only when something was written since, as `peer_refused`.
    """
    if sock is None or sock.family != socket.AF_UNIX:
        return peer_refused(sock)
    poll = select.poll()
    poll.register(sock.fileno(), 0)
    return any(events & (select.POLLHUP | select.POLLERR) for _, events in poll.poll(0))


def pause_until_taken(transport: Any) -> None:
    """Let *transport* pause writing until the kernel has taken all that was written.

    Then an answer's end is known, and so is a reader that does not read.
    """
    # Plain transports pause above the mark, those of TLS at it: at 0, they would with nothing left.
    encrypted = transport.get_extra_info("sslcontext") is not None
    transport.set_write_buffer_limits(high=int(encrypted))


def descriptors_short(sock: Any) -> bool:
    """Return whether *sock*'s descriptor lies in the last tenth of what the process may open.

    Descriptors are given out lowest first, so the newest number tells how many are open.
    """
    return sock is not None and sock.fileno() >= max_descriptors() * _DESCRIPTOR_SHARE


def max_descriptors() -> int:
    """Return how many descriptors the process may open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft if soft != resource.RLIM_INFINITY else _UNLIMITED


def raise_descriptor_limit() -> int:
    """Let the process open as many descriptors as it may allow itself; return their number."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):  # what is not allowed stays as it is
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return max_descriptors()
