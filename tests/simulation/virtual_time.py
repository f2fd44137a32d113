"""An event loop whose time is virtual, and model servers and callers that live in it."""

from __future__ import annotations

import asyncio
import functools
import heapq
import math
import random
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, ParamSpec, TypeVar

from gateway.ir.calls import Call, InferRequest, InferResponse
from gateway.ir.context import ModelRef
from gateway.ir.errors import GatewayError, Overloaded
from gateway.service import Service

R = TypeVar("R")
P = ParamSpec("P")

MODEL = ModelRef("m")
REPLY = InferResponse(model=MODEL, outputs=())

_QUICK_S = 0.001
"""How long a server takes for an error."""


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """A loop that never waits: when nothing is ready, its time jumps to the next timer."""

    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0
        self._timer_cancelled_count: int

    def time(self) -> float:
        """Return the virtual time in seconds."""
        return self._now

    def hold_up(self, seconds: float) -> None:
        """Let time go by within a callback, as one that takes so long does."""
        self._now += seconds

    def _run_once(self) -> None:
        scheduled: Any = self._scheduled  # type: ignore[attr-defined]  # a heap of BaseEventLoop
        while scheduled and scheduled[0].cancelled():  # else the loop waits for the next one
            heapq.heappop(scheduled)._scheduled = False
            self._timer_cancelled_count -= 1
        if not self._ready and scheduled:  # type: ignore[attr-defined]
            # What a socket of this process holds is there already.
            self._process_events(self._selector.select(0))  # type: ignore[attr-defined]
        if not self._ready and scheduled:  # type: ignore[attr-defined]
            # A microsecond at least, as in real time: a timer may be due within less than that.
            self._now = max(self._now + 1e-6, scheduled[0].when())
        super()._run_once()  # type: ignore[misc]


def simulate(main: Callable[[], Coroutine[Any, Any, R]]) -> R:
    """Run *main* in virtual time."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(main())


def in_virtual_time(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Make a test run in virtual time."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        simulate(functools.partial(test, *args, **kwargs))

    return run


def now() -> float:
    """Return the virtual time."""
    return asyncio.get_running_loop().time()


async def elapse(seconds: float) -> None:
    """Let virtual time go by, without a wait; fail in a loop of real time."""
    assert isinstance(asyncio.get_running_loop(), VirtualTimeLoop)
    await asyncio.sleep(seconds)


def hold_up(seconds: float) -> None:
    """Let virtual time go by while nothing else runs, as a callback that takes so long does."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    loop.hold_up(seconds)


class ModelServer:
    """A server with some workers and a queue without bounds.

    Args:
        workers: Inferences at a time.
        service_s: Mean time of one.
        draw: A generator of random numbers.

    Attributes:
        slowdown: Factor of the service time.
        failure: Makes the error that each call raises within a millisecond; None to serve.
        queue: Calls that may wait; others fail as `full` says.
        full: Makes the error of a call that finds the queue full.
        is_hung: Calls wait for ever.
        received: Attempts that reached it.
        wasted: Inferences that ran although their caller had left.
    """

    def __init__(self, workers: int, service_s: float, draw: random.Random) -> None:
        self.slowdown = 1.0
        self.failure: Callable[[str], GatewayError] | None = None
        self.queue = math.inf
        self.full: Callable[[str], GatewayError] = Overloaded
        self.is_hung = False
        self.received = self.wasted = 0
        self._places = workers
        self._workers = asyncio.Semaphore(workers)
        self._service_s = service_s
        self._draw = draw
        self._running: set[asyncio.Task[None]] = set()

    async def __call__(self, _call: Call[R], /) -> Any:
        """Answer after the time of the queue and of the inference."""
        self.received += 1
        if self.failure is not None:
            await elapse(_QUICK_S)
            raise self.failure("the server is down")
        if len(self._running) >= self._places + self.queue:
            await elapse(_QUICK_S)
            raise self.full("the queue is full")
        if self.is_hung:
            await asyncio.Event().wait()
        # As real servers do, it runs what it has begun to wait for, even if the caller leaves.
        task = asyncio.create_task(self._run())
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            self.wasted += 1
            raise
        return REPLY

    async def _run(self) -> None:
        async with self._workers:
            await elapse(self._service_s * self.slowdown * self._draw.uniform(0.5, 1.5))


@dataclass
class Outcome:
    """One call: when it began, how long it took, and its error."""

    began: float
    seconds: float
    error: str


@dataclass
class Traffic:
    """Callers that arrive at random times, whatever became of the calls before (open loop)."""

    service: Service
    draw: random.Random
    outcomes: list[Outcome] = field(default_factory=list)

    async def run(self, rate: float, seconds: float) -> None:
        """Call the service *rate* times a second on average, and wait for all replies."""
        end = now() + seconds
        tasks = []
        while now() < end:
            tasks.append(asyncio.create_task(self.run_one()))
            await elapse(self.draw.expovariate(rate))
        await asyncio.gather(*tasks)

    async def run_closed(self, clients: int, calls: int) -> None:
        """Make *calls* calls by *clients* callers, each of which waits for its reply (closed)."""
        numbers = iter(range(calls))

        async def client() -> None:
            for number in numbers:
                await self.run_one(str(number))

        await asyncio.gather(*(client() for _ in range(clients)))

    async def run_one(self, name: str = "") -> None:
        """Call the service once, with the id *name*, and note the outcome."""
        began, error = now(), ""
        try:
            await self.service(InferRequest(model=MODEL, id=name))
        except GatewayError as failure:
            error = failure.code.value
        self.outcomes.append(Outcome(began, now() - began, error))

    def between(self, start: float, end: float) -> list[Outcome]:
        """Return the calls that began in this time."""
        return [each for each in self.outcomes if start <= each.began < end]


def good(outcomes: list[Outcome]) -> list[Outcome]:
    """Return the calls that had a reply."""
    return [each for each in outcomes if not each.error]


def percentile(outcomes: list[Outcome], percent: float) -> float:
    """Return a percentile of the durations, in seconds."""
    ordered = sorted(each.seconds for each in outcomes)
    return ordered[min(int(len(ordered) * percent / 100), len(ordered) - 1)]
