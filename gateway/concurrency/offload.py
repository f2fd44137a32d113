"""Work on messages: on the event loop where it is short, on a thread where it is long.

One thread does all long work, one piece after the other. A second one would not be faster, since
both need the interpreter's lock, and the event loop would wait for that lock twice as long.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from threading import get_ident, main_thread
from typing import Any, Final, TypeVar

from gateway.ir.work import BOUND, LongWork

T = TypeVar("T")

_LOOP_ITEMS: Final = 40_000
"""Items of work that the event loop does at a time: 20 ms."""


def inline(function: Callable[..., T], /, *args: Any) -> T:
    """Return what *function* returns, here.

    Raises:
        LongWork: It would hold the event loop for too long; `off_loop` is to do it.
    """
    BOUND.allowance = ON_LOOP
    try:
        return function(*args)
    finally:
        BOUND.allowance = None


async def off_loop(function: Callable[..., T], /, *args: Any) -> T:
    """Return what *function* returns, on the thread for long work."""
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(_thread(), partial(function, *args))


async def wherever(function: Callable[..., T], /, *args: Any) -> T:
    """Return what *function* returns, here or on the thread for long work."""
    try:
        return inline(function, *args)
    except LongWork:
        pass  # what it has begun is let go of before it begins anew
    return await off_loop(function, *args)


class _LoopAllowance:
    """What one step of a request may hold the event loop for."""

    __slots__ = ("_left",)

    def __init__(self) -> None:
        self._left: float = _LOOP_ITEMS

    def charge(self, items: float) -> None:
        """Take *items*; what other threads do meanwhile is not counted."""
        if get_ident() == _LOOP_THREAD:
            self._left -= items
            if self._left < 0:
                raise LongWork


class _FreshAllowance:
    """Stands for an allowance of which nothing is taken: most steps never take anything."""

    def charge(self, items: float) -> None:
        """Begin an allowance."""
        if get_ident() == _LOOP_THREAD:
            BOUND.allowance = allowance = _LoopAllowance()
            allowance.charge(items)


# The event loop of a gateway runs on the main thread; no other one is bound.
_LOOP_THREAD: Final = main_thread().ident
ON_LOOP: Final = _FreshAllowance()
"""What bounds a step of the event loop, until `BOUND.allowance` is None again."""


@cache
def _thread() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, thread_name_prefix="work")
