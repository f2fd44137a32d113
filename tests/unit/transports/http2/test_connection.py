"""HTTP/2 without sockets, against the library h2 as client and as server."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import h2.config
import h2.connection
import h2.events
import h2.settings
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.transports.http2 import frames
from gateway.transports.http2.connection import Http2Connection
from gateway.transports.http2.frames import Http2ConnectionError, Http2StreamError, frame
from gateway.transports.http2.hpack import Field, literal
from gateway.transports.http2.streams import Http2Stream
from tests.fakes import FrameByFrame

pytestmark = pytest.mark.usefixtures("build")

FIELDS = [(":method", "POST"), (":scheme", "http"), (":path", "/a"), (":authority", "h")]
BLOCK = b"".join(literal(name.encode(), value.encode()) for name, value in FIELDS)
ANSWER = literal(b":status", b"200")
TRAILERS = literal(b"grpc-status", b"0")
PREFACE = frames.PREFACE + frames.settings([])


class Seen(FrameByFrame):
    """A receiver that records its events."""

    def __init__(self, *, client: bool = False, streams: int = 100) -> None:
        self.log: list[Any] = []
        self.data_of: dict[int, bytes] = {}
        self.core = Http2Connection(
            self, self.read, client=client, streams=streams, header_bytes=16_384
        )
        self.core.reader.turn_s = math.inf  # all is read at once

    @staticmethod
    def read(fields: Sequence[Field]) -> list[Field] | Http2StreamError:
        if (b"bad", b"1") in fields:
            return Http2StreamError(frames.PROTOCOL_ERROR, "bad")
        return list(fields)

    def take(self) -> bytes:
        """Return and clear the output."""
        data = b"".join(self.core.out)
        self.core.out.clear()
        return data

    def on_settings(self) -> None:
        self.log.append("settled")

    def on_headers(self, stream: Http2Stream, head: Any, *, end: bool) -> None:
        self.log.append(("head", stream.number, dict(head), end))

    def on_data(self, stream: Http2Stream, view: memoryview, *, end: bool) -> None:
        self.data_of[stream.number] = self.data_of.get(stream.number, b"") + view
        if end:
            self.log.append(("end", stream.number))

    def on_reset(self, stream: Http2Stream, code: int) -> bool:
        self.log.append(("reset", stream.number, code))
        return False

    def on_writable(self, stream: Http2Stream) -> None:
        self.log.append(("sent", stream.number))

    def on_goaway(self, code: int, message: str) -> None:
        self.log.append(("away", code, message))


def pieces(data: bytes, size: int) -> list[bytes]:
    """Cut *data*."""
    return [data[at : at + size] for at in range(0, len(data), size)]


def peer(*, client: bool) -> h2.connection.H2Connection:
    """Return the library's end of the connection, after its preface."""
    config = h2.config.H2Configuration(client_side=client, header_encoding="utf-8")
    found = h2.connection.H2Connection(config)
    found.initiate_connection()
    return found


@given(body=st.binary(max_size=70_000), size=st.sampled_from([1, 7, 100, 5000, 1 << 20]))
def test_server_interoperates_with_h2(body: bytes, size: int) -> None:
    """Requests of the library arrive whole in any pieces, and the library reads the response."""
    client, server = peer(client=True), Seen()
    client.receive_data(server.take())
    client.send_headers(1, FIELDS)
    sent = body[:65_535]
    for piece in pieces(sent, 16_384):
        client.send_data(1, piece)
    client.end_stream(1)
    for piece in pieces(client.data_to_send(), max(size, 1 if len(sent) < 3000 else 50)):
        server.core.reader.feed(piece)
    assert sent == server.data_of[1]
    expected = {name.encode(): value.encode() for name, value in FIELDS}
    assert ["settled", ("head", 1, expected, False), ("end", 1)] == server.log
    server.core.writer.send(server.core.streams[1], ANSWER, [sent], TRAILERS)
    received = b""
    trailers: list[Any] = []
    while data := server.take():
        for event in client.receive_data(data):
            if isinstance(event, h2.events.DataReceived):
                received += event.data
                client.acknowledge_received_data(event.flow_controlled_length, 1)
            elif isinstance(event, h2.events.TrailersReceived):
                trailers = list(event.headers or ())
        server.core.reader.feed(client.data_to_send())
    assert sent == received
    assert [("grpc-status", "0")] == [(each[0], each[1]) for each in trailers]
    assert {} == server.core.streams


