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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from gateway.api.extension import PartSetup
from gateway.concurrency.slices import in_slices
from gateway.config.load import LoadedConfig
from gateway.processes.worker_slot import WorkerSlot

_SIZE = struct.Struct("!I")

# A part of a large message has about so many values.
_PART_VALUES: Final = 1024
_TEXT: Final = 64

Message = Mapping[str, Any]
Path = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class PartDescriptors:
    """What the part of an extension begins with in another process.

    Attributes:
        document: JSON values.
        sockets: Descriptors, by names of the extension's own choice.
        files: Descriptors of files, by names of the extension's own choice.
    """

    document: Mapping[str, Any]
    sockets: Mapping[str, int]
    files: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, setup: PartSetup) -> PartDescriptors:
        """Return a setup as another process inherits it."""
        sockets = {name: each.fileno() for name, each in setup.sockets.items()}
        return cls(setup.document, sockets, setup.files)

    def open(self) -> PartSetup:
        """Return the setup in the process that inherited the descriptors."""
        sockets = {name: socket.socket(fileno=number) for name, number in self.sockets.items()}
        for each in sockets.values():
            each.setblocking(False)
        return PartSetup(self.document, sockets, self.files)


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
        files = [number for part in self.parts.values() for number in part.files.values()]
        return (*self.sockets.values(), *own, *files)


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
    """One end of the channel.

    Attributes:
        on_part: Called with what has arrived of a large message, after each part but the last.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._last_number = 0
        self._arriving: dict[int, dict[str, Any]] = {}
        self.on_part: Callable[[Message], None] | None = None

    def send_setup(self, setup: WorkerSetup) -> None:
        """Send the worker its setup; this is the first message."""
        self._writer.write(_frame(pickle.dumps(setup)))

    def send(self, message: Message) -> None:
        """Send a message; do nothing if the other process has exited."""
        if not self._writer.is_closing():
            self._writer.write(_frame(orjson.dumps(message)))

    async def send_large(self, message: Message) -> None:
        """Send a message in parts, between which both processes do other work.

        Args:
            message: It may have iterators in the place of lists.
        """
        self._last_number += 1
        number, is_whole = self._last_number, False
        try:
            async for path, added in in_slices(_parts(message)):
                self.send({"part_of": number, "path": path, "added": added})
                await self._writer.drain()
            is_whole = True
        except OSError:
            return  # the other process has exited, as `receive` tells
        finally:
            self.send({"part_of": number, "is_whole": is_whole})

    async def receive(self) -> dict[str, Any] | None:
        """Return the next message; None if the other process has exited."""
        while True:
            try:
                (size,) = _SIZE.unpack(await self._reader.readexactly(_SIZE.size))
                message: dict[str, Any] = orjson.loads(await self._reader.readexactly(size))
            except (asyncio.IncompleteReadError, OSError):
                return None
            if "part_of" not in message:
                return message
            arrived = self._arriving.setdefault(message["part_of"], {})
            if "is_whole" in message:
                del self._arriving[message["part_of"]]
                if message["is_whole"]:
                    return arrived
                continue  # the sender gave up
            _add(arrived, message["path"], message["added"])
            if self.on_part is not None:
                self.on_part(arrived)

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


def _parts(
    value: Mapping[str, Any] | Iterable[Any], path: Path = ()
) -> Iterator[tuple[Path, dict[str, Any] | list[Any]]]:
    """Yield the parts of a map or a list: where each belongs, and what it adds there."""
    is_map = isinstance(value, Mapping)
    added: dict[Any, Any] = {}
    size = 0
    for key, each in value.items() if isinstance(value, Mapping) else enumerate(value):
        count = _count(each)
        is_large = count > _PART_VALUES and not isinstance(each, str)
        empty: Any = {} if isinstance(each, Mapping) else []
        added[key] = empty if is_large else each
        size += count
        if size >= _PART_VALUES:
            yield path, added if is_map else list(added.values())
            added, size = {}, 0
        if is_large:
            yield from _parts(each, (*path, key))
    if added:
        yield path, added if is_map else list(added.values())


def _count(value: Any) -> int:
    """Return how many values there are in a value, or more than a part has, at once."""
    if isinstance(value, str):
        return 1 + len(value) // _TEXT
    if isinstance(value, Iterator):
        return _PART_VALUES + 1
    count = 1
    if isinstance(value, Mapping | list | tuple):
        for each in value.values() if isinstance(value, Mapping) else value:
            count += _count(each)
            if count > _PART_VALUES:
                break
    return count


def _add(message: Any, path: Sequence[str | int], added: Any) -> None:
    for key in path:
        message = message[key]
    if isinstance(message, dict):
        message.update(added)
    else:
        message.extend(added)
