"""Tasks in the background, whose failures nobody would see otherwise."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import structlog

T = TypeVar("T")

log = structlog.get_logger(__name__)


def start_background(coroutine: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
    """Run a coroutine in the background; its failure is logged at once.

    The caller keeps the task, because the event loop does not.
    """
    task = asyncio.get_running_loop().create_task(coroutine, name=name)
    task.add_done_callback(log_failure)
    return task


def log_failure(task: asyncio.Task[Any]) -> None:
    """Log the exception that ended a task; a callback of tasks."""
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("background task failed", task=task.get_name(), exc_info=error)
