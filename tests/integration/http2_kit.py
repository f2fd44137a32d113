"""A client of plain HTTP over HTTP/2, on the foreign library h2."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from h2.config import H2Configuration
from h2.connection import ConnectionState, H2Connection
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    Event,
    InformationalResponseReceived,
    ResponseReceived,
    StreamEnded,
    StreamReset,
    TrailersReceived,
    WindowUpdated,
)

PATIENCE_S = 10.0
_HEAD = 9


@dataclass
class H2Answer:
    """The response on one stream.

    Attributes:
        interim: Statuses before the final one.
        reset: Error code, where the server reset the stream.
    """

    headers: dict[str, str] = field(default_factory=dict)
    body: bytearray = field(default_factory=bytearray)
    interim: list[int] = field(default_factory=list)
    reset: int | None = None
    start: asyncio.Event = field(default_factory=asyncio.Event)
    end: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def status(self) -> int:
        """Of the response; 0 while there is none."""
        return int(self.headers.get(":status", 0))


class H2Client:
    """One connection.

    Attributes:
        goaways: Last stream and error code of each GOAWAY.
        reads: Update the server's window as soon as data has arrived.
        over: The connection has ended.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer
        config = H2Configuration(client_side=True, header_encoding="utf-8")
        config.validate_outbound_headers = config.normalize_outbound_headers = False
        self.connection = H2Connection(config)
        self.answers: dict[int, H2Answer] = {}
        self.goaways: list[tuple[int, int]] = []
        self.reads = True
        self.over = asyncio.Event()
        self._room = asyncio.Event()
        self.connection.initiate_connection()
        self._reading = asyncio.create_task(self._read())

    def begin(
        self,
        method: str,
        path: str,
        fields: Iterable[tuple[str, str]] = (),
        *,
        authority: str | None = "a",
        end: bool = False,
    ) -> int:
        """Send the head of a request and return its stream."""
        number = self.connection.get_next_available_stream_id()
        head = [(":method", method), (":scheme", "http"), (":path", path)]
        if authority is not None:
            head.append((":authority", authority))
        self.connection.send_headers(number, [*head, *fields], end_stream=end)
        self.answers[number] = H2Answer()
        self.flush()
        return number

    async def send(self, number: int, body: bytes, *, end: bool = True) -> None:
        """Send a part of a body, as far as the windows let it."""
        connection, at = self.connection, 0
        while at < len(body) and not self.answers[number].end.is_set():
            most = min(
                connection.local_flow_control_window(number), connection.max_outbound_frame_size
            )
            if not most:
                self._room.clear()
                await asyncio.wait_for(self._room.wait(), PATIENCE_S)
                continue
            connection.send_data(number, body[at : at + most])
            at += most
            self.flush()
            await asyncio.sleep(0)
        if end and not self.answers[number].end.is_set():
            connection.end_stream(number)
            self.flush()

    async def ask(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        fields: Sequence[tuple[str, str]] = (),
        *,
        sized: bool = True,
    ) -> H2Answer:
        """Send a request and return its response; *sized* announces the length of its body."""
        length = [("content-length", str(len(body)))] if body and sized else []
        number = self.begin(method, path, [*fields, *length], end=not body)
        if body:
            await self.send(number, body)
        return await self.answer(number)

    async def answer(self, number: int) -> H2Answer:
        """Return the response on a stream once it has ended."""
        response = self.answers[number]
        await asyncio.wait_for(response.end.wait(), PATIENCE_S)
        return response

    def reset(self, number: int) -> None:
        """Reset a stream."""
        self.connection.reset_stream(number, 8)
        self.flush()

    def acknowledge(self, number: int, size: int) -> None:
        """Let the server send *size* bytes more."""
        self.connection.acknowledge_received_data(size, number)
        self.flush()

    def flush(self) -> None:
        """Write the pending bytes of the connection."""
        self.writer.write(self.connection.data_to_send())

    async def close(self) -> None:
        """Close the connection."""
        self._reading.cancel()
        self.writer.close()
        await asyncio.gather(self._reading, self.writer.wait_closed(), return_exceptions=True)

    async def _read(self) -> None:
        self.flush()
        try:
            buffer = b""
            while data := await self._reader.read(1 << 16):
                buffer += data
                while len(buffer) >= _HEAD and len(buffer) >= (size := _size(buffer)):
                    frame, buffer = buffer[:size], buffer[size:]
                    for event in self.connection.receive_data(frame):
                        self._note(event)
                self.flush()
        except ConnectionError:
            pass
        self.over.set()
        for response in self.answers.values():
            response.end.set()

    def _note(self, event: Event) -> None:
        number: Any = getattr(event, "stream_id", None)
        if isinstance(event, ConnectionTerminated):
            # The library takes it for the end; a server that leaves goes on with what it has.
            self.connection.state_machine.state = ConnectionState.CLIENT_OPEN
            self.goaways.append((event.last_stream_id or 0, int(event.error_code or 0)))
        elif isinstance(event, WindowUpdated):
            self._room.set()
        elif isinstance(event, InformationalResponseReceived):
            self.answers[number].interim.append(int(_fields(event)[":status"]))
        elif isinstance(event, ResponseReceived):
            self.answers[number].headers = _fields(event)
            self.answers[number].start.set()
        elif isinstance(event, TrailersReceived):
            self.answers[number].headers |= _fields(event)
        elif isinstance(event, DataReceived):
            self.answers[number].body += event.data or b""
            if self.reads:
                self.acknowledge(number, event.flow_controlled_length or 0)
        elif isinstance(event, StreamEnded):
            self.answers[number].end.set()
        elif isinstance(event, StreamReset):
            self.answers[number].reset = int(event.error_code or 0)
            self._room.set()
            self.answers[number].end.set()


def _fields(event: Any) -> dict[str, str]:
    """Return the header fields of an event, which are text, as the connection was made."""
    return dict(event.headers or [])


def _size(frame: bytes) -> int:
    """Return the size of the frame that *frame* begins with."""
    return _HEAD + int.from_bytes(frame[:3], "big")


@asynccontextmanager
async def h2_client(address: str, tls: ssl.SSLContext | None = None) -> AsyncIterator[H2Client]:
    """Connect with prior knowledge, or as TLS negotiates."""
    host, _, port = address.rpartition(":")
    client = H2Client(*await asyncio.open_connection(host, int(port), ssl=tls))
    try:
        yield client
    finally:
        await client.close()