@given(body=st.binary(max_size=200_000))
def test_client_interoperates_with_h2(body: bytes) -> None:
    """The library receives a call of any size, and the client its response, within both windows."""
    server, client = peer(client=False), Seen(client=True)
    stream = client.core.writer.open(None)
    client.core.writer.send(stream, BLOCK, [body], None)
    received = b""
    for _ in range(100):
        data = client.take()
        for event in server.receive_data(data):
            if isinstance(event, h2.events.DataReceived):
                received += event.data
                server.acknowledge_received_data(event.flow_controlled_length, 1)
            elif isinstance(event, h2.events.StreamEnded):
                server.send_headers(1, [(":status", "200")])
                server.send_data(1, body[:60_000])
                server.send_headers(1, [("grpc-status", "0")], end_stream=True)
        answer = server.data_to_send()
        if not data and not answer:
            break
        client.core.reader.feed(answer)
    assert body == received
    assert body[:60_000] == client.data_of.get(1, b"")
    assert ("head", 1, {b"grpc-status": b"0"}, True) == client.log[-1]
    assert {} == client.core.streams


def server_after(*frames_: bytes, streams: int = 100) -> Seen:
    """Return a server that has received the preface and *frames_*."""
    server = Seen(streams=streams)
    server.core.reader.feed(PREFACE + b"".join(frames_))
    return server


def opening(number: int = 1, *, end: bool = False, block: bytes = BLOCK) -> bytes:
    """Return the HEADERS frame that opens a stream."""
    flags = frames.END_HEADERS | (frames.END_STREAM if end else 0)
    return frame(frames.HEADERS, flags, number, block)


def fault(*frames_: bytes, streams: int = 100) -> Http2ConnectionError:
    """Feed a server an invalid frame; return its error after checking the GOAWAY."""
    server = Seen(streams=streams)
    with pytest.raises(Http2ConnectionError) as caught:
        server.core.reader.feed(PREFACE + b"".join(frames_))
    goaway = b"".join(server.core.out).rpartition(bytes([frames.GOAWAY, 0, 0, 0, 0, 0]))[2]
    assert caught.value.code == int.from_bytes(goaway[4:8], "big")
    return caught.value


FAULTS = {
    "data_on_stream_0": ([frame(frames.DATA, 0, 0, b"x")], frames.PROTOCOL_ERROR),
    "data_on_idle_stream": ([frame(frames.DATA, 0, 1, b"x")], frames.PROTOCOL_ERROR),
    "headers_on_stream_0": ([opening(0)], frames.PROTOCOL_ERROR),
    "even_stream": ([opening(2)], frames.PROTOCOL_ERROR),
    "continuation_alone": ([frame(frames.CONTINUATION, 4, 1, b"")], frames.PROTOCOL_ERROR),
    "frame_inside_a_block": (
        [frame(frames.HEADERS, 0, 1, b""), frame(frames.PING, 0, 0, bytes(8))],
        frames.PROTOCOL_ERROR,
    ),
    "continuation_of_another": (
        [frame(frames.HEADERS, 0, 1, b""), frame(frames.CONTINUATION, 4, 3, b"")],
        frames.PROTOCOL_ERROR,
    ),
    "all_padding": ([opening(), frame(frames.DATA, frames.PADDED, 1, b"\x05abc")], 1),
    "headers_all_padding": ([frame(frames.HEADERS, 0xC, 1, b"\x05abc")], frames.PROTOCOL_ERROR),
    "half_a_priority": ([frame(frames.HEADERS, 0x24, 1, b"abc")], frames.FRAME_SIZE_ERROR),
    "frame_too_large": ([frames.frame_head(1 << 21, frames.DATA, 0, 1)], frames.FRAME_SIZE_ERROR),
    "headers_too_large": (
        [frames.frame_head(1 << 16, frames.HEADERS, 0, 1)],
        frames.ENHANCE_YOUR_CALM,
    ),
    "data_after_the_end": (
        [opening(end=True), frame(frames.DATA, 0, 1, b"x")],
        frames.STREAM_CLOSED,
    ),
    "headers_after_the_end": ([opening(end=True), opening()], frames.STREAM_CLOSED),
    "stream_window_exceeded": (
        [opening(), *[frame(frames.DATA, 0, 1, bytes(16_384))] * 4],
        frames.FLOW_CONTROL_ERROR,
    ),
    "settings_on_a_stream": ([frame(frames.SETTINGS, 0, 1)], frames.PROTOCOL_ERROR),
    "settings_of_odd_size": ([frame(frames.SETTINGS, 0, 0, b"abc")], frames.FRAME_SIZE_ERROR),
    "settings_ack_with_values": ([frame(frames.SETTINGS, 1, 0, bytes(6))], 6),
    "window_too_large": ([frames.settings([(4, 1 << 31)])], frames.FLOW_CONTROL_ERROR),
    "frame_size_too_small": ([frames.settings([(5, 16_383)])], frames.PROTOCOL_ERROR),
    "push_neither_on_nor_off": ([frames.settings([(2, 2)])], frames.PROTOCOL_ERROR),
    "push": ([frame(frames.PUSH_PROMISE, 4, 1, bytes(4))], frames.PROTOCOL_ERROR),
    "ping_of_odd_size": ([frame(frames.PING, 0, 0, b"abc")], frames.FRAME_SIZE_ERROR),
    "reset_of_odd_size": ([opening(), frame(frames.RST_STREAM, 0, 1, b"a")], 6),
    "reset_of_idle_stream": ([frames.reset(1, 8)], frames.PROTOCOL_ERROR),
    "update_of_odd_size": ([frame(frames.WINDOW_UPDATE, 0, 0, b"a")], frames.FRAME_SIZE_ERROR),
    "update_by_nothing": ([frames.window_update(0, 0)], frames.PROTOCOL_ERROR),
    "update_too_far": ([frames.window_update(0, (1 << 31) - 1)], frames.FLOW_CONTROL_ERROR),
    "goaway_of_odd_size": ([frame(frames.GOAWAY, 0, 0, b"a")], frames.FRAME_SIZE_ERROR),
    "block_is_no_hpack": ([opening(block=b"\x80")], frames.COMPRESSION_ERROR),
}


