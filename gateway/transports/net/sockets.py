"""Options and states of sockets: keepalive, Nagle's algorithm, whether the peer has closed."""

import contextlib
import fcntl
import os
import resource
import select
import socket
import struct
import sys
import termios
from collections.abc import Iterator
from typing import Any

# With TCP_USER_TIMEOUT, Linux closes a connection at the first keepalive timer after it, even if
# only one probe was lost. So all probes are sent before. Source: tcp(7), tcp_keepalive_timer.
# The common 30/10/3 would find a dead peer after 60 s; these values do after 30 s, which is also
# what TCP_USER_TIMEOUT allows for unacknowledged data.
_IDLE_S = 15
_INTERVAL_S = 5
_PROBES = 3
_USER_TIMEOUT_MS = 30_000
_DESCRIPTOR_SHARE = 0.9
_UNLIMITED = 1 << 20
_STATE_CLOSED = 7  # linux/tcp_states.h, TCP_CLOSE
_STATE_ENDED = 8  # TCP_CLOSE_WAIT
_POLL_LEFT = getattr(select, "POLLRDHUP", 0) | select.POLLHUP | select.POLLERR
# Together they are more than the kernel keeps of what a peer has sent.
_UNREAD_BYTES = 256 * 1024
_UNREAD_READS = 64
_MAPPED = "::ffff:"


UNSEEN_S = 0.01
"""A connection that was idle for so long is checked before it is used again: `peer_left`."""


def tune(sock: Any) -> None:
    """Set keepalive 15/5/3, TCP_USER_TIMEOUT 30 s and TCP_NODELAY, where *sock* is TCP."""
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
        option = getattr(socket, name, None)  # Linux has all of them
        if option is not None:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)


def normal_address(address: str) -> str:
    """Return an address of IPv4 as such, where a socket of both families tells it as IPv6.

    Source: RFC 4291 2.5.5.2.
    """
    return address.removeprefix(_MAPPED) if "." in address else address


def peer_refused(sock: Any) -> bool:
    """Return whether the peer has reset the connection."""
    return _state(sock) == _STATE_CLOSED


def peer_ended(sock: Any) -> bool:
    """Return whether the peer of a TCP connection has closed its half, even if data is unread."""
    return _state(sock) == _STATE_ENDED


def peer_missing(sock: Any, size: int) -> bool:
    """Return whether *size* more bytes can never arrive: the peer has closed."""
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
    except OSError:  # already closed on this side
        return None
    return info[0]


def reset_when_closed(sock: Any) -> None:
    """Make closing *sock* a reset, so that the peer knows that nothing is read. TCP only."""
    if sock is None or sock.fileno() < 0:  # it is closed already
        return
    if sock.family in (socket.AF_INET, socket.AF_INET6):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def peer_gone(sock: Any) -> bool:
    """Return whether the peer of a connection has gone, as far as the kernel knows.

    For a unix socket it knows at once; for TCP only after data was sent, as for `peer_refused`.
    """
    if sock is None or sock.family != socket.AF_UNIX:
        return peer_refused(sock)
    poll = select.poll()
    poll.register(sock.fileno(), 0)
    return any(events & (select.POLLHUP | select.POLLERR) for _, events in poll.poll(0))


def peer_left(sock: Any) -> bool:
    """Return whether the peer has closed or reset a connection, even if that is unread.

    It costs 0.6 us, and is called before an idle connection is used again.
    """
    if sock is None or sock.fileno() < 0:
        return True
    poll = select.poll()
    poll.register(sock.fileno(), _POLL_LEFT)
    return bool(poll.poll(0))


def unacknowledged(sock: Any) -> int:
    """Return how many bytes that were sent on a TCP connection its peer has not acknowledged.

    A peer that has closed its end never acknowledges what arrives later. Source: tcp(7), SIOCOUTQ.
    """
    if sock is None or sock.fileno() < 0 or sock.family not in (socket.AF_INET, socket.AF_INET6):
        return 0
    waiting: bytes = fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, bytes(4))
    return int.from_bytes(waiting, sys.byteorder)


def unread_input(transport: Any, error: BaseException | None) -> Iterator[bytes]:
    """Yield what arrived on a connection before *error* ended it; for `connection_lost`.

    A write that fails ends the reading of the loop, too, although the response may have arrived: a
    server may refuse a request by its head, respond, and close. Nothing is left with TLS, whose
    transport closes the socket first.
    """
    sock = transport.get_extra_info("socket")
    is_plain = transport.get_extra_info("sslcontext") is None
    if error is None or not is_plain or sock is None or sock.fileno() < 0:
        return
    with socket.socket(fileno=os.dup(sock.fileno())) as own:
        for _ in range(_UNREAD_READS):
            try:
                data = own.recv(_UNREAD_BYTES, socket.MSG_DONTWAIT)
            except OSError:  # there is no more
                return
            if not data:
                return
            yield data


def has_unread(sock: Any) -> bool:
    """Return whether unread data, or the end of the data, has arrived on *sock*."""
    if sock is None or sock.fileno() < 0:
        return False
    poll = select.poll()
    poll.register(sock.fileno(), select.POLLIN)
    return bool(poll.poll(0))


def pause_until_drained(transport: Any) -> None:
    """Make *transport* pause writing whenever its write buffer is not empty.

    The end of a response is then noticed, and so is a client that does not read.
    """
    # Plain transports pause above the limit, TLS transports at it: 0 would always pause them.
    encrypted = transport.get_extra_info("sslcontext") is not None
    transport.set_write_buffer_limits(high=int(encrypted))


def end_output(transport: Any) -> None:
    """Send the end of the output, if *transport* can do that and the peer is there."""
    if transport.can_write_eof():
        with contextlib.suppress(OSError):  # asyncio raises it for a connection that was reset
            transport.write_eof()


def descriptors_short(sock: Any) -> bool:
    """Return whether the descriptor of *sock* is in the last tenth of the allowed ones.

    The kernel assigns the lowest free descriptor, so the newest shows how many are open.
    """
    return sock is not None and sock.fileno() >= max_descriptors() * _DESCRIPTOR_SHARE


def max_descriptors() -> int:
    """Return how many descriptors the process may open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft if soft != resource.RLIM_INFINITY else _UNLIMITED


def raise_descriptor_limit() -> int:
    """Raise the soft limit of descriptors to the hard one; return the limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):  # the limit stays as it is
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return max_descriptors()
