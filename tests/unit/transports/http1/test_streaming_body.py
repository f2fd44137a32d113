"""A body that is piped while it arrives: order, memory, rate limits, and every way it can end."""

from __future__ import annotations

import asyncio
import os
import random

import pytest

from gateway.ir.errors import Overloaded, Unavailable
from gateway.transports.contract import ServerLimits
from gateway.transports.http.faults import HttpError
from gateway.transports.http.request_body import TransferRateLimit
from gateway.transports.http1.streaming_body import HELD_BYTES, PIECE_BYTES, CutThroughBody
from gateway.transports.memory_budget import MemoryBudget
from gateway.transports.reservation import Reservation
from tests.fakes import settle
from tests.simulation.virtual_time import elapse, in_virtual_time


class FakeSource:
    """A connection with a client behind it: delivers its body in pieces while reading is on."""

    def __init__(self, body: bytes, piece: int = 70_000) -> None:
        self.body = body
        self.at = 0
        self.piece = piece
        self.reading = False
        self.checks: list[int] = []
        self.transport = None
        self.streaming_body: CutThroughBody

    def resume_reading(self) -> None:
        self.reading = True

    def pause_reading(self) -> None:
        self.reading = False

    def begin_exchange(self) -> None:
        raise AssertionError("it has begun")

    def check_peer(self, missing: int) -> None:
        self.checks.append(missing)

    def body_ended(self) -> None:
        raise AssertionError("nothing is spliced")

    def send(self, size: int | None = None) -> None:
        """Let the client send *size* bytes, or all; it keeps the bytes that are not read."""
        stop = len(self.body) if size is None else min(len(self.body), self.at + size)
        while self.at < stop and self.reading:
            room = self.streaming_body.room()
            assert room is not None
            count = min(room.nbytes, self.piece, stop - self.at)
            room[:count] = self.body[self.at : self.at + count]
            self.at += count
            self.streaming_body.received(count)


class Sink:
    """A sink that records its pieces."""

    def __init__(self) -> None:
        self.pieces: list[memoryview] = []

    def write(self, piece: memoryview, /) -> None:
        self.pieces.append(piece)

    @property
    def content(self) -> bytes:
        return b"".join(self.pieces)


class Streaming:
    """A cut-through body between a source and a budget."""

    def __init__(
        self, size: int = 1 << 20, start: int = 100, *, budget: int = 1 << 30, **limits: float
    ) -> None:
        self.body = os.urandom(size)
        self.source = FakeSource(self.body)
        self.budget = MemoryBudget(budget)
        self.reservation = Reservation(self.budget, 0.01)
        self.errors: list[HttpError] = []
        server_limits = ServerLimits(**limits)  # type: ignore[arg-type]  # times are numbers
        rate_limit = TransferRateLimit(server_limits, asyncio.get_running_loop())
        self.streaming_body = CutThroughBody(
            self.source, size, start, rate_limit, self.reservation, self.errors.append
        )
        self.source.streaming_body = self.streaming_body

    async def receive_start(self, size: int = 1000) -> CutThroughBody:
        """Return the body after its first *size* bytes, which include its start."""
        beginning = asyncio.ensure_future(self.streaming_body.begin())
        await settle()
        self.source.send(size)
        await beginning
        return self.streaming_body


async def test_the_body_starts_with_the_requested_bytes() -> None:
    """The start is complete, and nothing more is read until somebody wants the rest."""
    scene = Streaming()
    streaming_body = await scene.receive_start(5000)
    assert scene.body[:100] == bytes(streaming_body.head)
    assert streaming_body.head.readonly
    assert not scene.source.reading
    assert (100, 1 << 20, (1 << 20) - 100) == (
        streaming_body.start,
        streaming_body.end,
        streaming_body.remaining_bytes,
    )
    streaming_body.close()


@pytest.mark.parametrize("piece", [1, 37, PIECE_BYTES, 1 << 20])
async def test_the_whole_body_is_piped_in_order(piece: int) -> None:
    """The sink receives the rest exactly, whatever the size of the pieces."""
    scene = Streaming(100_000 if piece == 1 else 1 << 20)
    scene.source.piece = piece
    streaming_body = await scene.receive_start(150)
    sink = Sink()
    streaming_body.pipe_to(sink)
    scene.source.send()
    assert streaming_body.is_complete
    assert 0 == streaming_body.remaining_bytes
    assert scene.body[100:] == sink.content
    streaming_body.close()


async def test_a_paused_sink_receives_nothing() -> None:
    """While paused, nothing is written or read; resuming writes the received bytes in order."""
    scene = Streaming()
    streaming_body = await scene.receive_start()
    sink = Sink()
    streaming_body.pipe_to(sink)
    received_bytes = len(sink.content)
    streaming_body.pause()
    scene.source.send()
    assert received_bytes == len(sink.content)
    assert not scene.source.reading
    draw = random.Random(1)  # noqa: S311  # the same each time
    while not streaming_body.is_complete or streaming_body.remaining_bytes:
        streaming_body.resume()
        scene.source.send(draw.randrange(1, 300_000))
        streaming_body.pause()
    assert scene.body[100:] == sink.content
    streaming_body.close()


async def test_a_sink_may_pause_within_its_write() -> None:
    """A pause within `write` holds for the very next piece."""
    scene = Streaming()
    streaming_body = await scene.receive_start()

    class Narrow(Sink):
        def write(self, piece: memoryview, /) -> None:
            super().write(piece)
            streaming_body.pause()

    sink = Narrow()
    streaming_body.pipe_to(sink)
    assert 1 == len(sink.pieces)
    scene.source.send()
    assert 1 == len(sink.pieces)
    streaming_body.resume()
    scene.source.send()
    assert 2 == len(sink.pieces)
    streaming_body.close()


