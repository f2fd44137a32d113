"""Floods of HTTP/2 frames end with GOAWAY after a limited number; normal use does not."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from gateway.transports.http2 import frames
from gateway.transports.http2.frames import Http2ConnectionError, frame
from gateway.transports.http2.hpack import literal
from tests.unit.transports.http2.test_connection import (
    ANSWER,
    BLOCK,
    PREFACE,
    TRAILERS,
    Seen,
    opening,
)


def numbers() -> Callable[[], int]:
    """Return a source of stream numbers."""
    count = itertools.count(3, 2)
    return lambda: next(count)


def rapid_reset(number: int) -> bytes:
    """Open a stream and reset it."""
    return opening(number) + frames.reset(number, frames.CANCEL)


def flood(server: Seen, make: Callable[[], bytes], times: int) -> None:
    """Feed *server* again and again."""
    for _ in range(times):
        server.core.reader.feed(make())


FLOODS: dict[str, Callable[[Callable[[], int]], bytes]] = {
    "rapid_reset": lambda number: rapid_reset(number()),
    "empty_data": lambda _: frame(frames.DATA, 0, 1),
    "padded_empty_data": lambda _: frame(frames.DATA, frames.PADDED, 1, b"\0"),
    "pings": lambda _: frame(frames.PING, 0, 0, bytes(8)),
    "settings": lambda _: frames.settings([(4, 1000)]),
    "empty_settings": lambda _: frames.settings([]),
    "settings_acks": lambda _: frame(frames.SETTINGS, frames.ACK, 0),
    "priorities": lambda _: frame(frames.PRIORITY, 0, 1, bytes(5)),
    "unknown_kinds": lambda _: frame(99, 0, 1, b"x"),
    "window_updates": lambda _: frames.window_update(0, 1),
    "goaways": lambda _: frames.goaway(0, 0),
    "malformed_streams": lambda number: opening(number(), block=BLOCK + literal(b"bad", b"1")),
    "resets_of_nothing": lambda _: frames.reset(1, frames.CANCEL),
    "late_data": lambda _: frame(frames.DATA, 0, 1, b"x"),
}


@pytest.mark.parametrize("name", FLOODS)
def test_a_flood_of_frames_ends_the_connection(name: str) -> None:
    """At most some 2,000 frames of any kind are processed."""
    server, number, make = Seen(), numbers(), FLOODS[name]
    server.core.reader.feed(PREFACE + opening(1))
    if name in ("resets_of_nothing", "late_data"):
        server.core.reader.feed(frames.reset(1, frames.CANCEL))
    with pytest.raises(Http2ConnectionError) as caught:
        flood(server, lambda: make(number), 2100)
    assert frames.ENHANCE_YOUR_CALM == caught.value.code
    assert len(server.core.streams) <= 1


def test_refused_streams_count_as_a_flood() -> None:
    """A client that ignores the stream limit loses its connection."""
    server, number = Seen(streams=1), numbers()
    server.core.reader.feed(PREFACE + opening(1))
    with pytest.raises(Http2ConnectionError):
        flood(server, lambda: opening(number()), 2000)
    assert 1 == len(server.core.streams)


@pytest.mark.parametrize("size", [0, 1, 1000])
def test_continuation_frames_are_limited(size: int) -> None:
    """A header block is limited in its frames and its bytes."""
    server = Seen()
    server.core.reader.feed(PREFACE + frame(frames.HEADERS, 0, 1, b""))
    with pytest.raises(Http2ConnectionError) as caught:
        flood(server, lambda: frame(frames.CONTINUATION, 0, 1, bytes(size)), 50)
    assert frames.ENHANCE_YOUR_CALM == caught.value.code


def test_window_updates_of_a_byte_are_charged() -> None:
    """Reading a response byte by byte exhausts the flood budget."""
    server = Seen()
    server.core.reader.feed(PREFACE + frames.settings([(4, 0)]) + opening(1, end=True))
    server.core.writer.send(server.core.streams[1], ANSWER, [bytes(100_000)], TRAILERS)
    with pytest.raises(Http2ConnectionError):
        flood(server, lambda: frames.window_update(1, 1), 3000)


def test_normal_use_is_not_a_flood() -> None:
    """Ten thousand calls, each with updates and a ping, keep their connection."""
    server, number = Seen(), numbers()
    server.core.reader.feed(PREFACE)
    for _ in range(10_000):
        one = number()
        server.core.reader.feed(opening(one, end=True) + frame(frames.PING, 0, 0, bytes(8)))
        server.core.writer.send(server.core.streams[one], ANSWER, [b"hello"], TRAILERS)
        server.core.reader.feed(frames.window_update(0, 5) + frames.window_update(one, 5))
        server.core.out.clear()
    assert {} == server.core.streams


def test_messages_of_a_long_stream_refund_its_updates() -> None:
    """A client that reads a long response may update its windows after every message."""
    server = Seen()
    server.core.reader.feed(PREFACE + opening(1, end=True))
    stream = server.core.streams[1]
    for _ in range(10_000):
        server.core.writer.data(stream, [b"x" * 100])
        server.core.reader.feed(frames.window_update(0, 100) + frames.window_update(1, 100))
        server.core.out.clear()
    assert 0 == len(stream.waiting or ())


def test_the_flood_budget_is_refilled_over_time() -> None:
    """Pings at a low rate are allowed for ever, and the budget does not exceed its maximum."""
    server = Seen()
    server.core.reader.feed(PREFACE)
    for _ in range(100):
        server.core.reader.feed(frame(frames.PING, 0, 0, bytes(8)) * 300)
        server.core.flood_budget.refill()
    assert 2000 == server.core.flood_budget.remaining


@pytest.mark.parametrize("is_paused", [False, True])
def test_updates_after_each_frame_of_a_long_message_are_no_flood(is_paused: bool) -> None:
    """A client with large windows may update both of them for each frame of 100 MB."""
    server, size = Seen(), 100_000_000
    room = frames.window_update(0, 1 << 30) + frames.settings([(4, 1 << 30)])
    server.core.reader.feed(PREFACE + room + opening(1, end=True))
    server.core.writer.is_paused = is_paused
    server.core.writer.send(server.core.streams[1], ANSWER, [bytes(size)], TRAILERS)
    server.core.writer.is_paused = False
    server.core.writer.pump()
    update = frames.window_update(0, 16_384) + frames.window_update(1, 16_384)
    flood(server, lambda: update, size // 16_384)
    assert 1000 <= server.core.flood_budget.remaining


def test_late_frames_of_cancelled_calls_are_no_flood() -> None:
    """A server may be in the middle of 500 streams that this side cancels."""
    client, lows = Seen(client=True), []
    client.core.reader.feed(frames.settings([]))
    client.core.flood_budget.on_low = lambda: lows.append(1)
    streams = [client.core.writer.open(None) for _ in range(500)]
    for stream in streams:
        client.core.cancel(stream)
    for stream in streams:
        data = frame(frames.DATA, 0, stream.number, bytes(50)) * 4
        trailers = frame(frames.HEADERS, frames.LAST_HEADERS, stream.number, TRAILERS)
        client.core.reader.feed(data + trailers)
    assert [] == lows


def test_half_of_the_budget_is_reported_once() -> None:
    """The connection can leave before its peer is disconnected."""
    server, lows = Seen(), []
    server.core.flood_budget.on_low = lambda: lows.append(server.core.flood_budget.remaining)
    server.core.reader.feed(PREFACE)
    flood(server, lambda: frame(frames.PING, 0, 0, bytes(8)), 1900)
    assert [999] == lows
    assert server.core.flood_budget.was_low


def test_streams_after_goaway_are_refused() -> None:
    """Their frames are no error, and GOAWAY names the last stream that was accepted."""
    server = Seen()
    server.core.reader.feed(PREFACE + opening(1))
    server.core.goaway(final=True)
    late = opening(3) + frame(frames.DATA, 0, 3, b"x") + frames.window_update(3, 1)
    server.core.reader.feed(late + frames.reset(3, frames.CANCEL))
    server.core.goaway(final=True)
    away = frames.goaway(1, frames.NO_ERROR)
    assert server.take().endswith(away + frames.reset(3, frames.REFUSED_STREAM) + away)
