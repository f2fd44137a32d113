"""Stop listening without losing clients: each client that has connected is accepted and served.

Each socket that listens has a queue of its own. When it is closed, the kernel resets what waits in
it, though another process that shares the port would have answered. So new handshakes are dropped
first. Their clients repeat them after a second. They reach another socket of the port, or learn
that there is none. Handshakes that have begun are finished, and the queue is emptied.

Source: socket(7), SO_REUSEPORT and SO_ATTACH_FILTER; RFC 6298 2, the first retransmission.
"""

import asyncio
import contextlib
import ctypes
import os
import socket
import struct
import sys
from collections.abc import Callable, Sequence
from typing import Final

from gateway.concurrency.background import end_tasks
from gateway.transports.net.tls_server import Listening, TlsServer

FIRST_REQUEST_S: Final = 0.25
"""How long a client that was just accepted has to send its first request."""

HANDSHAKE_S: Final = 0.05
"""How long handshakes that have begun have to finish."""

_SO_ATTACH_FILTER: Final = 26  # asm-generic/socket.h
# A packet with SYN and without ACK (byte 13 of the TCP header) is dropped, any other accepted.
_DROP_SYN: Final = (
    (0x30, 0, 0, 13),  # BPF_LD | BPF_B | BPF_ABS
    (0x54, 0, 0, 0x12),  # BPF_ALU | BPF_AND | BPF_K
    (0x15, 0, 1, 0x02),  # BPF_JMP | BPF_JEQ | BPF_K
    (0x06, 0, 0, 0),  # BPF_RET: nothing of it
    (0x06, 0, 0, 0xFFFFFFFF),  # BPF_RET: all of it
)


async def drain_accept_queue(
    servers: Sequence[Listening], new: Callable[[], asyncio.BaseProtocol]
) -> None:
    """Close *servers* to new connections, but accept those that wait, and give them time to ask.

    Args:
        servers: They listen.
        new: Makes the protocol of a connection without TLS.
    """
    with contextlib.ExitStack() as stack:
        listening = [
            (server, stack.enter_context(socket.socket(fileno=os.dup(each.fileno()))))
            for server in servers
            for each in server.sockets
        ]
        dropping = [drop_handshakes(each) for _, each in listening]
        if any(dropping):
            await asyncio.sleep(HANDSHAKE_S)
        for server in servers:
            server.close()
        accepting = []
        for server, each in listening:
            each.setblocking(False)  # the library's own
            accepting += [
                asyncio.ensure_future(_connect(server, new, sock)) for sock in _queued(each)
            ]
    await asyncio.sleep(FIRST_REQUEST_S)
    # A client that has left, or whose TLS handshake failed, is not served.
    await end_tasks(*accepting)


async def _connect(
    server: Listening, new: Callable[[], asyncio.BaseProtocol], sock: socket.socket
) -> None:
    if isinstance(server, TlsServer):
        await server.connect(sock)
    else:
        await asyncio.get_running_loop().connect_accepted_socket(new, sock)


def drop_handshakes(listening: socket.socket) -> bool:
    """Let the kernel drop new handshakes with a TCP socket; return whether it does."""
    is_tcp = listening.family in (socket.AF_INET, socket.AF_INET6)
    if not is_tcp or not sys.platform.startswith("linux"):
        return False
    code = b"".join(struct.pack("HBBI", *step) for step in _DROP_SYN)
    program = ctypes.create_string_buffer(code, len(code))
    option = struct.pack("HP", len(_DROP_SYN), ctypes.addressof(program))
    try:
        listening.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, option)
    except OSError:  # a kernel without filters: what comes in the last instant is lost
        return False
    return True


def _queued(listening: socket.socket) -> list[socket.socket]:
    """Return the connections that the kernel has made and nobody has accepted."""
    found = []
    while True:
        try:
            found.append(listening.accept()[0])
        except OSError:  # no more of them, or no descriptors for more
            return found
