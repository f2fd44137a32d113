"""The channel between a process and its parent: messages over a socket pair.

The first message is the worker's setup, as a pickle; all others are JSON. End of file means that
the other process has exited.
"""

from __future__ import annotations

import asyncio
import base64
import pickle
import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from gateway.api.extension import PartSetup
from gateway.app.worker_slot import WorkerSlot
from gateway.config.load import LoadedConfig

_SIZE = struct.Struct("!I")

Message = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class PartDescriptors:
    """What the part of an extension begins with in another process.

    Attributes:
        document: JSON values.
        sockets: Descriptors, by names of the extension's own choice.
    """

    document: Mapping[str, Any]
    sockets: Mapping[str, int]

    @classmethod
    def of(cls, setup: PartSetup) -> PartDescriptors:
        """Return a setup as another process inherits it."""
        sockets = {name: each.fileno() for name, each in setup.sockets.items()}
        return cls(setup.document, sockets)

    def open(self) -> PartSetup:
        """Return the setup in the process that inherited the descriptors."""
        sockets = {name: socket.socket(fileno=number) for name, number in self.sockets.items()}
        for each in sockets.values():
            each.setblocking(False)
        return PartSetup(self.document, sockets)


@dataclass(frozen=True, slots=True)
class WorkerSetup:
    """The first message to a worker.

    Attributes:
        loaded: The configuration; each port 0 is replaced by the reserved port.
        slot: The number of the worker.
        should_log_warnings: Whether this worker logs warnings about the configuration.
        sockets: Descriptors of the unix sockets that the workers share, by address.
        drained: Endpoints that get no new calls, as "UPSTREAM/ENDPOINT".
        parts: What the parts of extensions begin with: documents, and descriptors of sockets.
    """

    loaded: LoadedConfig
    slot: WorkerSlot
    should_log_warnings: bool
    sockets: Mapping[str, int] = field(default_factory=dict)
    drained: frozenset[str] = frozenset()
    parts: Mapping[str, PartDescriptors] = field(default_factory=dict)

    @property
    def descriptors(self) -> tuple[int, ...]:
        """All descriptors that the process inherits."""
        own = [number for part in self.parts.values() for number in part.sockets.values()]
        return (*self.sockets.values(), *own)


def encode_loaded(loaded: LoadedConfig) -> str:
    """Return a configuration as a value of a message."""
    return base64.b64encode(pickle.dumps(loaded)).decode()


def decode_loaded(text: str) -> LoadedConfig:
    """Return the configuration that the supervisor encoded with `encode_loaded`."""
    # Only the parent process writes to the private socket pair.
    loaded = pickle.loads(base64.b64decode(text))  # noqa: S301
    assert isinstance(loaded, LoadedConfig)  # noqa: S101  # the parent process encodes nothing else
    return loaded


def read_setup(sock: socket.socket) -> WorkerSetup:
    """Block until the setup arrives, and read nothing after it.

    Raises:
        EOFError: The supervisor has exited.
    """
    with sock.makefile("rb", buffering=0) as file:
        (size,) = _SIZE.unpack(_read_exactly(file, _SIZE.size))
        # The parent process wrote it, with `WorkerChannel.send_setup`, on a private socket pair.
        setup = pickle.loads(_read_exactly(file, size))  # noqa: S301
    assert isinstance(setup, WorkerSetup)  # noqa: S101  # only the parent process writes here
    return setup


def _read_exactly(file: Any, size: int) -> bytes:
    parts = []
    while size:
        part: bytes = file.read(size)
        if not part:
            raise EOFError("the supervisor has exited")
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


class WorkerChannel:
    """One end of the channel."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    def send_setup(self, setup: WorkerSetup) -> None:
        """Send the worker its setup; this is the first message."""
        self._writer.write(_frame(pickle.dumps(setup)))

    def send(self, message: Message) -> None:
        """Send a message; do nothing if the other process has exited."""
        if not self._writer.is_closing():
            self._writer.write(_frame(orjson.dumps(message)))

    async def receive(self) -> dict[str, Any] | None:
        """Return the next message; None if the other process has exited."""
        try:
            (size,) = _SIZE.unpack(await self._reader.readexactly(_SIZE.size))
            message: dict[str, Any] = orjson.loads(await self._reader.readexactly(size))
        except (asyncio.IncompleteReadError, OSError):
            return None
        return message

    async def close(self) -> None:
        """Flush pending messages and close the socket; idempotent."""
        self._writer.close()
        try:
            await self._writer.wait_closed()
        except OSError:
            return  # the other process closed first


async def open_channel(sock: socket.socket) -> WorkerChannel:
    """Return the channel over one socket of the pair."""
    return WorkerChannel(*await asyncio.open_unix_connection(sock=sock))


def _frame(payload: bytes) -> bytes:
    return _SIZE.pack(len(payload)) + payload
