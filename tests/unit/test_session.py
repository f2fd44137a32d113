"""The calls of one bidirectional stream: what runs beside what, and what is heard when."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from gateway.session import Session, SessionCall, SessionReply
from tests.fakes import settle


class Calls:
    """Calls that are answered by hand: `say` gives a call an answer, None ends it."""

    def __init__(self) -> None:
        self.starts: list[str] = []
        self.closed: list[str] = []
        self._queues: dict[str, asyncio.Queue[SessionReply[str] | None]] = {}

    def create(self, name: str, lane: str | None = None) -> SessionCall[str]:
        self._queues[name] = asyncio.Queue()
        return SessionCall(partial(self._answers, name), lane)

    def say(self, name: str, *answers: str) -> None:
        for answer in answers:
            self._queues[name].put_nowait(SessionReply(answer, is_only=False))

    def end(self, name: str) -> None:
        self._queues[name].put_nowait(None)

    def only(self, name: str, answer: str) -> None:
        self._queues[name].put_nowait(SessionReply(answer, is_only=True))
        self.end(name)

    async def _answers(self, name: str) -> AsyncGenerator[SessionReply[str], None]:
        self.starts.append(name)
        try:
            while (reply := await self._queues[name].get()) is not None:
                yield reply
        finally:
            self.closed.append(name)


class Open:
    """A session whose calls come one by one; remembers what was heard."""

    def __init__(self, most: int = 8) -> None:
        self.replies: list[str] = []
        self.call_count = 0
        self._coming: asyncio.Queue[SessionCall[str] | None] = asyncio.Queue()
        self._answers = Session[str](most).run(self._calls())
        self.task = asyncio.ensure_future(self._listen())

    async def come(self, *calls: SessionCall[str]) -> None:
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
        async for answer in self._answers:
            self.replies.append(answer)


async def test_only_answers_are_heard_in_the_order_of_their_calls() -> None:
    """A later call that is done first waits for the earlier ones, however many there are."""
    calls, session = Calls(), Open()
    await session.come(calls.create("a"), calls.create("b"), calls.create("c"))
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


async def test_calls_of_decoupled_models_neither_wait_nor_hold_others_back() -> None:
    """A slow request held back later ones: Triton promises no order for such models."""
    calls, session = Calls(), Open()
    names = ("slow", "plain", "quick", "last")
    slow, plain, quick, last = map(calls.create, names)
    await session.come(decoupled(slow), plain, decoupled(quick), last)
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


async def test_a_reply_that_waits_is_sent_once_its_model_proves_decoupled() -> None:
    """The order is kept while the question is open; a call that is alone causes no question."""
    calls, session = Calls(), Open()
    verdict: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
    questions: list[str] = []

    async def is_decoupled(name: str) -> bool:
        questions.append(name)
        return await asyncio.shield(verdict)

    slow, quick = (
        replace(calls.create(name), is_decoupled=partial(is_decoupled, name))
        for name in ("slow", "quick")
    )
    await session.come(slow)
    assert [] == questions
    await session.come(quick)
    assert ["slow", "quick"] == questions
    calls.only("quick", "quick")
    await settle()
    assert [] == session.replies
    verdict.set_result(True)
    await settle()
    assert ["quick"] == session.replies
    calls.only("slow", "slow")
    await session.close_half()
    assert ["quick", "slow"] == session.replies


async def test_a_session_ends_while_a_question_is_open() -> None:
    """Nobody waits for the order of replies that have been sent."""
    calls, session = Calls(), Open()
    never = asyncio.Event().wait
    first, second = (
        replace(calls.create(name), is_decoupled=never) for name in ("first", "second")
    )
    await session.come(first, second)
    for name in ("second", "first"):
        calls.only(name, name)
    await session.close_half()
    assert ["first", "second"] == session.replies


async def test_a_session_that_is_closed_before_a_question_is_asked_leaves_no_coroutine() -> None:
    """The client may leave in the turn of the event loop in which its messages arrive."""

    async def answer() -> bool:
        raise AssertionError

    questions: list[Coroutine[Any, Any, bool]] = []

    def is_decoupled() -> Coroutine[Any, Any, bool]:
        questions.append(answer())
        return questions[-1]

    async def come() -> AsyncIterator[SessionCall[str]]:
        for name in ("first", "second"):
            yield replace(Calls().create(name), is_decoupled=is_decoupled)

    reading = asyncio.ensure_future(anext(Session[str](8).run(come())))
    await asyncio.sleep(0)  # the messages arrive in the next turn
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert ["CORO_CLOSED"] * 2 == list(map(inspect.getcoroutinestate, questions))


async def test_many_answers_are_heard_as_they_come() -> None:
    """Calls with several answers interleave, and wait for nobody."""
    calls, session = Calls(), Open()
    await session.come(calls.create("a"), calls.create("b"))
    for name, answer in (("b", "b0"), ("a", "a0"), ("b", "b1"), ("a", "a1")):
        calls.say(name, answer)
        await settle()
    calls.end("a")
    calls.end("b")
    await session.close_half()
    assert ["b0", "a0", "b1", "a1"] == session.replies


async def test_an_only_answer_waits_no_longer_than_to_the_first_of_an_earlier_stream() -> None:
    """A stream that has begun is heard: what comes after it need not wait for its end."""
    calls, session = Calls(), Open()
    await session.come(calls.create("stream"), calls.create("single"))
    calls.only("single", "single")
    await settle()
    assert [] == session.replies
    calls.say("stream", "s0")
    await settle()
    assert ["s0", "single"] == session.replies
    calls.say("stream", "s1")
    calls.end("stream")
    await session.close_half()
    assert ["s0", "single", "s1"] == session.replies


async def test_a_call_without_an_answer_keeps_nobody_waiting() -> None:
    """One that ends unheard lets the next be heard."""
    calls, session = Calls(), Open()
    await session.come(calls.create("none"), calls.create("single"))
    calls.only("single", "single")
    calls.end("none")
    await session.close_half()
    assert ["single"] == session.replies


async def test_calls_of_one_lane_run_one_after_the_other() -> None:
    """A sequence's next call begins when the one before has ended; others do not wait."""
    calls, session = Calls(), Open()
    await session.come(calls.create("s1", "s"), calls.create("s2", "s"), calls.create("free"))
    assert ["s1", "free"] == calls.starts
    calls.only("s1", "1")
    await settle()
    assert ["s1", "free", "s2"] == calls.starts
    calls.only("s2", "2")
    calls.only("free", "f")
    await session.close_half()
    assert ["1", "2", "f"] == session.replies


