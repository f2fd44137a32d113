"""Session: runs the calls of one bidirectional stream, and merges their replies into one stream.

Each message is a call of its own, and several calls run at a time.  This module decides in which
order calls run and in which order their replies are sent.  The frontend knows what a message
means; the transport knows how it moves.

- Calls with the same order key, which is a sequence, run one after the other in order of arrival,
  because a model with state must see them in that order.
- A reply that is the only one of its call waits until each earlier call has sent its first reply.
  Triton does the same: clients without ids rely on the order.  Replies of calls with many replies
  are sent at once.  Calls of decoupled models neither wait nor let others wait, as in Triton.
- A call holds at most one reply that nobody has read, and the number of calls is limited.  A client
  that does not read therefore stops its models first, and then its own messages.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Hashable
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

from gateway.concurrency.limiter import WAITED_S

A = TypeVar("A")


class SessionReply(NamedTuple, Generic[A]):
    """One encoded reply.

    Attributes:
        wire: The response.
        is_only: It is the first of its call, and none follows.
    """

    wire: A
    is_only: bool


def _never() -> bool:
    return False


@dataclass(frozen=True, slots=True)
class SessionCall(Generic[A]):
    """One call.

    Attributes:
        start: Starts the call; iterates over its replies.
        order_key: Calls with the same key run one after the other; None for no order.
        is_decoupled: Returns whether its replies have no order with those of other calls, or a
            coroutine that finds out. It is called once there are several calls, and raises nothing.
    """

    start: Callable[[], AsyncGenerator[SessionReply[A], None]]
    order_key: Hashable | None = None
    is_decoupled: Callable[[], bool | Coroutine[Any, Any, bool]] = _never


class Session(Generic[A]):
    """Runs the calls of one stream concurrently.

    Args:
        max_calls: Calls at a time; no further call is read before one has ended.
    """

    def __init__(self, max_calls: int) -> None:
        self._limit = asyncio.Semaphore(max_calls)
        self._replies: asyncio.Queue[A | BaseException | None] = asyncio.Queue(1)
        self._running: set[asyncio.Task[None]] = set()
        self._last_of_key: dict[Hashable, asyncio.Event] = {}
        # Calls without a reply so far, in order of arrival.  The event of the first one is set.
        self._unflushed: dict[int, asyncio.Event] = {}
        # Those that were alone, so that nobody asked whether they are decoupled.
        self._unchecked: list[tuple[int, SessionCall[A]]] = []
        self._checking: set[asyncio.Task[bool]] = set()

    async def run(self, calls: AsyncIterator[SessionCall[A]]) -> AsyncGenerator[A, None]:
        """Iterate over the replies to *calls*, until *calls* ends and each call has ended.

        Closing the generator cancels the calls and waits for them.  Raises what *calls* raises.
        """
        accepting = asyncio.ensure_future(self._accept(calls))
        try:
            while (reply := await self._replies.get()) is not None:
                if isinstance(reply, BaseException):
                    raise reply
                yield reply
        finally:
            tasks = (accepting, *self._running, *self._checking)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _accept(self, calls: AsyncIterator[SessionCall[A]]) -> None:
        """Start each call when it arrives, and end the replies after the last call."""
        try:
            number = 0
            await self._limit.acquire()
            async for call in calls:
                self._start(number, call)
                if not number:  # the stream has waited for its place, and later messages have not
                    WAITED_S.set(0.0)
                number += 1
                await self._limit.acquire()
            while self._running:
                await asyncio.wait(self._running)
        except Exception as error:  # noqa: BLE001  # raised again by `run`
            await self._replies.put(error)
        else:
            await self._replies.put(None)

    def _start(self, number: int, call: SessionCall[A]) -> None:
        previous = ended = None
        if call.order_key is not None:
            previous = self._last_of_key.get(call.order_key)
            ended = self._last_of_key[call.order_key] = asyncio.Event()
        is_first = self._unflushed[number] = asyncio.Event()
        if len(self._unflushed) == 1:
            is_first.set()
            self._unchecked.clear()
        self._unchecked.append((number, call))
        task = asyncio.ensure_future(self._run_call(number, call, previous, ended))
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        if len(self._unflushed) > 1:
            self._check_order()

    def _check_order(self) -> None:
        """Find the decoupled ones among calls whose replies may have to wait for one another."""
        for number, call in self._unchecked:
            decoupled = call.is_decoupled()
            if decoupled is True:
                self._remove_from_order(number)
            elif decoupled is not False:
                # A task of its own: in another one that is cancelled first, it would never run.
                task = asyncio.ensure_future(decoupled)
                self._checking.add(task)
                task.add_done_callback(partial(self._end_check, number))
        self._unchecked.clear()

    def _end_check(self, number: int, task: asyncio.Task[bool]) -> None:
        self._checking.discard(task)
        if not task.cancelled() and task.result():
            self._remove_from_order(number)

    def _remove_from_order(self, number: int) -> None:
        """Let the call and all others send their replies as they come."""
        may_send = self._unflushed.get(number)
        if may_send is not None:
            self._flush_next(number)
            may_send.set()

    async def _run_call(
        self,
        number: int,
        call: SessionCall[A],
        previous: asyncio.Event | None,
        ended: asyncio.Event | None,
    ) -> None:
        try:
            if previous is not None:
                await previous.wait()
            async with aclosing(call.start()) as replies:
                async for reply in replies:
                    is_first = self._unflushed.get(number)
                    if is_first is not None and reply.is_only:
                        await is_first.wait()
                    await self._replies.put(reply.wire)
                    # Only now: another call could overtake one that waits for the queue.
                    self._flush_next(number)
        except Exception as error:  # noqa: BLE001  # raised again by `run`
            await self._replies.put(error)
        finally:
            self._flush_next(number)
            if ended is not None:
                ended.set()
                if self._last_of_key.get(call.order_key) is ended:
                    del self._last_of_key[call.order_key]
            self._limit.release()

    def _flush_next(self, number: int) -> None:
        """Let the next call send its reply, once this call and all before it have sent one."""
        if self._unflushed.pop(number, None) is not None and self._unflushed:
            next(iter(self._unflushed.values())).set()
