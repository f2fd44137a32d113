"""Slices: long work on the event loop, in parts between which other work runs."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from time import perf_counter
from typing import Final, TypeVar

T = TypeVar("T")

SLICE_S: Final = 0.002
"""How long the event loop works before other work runs, but for the last step, in seconds."""


async def in_slices(
    steps: Iterable[T], clock: Callable[[], float] = perf_counter
) -> AsyncIterator[T]:
    """Yield the steps of some work; other work of the event loop runs after each slice.

    Args:
        steps: Each of them, with what the caller does with it, takes little time.
        clock: Seconds.
    """
    ends = clock() + SLICE_S
    for step in steps:
        yield step
        if clock() >= ends:
            await asyncio.sleep(0)
            ends = clock() + SLICE_S
