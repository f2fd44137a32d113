"""Tasks in the background."""

from __future__ import annotations

import asyncio

from structlog.testing import capture_logs

from gateway.concurrency.background import end_tasks, start_background
from tests.fakes import settle


async def fail() -> None:
    """Raise an error."""
    raise ValueError("a defect")


async def test_failure_is_logged_at_once() -> None:
    """Its owner keeps the task and never asks it; the log has the name and the error."""
    with capture_logs() as logs:
        task = start_background(fail(), "the work")
        await asyncio.wait({task})
        await asyncio.sleep(0)
    assert [("background task failed", "the work", "a defect")] == [
        (each["event"], each["task"], str(each["exc_info"])) for each in logs
    ]


async def test_end_and_cancellation_are_no_failures() -> None:
    """Nothing is logged when the task ends as it should."""
    with capture_logs() as logs:
        done, left = (start_background(work(), "rest") for work in (settle, asyncio.Event().wait))
        await done
        left.cancel()
        await asyncio.wait({left})
        await asyncio.sleep(0)
    assert [] == logs


async def test_a_task_is_kept_until_it_ends() -> None:
    """The set of its owner has it meanwhile, or the loop could lose it."""
    tasks: set[asyncio.Task[None]] = set()
    event = asyncio.Event()

    async def work() -> None:
        await event.wait()

    task = start_background(work(), "the work", tasks)
    assert {task} == tasks
    event.set()
    await task
    await asyncio.sleep(0)
    assert set() == tasks


async def test_tasks_are_cancelled_and_have_ended() -> None:
    """An error of one that has failed already is not raised."""
    waiting = asyncio.ensure_future(asyncio.Event().wait())
    failed = asyncio.ensure_future(fail())
    await settle()
    await end_tasks(waiting, failed)
    assert (True, True) == (waiting.cancelled(), failed.done())
    await end_tasks()
