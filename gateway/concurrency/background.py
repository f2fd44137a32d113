"""Tasks in the background, whose failures nobody would see otherwise."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import structlog

T = TypeVar("T")

log = structlog.get_logger(__name__)


def start_background(
    coroutine: Coroutine[Any, Any, T], name: str, tasks: set[asyncio.Task[T]] | None = None
) -> asyncio.Task[T]:
    """Run a coroutine in the background; its failure is logged at once.

    The event loop keeps no task: the caller does, or its *tasks* have it until it ends.
    """
    task = asyncio.get_running_loop().create_task(coroutine, name=name)
    task.add_done_callback(log_failure)
    if tasks is not None:
        tasks.add(task)
        task.add_done_callback(tasks.discard)
    return task


async def end_tasks(*tasks: asyncio.Future[Any]) -> None:
    """Cancel tasks, and wait until they have ended. Their errors are nobody's any more."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def log_failure(task: asyncio.Task[Any]) -> None:
    """Log the exception that ended a task; a callback of tasks."""
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("background task failed", task=task.get_name(), exc_info=error)
