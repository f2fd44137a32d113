"""HTTP/2 messages received in one read: processed as those in pieces."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from gateway.transports.http2 import frames
from gateway.transports.http2.frames import Http2ConnectionError, frame
from gateway.transports.http2.hpack import literal
from gateway.transports.http2.windows import STREAM_WINDOW
from tests.unit.transports.http2.test_connection import ANSWER, BLOCK, PREFACE, TRAILERS, Seen

pytestmark = pytest.mark.usefixtures("build")

BAD = literal(b"bad", b"1")
END = frames.END_HEADERS | frames.END_STREAM


def head(number: int, block: bytes, flags: int = frames.END_HEADERS) -> bytes:
    return frame(frames.HEADERS, flags, number, block)


def data(number: int, size: int, flags: int = 0) -> bytes:
    return frame(frames.DATA, flags, number, b"x" * size)


def call(number: int, block: bytes = BLOCK, size: int = 9) -> bytes:
    """Return a whole call."""
    return head(number, block) + data(number, size, frames.END_STREAM)


def update(number: int, size: int) -> bytes:
    return frames.window_update(number, size)


def grpc_call(number: int, *, opened: int = 5, returned: int = 36) -> bytes:
    """Return a whole call as gRPC's C core sends it."""
    whole = update(number, opened) + data(number, 9, frames.END_STREAM)
    return head(number, BLOCK) + whole + update(0, returned)


def response(number: int, begin: bytes = ANSWER, size: int = 9, end: bytes = TRAILERS) -> bytes:
    """Return a whole response."""
    return head(number, begin) + data(number, size) + head(number, end, END)


CALLS = {
    "several": call(1) + call(3) + call(5),
    "again": call(1) + call(1),
    "even": call(2),
    "bad": call(1, BLOCK + BAD) + call(3),
    "not a block": call(1, b"\xff\xff\xff\xff\xff\xff\xff") + call(3),
    "of nothing": call(1, size=0) + call(3),
    "as large as the window": call(1, size=STREAM_WINDOW),
    "larger than the window": call(1, size=STREAM_WINDOW + 1),
    "too many streams": call(1) + call(3) + call(5) + call(7) + call(9),
    "more than the connection's window": b"".join(call(n, size=60_000) for n in range(1, 5, 2)) * 9,
    "in long frames": head(1, BLOCK) + data(1, 9000) * 4 + data(1, 9, frames.END_STREAM) + call(3),
    "two in long frames": head(1, BLOCK) + head(3, BLOCK) + (data(1, 9000) + data(3, 9000) * 2) * 3,
    "long frames beyond the window": head(1, BLOCK) + data(1, 9000) * 8,
    "long frames after the end": call(1) + data(1, 9000) * 3,
    "half": head(1, BLOCK) + data(1, 9) + data(1, 0, frames.END_STREAM),
    "of two": head(1, BLOCK) + data(3, 9, frames.END_STREAM) + data(1, 9, frames.END_STREAM),
    "padded": head(1, BLOCK)
    + frame(frames.DATA, frames.END_STREAM | frames.PADDED, 1, b"\2abc\0\0"),
    "table": call(1, BLOCK + b"\x40\1a\1b") + call(3, BLOCK + b"\xbe"),
    "of gRPC's core": grpc_call(1) + grpc_call(3),
    "bad, of gRPC's core": head(1, BLOCK + BAD) + update(1, 5) + data(1, 9, 1) + grpc_call(3),
    "opened twice": head(1, BLOCK) + update(1, 5) + grpc_call(1)[len(head(1, BLOCK)) :],
    "opened by nothing": grpc_call(1, opened=0) + grpc_call(3),
    "opened too far": grpc_call(1, opened=frames.MAX_WINDOW) + grpc_call(3),
    "just not opened too far": grpc_call(1, opened=frames.MAX_WINDOW - frames.DEFAULT_WINDOW),
    "another opened": call(1) + head(3, BLOCK) + update(1, 5) + data(3, 9, frames.END_STREAM),
    "connection opened first": head(1, BLOCK) + update(0, 5) + data(1, 9, frames.END_STREAM),
    "connection opened by nothing": grpc_call(1) + grpc_call(3, returned=0),
    "connection opened too far": grpc_call(1) + grpc_call(3, returned=frames.MAX_WINDOW),
}
ANSWERS = {
    "several": response(1) + response(3) + response(5),
    "again": response(1) + response(1),
    "unknown": response(99),
    "bad head": response(1, begin=ANSWER + BAD) + response(3),
    "bad trailers": response(1, end=TRAILERS + BAD) + response(3),
    "of nothing": response(1, size=0),
    "as large as the window": response(1, size=STREAM_WINDOW),
    "larger than the window": response(1, size=STREAM_WINDOW + 1),
    "two messages": head(1, ANSWER) + data(1, 9) + data(1, 9) + head(1, TRAILERS, END),
    "in long frames": head(1, ANSWER) + data(1, 9000) * 4 + head(1, TRAILERS, END) + response(3),
    "no trailers": head(1, ANSWER) + data(1, 9, frames.END_STREAM),
    "of two": head(1, ANSWER) + data(3, 9) + head(1, TRAILERS, END),
    "not the last": head(1, ANSWER) + data(1, 9) + head(1, TRAILERS) + head(1, TRAILERS, END),
    "of gRPC's core": response(1) + update(0, 9) + response(3) + update(0, 9),
    "opened": head(1, ANSWER) + update(1, 5) + data(1, 9) + head(1, TRAILERS, END),
    "connection opened by nothing": response(1) + update(0, 0) + response(3),
    "table": response(1, begin=ANSWER + b"\x40\1a\1b") + response(3, end=TRAILERS + b"\xbe"),
}