async def test_read_all_returns_the_whole_body() -> None:
    """The bytes are in one buffer; a second call returns them again."""
    scene = Streaming()
    streaming_body = await scene.receive_start(5000)
    reading_all = asyncio.ensure_future(streaming_body.read_all())
    await settle()
    assert HELD_BYTES == scene.budget.used
    scene.source.send()
    whole = await reading_all
    assert 1 << 20 == scene.budget.used
    assert scene.body == whole
    assert whole.readonly
    assert scene.body == await streaming_body.read_all()
    streaming_body.close()


async def test_read_all_fails_after_piping_began() -> None:
    """A body that is being piped cannot be read again."""
    scene = Streaming()
    streaming_body = await scene.receive_start()
    streaming_body.pipe_to(Sink())
    with pytest.raises(Unavailable, match="cannot be sent a second time"):
        await streaming_body.read_all()
    streaming_body.close()


async def test_the_budget_counts_only_the_buffered_bytes() -> None:
    """A large body counts its buffer only, a small one its own size."""
    scene = Streaming(64 << 20)
    streaming_body = await scene.receive_start()
    assert HELD_BYTES == scene.budget.used
    streaming_body.close()
    small = Streaming(100_000)
    other = await small.receive_start()
    assert 100_000 == small.budget.used
    other.close()


async def test_a_body_without_memory_is_overloaded() -> None:
    """The budget may be exhausted at the start or while the whole is read."""
    with pytest.raises(Overloaded):
        await Streaming(budget=1000).streaming_body.begin()
    scene = Streaming(4 << 20, budget=1 << 20)
    streaming_body = await scene.receive_start()
    reading_all = asyncio.ensure_future(streaming_body.read_all())
    await settle()
    scene.source.send()  # as far as there is memory for it
    with pytest.raises(Overloaded):
        await reading_all
    streaming_body.close()


@in_virtual_time
async def test_a_body_that_is_too_slow_times_out() -> None:
    """The rate is checked although no task waits for it, and the error names the limit."""
    scene = Streaming(body_idle_timeout_s=0.02)
    streaming_body = await scene.receive_start()
    streaming_body.pipe_to(Sink())
    await elapse(0.1)
    assert (408, "body_idle_timeout_s") == (scene.errors[0].status, scene.errors[0].limit)
    streaming_body.close()


@in_virtual_time
async def test_paused_time_does_not_count_for_the_timeout() -> None:
    """A client is not blamed for a slow upstream."""
    scene = Streaming(body_idle_timeout_s=1.0)
    streaming_body = await scene.receive_start()
    sink = Sink()
    streaming_body.pipe_to(sink)
    streaming_body.pause()
    await elapse(1.2)
    streaming_body.resume()
    await elapse(0.01)
    scene.source.send()
    assert [] == scene.errors
    assert scene.body[100:] == sink.content
    streaming_body.close()


@in_virtual_time
async def test_a_paused_body_checks_its_peer_periodically() -> None:
    """While reading is paused, the connection is checked every few milliseconds."""
    scene = Streaming()
    streaming_body = await scene.receive_start(1000)
    streaming_body.pipe_to(Sink())
    await elapse(0.1)
    before = len(scene.source.checks)
    streaming_body.pause()
    await elapse(0.1)
    assert len(scene.source.checks) >= before + 2
    assert {(1 << 20) - 1000} == set(scene.source.checks[before:])
    streaming_body.close()


async def test_the_rest_of_the_body_can_be_dropped() -> None:
    """After detaching, the rest is read and discarded until the next request."""
    scene = Streaming(8 << 20)
    streaming_body = await scene.receive_start()
    sink = Sink()
    streaming_body.pipe_to(sink)
    content = sink.content
    streaming_body.detach()
    assert not scene.source.reading
    dropping = asyncio.ensure_future(streaming_body.drop())
    await settle()
    scene.source.send()
    await dropping
    assert streaming_body.is_complete
    assert content == sink.content
    streaming_body.close()


@pytest.mark.parametrize("wait", ["begin", "read_all", "drop"])
async def test_a_client_that_leaves_fails_every_wait(wait: str) -> None:
    """Every waiting call raises the error of the connection."""
    scene = Streaming()
    if wait == "begin":
        waiting = asyncio.ensure_future(scene.streaming_body.begin())
    else:
        streaming_body = await scene.receive_start()
        waiting = asyncio.ensure_future(getattr(streaming_body, wait)())
    await settle()
    scene.streaming_body.fail(ConnectionResetError("the client has left"))
    with pytest.raises(ConnectionResetError):
        await waiting
    scene.streaming_body.close()


async def test_a_body_received_with_its_head_is_not_copied() -> None:
    """The bytes are views of the received data, and bytes after the body remain."""
    scene = Streaming(2000, 100)
    scene.source.body = b""
    beginning = asyncio.ensure_future(scene.streaming_body.begin())
    await settle()
    data = b"head" + scene.body + b"next"
    assert len(data) - 4 == scene.streaming_body.feed(data, 4)
    await beginning
    assert scene.streaming_body.is_complete
    assert data is scene.streaming_body.head.obj
    sink = Sink()
    scene.streaming_body.pipe_to(sink)
    assert scene.body[100:] == sink.content
    scene.streaming_body.close()


async def test_closing_twice_is_harmless() -> None:
    """Nothing is written to the sink after the end."""
    scene = Streaming()
    streaming_body = await scene.receive_start()
    sink = Sink()
    streaming_body.pipe_to(sink)
    before = len(sink.pieces)
    streaming_body.close()
    streaming_body.close()
    streaming_body.resume()
    assert before == len(sink.pieces)
