"""Bodies of the HTTP server: received into their own buffers where possible."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import AsyncGenerator, Callable
from typing import Any

import pytest
from structlog.testing import capture_logs

from gateway.ir.errors import GatewayError
from gateway.transports.connection_count import ConnectionCount
from gateway.transports.contract import HttpFrontend, HttpMount, ServerLimits
from gateway.transports.http.cut_through import cut_through_limiter
from gateway.transports.http.interfaces import ListenerState
from gateway.transports.http.path_router import PathRouter
from gateway.transports.http1 import head_reader, server_connection
from gateway.transports.http1.head_reader import READ_BYTES
from gateway.transports.http1.server_connection import Http1ServerConnection, Http1ServerProtocol
from gateway.transports.http2.frames import PREFACE
from gateway.transports.memory_budget import MemoryBudget
from gateway.transports.reservation import BODY_PATIENCE_S
from gateway.transports.slots import request_slots
from gateway.wire.http import HttpRequest, HttpResponse

LENGTH = 200_000
BUDGET = 1 << 20


class GatedFrontend(HttpFrontend):
    """Replies once the test opens the gate, and records requests; starts large ones early."""

    def __init__(self) -> None:
        self.seen: list[HttpRequest] = []
        self.go = asyncio.Event()

    def __call__(self, wire: HttpRequest, /) -> AsyncGenerator[HttpResponse, None]:
        raise AssertionError(wire)

    async def handle(self, wire: HttpRequest) -> HttpResponse:
        self.seen.append(wire)
        await self.go.wait()
        return HttpResponse(200)

    def reject(self, error: GatewayError, /) -> HttpResponse:
        return HttpResponse(503, body=(error.message.encode(),))

    def early_bytes(self, _wire: HttpRequest) -> int:
        return 10


class Socket(asyncio.Transport):
    """A transport that records the bytes written, and how often reading pauses."""

    def __init__(self) -> None:
        super().__init__({"peername": ("192.0.2.1", 1)})
        self.written = b""
        self.pauses = 0
        self.closed = False

    def write(self, data: Any) -> None:
        self.written += data

    def pause_reading(self) -> None:
        self.pauses += 1

    def resume_reading(self) -> None: ...

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def get_write_buffer_size(self) -> int:
        return 0

    def can_write_eof(self) -> bool:
        return False

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    abort = close


class Connected:
    """A connection between a client of the test and a frontend."""

    def __init__(self, **limits: Any) -> None:
        server_limits = ServerLimits(**limits)
        self.frontend = GatedFrontend()
        self.budget = MemoryBudget(BUDGET)
        listener = ListenerState(
            limits=server_limits,
            budget=self.budget,
            slots=request_slots(
                ServerLimits(requests_in_flight=16, requests_queued=4), self.budget
            ),
            handler_of=PathRouter([HttpMount(("/v2",), self.frontend)], None).find,
            on_reject=lambda _error: None,
            cut_through_limiter=cut_through_limiter(server_limits),
        )
        self.protocol = Http1ServerProtocol(listener, ConnectionCount(2, 2), reserve=False)
        self.socket = Socket()
        self.connection = Http1ServerConnection(self.protocol, asyncio.get_running_loop())
        self.connection.connection_made(self.socket)

    def send(self, data: bytes) -> None:
        """Give the connection *data*, as a loop does."""
        while data:
            room = self.connection.get_buffer(-1)
            size = min(len(room), len(data))
            room[:size] = data[:size]
            self.connection.buffer_updated(size)
            data = data[size:]

    @property
    def body_timer(self) -> Any:
        """The timer of a body whose exchange has not begun."""
        return self.connection._requests._timer

    @property
    def has_own_buffer(self) -> bool:
        """Whether the next bytes are received directly into the body's buffer."""
        return self.connection.get_buffer(-1) is not self.protocol.buffer

    async def close(self) -> None:
        self.connection.connection_lost(None)
        await settle(lambda: not self.protocol.connections)


async def settle(done: Callable[[], bool]) -> None:
    """Let the connection's task run until *done*, for at most 20 iterations."""
    for _ in range(20):
        if done():
            break
        await asyncio.sleep(0)
    assert done()


