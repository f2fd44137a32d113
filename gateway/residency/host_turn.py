"""HostTurn: one process of this machine at a time decides about a load at a host.

Gateways and workers share no store. Between the index that shows a free place and the load that
takes it, another one could take the same place. Those on this machine exclude each other by the
name of a socket, which the kernel frees when a process ends. Those on other machines do not.
"""

from __future__ import annotations

import asyncio
import socket
import sys
import time
from typing import Final, Self

_PAUSE_S: Final = 0.005
_LIMIT_S: Final = 2.0
"""Longest wait for a turn. A program that keeps the name can only delay loads."""


class HostTurn:
    """Excludes other processes of this machine that load models at the same host.

    Args:
        host: The host of the server.
    """

    def __init__(self, host: str) -> None:
        self._name = f"\0tensor-gateway/residency/{host}"
        self._socket: socket.socket | None = None

    async def __aenter__(self) -> Self:
        """Wait for a turn; without one, go on after a while."""
        if sys.platform != "linux":
            return self
        own = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        end = time.monotonic() + _LIMIT_S
        try:
            while not _binds(own, self._name) and time.monotonic() < end:  # noqa: ASYNC110  # no event
                await asyncio.sleep(_PAUSE_S)
        except BaseException:
            own.close()
            raise
        self._socket = own
        return self

    async def __aexit__(self, *_error: object) -> None:
        """Let another process have its turn."""
        own, self._socket = self._socket, None
        if own is not None:
            own.close()


def _binds(own: socket.socket, name: str) -> bool:
    try:
        own.bind(name)
    except OSError:
        return False
    return True
