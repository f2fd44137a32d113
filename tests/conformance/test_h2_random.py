"""Our HTTP/2 and the library h2 at the two ends of a connection, with random actions of both.

Hypothesis draws streams, sizes, windows, settings, resets and pings, and where the bytes are cut; in
the end every stream without a reset has its own body as the response, and neither end has reported an
error of the other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import h2.config
import h2.connection
import h2.events
import h2.exceptions
import h2.settings
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.transports.http2 import frames
from gateway.transports.http2.connection import Http2Connection
from gateway.transports.http2.frames import MissingPseudoHeaders
from gateway.transports.http2.hpack import Field, literal
from gateway.transports.http2.streams import Http2Stream
from gateway.transports.http2.windows import STREAM_WINDOW
from tests.fakes import FrameByFrame

FIELDS = [(":method", "POST"), (":scheme", "http"), (":path", "/a"), (":authority", "h")]
REQUEST = b"".join(literal(name.encode(), value.encode()) for name, value in FIELDS)
RESPONSE = literal(b":status", b"200")
TRAILERS = literal(b"grpc-status", b"0")
Codes = h2.settings.SettingCodes
# Each example is a connection, with up to a megabyte that the library takes apart.
FEWER = settings(max_examples=200)


@dataclass(frozen=True)
class Step:
    """One thing that the library's end, or ours, does.

    Attributes:
        kind: "open", "reset", "ping", "settings" or "cut", which sets how bytes are cut.
        size: Of a body, or what else a kind needs.
        odd: A second number, for what has two forms.
    """

    kind: str
    size: int
    odd: int


STEPS = st.lists(
    st.builds(
        Step,
        st.sampled_from(["open"] * 5 + ["reset", "ping", "settings", "cut"]),
        st.integers(0, 200) | st.integers(0, 90_000),
        st.integers(0, 7),
    ),
    min_size=1,
    max_size=10,
)


def settings_of(step: Step) -> dict[Codes | int, int]:
    """Return what a step of the library changes of its settings."""
    choices: list[dict[Codes | int, int]] = [
        {Codes.INITIAL_WINDOW_SIZE: 500 + step.size % 70_000},
        {Codes.MAX_FRAME_SIZE: 16_384 + step.size},
        {Codes.HEADER_TABLE_SIZE: step.size % 5000},
        {Codes.HEADER_TABLE_SIZE: 0, Codes.INITIAL_WINDOW_SIZE: 65_535},
    ]
    return choices[step.odd % len(choices)]


class Echo(FrameByFrame):
    """Our end: a server that returns the body of each stream, or a client that stores responses."""

    def __init__(self, *, client: bool) -> None:
        self.bodies: dict[int, bytes] = {}
        self.ended_streams: list[int] = []
        self.reset_streams: list[int] = []
        self._client = client
        self.core = Http2Connection(
            self, self._read, client=client, streams=100, header_bytes=16_384
        )
        self.core.reader.turn_s = math.inf  # all is read at once

    def _read(self, fields: Sequence[Field]) -> Any:
        if not self._client and not any(name[:1] == b":" for name, _ in fields):
            return MissingPseudoHeaders(frames.PROTOCOL_ERROR, "no head")
        return dict(fields)

    def on_settings(self) -> None: ...

    def on_headers(self, stream: Http2Stream, head: Any, *, end: bool) -> None:
        self.bodies.setdefault(stream.number, b"")
        if end:
            self.on_data(stream, memoryview(b""), end=True)

    def on_data(self, stream: Http2Stream, view: memoryview, *, end: bool) -> None:
        self.bodies[stream.number] += view
        if end:
            self.ended_streams.append(stream.number)
            if not self._client:
                body = self.bodies[stream.number]
                self.core.writer.send(stream, RESPONSE, [body[:7], body[7:]], TRAILERS)
        else:
            self.core.windows.grant(stream, STREAM_WINDOW - stream.window)

    def on_reset(self, stream: Http2Stream, code: int) -> bool:
        if stream.number not in self.ended_streams:
            self.reset_streams.append(stream.number)
        return False

    def on_writable(self, stream: Http2Stream) -> None: ...

    def on_goaway(self, code: int, message: str) -> None: ...


class Pair:
    """The two ends, and the bytes between them.

    Attributes:
        expected_bodies: The response body that each stream should get.
    """

    def __init__(self, *, client: bool) -> None:
        self.ours = Echo(client=client)
        config = h2.config.H2Configuration(client_side=not client, header_encoding="utf-8")
        self.theirs = h2.connection.H2Connection(config)
        self.theirs.local_settings.max_concurrent_streams = 100
        self.theirs.initiate_connection()
        self.piece = 1 << 20
        self.expected_bodies: dict[int, bytes] = {}
        self.responses: dict[int, bytes] = {}
        self.done: set[int] = set()
        self.unsent_bodies: dict[int, bytes] = {}
        self.events: list[Any] = []
        self.turn()

    def turn(self) -> None:
        """Transfer the bytes of both ends until neither has any."""
        for _ in range(2000):
            out = [bytes(each) for each in self.ours.core.out]
            self.ours.core.out.clear()
            # One at a time: the library applies its new frame size after the data that acknowledges it.
            for each in out:
                for at in range(0, len(each), self.piece):
                    self._on_events(self.theirs.receive_data(each[at : at + self.piece]))
            self._send_more()
            back = self.theirs.data_to_send()
            for at in range(0, len(back), self.piece):
                self.ours.core.reader.feed(back[at : at + self.piece])
            self.ours.core.flood_budget.refill()
            if not out and not back:
                return
        raise AssertionError("the two ends never stop sending")

    def _on_events(self, events: Sequence[Any]) -> None:
        resets = {each.stream_id for each in events if isinstance(each, h2.events.StreamReset)}
        for event in events:
            if getattr(event, "stream_id", None) in resets:
                self.unsent_bodies.pop(event.stream_id, None)
            elif isinstance(event, h2.events.DataReceived):
                assert event.stream_id is not None
                self.responses[event.stream_id] = (
                    self.responses.get(event.stream_id, b"") + event.data
                )
                self._grant(event.stream_id, event.flow_controlled_length)
            elif isinstance(event, h2.events.StreamEnded):
                assert event.stream_id is not None
                self.done.add(event.stream_id)
                self._respond(event.stream_id)

    def _grant(self, number: int, size: int) -> None:
        """Let our end send so much again; the library's own window manager halts below zero."""
        if size:
            self.theirs.increment_flow_control_window(size)
            with suppress(h2.exceptions.StreamClosedError):
                self.theirs.increment_flow_control_window(size, number)

    def _respond(self, number: int) -> None:
        """As a server, return the body of a stream."""
        if not self.theirs.config.client_side:
            self.theirs.send_headers(number, [(":status", "200")])
            self.unsent_bodies[number] = self.responses.get(number, b"")

    def _send_more(self) -> None:
        """Send what the library may send of bodies."""
        for number, body in list(self.unsent_bodies.items()):
            room = self.theirs.local_flow_control_window(number)
            most = min(len(body), room, self.theirs.max_outbound_frame_size)
            padding = 9 if number % 3 == 0 and most + 10 <= room else None
            if most:
                self.theirs.send_data(number, body[:most], pad_length=padding)
            self.unsent_bodies[number] = body[most:]
            if most == len(body):
                del self.unsent_bodies[number]
                if number % 4 == 1:
                    self.theirs.send_headers(number, [("grpc-status", "0")], end_stream=True)
                else:
                    self.theirs.end_stream(number)


