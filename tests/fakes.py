"""Doubles for tests: a service answered by a script or by hand, a clock that the test moves."""

from __future__ import annotations

import abc
import asyncio
import inspect
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any, TypeVar, cast

from gateway.api.protocol import Codec
from gateway.ir.bodies.streaming_body import BodySink
from gateway.ir.calls import Call, InferResponse
from gateway.ir.context import Need
from gateway.ir.errors import GatewayError, Unavailable
from gateway.transports.http2.streams import Http2Stream

R = TypeVar("R")


class ScriptedService:
    """Answers calls in the order of a script, and waits for the test when the script is over.

    An entry is an answer; an exception, which is raised; or a function (async or not), which is
    given the call. `always` answers every call the same way. Calls beyond the script wait in
    `waiting`: give each future a result or an exception.
    """

    def __init__(self, *script: Any, always: Any = None) -> None:
        self._script = deque(script)
        self._always = always
        self.calls: list[Call[Any]] = []
        self.waiting: list[asyncio.Future[Any]] = []
        self.cancelled = 0

    async def __call__(self, call: Call[R], /) -> R:
        self.calls.append(call)
        if self._script:
            return cast("R", await self._play(self._script.popleft(), call))
        if self._always is not None:
            return cast("R", await self._play(self._always, call))
        future: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        self.waiting.append(future)
        try:
            return await future
        except asyncio.CancelledError:
            self.cancelled += 1
            raise

    async def _play(self, entry: Any, call: Call[Any]) -> Any:
        if isinstance(entry, BaseException):
            raise entry
        if inspect.isfunction(entry) or inspect.ismethod(entry):
            answer = entry(call)
            return await answer if inspect.isawaitable(answer) else answer
        return entry


class FakeCodec(Codec[Any, Any]):
    """A codec of texts, of which a test overrides what it needs."""

    name = "text"
    needs: frozenset[Need] = frozenset()

    def decode_call(self, wire: str, _request_id: str = "", /) -> Call[Any]:
        raise AssertionError(wire)

    def encode_reply(self, call: Call[Any], reply: Any, /) -> str:
        return f"reply {reply}"

    def encode_error(self, call: Call[Any] | None, error: GatewayError, /) -> str:
        return f"{error.code.value}: {error.message}"

    def encode_call(self, call: Call[Any], /) -> str:
        raise AssertionError(call)

    def decode_reply(self, call: Call[Any], wire: str, /) -> Any:
        return wire


class FakeTimer:
    """A timer of a `FakeClock`."""

    def __init__(self, rings_at: float, ring: Callable[[], None]) -> None:
        self.rings_at = rings_at
        self.ring = ring
        self.over = False

    def cancel(self) -> None:
        self.over = True


class FakeClock:
    """A clock that stands still until the test moves it; its `sleep` moves it at once.

    Its timers ring while it is moved, each at its time.
    """

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now
        self.sleeps: list[float] = []
        self.timers: list[FakeTimer] = []

    def __call__(self) -> float:
        return self.now

    def later(self, delay_s: float, ring: Callable[[], None]) -> FakeTimer:
        timer = FakeTimer(self.now + delay_s, ring)
        self.timers.append(timer)
        return timer

    def advance(self, seconds: float) -> None:
        end = self.now + seconds
        while True:
            self.timers = [timer for timer in self.timers if not timer.over]
            due = [timer for timer in self.timers if timer.rings_at <= end]
            if not due:
                break
            timer = min(due, key=lambda each: each.rings_at)
            self.now = max(self.now, timer.rings_at)
            timer.over = True
            timer.ring()
        self.now = end

    async def sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)
        self.now += seconds
        await asyncio.sleep(0)


class FakeStream:
    """A stream of answers and, where it holds an exception, a failure; remembers its closing."""

    def __init__(self, items: Iterable[InferResponse | BaseException]) -> None:
        self._items = iter(list(items))
        self.closed = 0

    def __aiter__(self) -> AsyncIterator[InferResponse]:
        return self

    async def __anext__(self) -> InferResponse:
        for item in self._items:
            if isinstance(item, BaseException):
                raise item
            return item
        raise StopAsyncIteration

    async def aclose(self) -> None:
        self.closed += 1


class HangingStream(FakeStream):
    """A stream without any reply."""

    def __init__(self) -> None:
        super().__init__(())

    async def __anext__(self) -> InferResponse:
        await asyncio.Event().wait()
        raise AssertionError


class FakeArriving:
    """A body that has arrived when it is asked for; remembers what became of it."""

    def __init__(self, body: bytes, start: int) -> None:
        self.body = body
        self.start = start
        self.end = len(body)
        self.remaining_bytes = self.end - start
        self.is_started = False
        self.last_progress = 0.0
        self.landed = 0

    def pipe_to(self, taker: BodySink, /) -> None:
        self.is_started = True
        self.remaining_bytes = 0
        taker.write(memoryview(self.body)[self.start :])

    def pause(self) -> None:
        pass

    def resume(self) -> None:
        pass

    def detach(self) -> None:
        pass

    async def read_all(self) -> memoryview:
        if self.is_started:
            raise Unavailable("a part of it is gone")
        self.landed += 1
        return memoryview(self.body)


class FrameByFrame(abc.ABC):
    """A receiver of HTTP/2 that takes what is told together as if it had come frame by frame."""

    @abc.abstractmethod
    def on_headers(self, stream: Http2Stream, head: Any, *, end: bool) -> None:
        """As `Receiver` says."""

    @abc.abstractmethod
    def on_data(self, stream: Http2Stream, view: memoryview, *, end: bool) -> None:
        """As `Receiver` says."""

    def on_complete_stream(
        self, stream: Http2Stream, head: Any, view: memoryview, tail: Any
    ) -> None:
        self.on_headers(stream, head, end=False)
        self.on_data(stream, view, end=tail is None)
        if tail is not None:
            self.on_headers(stream, tail, end=True)


async def settle() -> None:
    """Let every task run as far as it can without the passing of time."""
    for _ in range(10):
        await asyncio.sleep(0)