def head(*fields: str, length: int = LENGTH, path: str = "/v2/x") -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: h", f"Content-Length: {length}", *fields, "", ""]
    return "\r\n".join(lines).encode()


async def test_a_body_is_received_into_its_own_buffer() -> None:
    """Reading does not pause, and the budget reserves the body before its bytes arrive."""
    scene = Connected()
    body = bytes(range(250)) * (LENGTH // 250)
    scene.send(head() + body[:1000])
    used_bytes = scene.budget.used
    has_buffer = scene.has_own_buffer
    scene.send(body[1000:])
    await settle(lambda: bool(scene.frontend.seen))
    (seen,) = scene.frontend.seen
    assert (LENGTH, True, 0) == (used_bytes, has_buffer, scene.socket.pauses)
    assert body == bytes(seen.view)
    assert seen.view.readonly
    scene.frontend.go.set()
    await settle(lambda: bool(scene.socket.written))
    await settle(lambda: scene.budget.used == 0)
    await scene.close()


async def idle(scene: Connected) -> None:
    """Let the connection wait for its next request."""
    await settle(lambda: scene.connection._requests._waiter is not None)


async def test_an_exchange_begins_when_its_body_is_complete() -> None:
    """A body that arrives within a moment wakes the connection once, in any number of reads."""
    scene = Connected()
    await idle(scene)
    scene.send(head() + b"x" * 1000)
    for _ in range(3):
        await asyncio.sleep(0)
        scene.send(b"x" * 1000)
    assert (1, None) == (scene.connection.in_flight, scene.connection.cancel_exchange)
    scene.send(b"x" * (LENGTH - 4000))
    await settle(lambda: bool(scene.frontend.seen))
    assert scene.body_timer is None
    await scene.close()


@pytest.mark.parametrize("fields", [(), ("X-Request-Timeout: 9",)])
async def test_an_exchange_begins_soon_while_its_body_arrives(
    fields: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a moment it watches the body, and at once if the client waits only for some time."""
    scene = Connected()
    await idle(scene)
    if not fields:
        monkeypatch.setattr(server_connection, "_BODY_S", 0)
    scene.send(head(*fields) + b"x" * 1000)
    await settle(lambda: scene.connection.cancel_exchange is not None)
    scene.send(b"x" * (LENGTH - 1000))
    await settle(lambda: bool(scene.frontend.seen))
    await scene.close()


async def test_an_idle_connection_is_not_woken_for_a_body_that_was_handled() -> None:
    """The timer of a body ends with it, and would wake nobody later.

    It was left running where the exchange did not wait for the body: the next pause ended with 500.
    """
    scene = Connected()
    scene.frontend.go.set()
    scene.send(head() + b"x" * 1000)
    assert scene.body_timer is not None
    await settle(lambda: scene.connection.cancel_exchange is not None)
    scene.send(b"x" * (LENGTH - 1000))
    assert scene.body_timer is None
    await settle(lambda: not scene.connection.in_flight)
    await idle(scene)
    scene.connection.begin_exchange()
    scene.send(head(length=1) + b"x")
    await settle(lambda: len(scene.frontend.seen) == 2)
    await settle(lambda: scene.socket.written.count(b"HTTP/1.1 200") == 2)
    assert 2 == scene.socket.written.count(b"HTTP/1.1")
    await scene.close()


async def test_an_exchange_begins_when_its_body_waits_for_memory() -> None:
    """Memory that is short is waited for at once."""
    scene = Connected()
    await idle(scene)
    other = BUDGET - scene.budget.buffers.step_bytes
    assert scene.budget.try_acquire(other)
    length = 2 * scene.budget.buffers.step_bytes
    scene.send(head(length=length) + bytes(scene.budget.buffers.step_bytes))
    await settle(lambda: scene.budget.queued == 1)
    scene.budget.release(other)
    await settle(lambda: scene.has_own_buffer)
    scene.send(bytes(length - scene.budget.buffers.step_bytes))
    await settle(lambda: bool(scene.frontend.seen))
    await scene.close()


async def test_a_client_that_leaves_before_an_exchange_begins_holds_no_memory() -> None:
    """The reservation of the body ends with the connection."""
    scene = Connected()
    await idle(scene)
    scene.send(head() + b"x" * 1000)
    await asyncio.sleep(0)
    assert (LENGTH, None) == (scene.budget.used, scene.connection.cancel_exchange)
    await scene.close()
    assert (0, []) == (scene.budget.used, scene.frontend.seen)


@pytest.mark.parametrize("more", [0, 1, 5])
async def test_a_body_as_large_as_the_read_buffer(more: int) -> None:
    """A body that ends at or just after the read buffer is read to its own end only."""
    scene = Connected()
    scene.frontend.go.set()
    first, second = os.urandom(READ_BYTES + more - len(head(length=READ_BYTES))), b"abc"
    sent = head(length=len(first)) + first
    assert READ_BYTES + more == len(sent)
    scene.send(sent + head(length=len(second)) + second)
    await settle(lambda: len(scene.frontend.seen) == 2)
    assert [first, second] == [bytes(seen.view) for seen in scene.frontend.seen]
    await settle(lambda: scene.budget.used == 0)
    await scene.close()


async def test_an_incomplete_body_releases_its_memory() -> None:
    """The reservation ends when the client leaves, at once or after some loop iterations."""
    for turns in (0, 3):
        scene = Connected()
        scene.send(head() + b"x" * 1000)
        used_bytes = scene.budget.used
        for _ in range(turns):
            await asyncio.sleep(0)
        await scene.close()
        await settle(lambda scene=scene: scene.budget.used == 0)  # type: ignore[misc]  # mypy: lambdas' defaults
        assert (LENGTH, []) == (used_bytes, scene.frontend.seen)


@pytest.mark.parametrize(
    ("sent", "limits"),
    [
        (head("Expect: 100-continue"), {}),
        (head("Content-Encoding: gzip"), {}),
        (head(path="/elsewhere"), {}),
        (head("Host: another"), {}),
        (head(), {"message_bytes": LENGTH - 1}),
        (head(), {"cut_through_bytes": 1000}),
    ],
    ids=["expects", "coded", "unknown", "malformed", "too_long", "passed_on"],
)
async def test_no_memory_is_reserved_before_other_checks(
    sent: bytes, limits: dict[str, Any]
) -> None:
    """A body that may be rejected, needs 100 Continue or is cut through reserves no memory."""
    scene = Connected(**limits)
    scene.send(sent + b"x" * 100)
    assert (False, 0) == (scene.has_own_buffer, scene.budget.used)
    await scene.close()


@pytest.mark.parametrize("piece", [1, 61, 4096, READ_BYTES, 1 << 20])
async def test_any_split_of_the_bytes_reads_the_same_requests(piece: int) -> None:
    """Each pipelined request has its own complete body, in order."""
    scene = Connected()
    scene.frontend.go.set()
    bodies = [b"", b"ab", os.urandom(300), os.urandom(3 * READ_BYTES), b"c", os.urandom(READ_BYTES)]
    sent = b"".join([head(length=len(body)) + body for body in bodies])
    for at in range(0, len(sent), piece):
        scene.send(sent[at : at + piece])
        if not at % (97 * piece):  # at times the task has its turn, at others it is late
            await asyncio.sleep(0)
    await settle(lambda: len(scene.frontend.seen) == len(bodies))
    assert bodies == [bytes(seen.view) for seen in scene.frontend.seen]
    await settle(lambda: scene.budget.used == 0)
    await scene.close()


def traced(number: int, body: bytes) -> bytes:
    """Return a request with values of its own."""
    fields = f"X-Request-ID: {number}", f"traceparent: 00-{number:032x}-{number:016x}-01"
    return head(*fields, length=len(body), path=f"/v2/{number}") + body


@pytest.mark.parametrize("cut", [-5, -3, -1])
async def test_a_head_with_values_of_its_own_needs_no_parser(
    cut: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its body may arrive with it, later, in part, or with the next request."""
    scene = Connected()
    scene.frontend.go.set()
    bodies = [b"%05d" % number for number in range(14)]
    for number in range(2):
        scene.send(traced(number, bodies[number]))
        await settle(lambda: not scene.connection.in_flight)
    monkeypatch.setattr(head_reader, "httptools", None)
    for number in range(2, 12):
        sent = traced(number, bodies[number])
        if number % 2:
            scene.send(sent)
        else:
            scene.send(sent[:cut])
            scene.send(sent[cut:])
        await settle(lambda: not scene.connection.in_flight)
    scene.send(traced(12, bodies[12]) + traced(13, bodies[13]))
    await settle(lambda: len(scene.frontend.seen) == len(bodies))
    assert bodies == [bytes(seen.view) for seen in scene.frontend.seen]
    ids = [seen.headers.get("x-request-id") for seen in scene.frontend.seen]
    assert [str(number) for number in range(len(bodies))] == ids
    assert [f"/v2/{number}" for number in range(len(bodies))] == [
        seen.path for seen in scene.frontend.seen
    ]
    await scene.close()


async def test_a_pipelined_body_waits_for_the_previous_response() -> None:
    """Behind a pending request, a body has no buffer and stays with its client."""
    scene = Connected()
    scene.send(head(length=3) + b"abc" + head() + b"x" * 1000)
    await settle(lambda: len(scene.frontend.seen) == 1)
    in_use = 3 + scene.budget.call_bytes
    assert (False, in_use, 1) == (
        scene.has_own_buffer,
        scene.budget.used,
        scene.socket.pauses,
    )
    scene.frontend.go.set()
    await settle(lambda: scene.has_own_buffer)
    scene.send(b"x" * (LENGTH - 1000))
    await settle(lambda: len(scene.frontend.seen) == 2)
    assert b"x" * LENGTH == bytes(scene.frontend.seen[1].view)
    await scene.close()
    await settle(lambda: scene.budget.used == 0)


async def test_a_complete_request_is_not_a_stalled_one() -> None:
    """It does not fail while it waits for its reply and others wait for memory."""
    scene = Connected()
    scene.send(head() + b"x" * 1000)
    await settle(lambda: scene.connection.cancel_exchange is not None)
    scene.send(b"x" * (LENGTH - 1000))
    await settle(lambda: bool(scene.frontend.seen))
    with pytest.raises(TimeoutError):
        await scene.budget.acquire(BUDGET, timeout_s=2 * BODY_PATIENCE_S)
    assert b"" == scene.socket.written
    scene.frontend.go.set()
    await settle(lambda: scene.socket.written.startswith(b"HTTP/1.1 200"))
    await scene.close()


async def test_reading_pauses_while_requests_wait_to_be_parsed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The memory for pipelined requests is limited to the bytes of one read."""
    scene = Connected(pipelined_requests=4)
    scene.frontend.go.set()
    unparsed: list[int] = []
    monkeypatch.setattr(
        scene.socket, "resume_reading", lambda: unparsed.append(len(scene.connection._unparsed))
    )
    scene.send(head(length=0) * 30)
    await settle(lambda: len(scene.frontend.seen) == 30)
    assert [0] == unparsed
    await scene.close()


async def test_a_connection_closing_before_its_preface_is_lost_once() -> None:
    """TLS delivers decrypted bytes even while the connection closes."""
    scene = Connected()
    scene.protocol.http2 = asyncio.Protocol
    connection = Http1ServerConnection(scene.protocol, asyncio.get_running_loop())
    connection.connection_made(scene.socket)
    scene.socket.close()
    connection.data_received(PREFACE)
    connection.connection_lost(None)
    assert {scene.connection} == scene.protocol.connections
    await scene.close()


async def test_a_reset_before_an_error_response_is_not_logged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The OSError of write_eof on a reset socket is not an internal error."""

    def write_eof() -> None:
        raise OSError(errno.ENOTCONN, "Transport endpoint is not connected")

    scene = Connected()
    monkeypatch.setattr(scene.socket, "can_write_eof", lambda: True)
    monkeypatch.setattr(scene.socket, "write_eof", write_eof, raising=False)
    with capture_logs() as logs:
        scene.send(b"no request\r\n\r\n")
        await settle(lambda: scene.connection._task is None)
    assert [] == logs
    assert 1 == scene.socket.written.count(b"HTTP/1.1 400")
    await scene.close()
