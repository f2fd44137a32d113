"""Session: runs the calls of one bidirectional stream, and merges their replies into one stream.

Each message is a call of its own, and several calls run at a time.  This module decides in which
order calls run and in which order their replies are sent.  The frontend knows what a message
means; the transport knows how it moves.

- Calls with the same order key, which is a sequence, run one after the other in order of arrival,
  because a model with state must see them in that order.
- A reply that is the only one of its call waits until each earlier call has sent its first reply.
  Triton does the same: clients without ids rely on the order.  Replies of calls with many replies
  are sent at once.  Calls of decoupled models neither wait nor let others wait, as in Triton.
- Only replies wait, for their turn and for the client.  A call runs on meanwhile, so that it
  releases its places when its last reply is computed: other clients need them.  It stops while
  `READ_AHEAD_BYTES` of its replies wait and it has computed another one.
- The number of calls with unread replies and the bytes of these replies are limited.  A client that
  does not read therefore stops its own messages.

Towards an upstream each call has its own stream with one message. Its end is the end of the
replies, even if a server marks no last one. One call can fail or be cancelled alone. A codec
without streams is asked for the single reply. A server that refuses a unary call is asked with a
stream (`upstream`). A reply within a stream may be an error: Triton continues after one.

The deadline of the caller holds for a whole stream. The timeout of the route holds until the first
reply, `stream_idle` between replies. Sequences are never retried. `routing/sequence_affinity` keeps
a sequence at its target and endpoint, until it ends or is idle for long. If the endpoint is lost,
so is the sequence.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Hashable
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Generic, NamedTuple, TypeVar

from gateway.concurrency.background import end_tasks
from gateway.concurrency.limiter import WAITED_S
from gateway.ir.bodies.streams import HeldReply

A = TypeVar("A")

READ_AHEAD_BYTES: Final = 32 * 1024
"""While more bytes of its replies are unread, a call computes at most one further reply."""

_UNREAD_BYTES: Final = 1 << 20
"""While more bytes of replies are unread, no further message of the stream is read."""


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


class _Uncounted(NamedTuple):
    """What a reply holds that is counted nowhere: its call computes one more, and then waits."""

    size_bytes: int = READ_AHEAD_BYTES + 1

    def close(self) -> None: ...


def _uncounted(wire: A) -> tuple[A, HeldReply]:
    return wire, _Uncounted()


@dataclass(frozen=True, slots=True)
class SessionCall(Generic[A]):
    """One call.

    Attributes:
        start: Starts the call; iterates over its replies.
        order_key: Calls with the same key run one after the other; None for no order.
        is_decoupled: Returns whether its replies have no order with those of other calls, or a
            coroutine that finds out. It is called once there are several calls, and raises nothing.
        hold: Reserves the memory of a reply that has to wait. It returns the reply and the
            reservation, or, without memory, an error and None, with which the call ends.
    """

    start: Callable[[], AsyncGenerator[SessionReply[A], None]]
    order_key: Hashable | None = None
    is_decoupled: Callable[[], bool | Coroutine[Any, Any, bool]] = _never
    hold: Callable[[A], tuple[A, HeldReply | None]] = _uncounted


@dataclass(eq=False, slots=True)
class _Running(Generic[A]):
    """A call that runs, or has unread replies.

    Attributes:
        may_send: It waits for no other call: it is the first one, or has many replies.
        waiting: Replies that wait for their turn.
        unread: How many of its replies are unread, and `unread_bytes` their size.
        read: Set when a reply is read; None while nobody waits for that.
        has_ended: It has computed its last reply, and released its places.
    """

    number: int
    call: SessionCall[A]
    may_send: bool = False
    waiting: "deque[_Unread[A]]" = field(default_factory=deque)
    unread: int = 0
    unread_bytes: int = 0
    read: asyncio.Event | None = None
    has_ended: bool = False


@dataclass(eq=False, slots=True)
class _Unread(Generic[A]):
    """A reply that is not read, with the bytes that it counts."""

    wire: A
    running: _Running[A]
    held: HeldReply | None
    size_bytes: int

    def close(self) -> None:
        """Release what it holds."""
        if self.held is not None:
            self.held.close()


class Session(Generic[A]):
    """Runs the calls of one stream concurrently.

    Args:
        max_calls: Calls at a time, those with unread replies included; no further call is read
            before one of them has ended.
    """

    def __init__(self, max_calls: int) -> None:
        self._limit = asyncio.Semaphore(max_calls)
        # In the order in which they are sent; an error, or None for the end, is the last.
        self._replies: asyncio.Queue[_Unread[A] | BaseException | None] = asyncio.Queue()
        self._is_awaited = False
        self._unread_bytes = 0
        self._has_room = asyncio.Event()
        self._has_room.set()
        self._running: set[asyncio.Task[None]] = set()
        self._last_of_key: dict[Hashable, asyncio.Event] = {}
        # Calls without a reply so far, in order of arrival.  The first one may send.
        self._unflushed: dict[int, _Running[A]] = {}
        # Those that were alone, so that nobody asked whether they are decoupled.
        self._unchecked: list[_Running[A]] = []
        self._checking: set[asyncio.Task[bool]] = set()

    async def run(self, calls: AsyncIterator[SessionCall[A]]) -> AsyncGenerator[A, None]:
        """Iterate over the replies to *calls*, until *calls* ends and each call has ended.

        Closing the generator cancels the calls and waits for them.  Raises what *calls* raises.
        """
        accepting = asyncio.ensure_future(self._accept(calls))
        try:
            while True:
                self._is_awaited = True
                reply = await self._replies.get()
                self._is_awaited = False
                if reply is None:
                    return
                if isinstance(reply, BaseException):
                    raise reply
                self._note_read(reply)
                yield reply.wire
        finally:
            tasks = (accepting, *self._running, *self._checking)
            await end_tasks(*tasks)
            self._drop_replies()

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
                await self._has_room.wait()
            while self._running:
                await asyncio.wait(self._running)
        except Exception as error:  # noqa: BLE001  # raised again by `run`
            self._replies.put_nowait(error)
        else:
            self._replies.put_nowait(None)

    def _start(self, number: int, call: SessionCall[A]) -> None:
        previous = ended = None
        if call.order_key is not None:
            previous = self._last_of_key.get(call.order_key)
            ended = self._last_of_key[call.order_key] = asyncio.Event()
        running = self._unflushed[number] = _Running(number, call)
        if len(self._unflushed) == 1:
            running.may_send = True
            self._unchecked.clear()
        self._unchecked.append(running)
        task = asyncio.ensure_future(self._run_call(running, previous, ended))
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        if len(self._unflushed) > 1:
            self._check_order()

    def _check_order(self) -> None:
        """Find the decoupled ones among calls whose replies may have to wait for one another."""
        for running in self._unchecked:
            decoupled = running.call.is_decoupled()
            if decoupled is True:
                self._remove_from_order(running)
            elif decoupled is not False:
                # A task of its own: in another one that is cancelled first, it would never run.
                task = asyncio.ensure_future(decoupled)
                self._checking.add(task)
                task.add_done_callback(partial(self._end_check, running))
        self._unchecked.clear()

    def _end_check(self, running: _Running[A], task: asyncio.Task[bool]) -> None:
        self._checking.discard(task)
        if not task.cancelled() and task.result():
            self._remove_from_order(running)

    def _remove_from_order(self, running: _Running[A]) -> None:
        """Let the call and all others send their replies as they come."""
        if running.number in self._unflushed:
            running.may_send = True
            self._send(running)

    async def _run_call(
        self, running: _Running[A], previous: asyncio.Event | None, ended: asyncio.Event | None
    ) -> None:
        call = running.call
        try:
            if previous is not None:
                await previous.wait()
            async with aclosing(call.start()) as replies:
                async for reply in replies:
                    if not await self._pass_on(running, reply):
                        break
        except Exception as error:  # noqa: BLE001  # raised again by `run`
            self._replies.put_nowait(error)
        finally:
            running.has_ended = True
            if not running.waiting:
                self._send(running)
            if ended is not None:
                ended.set()
                if self._last_of_key.get(call.order_key) is ended:
                    del self._last_of_key[call.order_key]
            if not running.unread:
                self._limit.release()

    async def _pass_on(self, running: _Running[A], reply: SessionReply[A]) -> bool:
        """Send a reply, or keep it until its turn; return whether its call may go on."""
        if not reply.is_only:
            running.may_send = True
        if running.waiting:  # for its turn as the only reply, which it was not
            self._remove_from_order(running)
        if running.may_send and self._is_awaited and self._replies.empty():
            self._add(_Unread(reply.wire, running, None, 0))
            return True
        wire, held = running.call.hold(reply.wire)
        if held is None:
            self._add(_Unread(wire, running, None, 0))
            return False
        try:
            while running.unread_bytes > READ_AHEAD_BYTES:
                running.read = asyncio.Event()
                await running.read.wait()
        except BaseException:
            held.close()
            raise
        self._add(_Unread(wire, running, held, held.size_bytes))
        return True

    def _add(self, reply: _Unread[A]) -> None:
        running = reply.running
        running.unread += 1
        running.unread_bytes += reply.size_bytes
        self._unread_bytes += reply.size_bytes
        if self._unread_bytes > _UNREAD_BYTES:
            self._has_room.clear()
        running.waiting.append(reply)
        if running.may_send:
            self._send(running)

    def _send(self, running: _Running[A]) -> None:
        """Send what waits of a call, and let the next ones send, which have waited for it."""
        while True:
            while running.waiting:
                self._replies.put_nowait(running.waiting.popleft())
            if self._unflushed.pop(running.number, None) is None or not self._unflushed:
                return
            running = next(iter(self._unflushed.values()))
            running.may_send = True
            if not running.waiting:
                return

    def _note_read(self, reply: _Unread[A]) -> None:
        """Release what a reply holds, and let its call and its stream go on."""
        reply.close()
        running = reply.running
        running.unread -= 1
        running.unread_bytes -= reply.size_bytes
        self._unread_bytes -= reply.size_bytes
        if self._unread_bytes <= _UNREAD_BYTES:
            self._has_room.set()
        if running.read is not None:
            running.read.set()
        if running.has_ended and not running.unread:
            self._limit.release()

    def _drop_replies(self) -> None:
        """Release what the replies hold that nobody will read."""
        for running in self._unflushed.values():
            for reply in running.waiting:
                reply.close()
        while not self._replies.empty():
            dropped = self._replies.get_nowait()
            if isinstance(dropped, _Unread):
                dropped.close()
