"""The line between a supervisor and one worker: messages over a pair of sockets of their own.

The first message is the worker's orders, a pickle; all others are JSON. The end of the line is a
message too: to the supervisor, that the worker has gone; to the worker, that it is left alone.
"""

from __future__ import annotations

import asyncio
import pickle
import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from gateway.app.worker_slot import WorkerSlot
from gateway.config.load import LoadedConfig

_SIZE = struct.Struct("!I")

Message = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Orders:
    """What a worker is told at its birth.

    Attributes:
        loaded: The configuration, with the ports that were settled.
        seat: Its place.
        sockets: Descriptors of the unix sockets that all workers have, by address.
        first: Nobody has started with this configuration before: warnings about it are for its log.
    """

    loaded: LoadedConfig
    seat: WorkerSlot
    first: bool
    sockets: Mapping[str, int] = field(default_factory=dict)


def read_orders(line: socket.socket) -> Orders:
    """Read a worker's orders, waiting for them; nothing of what follows is read.

    Raises:
        EOFError: The supervisor has gone.
    """
    with line.makefile("rb", buffering=0) as file:
        (size,) = _SIZE.unpack(_exactly(file, _SIZE.size))
        # Written by `Channel.order` in the process that started this one, on a socket of its own.
        found = pickle.loads(_exactly(file, size))  # noqa: S301
    assert isinstance(found, Orders)  # noqa: S101  # nobody else writes here
    return found


def _exactly(file: Any, size: int) -> bytes:
    parts = []
    while size:
        part: bytes = file.read(size)
        if not part:
            raise EOFError("the supervisor has gone")
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


class WorkerChannel:
    """One end of the line.

    Args:
        reader: Where messages come from.
        writer: Where they go.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    def order(self, orders: Orders) -> None:
        """Send a worker its orders, before anything else."""
        self._writer.write(_framed(pickle.dumps(orders)))

    def send(self, message: Message) -> None:
        """Send a message; nothing happens when the other side has gone."""
        if not self._writer.is_closing():
            self._writer.write(_framed(orjson.dumps(message)))

    async def receive(self) -> dict[str, Any] | None:
        """Return the next message; None at the end of the line."""
        try:
            (size,) = _SIZE.unpack(await self._reader.readexactly(_SIZE.size))
            found: dict[str, Any] = orjson.loads(await self._reader.readexactly(size))
        except (asyncio.IncompleteReadError, OSError):
            return None
        return found

    async def close(self) -> None:
        """Send what was said, and end the line; harmless the second time."""
        self._writer.close()
        try:
            await self._writer.wait_closed()
        except OSError:
            return  # the other side went first


async def open_channel(line: socket.socket) -> WorkerChannel:
    """Return the end of a line that *line* is."""
    return WorkerChannel(*await asyncio.open_unix_connection(sock=line))


def _framed(payload: bytes) -> bytes:
    return _SIZE.pack(len(payload)) + payload