def body_of(step: Step) -> bytes:
    """Return the body of a stream."""
    return bytes([65 + step.odd]) * step.size


def common(pair: Pair, step: Step) -> None:
    """Do a step of the library that is the same at either end."""
    if step.kind == "ping":
        pair.theirs.ping(b"12345678")
    elif step.kind == "settings":
        pair.theirs.update_settings(settings_of(step))
    elif step.kind == "cut":
        pair.piece = 100 + step.size % 3000 if step.odd else 1 << 20


@FEWER
@given(steps=STEPS, together=st.booleans())
def test_the_library_calls_our_server(steps: list[Step], together: bool) -> None:
    """Each stream of the library gets its own body, one after the other or all at once."""
    pair = Pair(client=False)
    for step in steps:
        if step.kind == "open":
            number = pair.theirs.get_next_available_stream_id()
            pair.theirs.send_headers(number, FIELDS)
            pair.expected_bodies[number] = pair.unsent_bodies[number] = body_of(step)
        elif step.kind == "reset" and pair.expected_bodies:
            number = sorted(pair.expected_bodies)[step.odd % len(pair.expected_bodies)]
            if number not in pair.done:
                pair.theirs.reset_stream(number)
                pair.unsent_bodies.pop(number, None)
                del pair.expected_bodies[number]
        else:
            common(pair, step)
        if not together:
            pair.turn()
    pair.turn()
    assert pair.expected_bodies == {
        each: pair.responses.get(each, b"") for each in pair.expected_bodies
    }
    assert pair.expected_bodies.keys() <= pair.done
    assert {} == pair.ours.core.streams


@FEWER
@given(steps=STEPS, together=st.booleans())
def test_our_client_calls_the_library(steps: list[Step], together: bool) -> None:
    """Each stream of our client gets its own body, one after the other or all at once."""
    pair = Pair(client=True)
    streams: dict[int, Http2Stream] = {}
    for step in steps:
        if step.kind == "open":
            stream = pair.ours.core.writer.open(None)
            streams[stream.number] = stream
            pair.expected_bodies[stream.number] = body_of(step)
            pair.ours.core.writer.send(stream, REQUEST, [body_of(step)], None)
        elif step.kind == "reset" and pair.expected_bodies:
            number = sorted(pair.expected_bodies)[step.odd % len(pair.expected_bodies)]
            if number not in pair.ours.ended_streams:
                pair.ours.core.reset(streams[number], frames.CANCEL)
                pair.unsent_bodies.pop(number, None)
                del pair.expected_bodies[number]
        else:
            common(pair, step)
        if not together:
            pair.turn()
    pair.turn()
    assert pair.expected_bodies == {
        each: pair.ours.bodies.get(each) for each in pair.expected_bodies
    }
    assert pair.expected_bodies.keys() <= set(pair.ours.ended_streams)
    assert {} == pair.ours.core.streams
