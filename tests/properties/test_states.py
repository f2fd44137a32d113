"""Walks of real objects by drawn events: each move is a row of their table, each row is reached."""

from __future__ import annotations

import asyncio
import random
import struct
from collections.abc import Callable
from typing import Any

import pytest

from gateway.accelerator import PYTHON_VERSIONS
from gateway.concurrency.timeouts import TimerWheel
from gateway.ir.errors import GatewayError
from gateway.transports.connection_count import ConnectionCount
from gateway.transports.contract import HttpMount, ServerLimits
from gateway.transports.grpc import connection_lifecycle
from gateway.transports.grpc import states as grpc
from gateway.transports.grpc.admission import CallAdmission
from gateway.transports.grpc.connection_lifecycle import ConnectionLifecycle, OpenConnections
from gateway.transports.grpc.method import Method
from gateway.transports.grpc.server_call import ServerCall
from gateway.transports.grpc.server_connection import GrpcServerConnection
from gateway.transports.http import states as http
from gateway.transports.http.cut_through import cut_through_limiter
from gateway.transports.http.interfaces import ListenerState
from gateway.transports.http.path_router import PathRouter
from gateway.transports.http1 import server_connection
from gateway.transports.http1 import states as http1
from gateway.transports.http1.server_connection import Http1ServerConnection, Http1ServerProtocol
from gateway.transports.http2 import frames, streams
from gateway.transports.http2 import states as http2
from gateway.transports.http2.connection import Http2Connection
from gateway.transports.http2.frames import MissingPseudoHeaders
from gateway.transports.http2.hpack import literal
from gateway.transports.http2.streams import Http2Stream
from gateway.transports.memory_budget import MemoryBudget
from gateway.transports.slots import request_slots
from gateway.transports.stream import server_connection as stream_connection
from gateway.transports.stream import states as stream
from gateway.transports.stream.listener import StreamListenerState
from gateway.transports.stream.server_connection import StreamConnection
from gateway.wire.grpc import MethodKind
from tests.accelerated_parts import use_functions
from tests.integration.stream_kit import NumberedFramer, ordered
from tests.properties.walks import (
    MoodyGrpc,
    MoodyHttp,
    MoodyStream,
    Peer,
    Rows,
    WatchedState,
    assert_nothing_left,
    walk,
)
from tests.simulation.virtual_time import elapse

LIMITS = ServerLimits(
    requests_in_flight=2, requests_queued=2, pipelined_requests=3, h2_streams=4, keepalive_s=75.0
)
PAUSES_S = (0.0, 0.0, 0.0, 0.0, 0.001, 2.0, 11.0, 100.0)
QUIET_S = 2000.0
"""Longer than all time limits of a connection together."""


def _draw(seed: int) -> random.Random:
    return random.Random(seed)  # noqa: S311  # not a secret


class Walk:
    """A walk of one connection, whose client and listener do what is drawn.

    Args:
        peer: The client.
        drawn: Draws.
    """

    def __init__(self, peer: Peer, drawn: random.Random) -> None:
        self.peer = peer
        self.drawn = drawn

    async def run(self, actions: list[Callable[[], object]], steps: int) -> None:
        """Take *steps* drawn actions, each some time after the one before; then leave."""
        for _ in range(steps):
            if self.peer.lost:
                break
            self.drawn.choice(actions)()
            await elapse(self.drawn.choice(PAUSES_S))
        self.peer.resume()
        if self.drawn.random() < 0.5:
            await elapse(QUIET_S)
        self.peer.abort()
        for _ in range(20):  # what was cancelled ends
            await asyncio.sleep(0)


# -- a stream of HTTP/2