@pytest.mark.parametrize("name", FAULTS)
def test_invalid_framing_ends_the_connection(name: str) -> None:
    """The GOAWAY has the error code that RFC 9113 gives for it."""
    data, code = FAULTS[name]
    assert code == fault(*data).code


@pytest.mark.parametrize(
    "greeting",
    [b"GET / HTTP/1.1\r\n", frames.PREFACE + frame(frames.PING, 0, 0, bytes(8))],
    ids=["another_protocol", "no_settings"],
)
def test_a_connection_starts_with_preface_and_settings(greeting: bytes) -> None:
    """Any other first bytes are a connection error."""
    with pytest.raises(Http2ConnectionError):
        Seen().core.reader.feed(greeting)


def test_padding_and_priority_are_removed() -> None:
    """Padded frames with priorities carry the same headers and data."""
    padded = b"\x03" + bytes(5) + BLOCK + bytes(3)
    server = server_after(
        frame(frames.HEADERS, 0x2C, 1, padded), frame(frames.DATA, 0x9, 1, b"\x02hi" + bytes(2))
    )
    assert b"hi" == server.data_of[1]
    assert ("end", 1) == server.log[-1]


@pytest.mark.parametrize("size", [1, 2, 3, 11, 100])
def test_padded_data_survives_any_cut(size: int) -> None:
    """Padding is skipped wherever the frame is split."""
    server = server_after(opening())
    data = frame(frames.DATA, 0x8, 1, b"\x0aabcdef" + bytes(10)) + frame(frames.DATA, 1, 1, b"g")
    for piece in pieces(data, size):
        server.core.reader.feed(piece)
    assert b"abcdefg" == server.data_of[1]


class Parts(Seen):
    """A receiver that records each part of a stream, and whether the stream ends with it."""

    def on_data(self, stream: Http2Stream, view: memoryview, *, end: bool) -> None:
        self.log.append((bytes(view), end))


@pytest.mark.parametrize("content", [b"", b"abc"])
def test_late_padding_is_not_a_part_after_the_end(content: bytes) -> None:
    """The last part has the end, although the padding of its frame is still missing."""
    server = Parts()
    server.core.reader.feed(PREFACE + opening())
    server.log.clear()
    data = frame(frames.DATA, frames.PADDED | frames.END_STREAM, 1, b"\x05" + content + bytes(5))
    server.core.reader.feed(data[:-3])
    server.core.reader.feed(data[-3:])
    server.core.reader.feed(frame(frames.PING, 0, 0, bytes(8)))
    assert [(content, True)] == server.log


