"""Execution of the steps of a graph, each as soon as its inputs are available.

The first failure cancels all other steps and waits for their end.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from gateway.pipelines.graph import Step

Run = Callable[[Step], Coroutine[Any, Any, None]]


async def run_steps(steps: Sequence[Step], run: Run) -> None:
    """Run *steps*, which include every step that one of them depends on.

    Raises:
        Exception: The error of the first step that failed; of several at once, the first in order.
    """
    waiting = {step.name: step for step in steps}
    done: set[str] = set()
    running: dict[asyncio.Task[None], Step] = {}
    try:
        while True:
            ready = [one for one in waiting.values() if one.needs <= done]
            for step in ready:
                del waiting[step.name]
            if len(ready) == 1 and not running:  # a single step needs no task
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
        # Ignore their errors: the caller gets the first error, or has cancelled.
        await asyncio.gather(*tasks, return_exceptions=True)