class _Side:
    """One end of a pair of connections, which opens, writes, ends and resets streams."""

    def __init__(self, drawn: random.Random, *, client: bool) -> None:
        self.drawn = drawn
        self.is_client = client
        self.core = Http2Connection(
            self, self._read_head, client=client, streams=100, header_bytes=1 << 16
        )
        self.known: list[Http2Stream] = []

    def _read_head(self, fields: list[Any]) -> Any:
        if self.is_client or fields[0][0].startswith(b":"):
            return "head"
        return MissingPseudoHeaders(frames.PROTOCOL_ERROR, "these are trailers")

    def feed(self, other: _Side) -> None:
        """Receive what *other* has written."""
        data = b"".join(bytes(each) for each in other.core.out)
        other.core.out.clear()
        if data:
            self.core.reader.feed(data)

    def on_settings(self) -> None: ...

    def on_headers(self, stream: Http2Stream, _head: Any, *, end: bool) -> None:
        self.known.append(stream)

    def on_complete_stream(
        self, stream: Http2Stream, _head: Any, view: memoryview, _tail: Any
    ) -> None:
        self.known.append(stream)
        self.core.windows.consume(stream, len(view))

    def on_data(self, stream: Http2Stream, view: memoryview, *, end: bool) -> None:
        self.core.windows.consume(stream, len(view))
        self.core.windows.grant(stream, len(view))

    def on_reset(self, stream: Http2Stream, _code: int) -> bool:
        return True

    def on_writable(self, stream: Http2Stream) -> None: ...

    def on_goaway(self, code: int, message: str) -> None: ...

    def act(self) -> None:
        """Take one step on one of the streams."""
        core, drawn = self.core, self.drawn
        if self.is_client and drawn.random() < 0.3:  # of two kinds
            stream = core.writer.open(None)
            self.known.append(stream)
            if drawn.random() < 0.3:
                core.writer.send(stream, _HEAD, (b"x" * 20,), None)
            else:
                core.writer.head(stream, _HEAD, end=drawn.random() < 0.2)
            return
        usable = [
            each for each in self.known if each.state in (http2.OPEN, http2.HALF_CLOSED_REMOTE)
        ]
        if not usable:
            return
        stream = drawn.choice(usable)
        size = drawn.choice((10, 1000, 80_000))
        step = drawn.choice(("data", "end", "send", "reset", "grant"))
        if step == "data":
            core.writer.data(stream, (bytes(size),))
        elif step == "end":
            core.writer.end(stream, _TAIL if drawn.random() < 0.5 else None)
        elif step == "send" and not self.is_client and stream.waiting is None:
            core.writer.send(stream, _HEAD, (bytes(size),), drawn.choice((None, _TAIL)))
        elif step == "reset" and drawn.random() < 0.3:
            core.reset(stream, frames.CANCEL)
        elif step == "grant":
            core.windows.grant(stream, size)


_HEAD = literal(b":status", b"200")
_TAIL = literal(b"a", b"b")


def test_a_stream_of_http2_moves_by_the_rows_of_its_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two ends open, write, end and reset streams; a closed stream is known no more."""
    use_functions(PYTHON_VERSIONS, monkeypatch)  # compiled ones set the states past the watch
    found = Rows(
        http2.TRANSITIONS, [http2.Http2StreamEvent.SEND_END, http2.Http2StreamEvent.RECEIVE_END]
    )
    monkeypatch.setattr(streams, "TRANSITIONS", found)
    monkeypatch.setattr(
        Http2Stream, "state", WatchedState(Http2Stream, "state", found, [http2.OPEN])
    )
    for seed in range(300):
        drawn = _draw(seed)
        sides = client, server = _Side(drawn, client=True), _Side(drawn, client=False)
        for _ in range(60):
            for side in sides:
                side.core.flood_budget.remaining = 1000
                side.act()
            for side, other in ((server, client), (client, server)):
                if drawn.random() < 0.6:
                    side.feed(other)
        for side in sides:
            for each in side.known:
                is_known = side.core.streams.get(each.number) is each
                assert is_known == (each.state is not http2.CLOSED)
                assert is_known or each.waiting is None
            for each in list(side.core.streams.values()):
                side.core.reset(each, frames.CANCEL)
            assert side.core.writer.is_idle
    assert set(http2.TRANSITIONS) == found.used


# -- a connection of frames


def test_a_connection_of_frames_moves_by_the_rows_of_its_table(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A lost connection of either kind of framing holds no slot, memory, timer or task."""
    found = Rows(stream.TRANSITIONS)
    monkeypatch.setattr(stream_connection, "TRANSITIONS", found)
    monkeypatch.setattr(
        StreamConnection,
        "_state",
        WatchedState(StreamConnection, "state", found, [stream.OPEN]),
        raising=False,
    )
    walk(_walk_frames, 800)
    assert set(stream.TRANSITIONS) == found.used


async def _walk_frames(drawn: random.Random) -> None:
    in_order = drawn.random() < 0.5
    budget, count = MemoryBudget(100_000), ConnectionCount(2, 2)
    slots = request_slots(LIMITS, budget)
    listener = StreamListenerState(
        limits=LIMITS,
        budget=budget,
        slots=slots,
        count=count,
        frontend=MoodyStream(drawn.choice),
        framer=ordered if in_order else NumberedFramer,
        width=1 if in_order else 3,
        ahead=3,
        on_reject=lambda _error: None,
    )
    connection = StreamConnection(listener, asyncio.get_running_loop())
    peer = Peer(connection)

    def frame() -> bytes:
        payload = bytes(drawn.choice((1, 300, 70_000)))
        number = b"" if in_order else struct.pack("<I", 7)
        return struct.pack("<I", len(payload)) + number + payload

    await Walk(peer, drawn).run(
        [
            lambda: peer.receive(frame()),
            lambda: peer.receive(frame()),
            lambda: peer.receive(frame()[: drawn.choice((3, 20, 200))]),
            lambda: peer.receive(b"\xff" * 8),
            peer.end,
            peer.pause,
            peer.resume,
            connection.drain,
            lambda: connection.fail_in_flight() if drawn.random() < 0.5 else None,
            lambda: peer.abort() if drawn.random() < 0.3 else None,
        ],
        drawn.choice((3, 6, 12)),
    )
    assert (0, 0, 0) == (slots.used, budget.used, count.total)
    assert not listener.connections
    await assert_nothing_left()


