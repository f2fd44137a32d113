"""A body that is passed on while it comes: order, what is held, pace, and every way it can end."""

from __future__ import annotations

import asyncio
import os
import random

import pytest

from gateway.ir.errors import Overloaded, Unavailable
from gateway.transports.admission import MemoryBudget, Reservation
from gateway.transports.contract import ServerLimits
from gateway.transports.http.faults import HttpError
from gateway.transports.http.request_body import TransferRateLimit
from gateway.transports.http1.streaming_body import HELD_BYTES, PIECE_BYTES, CutThroughBody
from tests.fakes import settle


class FakeSource:
    """A connection with a client behind it: gives what it has, in pieces, until it is to wait."""

    def __init__(self, body: bytes, piece: int = 70_000) -> None:
        self.body = body
        self.at = 0
        self.piece = piece
        self.reading = False
        self.looked: list[int] = []
        self.arrival: CutThroughBody

    def resume_reading(self) -> None:
        self.reading = True

    def pause_reading(self) -> None:
        self.reading = False

    def check_peer(self, missing: int) -> None:
        self.looked.append(missing)

    def send(self, size: int | None = None) -> None:
        """Let the client send *size* bytes, or all; what is not read stays with it."""
        stop = len(self.body) if size is None else min(len(self.body), self.at + size)
        while self.at < stop and self.reading:
            room = self.arrival.room()
            assert room is not None
            count = min(room.nbytes, self.piece, stop - self.at)
            room[:count] = self.body[self.at : self.at + count]
            self.at += count
            self.arrival.received(count)


class Cup:
    """Takes what is poured."""

    def __init__(self) -> None:
        self.pieces: list[memoryview] = []

    def write(self, piece: memoryview, /) -> None:
        self.pieces.append(piece)

    @property
    def content(self) -> bytes:
        return b"".join(self.pieces)


class Scene:
    """An arrival between a source and a budget."""

    def __init__(
        self, size: int = 1 << 20, start: int = 100, *, budget: int = 1 << 30, **limits: float
    ) -> None:
        self.body = os.urandom(size)
        self.source = FakeSource(self.body)
        self.budget = MemoryBudget(budget)
        self.lease = Reservation(self.budget, 0.01)
        self.faults: list[HttpError] = []
        server_limits = ServerLimits(**limits)  # type: ignore[arg-type]  # times are numbers
        pace = TransferRateLimit(server_limits, asyncio.get_running_loop())
        self.arrival = CutThroughBody(
            self.source, size, start, pace, self.lease, self.faults.append
        )
        self.source.arrival = self.arrival

    async def receive_start(self, size: int = 1000) -> CutThroughBody:
        """Return the arrival when its head has come, with *size* bytes."""
        beginning = asyncio.ensure_future(self.arrival.begin())
        await settle()
        self.source.send(size)
        await beginning
        return self.arrival


async def test_the_head_is_what_was_waited_for() -> None:
    """It is complete, whatever came with it, and nothing is read until somebody wants the rest."""
    scene = Scene()
    arrival = await scene.receive_start(5000)
    assert scene.body[:100] == bytes(arrival.head)
    assert arrival.head.readonly
    assert not scene.source.reading
    assert (100, 1 << 20, (1 << 20) - 100) == (arrival.start, arrival.end, arrival.remaining_bytes)
    arrival.close()


@pytest.mark.parametrize("piece", [1, 37, PIECE_BYTES, 1 << 20])
async def test_everything_is_poured_in_order(piece: int) -> None:
    """Whatever the pieces in which it comes, the taker has the rest to the last bit."""
    scene = Scene(100_000 if piece == 1 else 1 << 20)
    scene.source.piece = piece
    arrival = await scene.receive_start(150)
    cup = Cup()
    arrival.pipe_to(cup)
    scene.source.send()
    assert arrival.is_complete
    assert 0 == arrival.remaining_bytes
    assert scene.body[100:] == cup.content
    arrival.close()


async def test_a_full_taker_is_given_no_more() -> None:
    """After `hold` nothing is given and nothing read; `go_on` gives what came, in order."""
    scene = Scene()
    arrival = await scene.receive_start()
    cup = Cup()
    arrival.pipe_to(cup)
    received_bytes = len(cup.content)
    arrival.pause()
    scene.source.send()
    assert received_bytes == len(cup.content)
    assert not scene.source.reading
    draw = random.Random(1)  # noqa: S311  # the same each time
    while not arrival.is_complete or arrival.remaining_bytes:
        arrival.resume()
        scene.source.send(draw.randrange(1, 300_000))
        arrival.pause()
    assert scene.body[100:] == cup.content
    arrival.close()


async def test_a_taker_that_pauses_within_a_piece_is_obeyed() -> None:
    """What `take` itself asks for holds for the very next piece."""
    scene = Scene()
    arrival = await scene.receive_start()

    class Narrow(Cup):
        def write(self, piece: memoryview, /) -> None:
            super().write(piece)
            arrival.pause()

    cup = Narrow()
    arrival.pipe_to(cup)
    assert 1 == len(cup.pieces)
    scene.source.send()
    assert 1 == len(cup.pieces)
    arrival.resume()
    scene.source.send()
    assert 2 == len(cup.pieces)
    arrival.close()


