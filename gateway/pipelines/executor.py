"""Flow: runs the steps of a graph, each as soon as what it needs is there.

The first failure ends all: the others are cancelled, and gone before it is raised.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from gateway.pipelines.graph import Step

Run = Callable[[Step], Coroutine[Any, Any, None]]


async def run_steps(steps: Sequence[Step], run: Run) -> None:
    """Run *steps*, which hold all that any of them needs.

    Raises:
        Exception: What the first step that failed did; of several at once, the first in order.
    """
    waiting = {step.name: step for step in steps}
    done: set[str] = set()
    running: dict[asyncio.Task[None], Step] = {}
    try:
        while True:
            ready = [one for one in waiting.values() if one.needs <= done]
            for step in ready:
                del waiting[step.name]
            if len(ready) == 1 and not running:  # nothing runs beside it: no task is needed
                await run(ready[0])
                done.add(ready[0].name)
                continue
            for step in ready:
                running[asyncio.create_task(run(step), name=step.name)] = step
            if not running:
                return
            await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for task in [task for task in running if task.done()]:
                done.add(running.pop(task).name)
                task.result()
    finally:
        await _cancel(running)


async def _cancel(tasks: dict[asyncio.Task[None], Step]) -> None:
    for task in tasks:
        task.cancel()
    if tasks:
        # Their failures are nobody's any more: the first one, or the caller's leaving, is told.
        await asyncio.gather(*tasks, return_exceptions=True)