# -- a connection of HTTP


def _listener(drawn: random.Random, budget: MemoryBudget) -> ListenerState:
    return ListenerState(
        limits=LIMITS,
        budget=budget,
        slots=request_slots(LIMITS, budget),
        handler_of=PathRouter([HttpMount(("/v2",), MoodyHttp(drawn.choice))], None).find,
        on_reject=lambda _error: None,
        cut_through_limiter=cut_through_limiter(LIMITS),
    )


class _Http2(asyncio.Protocol):
    """Stands for HTTP/2."""


def _http_actions(peer: Peer, connection: Any, drawn: random.Random) -> list[Callable[[], object]]:
    def request() -> bytes:
        size = drawn.choice((0, 10, 5000))
        path = drawn.choice(("/v2/x", "/v2/x", "/elsewhere"))
        close = drawn.choice(("", "", "", "Connection: close\r\n"))
        head = f"POST {path} HTTP/1.1\r\nHost: h\r\n{close}Content-Length: {size}\r\n\r\n"
        return head.encode() + bytes(size)

    return [
        lambda: peer.receive(request()),
        lambda: peer.receive(request()),
        lambda: peer.receive(request() + request() + request()),
        lambda: peer.receive(request()[: drawn.choice((3, 30, 80))]),
        lambda: peer.receive(b"no request\r\n\r\n") if drawn.random() < 0.3 else None,
        lambda: peer.receive(frames.PREFACE[: drawn.choice((5, 24))]),
        lambda: peer.receive(request(), end=True),
        peer.pause,
        peer.resume,
        lambda: connection.announce_close() if drawn.random() < 0.5 else None,
        lambda: connection.drain() if drawn.random() < 0.5 else None,
        lambda: connection.fail_in_flight() if drawn.random() < 0.3 else None,
        lambda: peer.abort() if drawn.random() < 0.1 else None,
    ]


async def _walk_native(drawn: random.Random) -> None:
    budget, count = MemoryBudget(100_000), ConnectionCount(2, 2)
    listener = _listener(drawn, budget)
    protocol = Http1ServerProtocol(
        listener, count, reserve=False, http2=drawn.choice((None, _Http2))
    )
    protocol.is_draining = drawn.random() < 0.1
    connection = protocol()
    peer = Peer(connection)
    await Walk(peer, drawn).run(
        _unless(lambda: peer.get_protocol() is connection, _http_actions(peer, connection, drawn)),
        drawn.choice((3, 6, 12)),
    )
    assert (0, 0, 0) == (listener.slots.used, budget.used, count.total)
    assert not protocol.connections
    await assert_nothing_left()


def _unless(
    holds: Callable[[], bool], actions: list[Callable[[], object]]
) -> list[Callable[[], object]]:
    """Return *actions* that do nothing once *holds* is false."""
    return [lambda act=each: act() if holds() else None for each in actions]  # type: ignore[misc]  # mypy: lambdas' defaults


