"""A TCP relay on the loopback that counts the bytes of calls, headers included.

It forwards bytes without parsing them, so it measures every protocol over TCP in the same way.
"""

import asyncio
import contextlib
from types import TracebackType
from typing import Self

from gateway.concurrency.background import end_tasks

_CHUNK_BYTES = 64 * 1024


class Relay:
    """Forwards connections to *host*:*port* and counts their bytes; a context manager.

    Attributes:
        sent: Bytes that clients sent so far.
        received: Bytes that the server sent so far.
    """

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.sent = 0
        self.received = 0

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._on_connection, "127.0.0.1", 0)
        return self

    async def __aexit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        if self._server is not None:
            self._server.close()
        await end_tasks(*self._tasks)

    @property
    def port(self) -> int:
        """The port for clients on 127.0.0.1."""
        if self._server is None:
            raise RuntimeError("the relay is not open")
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    def _on_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(self._forward(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # A connection error closes both directions.
        with contextlib.suppress(ConnectionError), contextlib.closing(writer):
            server_reader, server_writer = await asyncio.open_connection(*self._target)
            with contextlib.closing(server_writer):
                await asyncio.gather(
                    self._copy(reader, server_writer, is_request=True),
                    self._copy(server_reader, writer, is_request=False),
                )

    async def _copy(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_request: bool
    ) -> None:
        while data := await reader.read(_CHUNK_BYTES):
            if is_request:
                self.sent += len(data)
            else:
                self.received += len(data)
            writer.write(data)
            await writer.drain()
        writer.write_eof()
