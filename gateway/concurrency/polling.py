"""Polling: looks at something again and again in the background, such as at files."""

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from gateway.concurrency.background import end_tasks

log = structlog.get_logger(__name__)


class Polling:
    """Calls a function again and again, with a pause before each call.

    Args:
        look: What is called. An exception is logged, and the next call may succeed.
        period_s: The pause.
    """

    def __init__(self, look: Callable[[], Awaitable[object]], period_s: float = 1.0) -> None:
        self._look = look
        self._period_s = period_s
        self._task: asyncio.Task[None] | None = None

    @property
    def is_running(self) -> bool:
        """Whether it was started, and not stopped since."""
        return self._task is not None

    def start(self) -> None:
        """Begin."""
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """End that, and a call in progress. Harmless the second time."""
        task, self._task = self._task, None
        if task is not None:
            await end_tasks(task)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._period_s)
            try:
                await self._look()
            except Exception:  # a bug: the next look may succeed
                log.exception("internal error")