def test_a_connection_of_http_moves_by_the_rows_of_its_table(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A lost connection holds no slot, memory, timer or task."""
    found, kind = Rows(http.TRANSITIONS), Http1ServerConnection
    monkeypatch.setattr(server_connection, "TRANSITIONS", found)
    first = [http.OPEN, http.ENDING]
    monkeypatch.setattr(kind, "state", WatchedState(kind, "state", found, first), raising=False)
    walk(_walk_native, 300)
    assert set(http.TRANSITIONS) == found.used


def test_the_input_of_http1_moves_by_the_rows_of_its_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection reads, lingers, or becomes one of HTTP/2; then it holds nothing."""
    found = Rows(http1.TRANSITIONS)
    monkeypatch.setattr(http1, "TRANSITIONS", found)
    first = [http1.UNDECIDED, http1.READING, http1.HTTP2]
    kind = Http1ServerConnection
    monkeypatch.setattr(kind, "_input", WatchedState(kind, "_input", found, first), raising=False)
    walk(_walk_native, 300)
    assert set(http1.TRANSITIONS) == found.used


# -- a connection of gRPC, and its calls


_METHODS = {
    "/unary": MethodKind.UNARY,
    "/server": MethodKind.SERVER_STREAM,
    "/both": MethodKind.BIDIRECTIONAL,
}


def _block(path: str, timeout: str) -> bytes:
    fields = [(":method", "POST"), (":scheme", "http"), (":path", path)]
    fields.append(("content-type", "application/grpc"))
    if timeout:
        fields.append(("grpc-timeout", timeout))
    return b"".join(literal(name.encode(), value.encode()) for name, value in fields)


async def _walk_grpc(drawn: random.Random) -> None:
    budget, wheel = MemoryBudget(200_000), TimerWheel()
    found = OpenConnections(ConnectionCount(2, 2))
    admission = CallAdmission(budget, LIMITS)
    frontend = MoodyGrpc(drawn.choice)
    methods = {
        path: Method(path, kind, frontend, admission, LIMITS, wheel)
        for path, kind in _METHODS.items()
    }
    errors: list[GatewayError] = []
    connection = GrpcServerConnection(methods, LIMITS, found, admission, errors.append, 3600.0)
    peer, loop, born = Peer(connection), asyncio.get_running_loop(), connection.lifecycle._born
    numbers = iter(range(1, 1000, 2))
    used: list[int] = []
    window = frames.settings([(frames.INITIAL_WINDOW_SIZE, drawn.choice((60, 65_535)))])
    peer.receive(frames.PREFACE + window)

    def begin() -> None:
        used.append(next(numbers))
        block = _block(drawn.choice([*_METHODS, "/none"]), drawn.choice(("", "", "1S", "0S")))
        data = frames.frame(frames.HEADERS, frames.END_HEADERS, used[-1], block)
        if drawn.random() < 0.7:
            data += message(used[-1], end=True)
        peer.receive(data)

    def message(number: int, *, end: bool) -> bytes:
        body = bytes(drawn.choice((0, 20, 5000)))
        data = b"\0" + len(body).to_bytes(4, "big") + body
        if drawn.random() < 0.2:
            data = data[:-10]
        return frames.frame(frames.DATA, frames.END_STREAM if end else 0, number, data)

    def more() -> None:
        with_stream = [each for each in used if each in connection.core.streams]
        if with_stream:
            number = drawn.choice(with_stream)
            if not connection.core.streams[number].is_remote_closed:
                peer.receive(message(number, end=drawn.random() < 0.5))

    def reset() -> None:
        if used:
            peer.receive(frames.reset(drawn.choice(used), frames.CANCEL))

    def widen() -> None:
        peer.receive(frames.window_update(0, 1000))
        for number in used[-3:]:
            peer.receive(frames.window_update(number, 1000))

    def sweep() -> None:
        now = born + loop.time()
        connection.lifecycle.sweep(now)
        connection.lifecycle.become_idle(now)

    await Walk(peer, drawn).run(
        [
            begin,
            begin,
            more,
            more,
            reset,
            widen,
            sweep,
            sweep,
            peer.pause,
            peer.resume,
            lambda: connection.lifecycle.announce_close() if drawn.random() < 0.2 else None,
            lambda: connection.lifecycle.cancel_calls() if drawn.random() < 0.1 else None,
            lambda: peer.abort() if drawn.random() < 0.1 else None,
        ],
        drawn.choice((5, 10, 20)),
    )
    wheel.close()
    assert (0, 0, 0) == (admission.slots.used, budget.used, admission.calls)
    assert (0, set(), set()) == (found.count.total, found.members, found.active)
    await assert_nothing_left()


def test_a_grpc_connection_and_its_calls_move_by_the_rows_of_their_tables(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A connection that is lost, and a call that is over, hold no slot, memory, timer or task."""
    calls = Rows(grpc.TRANSITIONS, grpc.GrpcCallEvent)
    connections = Rows(grpc.CONNECTION_TRANSITIONS)
    monkeypatch.setattr(connection_lifecycle, "CONNECTION_TRANSITIONS", connections)
    monkeypatch.setattr(
        ServerCall, "_state", WatchedState(ServerCall, "_state", calls, [grpc.RECEIVING])
    )
    monkeypatch.setattr(
        ConnectionLifecycle,
        "state",
        WatchedState(ConnectionLifecycle, "state", connections, [grpc.OPEN]),
    )
    walk(_walk_grpc, 200)
    assert set(grpc.TRANSITIONS) == calls.used
    assert set(grpc.CONNECTION_TRANSITIONS) == connections.used
