"""Random inputs of the compiled methods of HTTP/1 clients, and what calls them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from random import Random
from types import SimpleNamespace
from typing import Any, Final

import pytest

from gateway.transports.contract import ClientLimits
from gateway.transports.http1 import (
    client,
    client_connection,
)
from gateway.transports.http1.client import HttpClient
from gateway.transports.http1.client_connection import Http1ClientConnection
from gateway.wire.http import Headers, HttpRequest, HttpResponse

NOW_S: Final = 7.0
_SENT_CHARS: Final = ("", "a", "a b", "\xe9", "a\r\n", "~" * 130)
_HEADS: Final = (
    b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nX-One: %b",
    b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\nX-One: %b",
    b"HTTP/1.1 500 Failed\r\ncontent-length: %d\r\nKeep-Alive: timeout=9\r\nX-One: %b",
    b"HTTP/1.1 204 None\r\nX-Two: %d\r\nX-One: %b",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nX-Two: %d\r\nX-One: %b",
    b"HTTP/1.1 200 OK\r\nX-Two: %d\r\nX-One: %b",
    b"HTTP/1.1 100 Continue\r\nX-Two: %d\r\nX-One: %b",
    b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nContent-Encoding: gzip\r\nX-One: %b",
)


class WatchedTransport:
    """A transport that keeps what is written, and nothing else.

    Args:
        fails: Whether each write fails.
    """

    def __init__(self, *, fails: bool = False) -> None:
        self.events: list[object] = []
        self._fails = fails

    def write(self, data: Any) -> None:
        """Keep *data*, or fail."""
        if self._fails:
            raise RuntimeError("closed")
        self.events.append(bytes(data))

    def writelines(self, buffers: Any) -> None:
        """Keep *buffers* as one, or fail."""
        self.write(b"".join(buffers))

    def abort(self) -> None:
        """Note it."""
        self.events.append("abort")

    def pause_reading(self) -> None:
        """Note it."""
        self.events.append("pause")


def _body(random: Random) -> list[bytes | bytearray | memoryview]:
    sizes = random.choice(((), (0,), (5,), (5,), (3, 300), (65_537,), (65_536,), (40_000, 40_000)))
    kinds = (bytes, bytearray, memoryview)
    return [random.choice(kinds)(random.randbytes(size)) for size in sizes]


def _wire(random: Random) -> HttpRequest:
    """Return a request, nearly always of plain texts."""

    def text(usual: str) -> str:
        return usual if random.random() < 0.95 else random.choice(_SENT_CHARS)

    headers = Headers(((text("X-One"), text("a")),) * random.randrange(3))
    if random.random() < 0.5:
        client.request_buffers(HttpRequest("GET", "/", headers=headers), "", "", None)
    body_stream: Any = None
    if random.random() < 0.1:
        body_stream = SimpleNamespace(remaining_bytes=random.choice((0, 9)))
    return HttpRequest(
        text(random.choice(("POST", "POST", "GET", "PUT", "HEAD"))),
        text("/v2/models/m/infer"),
        random.choice(("", "", text("a=b"))),
        headers,
        random.choice((tuple, list))(_body(random)),
        None,
        body_stream,
        random.choice(("", "id-1", text("id-2"))),
    )


def request_buffers(random: Random) -> tuple[Any, ...]:
    """Return a request, the rest of its first line, and the time until its deadline or none."""
    left_s = random.choice((None, 0.0, 0.5, 0.009, 1.0, 1.005, 59.99, 60, 1e6, 1e12, -1.0))
    prefix = random.choices(("", "/a", "/\xe9"), (9, 9, 1))[0]
    return _wire(random), prefix, " HTTP/1.1\r\nHost: a\r\n", left_s


def _pool_state(random: Random) -> dict[str, Any]:
    """Return what differs from an idle connection of an open pool, mostly nothing."""
    odd = {
        "is_usable": False,
        "idle_s": random.choice((0.009, 0.01, 1.0, 1.6, 70.0)),
        "age_s": 400.0,
        "has_ended": True,
        "fails": True,
        "_pending": b"a",
        "_paused": random.choice((1, 2, 3)),
        "is_awaiting": True,
        "response": random.choice((True, False)),  # whether it is persistent
        "is_closed": True,
        "is_pruned": False,
        "failure": True,
        "rest": random.choice((0, 5)),
        "is_growing": True,
    }
    return {key: odd[key] for key in odd if random.random() < 0.08}


def _send_at_once(random: Random) -> tuple[Any, ...]:
    """Return a request, its deadline, the idle and the used connections, and their state."""
    deadline = random.choice((None, NOW_S + 5, NOW_S + 5, NOW_S + 0.5, NOW_S, NOW_S - 1, 60))
    used = random.choices((0, 1, 2), (8, 2, 2))[0]
    return (
        _wire(random),
        deadline,
        random.choices((0, 1, 2), (1, 5, 5))[0],
        used,
        _pool_state(random),
    )


def _end_exchange(random: Random) -> tuple[Any, ...]:
    """Return whether the exchange has a deadline, and the state of its connection."""
    return random.random() < 0.7, _pool_state(random)


def buffer_updated(random: Random) -> tuple[Any, ...]:
    """Return a connection's state, what arrives, and the heads that came before."""
    before = [_response(random, damage=False) for _ in range(random.choice((0, 1, 1, 2)))]
    data = _response(random, damage=True)
    if before and random.random() < 0.8:
        data = random.choice(before)
    if random.random() < 0.1:
        at = random.randrange(len(data) + 1)
        data = data[:at] + random.choice((b"", b"\r", b"\n", b"a", b"\0")) + data[at:]
    state = random.choices(("usual", "idle", "left", "stream", "body"), (9, 1, 1, 1, 1))[0]
    method = random.choice(("POST", "POST", "POST", "GET", "HEAD"))
    return method, state, before, random.choice((1, 2, 3, 3)), random.choice((0, 0, 1, 7)), data