async def test_the_whole_can_be_had_instead() -> None:
    """What came and what comes lies in one buffer; asking again gives the same."""
    scene = Scene()
    arrival = await scene.receive_start(5000)
    asking = asyncio.ensure_future(arrival.read_all())
    await settle()
    assert HELD_BYTES == scene.budget.used_bytes
    scene.source.send()
    whole = await asking
    assert 1 << 20 == scene.budget.used_bytes
    assert scene.body == whole
    assert whole.readonly
    assert scene.body == await arrival.read_all()
    arrival.close()


async def test_what_was_poured_is_gone() -> None:
    """The whole cannot be had once pouring has begun."""
    scene = Scene()
    arrival = await scene.receive_start()
    arrival.pipe_to(Cup())
    with pytest.raises(Unavailable, match="cannot be sent a second time"):
        await arrival.read_all()
    arrival.close()


async def test_it_counts_for_what_it_holds() -> None:
    """In the budget stands what is held at most, not what is to come; less for a small body."""
    scene = Scene(64 << 20)
    arrival = await scene.receive_start()
    assert HELD_BYTES == scene.budget.used_bytes
    arrival.close()
    small = Scene(100_000)
    other = await small.receive_start()
    assert 100_000 == small.budget.used_bytes
    other.close()


async def test_no_room_is_said() -> None:
    """A body that the budget has no room for is refused, at its beginning or where it lands."""
    with pytest.raises(Overloaded):
        await Scene(budget=1000).arrival.begin()
    scene = Scene(4 << 20, budget=1 << 20)
    arrival = await scene.receive_start()
    asking = asyncio.ensure_future(arrival.read_all())
    await settle()
    scene.source.send()  # as far as there is memory for it
    with pytest.raises(Overloaded):
        await asking
    arrival.close()


async def test_a_body_that_comes_too_slowly_is_given_up() -> None:
    """Its pace is watched without anybody waiting for it, and the limit is named."""
    scene = Scene(body_idle_timeout_s=0.02)
    arrival = await scene.receive_start()
    arrival.pipe_to(Cup())
    async with asyncio.timeout(5):
        while not scene.faults:  # noqa: ASYNC110  # nothing announces it
            await asyncio.sleep(0.005)
    assert (408, "body_idle_timeout_s") == (scene.faults[0].status, scene.faults[0].limit)
    arrival.close()


async def test_time_in_which_nothing_is_read_does_not_count() -> None:
    """A client is not blamed for an upstream that takes nothing."""
    scene = Scene(body_idle_timeout_s=0.05)
    arrival = await scene.receive_start()
    cup = Cup()
    arrival.pipe_to(cup)
    arrival.pause()
    await asyncio.sleep(0.15)
    arrival.resume()
    await asyncio.sleep(0.01)
    scene.source.send()
    assert [] == scene.faults
    assert scene.body[100:] == cup.content
    arrival.close()


async def test_a_client_that_is_not_read_is_looked_after() -> None:
    """While nothing is read, and only then, the connection is looked at every few milliseconds."""
    scene = Scene()
    arrival = await scene.receive_start(1000)
    arrival.pipe_to(Cup())
    await asyncio.sleep(0.1)
    before = len(scene.source.looked)
    arrival.pause()
    async with asyncio.timeout(5):
        while len(scene.source.looked) < before + 2:  # noqa: ASYNC110  # nothing announces it
            await asyncio.sleep(0.01)
    assert {(1 << 20) - 1000} == set(scene.source.looked[before:])
    arrival.close()


async def test_the_rest_can_be_let_go() -> None:
    """What nobody wants is read and dropped, in one buffer, until the next request can come."""
    scene = Scene(8 << 20)
    arrival = await scene.receive_start()
    cup = Cup()
    arrival.pipe_to(cup)
    content = cup.content
    arrival.detach()
    assert not scene.source.reading
    dropping = asyncio.ensure_future(arrival.drop())
    await settle()
    scene.source.send()
    await dropping
    assert arrival.is_complete
    assert content == cup.content
    arrival.close()


@pytest.mark.parametrize("wait", ["begin", "read_all", "drop"])
async def test_a_client_that_leaves_ends_every_wait(wait: str) -> None:
    """Whoever waits learns that no more comes."""
    scene = Scene()
    if wait == "begin":
        waiting = asyncio.ensure_future(scene.arrival.begin())
    else:
        arrival = await scene.receive_start()
        waiting = asyncio.ensure_future(getattr(arrival, wait)())
    await settle()
    scene.arrival.fail(ConnectionResetError("the client has left"))
    with pytest.raises(ConnectionResetError):
        await waiting
    scene.arrival.close()


async def test_what_is_at_hand_is_taken_as_it_is() -> None:
    """Bytes that came with the head are not copied, and what follows the body is left."""
    scene = Scene(2000, 100)
    scene.source.body = b""
    beginning = asyncio.ensure_future(scene.arrival.begin())
    await settle()
    data = b"head" + scene.body + b"next"
    assert len(data) - 4 == scene.arrival.feed(data, 4)
    await beginning
    assert scene.arrival.is_complete
    assert data is scene.arrival.head.obj
    cup = Cup()
    scene.arrival.pipe_to(cup)
    assert scene.body[100:] == cup.content
    scene.arrival.close()


async def test_closing_twice_is_harmless() -> None:
    """Nothing is given after the end."""
    scene = Scene()
    arrival = await scene.receive_start()
    cup = Cup()
    arrival.pipe_to(cup)
    before = len(cup.pieces)
    arrival.close()
    arrival.close()
    arrival.resume()
    assert before == len(cup.pieces)
