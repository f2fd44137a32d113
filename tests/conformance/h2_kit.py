"""Shared parts of the HTTP/2 conformance cases: expected and actual outcomes.

Frames are written by `tests/hostile/frames.py` and read here, without the gateway's own HTTP/2.
After the frames of a case a good call is made on the same connection, so that the outcome is known
without waiting: the call has a response, or the connection has ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field

from tests.hostile.frames import (
    BEGIN,
    DATA,
    END_STREAM,
    GOAWAY,
    HEADERS,
    RST,
    body,
    message,
    opening,
)
from tests.integration.grpc_echo import UNARY

(
    NO_ERROR,
    PROTOCOL_ERROR,
    INTERNAL_ERROR,
    FLOW_CONTROL_ERROR,
    SETTINGS_TIMEOUT,
    STREAM_CLOSED,
    FRAME_SIZE_ERROR,
    REFUSED_STREAM,
    CANCEL,
    COMPRESSION_ERROR,
    CONNECT_ERROR,
    ENHANCE_YOUR_CALM,
) = range(12)

LAST = 2_000_001
"""Stream of the good call that ends a case."""

PATH = UNARY.encode()
CALL = opening(path=PATH)
"""Opens a call on stream 1; its message is to come."""

MESSAGE = body(message(b"x"))
WHOLE = CALL + MESSAGE
"""A whole call on stream 1."""

_SECONDS = 30.0


@dataclass(frozen=True)
class Outcome:
    """What became of a connection.

    Attributes:
        goaway: Error code of the GOAWAY that ended it; None for none.
        lives: The good call after the case had a response.
        resets: Error codes of streams that were reset, by stream; those that only stop
            the request (NO_ERROR) are omitted.
        answered: Streams with a complete response.
        frames: All received frames: kind, flags, stream, payload.
    """

    goaway: int | None = None
    lives: bool = False
    resets: dict[int, int] = field(default_factory=dict)
    answered: frozenset[int] = frozenset()
    frames: tuple[tuple[int, int, int, bytes], ...] = ()

    @property
    def summary(self) -> str:
        """What happened in a word: "connection 1", "stream 1: 3", "answered", "ignored"..."""
        if self.goaway is not None or not self.lives:
            return "closed" if self.goaway is None else f"connection {self.goaway}"
        if self.resets:
            return ", ".join(f"stream {each}: {code}" for each, code in sorted(self.resets.items()))
        return "answered" if self.answered else "ignored"


def connection(code: int) -> str:
    """Return the summary of a connection that ends with GOAWAY and *code*."""
    return f"connection {code}"


def stream(code: int, number: int = 1) -> str:
    """Return the summary of a connection that resets one stream with *code* and stays open."""
    return f"stream {number}: {code}"


def split(received: bytes) -> Iterator[tuple[int, int, int, bytes]]:
    """Return the whole frames of *received*."""
    at = 0
    while at + 9 <= len(received):
        size = int.from_bytes(received[at : at + 3], "big")
        if at + 9 + size > len(received):
            return
        number = int.from_bytes(received[at + 5 : at + 9], "big") & 0x7FFFFFFF
        yield received[at + 3], received[at + 4], number, received[at + 9 : at + 9 + size]
        at += 9 + size


def judged(received: bytes) -> Outcome:
    """Return the outcome that *received* shows."""
    frames = tuple(split(received))
    goaway: int | None = None
    resets: dict[int, int] = {}
    answered: set[int] = set()
    for kind, flags, number, payload in frames:
        if kind == GOAWAY and (code := int.from_bytes(payload[4:8], "big")):
            goaway = code
        elif kind == RST and (code := int.from_bytes(payload, "big")):
            resets[number] = code
        elif kind in (HEADERS, DATA) and flags & END_STREAM:
            answered.add(number)
    lives = LAST in answered
    return Outcome(goaway, lives, resets, frozenset(answered - {LAST}), frames)


async def outcome(address: str, data: bytes, *, begin: bytes = BEGIN, cut: int = 0) -> Outcome:
    """Send the frames of a case, then a good call; return the outcome.

    Args:
        address: Where a server of `tests/integration/grpc_echo.py` listens.
        data: Frames of the case.
        begin: What the connection begins with.
        cut: Send pieces of so many bytes; 0 for all at once.
    """
    host, port = address.rsplit(":", 1)
    reader, writer = await asyncio.open_connection(host, int(port))
    sent = begin + data + opening(LAST, path=PATH) + body(message(b"last"), LAST)
    received = b""
    try:
        async with asyncio.timeout(_SECONDS):
            with suppress(ConnectionError):
                for at in range(0, len(sent), cut or len(sent)):
                    writer.write(sent[at : at + (cut or len(sent))])
                    await writer.drain()
            with suppress(ConnectionError):
                while not judged(received).lives:
                    piece = await reader.read(65_536)
                    if not piece:
                        break
                    received += piece
        return judged(received)
    finally:
        writer.close()