def test_continuation_frames_join_one_header_block() -> None:
    """A header block in several frames is decoded as one."""
    server = server_after(
        frame(frames.HEADERS, frames.END_STREAM, 1, BLOCK[:5]),
        frame(frames.CONTINUATION, 0, 1, BLOCK[5:9]),
        frame(frames.CONTINUATION, frames.END_HEADERS, 1, BLOCK[9:]),
    )
    assert [("head", 1, True)] == [(each[0], each[1], each[3]) for each in server.log[1:]]


def test_a_long_header_block_is_sent_in_continuations() -> None:
    """A block larger than the peer's frame size is split, and the library reads it."""
    client, server = peer(client=True), Seen()
    client.receive_data(server.take())
    client.send_headers(1, FIELDS, end_stream=True)
    server.core.reader.feed(client.data_to_send())
    long = ANSWER + literal(b"x-long", b"v" * 40_000)
    server.core.writer.send(server.core.streams[1], long, [b"x"], TRAILERS)
    client.decoder.max_header_list_size = 1 << 20
    events = client.receive_data(server.take())
    heads: list[Any] = [each for each in events if isinstance(each, h2.events.ResponseReceived)]
    assert [40_000] == [len(dict(each.headers)["x-long"]) for each in heads]


@pytest.mark.parametrize("body", [b"x", b"x" * 20_000])
def test_a_smaller_header_table_is_acknowledged_once(body: bytes) -> None:
    """The next block starts with a table size update; later blocks have none."""
    client, server = peer(client=True), Seen()
    client.update_settings({h2.settings.SettingCodes.HEADER_TABLE_SIZE: 0})
    client.receive_data(server.take())
    for number in (1, 3):
        client.send_headers(number, FIELDS, end_stream=True)
        server.core.reader.feed(client.data_to_send())
        client.receive_data(server.take())  # acknowledges: from now on the library insists
        server.core.writer.send(server.core.streams[number], ANSWER, [body], TRAILERS)
        sent = server.take()
        assert (number == 1) is (b"\x20" + ANSWER in sent)
        events = client.receive_data(sent)
        assert any(isinstance(each, h2.events.StreamEnded) for each in events)


def test_malformed_headers_reset_their_stream_only() -> None:
    """The next stream is accepted."""
    bad = opening(1, block=BLOCK + literal(b"bad", b"1"))
    server = server_after(bad, opening(3))
    assert frames.reset(1, frames.PROTOCOL_ERROR) in server.take()
    assert [3] == [each[1] for each in server.log[1:]]


def test_streams_over_the_limit_are_refused() -> None:
    """The third of three streams is reset as refused; a later one is accepted after a reset."""
    server = server_after(opening(1), opening(3), opening(5), streams=2)
    assert frames.reset(5, frames.REFUSED_STREAM) in server.take()
    server.core.reader.feed(frames.reset(1, frames.CANCEL) + opening(7))
    assert [1, 3, 7] == [each[1] for each in server.log if each[0] == "head"]


def test_flow_control_windows_limit_the_output() -> None:
    """No more than both windows allow is written, fairly by stream, and the trailers come last."""
    server = server_after(frames.settings([(4, 10)]), opening(1, end=True), opening(3, end=True))
    server.take()
    for number in (1, 3):
        server.core.writer.send(server.core.streams[number], ANSWER, [b"x" * 25], TRAILERS)
    assert 20 == server.take().count(b"x")
    server.core.reader.feed(frames.window_update(1, 100))
    assert 15 == server.take().count(b"x")
    assert ("sent", 1) == server.log[-1]
    assert [3] == list(server.core.streams)
    server.core.reader.feed(frames.settings([(4, 5)]))
    assert b"x" not in server.take()
    server.core.reader.feed(frames.settings([(4, 30)]))
    assert 15 == server.take().count(b"x")
    assert {} == server.core.streams


def test_a_paused_writer_writes_nothing() -> None:
    """Messages wait while the transport is full, and are written after it drains."""
    server = server_after(opening(1, end=True))
    server.take()
    server.core.writer.is_paused = True
    server.core.writer.send(server.core.streams[1], ANSWER, [b"hello"], None)
    assert b"hello" not in server.take()
    server.core.writer.is_paused = False
    server.core.writer.pump()
    assert b"hello" in server.take()