def _response(random: Random, *, damage: bool) -> bytes:
    size = random.choice((0, 1, 12, 300))
    value = random.choice((b"a", b"a", b"b" * random.randrange(40), b"c" * 1100))
    head = random.choice(_HEADS[:1] * 16 + _HEADS) % (size, value)
    body = random.randbytes(
        size + (random.choice((-1, 1)) if damage and random.random() < 0.2 else 0) if size else 0
    )
    return head + b"\r\n\r\n" + body


def _client_of(state: dict[str, Any], idle: int, used: int) -> tuple[Any, list[Any]]:
    """Return a client with two slots and idle connections in a state."""
    pool = HttpClient("http://server:1/a", ClientLimits(in_flight=2))
    pool._slots.used = used
    connections = []
    for _ in range(idle):
        one = Http1ClientConnection(
            pool._peer, asyncio.get_running_loop(), pool._buffer, pool._heads
        )
        one.transport = WatchedTransport(fails="fails" in state)
        one._socket = SimpleNamespace(fileno=lambda: 0, family=None)
        one.is_usable = state.get("is_usable", True)
        one.created_at = NOW_S - state.get("age_s", 100.0)
        one.last_used_at = NOW_S - state.get("idle_s", 0.001)
        one._pending = state.get("_pending", b"")
        one._paused = state.get("_paused", 0)
        connections.append(one)
        pool._open.add(one)
    pool._idle = [*connections]
    pool._is_closed = state.get("is_closed", False)
    timer: Any = SimpleNamespace(cancel=lambda: None)
    pool._pruning = timer if state.get("is_pruned", True) else None
    return pool, connections


def _left(pool: Any, connections: list[Any]) -> object:
    """Return what is left of a client and its connections."""
    fields = ("uses", "is_awaiting", "_method", "is_usable", "last_used_at", "_pending", "_paused")
    return [
        [[getattr(one, name) for name in fields] for one in connections],
        [one.transport.events for one in connections],
        [
            one.response is None and one._waiter is None and one.failure is None
            for one in connections
        ],
        [connections.index(one) for one in pool._idle],
        [one in pool._open for one in connections],
        pool._slots.used,
        pool._pruning is None,
        pool._wheel._latest.number,
        [connections.index(one) for one in pool._wheel._latest],
    ]


def _run(check: Callable[[], object], state: dict[str, Any]) -> object:
    """Return the result of *check* on a loop, at a time that does not go on."""
    with pytest.MonkeyPatch.context() as patch, _as_running(_loop()):
        for module in _CLOCKS:
            patch.setattr(module, "monotonic", lambda: NOW_S)
        patch.setattr(Http1ClientConnection, "has_ended", lambda _one: "has_ended" in state)
        return check()


@cache
def _loop() -> asyncio.AbstractEventLoop:
    return asyncio.SelectorEventLoop()