def replay(sent: bytes, size: int, *, client: bool) -> Any:
    """Feed *sent* in pieces of *size*; return the events, data, windows by stream, output and error."""
    return replay_pieces([sent[at : at + size] for at in range(0, len(sent), size)], client=client)


def replay_pieces(pieces: Iterable[bytes], *, client: bool) -> Any:
    """Feed *pieces*; return the events, data, windows by stream, output and error."""
    seen = Seen(client=client, streams=4)
    seen.core.reader.feed(frames.settings([]) if client else PREFACE)
    if client:
        for _ in range(3):
            seen.core.writer.send(seen.core.writer.open(None), BLOCK, [b"hi"], None)
    seen.take()
    fault = None
    try:
        for piece in pieces:
            seen.core.reader.feed(piece)
    except Http2ConnectionError as found:
        fault = found.code, found.message
    rooms = {number: stream.room for number, stream in seen.core.streams.items()}
    rooms[0] = seen.core.writer._room
    return seen.log, seen.data_of, rooms, seen.take(), fault


@pytest.mark.parametrize("name", CALLS)
def test_a_call_in_one_read_equals_one_in_pieces(name: str) -> None:
    """Events, state and output do not depend on the size of the reads."""
    sent = CALLS[name]
    assert replay(sent, 10, client=False) == replay(sent, len(sent), client=False)


@pytest.mark.parametrize("name", [name for name in ANSWERS if name != "bad trailers"])
def test_a_response_in_one_read_equals_one_in_pieces(name: str) -> None:
    """Events, state and output do not depend on the size of the reads."""
    sent = ANSWERS[name]
    assert replay(sent, 10, client=True) == replay(sent, len(sent), client=True)


def test_a_response_with_malformed_trailers_is_reset() -> None:
    """In one read, the reset is the only event of the stream."""
    log, of, rooms, output, fault = replay(ANSWERS["bad trailers"], 1000, client=True)
    assert ("reset", 1, frames.PROTOCOL_ERROR) == log[1]
    assert {3: b"x" * 9} == of
    assert {0, 5} == rooms.keys()
    assert frames.reset(1, frames.PROTOCOL_ERROR) == output
    assert fault is None


def test_a_message_in_one_read_is_a_single_event() -> None:
    """Whole calls and responses are delivered complete, also with cached headers."""
    core = "of gRPC's core"
    for client, sent in (
        (False, CALLS["several"]),
        (False, CALLS[core]),
        (True, ANSWERS["several"]),
        (True, ANSWERS[core]),
    ):
        seen = Seen(client=client)
        seen.core.reader.feed(frames.settings([]) if client else PREFACE)
        if client:
            for _ in range(3):
                seen.core.writer.send(seen.core.writer.open(None), BLOCK, [b"hi"], None)
        wholes: list[tuple[int, bytes]] = []
        seen.on_complete_stream = lambda stream, _head, view, _tail, to=wholes: to.append(  # type: ignore[method-assign,misc]
            (stream.number, bytes(view))
        )
        seen.core.reader.feed(sent)
        expected = [(number, b"x" * 9) for number in (1, 3, 5)]
        assert expected[: sent.count(b"x" * 9)] == wholes
        assert ["settled"] == seen.log
