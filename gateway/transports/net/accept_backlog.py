"""Leaving a port that others go on listening on, without leaving clients behind.

Each of the sockets that share a port has a queue of its own. What the kernel has put into one that
is then closed is reset, though the next process would have answered: so the queue is emptied first.
What it puts there in the instant between the last look and the closing is still lost.

Source: socket(7), SO_REUSEPORT; ip-sysctl, tcp_migrate_req, which is off unless someone sets it.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Mapping
from typing import Any, Final

FIRST_REQUEST_S: Final = 0.25
"""Within this, a client that has just been let in sends what it came for."""


async def drain_accept_queue(
    server: asyncio.Server, new: Callable[[], asyncio.BaseProtocol], tls: Mapping[str, Any]
) -> None:
    """Close *server* to new connections, but take those that wait, and give them time to ask.

    Args:
        server: Listens on a port that is shared.
        new: Makes the protocol of a connection.
        tls: How connections are taken, as `connect_accepted_socket` has it.
    """
    loop = asyncio.get_running_loop()
    doors = [socket.socket(fileno=os.dup(each.fileno())) for each in server.sockets]
    server.close()
    waiting = []
    for door in doors:
        with door:
            door.setblocking(False)  # the library's own
            waiting += _queued(door)
    letting_in = [
        asyncio.ensure_future(loop.connect_accepted_socket(new, each, **tls)) for each in waiting
    ]
    await asyncio.sleep(FIRST_REQUEST_S)
    for each in letting_in:
        each.cancel()
    # One that left again, or that could not agree on TLS, is gone: that is its own affair.
    await asyncio.gather(*letting_in, return_exceptions=True)


def _queued(door: socket.socket) -> list[socket.socket]:
    """Return the connections that the kernel has made and nobody has taken."""
    found = []
    while True:
        try:
            found.append(door.accept()[0])
        except OSError:  # no more of them, or no descriptors for more
            return found
