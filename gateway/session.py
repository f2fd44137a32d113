"""Session: the calls of one bidirectional stream, their answers merged into one stream.

Each message is a call of its own, and several are answered at a time.  Here is in which order they
run and in which order they are heard; what a message means, the frontend knows, and how it moves,
the transport.

- Calls of one *lane*, a sequence, run one after the other, in the order they came: a model with
  state must not see them otherwise.
- An answer that is the only one of its call waits until every call before it has been heard, as
  Triton has it: clients that give no ids have nothing but the order.  Calls with many answers are
  heard as they come.
- A call holds one answer at most while nobody takes it, and so many calls run at most: a client
  that does not read stops its models, and then its own messages.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Hashable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

A = TypeVar("A")


class SessionReply(NamedTuple, Generic[A]):
    """One answer.

    Attributes:
        alone: It is the first of its call, and none follows.
    """

    wire: A
    is_only: bool


@dataclass(frozen=True, slots=True)
class SessionCall(Generic[A]):
    """One call.

    Attributes:
        answers: Begins it.
        lane: Calls of the same lane run one after the other; None for no lane.
    """

    answers: Callable[[], AsyncGenerator[SessionReply[A], None]]
    order_key: Hashable | None = None


class Session(Generic[A]):
    """Runs calls side by side.

    Args:
        most: Calls at a time; no further one is taken before one has ended.
    """

    def __init__(self, most: int) -> None:
        self._room = asyncio.Semaphore(most)
        self._replies: asyncio.Queue[A | BaseException | None] = asyncio.Queue(1)
        self._running: set[asyncio.Task[None]] = set()
        self._lanes: dict[Hashable, asyncio.Event] = {}
        # Calls that have not been heard yet, in their order, each with what wakes it.
        self._unflushed: dict[int, asyncio.Event] = {}

    async def run(self, calls: AsyncIterator[SessionCall[A]]) -> AsyncGenerator[A, None]:
        """Iterate over the answers to *calls*, until these end and all have been answered.

        Closing it cancels what runs, and waits for the end of it.  Raises what *calls* raises.
        """
        taking = asyncio.ensure_future(self._accept(calls))
        try:
            while (said := await self._replies.get()) is not None:
                if isinstance(said, BaseException):
                    raise said
                yield said
        finally:
            for task in (taking, *self._running):
                task.cancel()
            await asyncio.gather(taking, *self._running, return_exceptions=True)

    async def _accept(self, calls: AsyncIterator[SessionCall[A]]) -> None:
        """Begin each call as it comes, and say when the last one has ended."""
        try:
            number = 0
            await self._room.acquire()
            async for asked in calls:
                self._begin(number, asked)
                number += 1
                await self._room.acquire()
            while self._running:
                await asyncio.wait(self._running)
        except Exception as error:  # noqa: BLE001  # raised again by `run`
            await self._replies.put(error)
        else:
            await self._replies.put(None)

    def _begin(self, number: int, asked: SessionCall[A]) -> None:
        before = ended = None
        if asked.order_key is not None:
            before = self._lanes.get(asked.order_key)
            ended = self._lanes[asked.order_key] = asyncio.Event()
        turn = self._unflushed[number] = asyncio.Event()
        if len(self._unflushed) == 1:
            turn.set()
        task = asyncio.ensure_future(self._answer(number, asked, before, ended))
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _answer(
        self,
        number: int,
        asked: SessionCall[A],
        before: asyncio.Event | None,
        ended: asyncio.Event | None,
    ) -> None:
        try:
            if before is not None:
                await before.wait()
            async with aclosing(asked.answers()) as answers:
                async for said in answers:
                    turn = self._unflushed.get(number)
                    if turn is not None and said.is_only:
                        await turn.wait()
                    await self._replies.put(said.wire)
                    # Not before: who waits for a place in the queue can be overtaken.
                    self._flush_next(number)
        except Exception as error:  # noqa: BLE001  # raised again by `run`
            await self._replies.put(error)
        finally:
            self._flush_next(number)
            if ended is not None:
                ended.set()
                if self._lanes.get(asked.order_key) is ended:
                    del self._lanes[asked.order_key]
            self._room.release()

    def _flush_next(self, number: int) -> None:
        """Let the calls after this one be heard, when all before it have been."""
        if self._unflushed.pop(number, None) is not None and self._unflushed:
            next(iter(self._unflushed.values())).set()
