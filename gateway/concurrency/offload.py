"""Runs work on messages: short work on the event loop, long work on a thread.

One thread runs all long work, one piece after the other.  A second thread would not be faster,
because both need the interpreter lock, and the event loop would wait for it twice as long.

A message may be small and still take long to read, such as a large JSON array. Codecs count their
work in items (`ir/work`) before they do it. The event loop does at most 40,000 items of a step,
about 20 ms. Longer work starts again on the thread, so that other requests continue meanwhile. The
frontend first compares the input names of such a request with those of the model, before elements
are read (`model_info/known_inputs`). It never waits for metadata, except for the second look before
it refuses a request. A server that names no platform, as MLServer, may accept inputs that it does
not declare, so its models are not compared. Shorter messages are decoded first. To compare them
earlier, the gateway would ask for the metadata of every model, and would save at most the 20 ms
that a valid message may take.

At the default limits the longest call that keeps the interpreter lock takes 0.16 s (7,000,000
integers of JSON). A process would decode them with 0.05 s of the event loop, where the thread takes
0.01 s, because 53 MiB of results come back.

What long work builds beyond its share is reserved first; see `limit_memory`.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from threading import get_ident, main_thread
from typing import Any, Final, Protocol, TypeVar
from weakref import WeakKeyDictionary

from gateway.ir.work import BOUND, LongWork, MemoryNeeded, with_memory

T = TypeVar("T")

_LOOP_ITEMS: Final = 40_000
"""Items of work for one step on the event loop: 20 ms."""

_SPARE_BYTES: Final = 4 << 20
"""What is reserved besides the memory that work is known to need, at least."""


def run_bounded_on_loop(function: Callable[..., T], /, *args: Any) -> T:
    """Return the result of *function*, called on the event loop.

    Raises:
        LongWork: It would block the event loop for too long; use `off_loop`.
    """
    BOUND.allowance = ON_LOOP
    try:
        return function(*args)
    finally:
        BOUND.allowance = None


class Memory(Protocol):
    """The memory that one piece of long work holds; see `gateway.transports.reservation`."""

    async def grow(self, size: int) -> None:
        """Reserve *size* bytes more; raise a `GatewayError` where they do not become free."""

    def try_grow(self, size: int) -> bool:
        """Reserve *size* bytes more if that delays nobody; return success."""

    def close(self) -> None:
        """Release everything."""


def limit_memory(new_memory: Callable[[], Memory]) -> None:
    """Reserve what long work of this event loop builds beyond its share, from now on.

    Args:
        new_memory: Returns an empty reservation for the client whose request this task handles.
    """
    _MEMORIES[asyncio.get_running_loop()] = new_memory


async def off_loop(function: Callable[..., T], /, *args: Any) -> T:
    """Return the result of *function*, called on the thread for long work.

    The next work begins when the caller has the result: results do not pile up while the event loop
    is busy, before anybody counts their bytes. Work that needs memory restarts when that is
    reserved; other work has its turn meanwhile.

    Raises:
        Overloaded: The memory that it needs did not become free in time.
    """
    loop = asyncio.get_running_loop()
    turn = _TURNS.get(loop)
    if turn is None:
        turn = _TURNS[loop] = asyncio.Lock()
    new_memory = _MEMORIES.get(loop)
    if new_memory is None:
        async with turn:
            return await loop.run_in_executor(_thread(), partial(function, *args))
    memory, reserved = new_memory(), 0
    try:
        while True:
            try:
                async with turn:
                    work = partial(with_memory, reserved, function, *args)
                    return await loop.run_in_executor(_thread(), work)
            except MemoryNeeded as found:
                needed = found.size_bytes
            await memory.grow(needed - reserved)
            # Work that counts in small steps starts again a few times, and not at each of them.
            spare = max(needed, _SPARE_BYTES)
            reserved = needed + (spare if memory.try_grow(spare) else 0)
    finally:
        memory.close()


async def run_bounded(function: Callable[..., T], /, *args: Any) -> T:
    """Return the result of *function*, called on the event loop or on the thread for long work."""
    try:
        return run_bounded_on_loop(function, *args)
    except LongWork:
        pass  # the partial result is freed before the work starts again
    return await off_loop(function, *args)


class _LoopAllowance:
    """The work that one step of a request may do on the event loop."""

    __slots__ = ("_remaining",)

    def __init__(self) -> None:
        self._remaining: float = _LOOP_ITEMS

    def charge(self, items: float) -> None:
        """Subtract *items*. The work of other threads is not counted."""
        if get_ident() == _LOOP_THREAD:
            self._remaining -= items
            if self._remaining < 0:
                raise LongWork


class _FreshAllowance:
    """An allowance that is created on first use: most steps never use one."""

    def charge(self, items: float) -> None:
        """Create an allowance, and charge it."""
        if get_ident() == _LOOP_THREAD:
            BOUND.allowance = allowance = _LoopAllowance()
            allowance.charge(items)


# The event loop of a gateway runs on the main thread; no other one is bound.
_LOOP_THREAD: Final = main_thread().ident
ON_LOOP: Final = _FreshAllowance()
"""The limit of a step on the event loop, while it is `BOUND.allowance`."""


_TURNS: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock]] = WeakKeyDictionary()
_MEMORIES: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, Callable[[], Memory]]] = (
    WeakKeyDictionary()
)


@cache
def _thread() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, thread_name_prefix="work")
