"""Closes the graphs that a reload replaced, after their last calls."""

import asyncio
from collections.abc import Callable
from time import monotonic
from typing import Final, NamedTuple

from gateway.app.build.service_graph import ServiceGraph
from gateway.concurrency.background import end_tasks, start_background
from gateway.concurrency.timeouts import is_set_within

_POLL_S: Final = 0.1


class EarlierSequences(NamedTuple):
    """The sequences of a graph that gets no new calls.

    Attributes:
        is_any_open: Returns whether one of them is open.
        end: Lets the graph get no more of their requests.
    """

    is_any_open: Callable[[], bool]
    end: Callable[[], None]


class Retirements:
    """The replaced graphs that are not closed yet.

    Args:
        on_closed: Called with each graph that is closed.
    """

    def __init__(self, on_closed: Callable[[ServiceGraph], None]) -> None:
        self._on_closed = on_closed
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_finishing = False
        self._last: asyncio.Task[None] | None = None

    def retire(
        self,
        old: ServiceGraph,
        new: ServiceGraph,
        drain_s: float,
        sequences: EarlierSequences | None = None,
    ) -> asyncio.Event:
        """Close what *new* does not use of *old*, when the calls of *old* have ended.

        Args:
            old: A graph that gets no new calls.
            new: The graph that replaced it.
            drain_s: The longest time to wait for its calls and sequences.
            sequences: The sequences that are open in *old*; None if there are none.

        Returns:
            An event that is set at the end of the last call.
        """
        ended = old.retire()
        closing = self._close(old, new, ended, monotonic() + drain_s, self._last, sequences)
        self._last = start_background(closing, "close of a replaced configuration", self._tasks)
        return ended

    async def finish(self, timeout_s: float) -> None:
        """Wait for all calls, but not for sequences, and close all graphs after *timeout_s*."""
        self._is_finishing = True
        if self._tasks:
            _, pending = await asyncio.wait(self._tasks, timeout=timeout_s)
            await end_tasks(*pending)

    async def _close(
        self,
        old: ServiceGraph,
        new: ServiceGraph,
        ended: asyncio.Event,
        deadline: float,
        previous: asyncio.Task[None] | None,
        sequences: EarlierSequences | None,
    ) -> None:
        try:
            if sequences is not None:
                # The end of a sequence notifies nobody: it would cost a check of every call.
                while not self._is_finishing and monotonic() < deadline and sequences.is_any_open():  # noqa: ASYNC110
                    await asyncio.sleep(_POLL_S)
                sequences.end()
            del sequences  # it refers to the next graph, whose calls may end first
            if previous is not None:  # its calls may use parts of *old*
                await asyncio.wait({previous})
            await is_set_within(ended, max(0.0, deadline - monotonic()))
            await old.drain(max(0.0, deadline - monotonic()), new.parts)
        finally:
            await old.close(new.parts)
            self._on_closed(old)
