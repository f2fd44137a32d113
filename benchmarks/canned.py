"""A model server that does nothing: it returns one canned response.

    python -m benchmarks.canned http|grpc ANSWER-FILE [FIELDS-AS-JSON [ADDRESSES]]

It prints its port. With ADDRESSES, a number, it listens on 127.0.0.1 and those after it. It uses as
little Python as possible, on uvloop, because it shares its core with the load generator. It looks
for a length in HTTP heads, and does not decode HTTP/2 header blocks. Use it for trusted peers on
the loopback only. An empty request (GET, or an empty gRPC message) asks for health, and gets a
positive response.
"""

import asyncio
import json
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

_END_STREAM = 1
_PADDED = 8
_DATA, _HEADERS, _SETTINGS, _PING, _WINDOW = 0, 1, 4, 6, 8
_PREFACE_BYTES = 24
_FRAME_HEAD = struct.Struct(">I B I")  # length and type, flags, stream
_BIG = (1 << 30) - 1
_DEFAULT_WINDOW = 65_535
# SETTINGS_INITIAL_WINDOW_SIZE, _MAX_FRAME_SIZE and _MAX_CONCURRENT_STREAMS. Triton 2.51 and grpcio
# 1.85 offer frames of 4 MiB, too.
_OUR_SETTINGS = struct.pack(">HIHIHI", 4, _BIG, 5, 1 << 22, 3, 1000)


class Http(asyncio.Protocol):
    """A connection of HTTP/1.1."""

    def __init__(self, answer: bytes, fields: dict[str, str]) -> None:
        self._answer = _http_answer(answer, fields)
        self._ready = _http_answer(b'{"ready":true}', {"Content-Type": "application/json"})
        self._head = b""
        self._remaining = 0
        self._transport: asyncio.Transport

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def reply(self) -> None:
        """Write the response."""
        self._transport.write(self._answer)

    def data_received(self, data: bytes) -> None:
        while data:
            if self._remaining:
                size = min(self._remaining, len(data))
                self._remaining -= size
                if not self._remaining:
                    self.reply()
                if size == len(data):
                    return
                data = data[size:]
            data = self._head + data
            end = data.find(b"\r\n\r\n")
            if end < 0:
                self._head = data
                return
            self._head = b""
            length = _content_length(data[:end])
            self._remaining = max(0, end + 4 + length - len(data))
            if not length:
                self._transport.write(self._ready)
            elif not self._remaining:
                self.reply()
            data = data[end + 4 + length :]  # empty, nearly always


def _http_answer(body: bytes, fields: dict[str, str]) -> bytes:
    lines = ["HTTP/1.1 200 OK", *(f"{name}: {value}" for name, value in fields.items())]
    return "\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""]).encode() + body


def _content_length(head: bytes) -> int:
    at = head.lower().find(b"\r\ncontent-length:")
    if at < 0:
        return 0
    start = at + len(b"\r\ncontent-length:")
    end = head.find(b"\r\n", start)
    return int(head[start:] if end < 0 else head[start:end])


class Grpc(asyncio.Protocol):
    """A connection of HTTP/2 with gRPC calls."""

    def __init__(self, answer: bytes) -> None:
        message = b"\0" + len(answer).to_bytes(4, "big") + answer
        self._answers = (message, b"\0\0\0\0\2\x08\1")
        # Indexed ":status: 200"; "content-type" by static name; "grpc-status" as a new name. None
        # enters the table, so every stream takes the same bytes.
        self._begin = b"\x88\x0f\x10\x10application/grpc"
        self._end = b"\x00\x0bgrpc-status\x010"
        self._buffer = b""
        self._preface = _PREFACE_BYTES
        self._sizes: dict[int, int] = {}
        self._received = 0
        self._window = _DEFAULT_WINDOW
        self._waiting: list[tuple[int, bytes]] = []
        self._out: list[bytes] = []
        self._transport: asyncio.Transport

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        window = struct.pack(">I", _BIG - _DEFAULT_WINDOW)
        transport.write(_frame(_SETTINGS, 0, 0, _OUR_SETTINGS) + _frame(_WINDOW, 0, 0, window))

    def data_received(self, data: bytes) -> None:
        buffer = self._buffer + data if self._buffer else data
        at = self._preface
        while len(buffer) - at >= 9:
            head, flags, stream = _FRAME_HEAD.unpack_from(buffer, at)
            end = at + 9 + (head >> 8)
            if end > len(buffer):
                break
            self._frame(head & 0xFF, flags, stream, buffer, at + 9, end)
            at = end
        if at <= len(buffer):
            self._preface = 0
            buffer = buffer[at:]
        self._buffer = buffer
        if self._out:
            self._transport.writelines(self._out)
            self._out = []

    def _frame(self, kind: int, flags: int, stream: int, data: bytes, at: int, end: int) -> None:
        if kind == _DATA:
            size = end - at - (data[at] + 1 if flags & _PADDED else 0)
            self._sizes[stream] = self._sizes.get(stream, 0) + size
            self._credit(end - at)
            if flags & _END_STREAM:
                self._reply(stream, self._answers[self._sizes.pop(stream) <= 5])
        elif kind == _HEADERS and flags & _END_STREAM:
            self._reply(stream, self._answers[1])
        elif kind == _SETTINGS and not flags:
            self._out.append(_frame(_SETTINGS, 1, 0, b""))
        elif kind == _PING and not flags:
            self._out.append(_frame(_PING, 1, 0, data[at:end]))
        elif kind == _WINDOW and stream == 0:
            self._window += int.from_bytes(data[at:end], "big")
            while self._waiting and self._fits(self._waiting[0][1]):
                self._write(*self._waiting.pop(0))

    def _credit(self, size: int) -> None:
        self._received += size
        if self._received > _BIG // 2:
            self._out.append(_frame(_WINDOW, 0, 0, struct.pack(">I", self._received)))
            self._received = 0

    def _fits(self, message: bytes) -> bool:
        return len(message) <= self._window

    def _reply(self, stream: int, message: bytes) -> None:
        # Responses fit into the first window of a stream, so only the connection's window matters.
        if self._waiting or not self._fits(message):
            self._waiting.append((stream, message))
        else:
            self._write(stream, message)

    def _write(self, stream: int, message: bytes) -> None:
        self._window -= len(message)
        self._out += [
            _frame(_HEADERS, 4, stream, self._begin),
            _frame(_DATA, 0, stream, message),
            _frame(_HEADERS, 5, stream, self._end),
        ]


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return _FRAME_HEAD.pack(len(payload) << 8 | kind, flags, stream) + payload


async def _serve(factory: Callable[[], asyncio.Protocol], addresses: int) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(factory, "127.0.0.1", 0, backlog=512)
    port = server.sockets[0].getsockname()[1]
    for number in range(2, addresses + 1):
        await loop.create_server(factory, f"127.0.0.{number}", port, backlog=512)
    print(port, flush=True)
    await server.serve_forever()


def main() -> None:
    """Serve until killed."""
    carrier, file, *rest = sys.argv[1:]
    answer = Path(file).read_bytes()
    fields = json.loads(rest[0]) if rest else {}
    factory: Callable[[], asyncio.Protocol]
    factory = (lambda: Grpc(answer)) if carrier == "grpc" else (lambda: Http(answer, fields))
    import uvloop  # noqa: PLC0415  # only the child needs it

    uvloop.run(_serve(factory, int(rest[1]) if len(rest) > 1 else 1))


if __name__ == "__main__":
    main()
