"""Runs work on messages: short work on the event loop, long work on a thread.

One thread runs all long work, one piece after the other.  A second thread would not be faster,
because both need the interpreter lock, and the event loop would wait for it twice as long.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from threading import get_ident, main_thread
from typing import Any, Final, TypeVar
from weakref import WeakKeyDictionary

from gateway.ir.work import BOUND, LongWork

T = TypeVar("T")

_LOOP_ITEMS: Final = 40_000
"""Items of work for one step on the event loop: 20 ms."""


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


async def off_loop(function: Callable[..., T], /, *args: Any) -> T:
    """Return the result of *function*, called on the thread for long work.

    The next work begins when the caller has the result: results do not pile up while the event loop
    is busy, before anybody counts their bytes.
    """
    loop = asyncio.get_running_loop()
    turn = _TURNS.get(loop)
    if turn is None:
        turn = _TURNS[loop] = asyncio.Lock()
    async with turn:
        return await loop.run_in_executor(_thread(), partial(function, *args))


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


@cache
def _thread() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, thread_name_prefix="work")
