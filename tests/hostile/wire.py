"""HTTP/1.1 over raw sockets: send any bytes, and read what comes back as strictly as a proxy."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Self

Address = tuple[str, int]
Piece = bytes | float
"""What to send, or how many seconds to wait before the next."""

PATIENCE_S = 30.0
SIMPLE = "/v2/models/simple/infer"
_PAIR = [
    {"name": f"INPUT{n}", "datatype": "INT32", "shape": [1, 16], "data": list(range(16))}
    for n in range(2)
]
GOOD_BODY = json.dumps({"id": "good", "inputs": _PAIR}).encode()

# aiohttp refuses what it cannot read by itself, in the version of the request or in HTTP/1.0.
VERSIONS = (
    (b"HTTP/1.1", b"HTTP/1.0")
    if os.environ.get("HOSTILE_TRANSPORT") == "reference"
    else (b"HTTP/1.1",)
)
REFUSED = tuple(version + b" 4" for version in VERSIONS)


@dataclass(frozen=True)
class Answer:
    """One response of the gateway."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes

    def get(self, name: str) -> str | None:
        """Return the first field *name*, in lower case."""
        return next((value for key, value in self.headers if key.lower() == name), None)

    @property
    def closes(self) -> bool:
        """Whether it announces the end of the connection."""
        return (self.get("connection") or "").lower() == "close"

    @property
    def json(self) -> Any:
        """Its body as JSON."""
        return json.loads(self.body)


class BrokenAnswer(AssertionError):
    """The gateway wrote bytes that are no HTTP."""


class Raw:
    """A connection that sends bytes as they are."""

    def __init__(self, address: Address, *, source: str | None = None) -> None:
        origin = (source, 0) if source is not None else None
        self.socket = socket.create_connection(address, PATIENCE_S, origin)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.socket.close()

    def send(self, pieces: Iterable[Piece]) -> bool:
        """Send; return False if the gateway closed before all was sent."""
        try:
            for piece in pieces:
                if isinstance(piece, bytes):
                    self.socket.sendall(piece)
                else:
                    time.sleep(piece)
        except (ConnectionError, TimeoutError):
            return False
        return True

    def shut(self) -> None:
        """Close our sending side: the gateway sees the end, and may still respond."""
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_WR)

    def answer(self, *, head: bool = False) -> Answer | None:
        """Read the next response, interim ones skipped; None if the connection ended instead.

        Raises:
            TimeoutError: No bytes arrived.
            BrokenAnswer: The bytes are no whole response.
        """
        while True:
            text = self._until(b"\r\n\r\n")
            if text is None:
                return None
            first, *lines = text[:-4].split(b"\r\n")
            version, _, rest = first.partition(b" ")
            if version not in VERSIONS or not rest[:3].isdigit():
                raise BrokenAnswer(f"status line {first[:80]!r}")
            status = int(rest[:3])
            if status == 100:
                continue
            return self._rest_of(status, lines, head=head)

    def rest(self) -> bytes:
        """Return what comes until the connection ends; a reset is an end."""
        data = [self._buffer]
        self._buffer = b""
        with suppress(ConnectionError):
            while piece := self.socket.recv(65536):
                data.append(piece)
        return b"".join(data)

    def _rest_of(self, status: int, lines: list[bytes], *, head: bool) -> Answer:
        fields = [line.decode("ascii").partition(": ")[::2] for line in lines]
        response = Answer(status, tuple(fields), b"")
        lengths = [value for key, value in fields if key.lower() == "content-length"]
        coding = response.get("transfer-encoding")
        if len(lengths) + (coding is not None) > 1:
            raise BrokenAnswer(f"two framings: {fields}")
        if head or status in (204, 304):
            return response
        if coding is not None:
            raise BrokenAnswer("the unary answers here have a length")
        if not lengths:
            raise BrokenAnswer(f"no length: {fields}")
        return Answer(status, tuple(fields), self._exactly(int(lengths[0])))

    def _until(self, end: bytes) -> bytes | None:
        while end not in self._buffer:
            if not self._more():
                if self._buffer:
                    raise BrokenAnswer(f"cut head {self._buffer[:200]!r}")
                return None
        text, found, self._buffer = self._buffer.partition(end)
        return text + found

    def _exactly(self, size: int) -> bytes:
        while len(self._buffer) < size:
            if not self._more():
                raise BrokenAnswer(f"cut body: {len(self._buffer)} bytes of {size}")
        data, self._buffer = self._buffer[:size], self._buffer[size:]
        return data

    def _more(self) -> bool:
        try:
            piece = self.socket.recv(262_144)
        except ConnectionError:
            return False
        self._buffer += piece
        return bool(piece)


def head(method: str = "POST", path: str = SIMPLE, *fields: str, host: str | None = "h") -> bytes:
    """Write the head of a request, Host included unless None."""
    lines = [f"{method} {path} HTTP/1.1", *([f"Host: {host}"] if host is not None else ()), *fields]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def post(body: bytes, *fields: str, path: str = SIMPLE, length: int | str | None = None) -> bytes:
    """Write a POST with *body*; *length* lies about it."""
    size = len(body) if length is None else length
    return head("POST", path, *fields, f"Content-Length: {size}") + body


def chunked(*chunks: bytes, fields: Sequence[str] = (), path: str = SIMPLE) -> bytes:
    """Write the head of a POST in chunks, and *chunks* as they are."""
    return head("POST", path, "Transfer-Encoding: chunked", *fields) + b"".join(chunks)


def chunk(data: bytes) -> bytes:
    """Write a chunk."""
    return b"%x\r\n%b\r\n" % (len(data), data)


GOOD = post(GOOD_BODY)
LAST_GOOD = post(GOOD_BODY, "Connection: close")


def is_good(response: Answer | None) -> bool:
    """Return whether this is the response to `GOOD`."""
    if response is None or response.status != 200 or not response.body:  # as of HEAD
        return False
    document = response.json
    if not isinstance(document, dict):
        return False
    sums = [2 * n for n in range(16)]
    return bool(document.get("id") == "good" and document["outputs"][0]["data"] == sums)


def ask(address: Address, data: bytes, *, source: str | None = None) -> Answer | None:
    """Send one request on a connection of its own and return its response."""
    with Raw(address, source=source) as raw:
        raw.send([data])
        return raw.answer()


def get(address: Address, path: str) -> bytes:
    """Return the body at *path*."""
    response = ask(address, head("GET", path, "Connection: close"))
    assert response is not None
    return response.body
