"""Ends a process whose threads or tasks go on: code of a package may never return."""

import asyncio
import os
import sys
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Final

import structlog

log = structlog.get_logger(__name__)

_TASKS_S: Final = 1.0
_THREADS_S: Final = 2.0


def run_to_end(
    main: Coroutine[Any, Any, int], factory: Callable[[], asyncio.AbstractEventLoop] | None = None
) -> int:
    """Run a coroutine on an event loop of its own, and return its result.

    SystemExit of a task costs that task, and tasks and threads that do not end are left.

    Args:
        main: The coroutine.
        factory: Makes the event loop; None for that of asyncio.
    """
    loop = (factory or asyncio.new_event_loop)()
    asyncio.set_event_loop(loop)
    try:
        task = loop.create_task(main)
        while True:
            try:
                return loop.run_until_complete(task)
            except (SystemExit, KeyboardInterrupt) as error:
                if task.done():
                    raise
                log.error("internal error", exc_info=error)  # noqa: TRY400  # the process goes on
    finally:
        try:
            loop.run_until_complete(_end_tasks())
        finally:
            asyncio.set_event_loop(None)
            loop.close()  # waits for no thread


async def _end_tasks() -> None:
    """Cancel all other tasks, and close the generators; wait a second for them."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=_TASKS_S)
    generators = asyncio.ensure_future(asyncio.get_running_loop().shutdown_asyncgens())
    await asyncio.wait({generators}, timeout=_TASKS_S)


def end_within(
    status: int, seconds: float = _THREADS_S, on_late: Callable[[], object] = bool
) -> threading.Timer:
    """End this process by itself if it has not ended after some seconds: a thread may hang.

    Args:
        status: The exit status.
        seconds: From now.
        on_late: Called before the process is ended.

    Returns:
        The timer, which can be cancelled.
    """

    def end() -> None:
        on_late()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(status)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    return timer