def test_the_connection_window_is_updated_after_half() -> None:
    """Consumed bytes are granted again once half of the window is used."""
    server = server_after(*[opening(number) for number in range(1, 200, 2)], streams=100)
    server.take()
    for number in range(1, 19, 2):
        server.core.reader.feed(b"".join([frame(frames.DATA, 0, number, bytes(16_000))] * 4))
    assert bytes([0, 0, 4, frames.WINDOW_UPDATE, 0, 0, 0, 0, 0]) not in server.take()
    assert [True] == [
        server.core.windows.consume(stream, 64_000) for stream in server.core.streams.values()
    ][:1]
    assert bytes([0, 0, 4, frames.WINDOW_UPDATE, 0, 0, 0, 0, 0]) in server.take()


def test_a_grant_widens_the_stream_window() -> None:
    """A stream accepts exactly the granted bytes beyond its window."""
    server = server_after(opening(1))
    server.core.windows.grant(server.core.streams[1], 10)
    data = [frame(frames.DATA, 0, 1, bytes(size)) for size in (40_000, 25_535, 10)]
    server.core.reader.feed(b"".join(data))
    with pytest.raises(Http2ConnectionError, match="stream's window"):
        server.core.reader.feed(frame(frames.DATA, 0, 1, b"x"))


def test_ping_is_acknowledged() -> None:
    """The acknowledgement has the same bytes; a received acknowledgement has none."""
    server = server_after(frame(frames.PING, 0, 0, b"12345678"))
    assert server.take().endswith(frame(frames.PING, frames.ACK, 0, b"12345678"))
    server.core.reader.feed(frame(frames.PING, frames.ACK, 0, b"12345678"))
    assert b"" == server.take()


def test_a_body_unlike_its_expected_length_is_reset() -> None:
    """A longer or shorter body resets its stream."""
    for sent, end in ((b"abcd", False), (b"ab", True)):
        server = server_after(opening(1))
        server.core.streams[1].expected_bytes = 3
        server.core.reader.feed(frame(frames.DATA, int(end), 1, sent))
        assert ("reset", 1, frames.PROTOCOL_ERROR) == server.log[-1]
        assert {} == server.core.streams
    server = server_after(opening(1))
    server.core.streams[1].expected_bytes = 3
    server.core.reader.feed(frame(frames.DATA, 0, 1, b"a") + frame(frames.DATA, 1, 1, b"bc"))
    assert b"abc" == server.data_of[1]


def test_streams_after_the_final_goaway_are_ignored() -> None:
    """The first GOAWAY accepts streams in flight; the final one names the last accepted stream."""
    server = server_after(opening(1))
    server.core.goaway(final=False)
    server.core.reader.feed(opening(3))
    server.core.goaway(final=True)
    server.core.reader.feed(opening(5))
    assert [1, 3] == list(server.core.streams)
    assert frames.goaway(3, 0) in server.take()


def test_goaway_resets_the_streams_above_its_last() -> None:
    """Their code is REFUSED_STREAM; streams up to the last continue."""
    client = Seen(client=True)
    for _ in range(3):
        client.core.writer.send(client.core.writer.open(None), BLOCK, [b""], None)
    client.core.reader.feed(frames.settings([(3, 7)]) + frames.goaway(3, 0, "bye"))
    expected = ["settled", ("away", 0, "bye"), ("reset", 5, frames.REFUSED_STREAM)]
    assert expected == client.log
    assert [1, 3] == list(client.core.streams)
    assert 7 == client.core.writer.peer_streams


def test_repeated_header_blocks_are_decoded_from_cache() -> None:
    """The third equal block is not decoded; the first after a table change is."""
    calls = []

    class Counted(Seen):
        """A receiver that counts the blocks that are decoded."""

        @staticmethod
        def read(fields: Sequence[Field]) -> list[Field] | Http2StreamError:
            calls.append(fields)
            return Seen.read(fields)

    server = Counted()
    server.core.reader.feed(PREFACE + opening(1) + opening(3) + opening(5))
    assert 2 == len(calls)
    server.core.reader.feed(opening(7, block=b"\x40\x01a\x01b" + BLOCK))
    assert 3 == len(calls)
    server.core.reader.feed(opening(9) + opening(11) + opening(13))
    assert 5 == len(calls)
