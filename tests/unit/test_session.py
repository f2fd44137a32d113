"""The calls of one bidirectional stream: concurrency, and the order of replies."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from gateway.concurrency.limiter import WAITED_S, waited_s
from gateway.session import Session, SessionCall, SessionReply
from tests.fakes import settle


class Calls:
    """Calls controlled by the test: `reply` adds replies to a call, `end` ends it."""

    def __init__(self) -> None:
        self.starts: list[str] = []
        self.closed: list[str] = []
        self._queues: dict[str, asyncio.Queue[SessionReply[str] | None]] = {}

    def create(self, name: str, order_key: str | None = None) -> SessionCall[str]:
        self._queues[name] = asyncio.Queue()
        return SessionCall(partial(self._replies, name), order_key)

    def reply(self, name: str, *replies: str) -> None:
        for text in replies:
            self._queues[name].put_nowait(SessionReply(text, is_only=False))

    def end(self, name: str) -> None:
        self._queues[name].put_nowait(None)

    def only(self, name: str, text: str) -> None:
        self._queues[name].put_nowait(SessionReply(text, is_only=True))
        self.end(name)

    async def _replies(self, name: str) -> AsyncGenerator[SessionReply[str], None]:
        self.starts.append(name)
        try:
            while (reply := await self._queues[name].get()) is not None:
                yield reply
        finally:
            self.closed.append(name)


class OpenSession:
    """A session whose calls the test adds one by one; records the replies."""

    def __init__(self, most: int = 8) -> None:
        self.replies: list[str] = []
        self.call_count = 0
        self._coming: asyncio.Queue[SessionCall[str] | None] = asyncio.Queue()
        self._replies = Session[str](most).run(self._calls())
        self.task = asyncio.ensure_future(self._listen())

    async def add(self, *calls: SessionCall[str]) -> None:
        for call in calls:
            self._coming.put_nowait(call)
        await settle()

    async def close_half(self) -> None:
        self._coming.put_nowait(None)
        await self.task

    async def _calls(self) -> AsyncIterator[SessionCall[str]]:
        while (call := await self._coming.get()) is not None:
            self.call_count += 1
            yield call

    async def _listen(self) -> None:
        async for reply in self._replies:
            self.replies.append(reply)


async def test_only_the_first_message_has_waited_with_its_stream() -> None:
    """The time in the queue of the stream shortens the timeout of no later message."""
    found: list[float] = []

    async def reply() -> AsyncGenerator[SessionReply[str], None]:
        found.append(waited_s())
        yield SessionReply("", is_only=True)

    WAITED_S.set(5.0)
    opened = OpenSession()
    for _ in range(3):
        await opened.add(SessionCall(reply))
    await opened.close_half()
    assert [5.0, 0.0, 0.0] == found


async def test_single_replies_are_sent_in_the_order_of_their_calls() -> None:
    """The reply of a later call waits until all earlier calls have replied."""
    calls, session = Calls(), OpenSession()
    await session.add(calls.create("a"), calls.create("b"), calls.create("c"))
    assert ["a", "b", "c"] == calls.starts
    for name in ("c", "b", "a"):
        assert [] == session.replies
        calls.only(name, name.upper())
        await settle()
    await session.close_half()
    assert ["A", "B", "C"] == session.replies


def decoupled(call: SessionCall[str]) -> SessionCall[str]:
    """Return *call* as one of a decoupled model."""
    return replace(call, is_decoupled=lambda: True)


async def test_calls_of_decoupled_models_are_unordered() -> None:
    """A slow request once delayed later ones; Triton promises no order for such models."""
    calls, session = Calls(), OpenSession()
    names = ("slow", "plain", "quick", "last")
    slow, plain, quick, last = map(calls.create, names)
    await session.add(decoupled(slow), plain, decoupled(quick), last)
    assert [*names] == calls.starts
    for name, replies in (
        ("quick", ["quick"]),
        ("last", ["quick"]),
        ("plain", ["quick", "plain", "last"]),
        ("slow", ["quick", "plain", "last", "slow"]),
    ):
        calls.only(name, name)
        await settle()
        assert replies == session.replies
    await session.close_half()


async def test_a_waiting_reply_is_sent_once_its_model_is_decoupled() -> None:
    """The order is kept while the query is pending; a single call causes no query."""
    calls, session = Calls(), OpenSession()
    verdict: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
    queries: list[str] = []

    async def is_decoupled(name: str) -> bool:
        queries.append(name)
        return await asyncio.shield(verdict)

    slow, quick = (
        replace(calls.create(name), is_decoupled=partial(is_decoupled, name))
        for name in ("slow", "quick")
    )
    await session.add(slow)
    assert [] == queries
    await session.add(quick)
    assert ["slow", "quick"] == queries
    calls.only("quick", "quick")
    await settle()
    assert [] == session.replies
    verdict.set_result(True)
    await settle()
    assert ["quick"] == session.replies
    calls.only("slow", "slow")
    await session.close_half()
    assert ["quick", "slow"] == session.replies


async def test_a_session_ends_while_a_query_is_pending() -> None:
    """The order no longer matters once all replies are sent."""
    calls, session = Calls(), OpenSession()
    never = asyncio.Event().wait
    first, second = (
        replace(calls.create(name), is_decoupled=never) for name in ("first", "second")
    )
    await session.add(first, second)
    for name in ("second", "first"):
        calls.only(name, name)
    await session.close_half()
    assert ["first", "second"] == session.replies


async def test_a_session_closed_before_a_query_closes_the_coroutine() -> None:
    """The client may leave in the loop iteration in which its messages arrive."""

    async def never_awaited() -> bool:
        raise AssertionError

    queries: list[Coroutine[Any, Any, bool]] = []

    def is_decoupled() -> Coroutine[Any, Any, bool]:
        queries.append(never_awaited())
        return queries[-1]

    async def add() -> AsyncIterator[SessionCall[str]]:
        for name in ("first", "second"):
            yield replace(Calls().create(name), is_decoupled=is_decoupled)

    reading = asyncio.ensure_future(anext(Session[str](8).run(add())))
    await asyncio.sleep(0)  # the messages arrive in the next turn
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert ["CORO_CLOSED"] * 2 == list(map(inspect.getcoroutinestate, queries))


async def test_stream_replies_are_sent_at_once() -> None:
    """Calls with several replies interleave."""
    calls, session = Calls(), OpenSession()
    await session.add(calls.create("a"), calls.create("b"))
    for name, text in (("b", "b0"), ("a", "a0"), ("b", "b1"), ("a", "a1")):
        calls.reply(name, text)
        await settle()
    calls.end("a")
    calls.end("b")
    await session.close_half()
    assert ["b0", "a0", "b1", "a1"] == session.replies


async def test_a_single_reply_waits_for_the_start_of_a_stream() -> None:
    """It does not wait for the end of an earlier stream."""
    calls, session = Calls(), OpenSession()
    await session.add(calls.create("stream"), calls.create("single"))
    calls.only("single", "single")
    await settle()
    assert [] == session.replies
    calls.reply("stream", "s0")
    await settle()
    assert ["s0", "single"] == session.replies
    calls.reply("stream", "s1")
    calls.end("stream")
    await session.close_half()
    assert ["s0", "single", "s1"] == session.replies


async def test_a_call_without_reply_does_not_block_later_ones() -> None:
    """The next reply is sent when the call ends."""
    calls, session = Calls(), OpenSession()
    await session.add(calls.create("none"), calls.create("single"))
    calls.only("single", "single")
    calls.end("none")
    await session.close_half()
    assert ["single"] == session.replies


async def test_calls_with_one_order_key_run_sequentially() -> None:
    """The next call of a sequence starts when the previous one has ended; others do not wait."""
    calls, session = Calls(), OpenSession()
    await session.add(calls.create("s1", "s"), calls.create("s2", "s"), calls.create("free"))
    assert ["s1", "free"] == calls.starts
    calls.only("s1", "1")
    await settle()
    assert ["s1", "free", "s2"] == calls.starts
    calls.only("s2", "2")
    calls.only("free", "f")
    await session.close_half()
    assert ["1", "2", "f"] == session.replies


async def test_reads_no_more_calls_than_may_run() -> None:
    """The next message is read only when a call has ended."""
    calls, session = Calls(), OpenSession(most=2)
    await session.add(calls.create("a"), calls.create("b"), calls.create("c"))
    assert 2 == session.call_count
    calls.only("a", "A")
    await settle()
    assert 3 == session.call_count
    calls.only("b", "B")
    calls.only("c", "C")
    await session.close_half()
    assert ["A", "B", "C"] == session.replies


async def test_a_slow_reader_bounds_the_produced_replies() -> None:
    """A call produces at most two replies more than the client has read."""
    yielded: list[int] = []

    async def endless() -> AsyncGenerator[SessionReply[int], None]:
        for number in range(1_000_000):
            yielded.append(number)
            yield SessionReply(number, is_only=False)

    async def calls() -> AsyncIterator[SessionCall[int]]:
        yield SessionCall(endless)

    replies = Session[int](8).run(calls())
    assert 0 == await anext(replies)
    await settle()
    assert 3 >= len(yielded)
    await replies.aclose()


async def test_closing_a_session_ends_its_calls() -> None:
    """Running calls are closed, and queued ones never start."""
    calls, session = Calls(), OpenSession()
    await session.add(calls.create("a", "s"), calls.create("b", "s"), calls.create("c"))
    calls.reply("c", "c0")
    await settle()
    session.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await session.task
    assert ["a", "c"] == sorted(calls.closed)


@pytest.mark.parametrize("broken", ["calls", "answers"])
async def test_an_unexpected_exception_ends_all_calls(broken: str) -> None:
    """It is raised from the session, whether the source of calls or a reply raises it."""
    cancellations: list[str] = []

    async def waits() -> AsyncGenerator[SessionReply[str], None]:
        try:
            await asyncio.get_running_loop().create_future()
            yield SessionReply("never", is_only=True)
        finally:
            cancellations.append("waits")

    async def breaks() -> AsyncGenerator[SessionReply[str], None]:
        await settle()
        yield SessionReply(str(1 // 0), is_only=True)

    async def calls() -> AsyncIterator[SessionCall[str]]:
        yield SessionCall(waits)
        if broken == "answers":
            yield SessionCall(breaks)
        else:
            await settle()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        [reply async for reply in Session[str](8).run(calls())]
    assert ["waits"] == cancellations


async def test_an_empty_session_has_no_replies() -> None:
    """A stream that ends without a message ends the session."""
    session = OpenSession()
    await session.close_half()
    assert [] == session.replies
