"""Requests on connections in memory: each lane sends the next one after its response."""

import asyncio
import itertools
import struct
from collections.abc import Callable, Iterator

from benchmarks.messages import GRPC_METHOD, Message

Received = Callable[[bytes], object]
Connect = Callable[[Received], Received]
"""Connects: is given who takes what comes, returns what sends."""

_DATA, _HEADERS, _SETTINGS, _WINDOW = 0, 1, 4, 8
_END_STREAM, _END_HEADERS = 1, 4
_INITIAL_WINDOW = 4
_BIG = (1 << 31) - 1
_DEFAULT_WINDOW = 65_535
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


class Load:
    """Lanes that send one request at a time. They connect at the first run.

    Args:
        connect: Opens one connection.
        requests: Creates the requests of one connection.
        answers: Returns whether some bytes end a response.
    """

    def __init__(
        self,
        lanes: int,
        connect: Connect,
        requests: Callable[[], Iterator[bytes]],
        answers: Callable[[bytes], bool],
    ) -> None:
        self._connect = connect
        self._lanes = lanes
        self._requests = requests
        self._answers = answers
        self._senders: list[Callable[[], None]] = []
        self._unsent = self._unanswered = 0
        self._done: asyncio.Future[None]

    async def run(self, count: int) -> None:
        """Send *count* requests and wait for the last response."""
        self._done = asyncio.get_running_loop().create_future()
        self._unsent = self._unanswered = count
        if not self._senders:
            self._senders = [self._lane() for _ in range(self._lanes)]
        for send in self._senders:
            if self._unsent:
                self._unsent -= 1
                send()
        await self._done

    def _lane(self) -> Callable[[], None]:
        requests, answers = self._requests(), self._answers

        def received(data: bytes) -> None:
            if not answers(data):
                return
            self._unanswered -= 1
            if self._unsent:
                self._unsent -= 1
                send(next(requests))
            elif not self._unanswered:
                self._done.set_result(None)

        send = self._connect(received)

        def ask() -> None:
            send(next(requests))

        return ask


def connects_anew(connect: Connect, disconnect: Callable[[Received], object]) -> Connect:
    """Return what connects for each message that is sent, so that each request is a first one.

    Args:
        connect: Connects.
        disconnect: Closes the connection of what receives its bytes.
    """

    def connect_lane(received: Received) -> Received:
        is_open = False

        def send(data: bytes) -> None:
            nonlocal is_open
            if is_open:
                disconnect(received)
            is_open = True
            connect(received)(data)

        return send

    return connect_lane


def http_requests(message: Message, path: str) -> Iterator[bytes]:
    """Yield the same request forever."""
    fields = (("Host", "127.0.0.1:8000"), ("Content-Length", str(len(message.body))))
    lines = [f"{name}: {value}" for name, value in (*fields, *message.fields)]
    head = "\r\n".join([f"POST {path} HTTP/1.1", *lines, "", ""]).encode()
    return itertools.repeat(head + message.body)


def grpc_requests(message: Message, method: str = GRPC_METHOD) -> Iterator[bytes]:
    """Yield calls of *method*, each on the next stream. The first one includes the preface."""
    # POST, http, then :path, content-type and te as literals that enter no table.
    block = b"\x83\x86" + b"\x04" + _text(method.encode()) + b"\x01" + _text(b"127.0.0.1")
    block += b"\x0f\x10" + _text(b"application/grpc") + b"\x00" + _text(b"te") + _text(b"trailers")
    return grpc_calls(itertools.repeat(block), itertools.repeat(message.body))


def grpc_calls(blocks: Iterator[bytes], bodies: Iterator[bytes]) -> Iterator[bytes]:
    """Yield calls with these header blocks and messages, as `grpc_requests`."""
    window = struct.pack(">HI", _INITIAL_WINDOW, _BIG)
    greeting = _PREFACE + _frame(_SETTINGS, 0, 0, window)
    greeting += _frame(_WINDOW, 0, 0, struct.pack(">I", _BIG - _DEFAULT_WINDOW))
    for stream, block, message in zip(itertools.count(1, 2), blocks, bodies, strict=False):
        head = _frame(_HEADERS, _END_HEADERS, stream, block)
        body = b"\0" + len(message).to_bytes(4, "big") + message
        yield greeting + head + _frame(_DATA, _END_STREAM, stream, body)
        greeting = b""


def ends_http(_data: bytes) -> bool:
    """Return True: small responses are written at once."""
    return True


def ends_grpc(data: bytes) -> bool:
    """Return whether complete frames contain trailers."""
    at = 0
    while at < len(data):
        kind, flags = data[at + 3], data[at + 4]
        if kind == _HEADERS and flags & _END_STREAM:
            return True
        at += 9 + int.from_bytes(data[at : at + 3], "big")
    return False


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">IBI", len(payload) << 8 | kind, flags, stream) + payload


def _text(text: bytes) -> bytes:
    return bytes([len(text)]) + text
