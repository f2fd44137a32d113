"""Connections take turns: one that never pauses delays no other."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

from tests.hostile import frames
from tests.hostile.fairness import LIVE, Innocents, fair_gateway
from tests.hostile.process import Gateway
from tests.hostile.wire import chunk, chunked

pytestmark = [pytest.mark.hostile, pytest.mark.timeout(120)]

_SECONDS = 2.0
_UNKNOWN = b"/no.Such/Method"


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    """A gateway of this module."""
    with fair_gateway() as found:
        yield found


def _resizes() -> bytes:
    updates = b"\x20\x3f\xe1\x1f" * 2000
    data = b"".join(
        frames.frame(frames.HEADERS, frames.END_HEADERS, stream, updates + frames.block(_UNKNOWN))
        for stream in range(1, 40, 2)
    )
    return frames.BEGIN + data


def _unknown_methods() -> bytes:
    return frames.BEGIN + b"".join(
        frames.opening(stream, path=_UNKNOWN, flags=frames.END_HEADERS | frames.END_STREAM)
        for stream in range(1, 20_000, 2)
    )


def _references() -> bytes:
    first = frames.opening(1, frames.literal(b"x-large", b"v" * 3000, keep=True), path=_UNKNOWN)
    block = frames.block(_UNKNOWN) + b"\xbe" * 4
    return (
        frames.BEGIN
        + first
        + b"".join(
            frames.frame(frames.HEADERS, frames.END_HEADERS | frames.END_STREAM, stream, block)
            for stream in range(3, 20_000, 2)
        )
    )


def _huffman() -> bytes:
    """Write calls whose heads have a value of 14,400 letters in Huffman codes of 5 bits."""
    value = frames.number(9_000, 7, 0x80) + bytes(9_000)
    data = frames.BEGIN
    for stream in range(1, 400, 2):
        block = frames.block(_UNKNOWN) + b"\0" + frames.number(1, 7) + b"x" + value
        data += frames.frame(frames.HEADERS, frames.END_HEADERS | frames.END_STREAM, stream, block)
    return data


def _small_frames() -> bytes:
    begin = frames.BEGIN + frames.opening(1)
    return (
        begin
        + frames.frame(frames.DATA, 0, 1, frames.message(b"", length=60_000))
        + (frames.frame(frames.DATA, 0, 1, b"x") * 50_000)
    )


GRPC = {
    "table_sizes": _resizes,
    "unknown_methods": _unknown_methods,
    "references": _references,
    "huffman": _huffman,
    "small_frames": _small_frames,
}


def _flood(address: tuple[str, int], data: bytes, end: float) -> None:
    """Send *data* on one connection after the other, without a pause."""
    while time.monotonic() < end:
        with suppress(OSError), socket.create_connection(address, 2) as sock:
            sock.settimeout(0.5)
            reader = threading.Thread(target=_drain, args=(sock,))
            reader.start()
            with suppress(OSError):
                sock.sendall(data)
                sock.shutdown(socket.SHUT_WR)
            reader.join()


def _drain(sock: socket.socket) -> None:
    with suppress(OSError):
        while sock.recv(65536):
            pass


@pytest.mark.parametrize("name", GRPC)
def test_endless_http2_frames_delay_no_other_client(gateway: Gateway, name: str) -> None:
    """Others are served between the frames of a busy connection."""
    data = GRPC[name]()
    with Innocents(gateway) as others:
        _flood(gateway.addresses["main.grpc"], data, time.monotonic() + _SECONDS)
    others.check()


HTTP = {
    "pipelined": LIVE * 20_000,
    "chunks": chunked(chunk(b"x") * 60_000, path="/v2/models/simple/infer"),
}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(each, marks=pytest.mark.needs("turns") if each == "chunks" else ())
        for each in HTTP
    ],
)
def test_endless_http1_bytes_delay_no_other_client(gateway: Gateway, name: str) -> None:
    """Pipelined heads and chunks of one byte do not delay others."""
    with Innocents(gateway) as others:
        _flood(gateway.http, HTTP[name], time.monotonic() + _SECONDS)
    others.check()


@pytest.mark.needs("http2_frames")
def test_rejected_calls_do_not_refill_the_flood_budget(gateway: Gateway) -> None:
    """Calls of unknown methods do not pay for resets of others."""
    with socket.create_connection(gateway.addresses["main.grpc"], 4) as sock:
        sock.sendall(frames.BEGIN)
        stream = 1
        is_closed = False
        try:
            for _ in range(60):
                data = b""
                for _ in range(25):
                    flags = frames.END_HEADERS | frames.END_STREAM
                    data += frames.opening(stream, path=_UNKNOWN, flags=flags)
                    stream += 2
                for _ in range(25):
                    data += frames.opening(stream)
                    data += frames.frame(frames.RST, 0, stream, b"\0\0\0\x08")
                    stream += 2
                sock.sendall(data)
                sock.setblocking(False)
                with suppress(BlockingIOError):
                    while sock.recv(65536):
                        pass
                sock.setblocking(True)
            sock.settimeout(4)
            while sock.recv(65536):
                pass
            is_closed = True
        except TimeoutError:
            pass  # it is open, and has nothing more to say
        except OSError:
            is_closed = True  # with a reset, which may have taken the GOAWAY with it
    assert is_closed