@contextmanager
def _as_running(loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    """Let code make futures and timers of a loop that does not run; none of them is left."""
    asyncio.events._set_running_loop(loop)
    try:
        yield
    finally:
        asyncio.events._set_running_loop(None)
        loop._ready.clear()  # type: ignore[attr-defined]
        loop._scheduled.clear()  # type: ignore[attr-defined]


_CLOCKS: Final = (time, client, client_connection)


def sent_at_once(  # one argument for each part of the state
    function: Callable[..., Any],
    wire: HttpRequest,
    deadline: float | None,
    idle: int,
    used: int,
    state: dict[str, Any],
) -> object:
    """Return what became of a request, and what has changed."""

    def check() -> object:
        pool, connections = _client_of(state, idle, used)
        found: object = None
        try:
            sent = function(pool, wire, deadline)
            if sent is not None:
                one, waiter, step = sent
                is_step = None if step is None else (step.number, one in step)
                found = connections.index(one), waiter is one._waiter, waiter.done(), is_step
        except Exception as error:  # noqa: BLE001  # any error is to be the same
            found = type(error), str(error)
        left = found, _left(pool, connections)
        pool._wheel.close()
        return left

    return _run(check, state)


def exchange_ended(
    function: Callable[..., Any], has_deadline: bool, state: dict[str, Any]
) -> object:
    """Return what is left of a client after an exchange."""

    def check() -> object:
        pool, _connections = _client_of(state, 1, 1)
        one = pool._idle.pop()
        step = pool._wheel.schedule(one, NOW_S + 5) if has_deadline else None
        one._waiter = asyncio.get_running_loop().create_future()
        one.is_awaiting = "is_awaiting" in state
        one.failure = ValueError() if "failure" in state else None
        events = []
        if "response" in state:
            one.response = SimpleNamespace(
                is_persistent=state["response"], close=lambda: events.append("close")
            )
        if "rest" in state:
            one._rest = SimpleNamespace(
                remaining_bytes=state["rest"], detach=lambda: events.append("detach")
            )
        if "is_growing" in state:
            one._growing = SimpleNamespace(cancel=lambda: events.append("cancel"))
        result = function(pool, one, step)
        left = result, events, one._rest, _left(pool, [one])
        pool._wheel.close()
        if pool._pruning is not None:
            pool._pruning.cancel()
        return left

    return _run(check, state)


def response_read(  # as above
    function: Callable[..., Any],
    method: str,
    state: str,
    before: list[bytes],
    times: int,
    unsampled: int,
    data: bytes,
) -> object:
    """Return what a connection makes of the data that arrive for a request."""

    def check() -> object:
        pool, (one,) = _client_of({}, 1, 1)
        for _ in range(times):
            for each in before:
                _read_before(pool, each)
        pool._heads._unsampled = unsampled
        one._waiter = asyncio.get_running_loop().create_future()
        one.uses, one._method, one.is_awaiting = 1, method, state != "idle"
        if state == "left":
            one._waiter.cancel()
        if state in ("stream", "body"):
            one.begin(method, (), None, streamed=state == "stream")
            one._waiter = asyncio.get_running_loop().create_future()
        pool._buffer[: len(data)] = data
        result = function(one, len(data))
        waiter = one._waiter
        found = None
        if waiter.done() and not waiter.cancelled():
            found = _parts(waiter.result())
        reader = one.response
        rest = None
        if reader is not None:
            body = bytes(reader.body()) if reader.is_done and not reader.is_streamed else None
            rest = reader.is_started, reader.is_done, reader.is_persistent, reader.has_head, body
        failure = type(one.failure), str(one.failure)
        return result, found, rest, failure, pool._heads._unsampled, _left(pool, [one])

    return _run(check, {})


def _parts(response: HttpResponse | None) -> object:
    if response is None:
        return None
    views = [(type(each), bytes(each)) for each in response.body]
    return response, views, response.is_compressible, response.request_id, response.headers.lowered


def _read_before(pool: Any, data: bytes) -> None:
    """Let the cache of a client learn the head of a response."""
    one = Http1ClientConnection(pool._peer, asyncio.get_running_loop(), pool._buffer, pool._heads)
    one.transport = WatchedTransport()
    one._waiter = asyncio.get_running_loop().create_future()
    one.uses, one._method, one.is_awaiting = 1, "POST", True
    pool._buffer[: len(data)] = data
    one.buffer_updated(len(data))


CLIENT_PARTS: Final = (request_buffers, _send_at_once, _end_exchange, buffer_updated)
"""The inputs of each of them."""

CLIENT_CALLERS: Final[dict[str, Callable[..., object]]] = {
    "_send_at_once": sent_at_once,
    "_end_exchange": exchange_ended,
    "buffer_updated": response_read,
}
"""What calls a method, and returns its result and what it has changed in a form to compare."""

CLIENT_CLASSES: Final = (HttpClient, Http1ClientConnection)
"""The classes with such methods."""