async def test_takes_no_more_calls_than_it_may_run() -> None:
    """The next message is not even read before a call has ended."""
    calls, session = Calls(), Open(most=2)
    await session.come(calls.create("a"), calls.create("b"), calls.create("c"))
    assert 2 == session.call_count
    calls.only("a", "A")
    await settle()
    assert 3 == session.call_count
    calls.only("b", "B")
    calls.only("c", "C")
    await session.close_half()
    assert ["A", "B", "C"] == session.replies


async def test_makes_no_more_than_is_taken() -> None:
    """While nobody listens a call is asked for one answer, and the session holds one more."""
    made: list[int] = []

    async def endless() -> AsyncGenerator[SessionReply[int], None]:
        for number in range(1_000_000):
            made.append(number)
            yield SessionReply(number, is_only=False)

    async def calls() -> AsyncIterator[SessionCall[int]]:
        yield SessionCall(endless)

    answers = Session[int](8).run(calls())
    assert 0 == await anext(answers)
    await settle()
    assert 3 >= len(made)
    await answers.aclose()


async def test_closing_it_ends_the_calls() -> None:
    """A client that leaves leaves nothing running, neither calls nor those that wait."""
    calls, session = Calls(), Open()
    await session.come(calls.create("a", "s"), calls.create("b", "s"), calls.create("c"))
    calls.say("c", "c0")
    await settle()
    session.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await session.task
    assert ["a", "c"] == sorted(calls.closed)


@pytest.mark.parametrize("broken", ["calls", "answers"])
async def test_a_bug_is_raised_and_ends_all(broken: str) -> None:
    """What calls, or an answering that is to raise nothing, raise comes out; the rest is ended."""
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
        [answer async for answer in Session[str](8).run(calls())]
    assert ["waits"] == cancellations


async def test_nothing_asked_nothing_said() -> None:
    """A stream that ends without a message ends the session."""
    session = Open()
    await session.close_half()
    assert [] == session.replies
