"""HTTP/2 by hand: frames and header blocks that no library sends."""

from __future__ import annotations

import socket
from contextlib import suppress

from tests.hostile.judge import INFER
from tests.hostile.wire import PATIENCE_S, Address

DATA, HEADERS, PRIORITY, RST, SETTINGS, PUSH, PING, GOAWAY, WINDOW, CONTINUATION = range(10)
END_STREAM, ACK, END_HEADERS, PADDED, PRIORITISED = 1, 1, 4, 8, 32
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


def frame(kind: int, flags: int = 0, stream: int = 0, payload: bytes = b"") -> bytes:
    """Write a frame."""
    size = len(payload).to_bytes(3, "big")
    return size + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


BEGIN = PREFACE + frame(SETTINGS)


def number(value: int, bits: int, first: int = 0) -> bytes:
    """Write an HPACK integer of *bits* in its first byte."""
    most = (1 << bits) - 1
    if value < most:
        return bytes([first | value])
    parts = bytearray([first | most])
    value -= most
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)


def literal(name: bytes, value: bytes, *, keep: bool = False) -> bytes:
    """Write a header field; *keep* puts it into the receiver's table."""
    return (
        (b"\x40" if keep else b"\0") + number(len(name), 7) + name + number(len(value), 7) + value
    )


def block(path: bytes = INFER.encode(), /, *extra: bytes, **changed: bytes) -> bytes:
    """Write the header block of a call; *changed* replaces values, b"" leaves one out."""
    fields = {
        b":method": b"POST",
        b":scheme": b"http",
        b":path": path,
        b":authority": b"h",
        b"te": b"trailers",
        b"content-type": b"application/grpc",
    }
    for key, value in changed.items():
        name = key.replace("_", "-").encode()
        pseudo = b":" + name
        fields[pseudo if pseudo in fields else name] = value
    return b"".join([literal(key, value) for key, value in fields.items() if value]) + b"".join(
        extra
    )


def opening(stream: int = 1, *extra: bytes, flags: int = END_HEADERS, **changed: bytes) -> bytes:
    """Write the HEADERS frame of a call."""
    path = changed.pop("path", INFER.encode())
    return frame(HEADERS, flags, stream, block(path, *extra, **changed))


def message(data: bytes, *, flag: int = 0, length: int | None = None) -> bytes:
    """Write a gRPC message with its prefix; *length* lies about it."""
    size = len(data) if length is None else length
    return bytes([flag]) + size.to_bytes(4, "big") + data


def body(data: bytes, stream: int = 1, flags: int = END_STREAM) -> bytes:
    """Write DATA frames of at most 16 KiB."""
    parts = [data[at : at + 16_384] for at in range(0, len(data), 16_384)] or [b""]
    last = len(parts) - 1
    return b"".join(
        frame(DATA, flags if place == last else 0, stream, part) for place, part in enumerate(parts)
    )


def converse(address: Address, data: bytes, *, begin: bytes = BEGIN) -> tuple[str, bytes]:
    """Send frames and return the end of the connection, with all received bytes.

    The end is "status" when a call got one, "reset" when one was, "goaway", or "closed".
    A PING is sent last: when only its acknowledgement arrives, the end is "pong".

    Raises:
        TimeoutError: None of these within some seconds.
    """
    with socket.create_connection(address, PATIENCE_S) as sock:
        with suppress(ConnectionError):
            sock.sendall(begin + data + frame(PING, payload=b"12345678"))
        received = b""
        found = ""
        while True:
            found = _end(received) or found
            if found not in ("", "pong"):
                return found, received
            sock.settimeout(0.2 if found else PATIENCE_S)
            try:
                piece = sock.recv(262_144)
            except TimeoutError:
                if found:
                    return found, received
                raise
            except ConnectionError:
                piece = b""
            if not piece:
                return found or "closed", received
            received += piece


def _end(received: bytes) -> str:
    """Return the end of the conversation that frames show."""
    at, found = 0, ""
    while at + 9 <= len(received):
        size = int.from_bytes(received[at : at + 3], "big")
        kind, flags = received[at + 3], received[at + 4]
        payload = received[at + 9 : at + 9 + size]
        if len(payload) < size:
            break
        at += 9 + size
        if kind == GOAWAY:
            return "goaway"
        if kind == RST:
            return "reset"
        if kind == HEADERS and (flags & END_STREAM or b"grpc-status" in payload):
            return "status"
        if kind == PING and flags & ACK:
            found = "pong"
    return found
