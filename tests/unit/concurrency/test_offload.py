from __future__ import annotations

import asyncio
import threading
import time

import pytest

from gateway.concurrency.offload import off_loop, run_bounded, run_bounded_on_loop
from gateway.ir.work import LongWork, charge

LOOP = threading.main_thread().ident


def work(items: float, steps: int = 1) -> int | None:
    for _ in range(steps):
        charge(items)
    return threading.get_ident()


def test_short_work_runs_inline() -> None:
    """Work expected to take at most 20 ms stays on the event loop."""
    assert LOOP == run_bounded_on_loop(work, 40_000)


@pytest.mark.parametrize(("items", "steps"), [(40_001, 1), (10_001, 4)])
def test_long_work_does_not_run_inline(items: float, steps: int) -> None:
    """The steps of one piece of work count together; the next piece starts at zero."""
    with pytest.raises(LongWork):
        run_bounded_on_loop(work, items, steps)
    assert LOOP == run_bounded_on_loop(work, 40_000)


async def test_long_work_runs_on_one_thread() -> None:
    """The thread has no limit, and neither has the code after it."""
    first, second = await off_loop(work, 1e12), await off_loop(work, 1e12)
    assert LOOP != first
    assert first == second
    charge(1e12)


async def test_wherever_chooses_the_thread_by_the_cost() -> None:
    """Short work runs at once, long work on the thread; errors of the work are raised."""
    assert LOOP == await run_bounded(work, 1)
    assert LOOP != await run_bounded(work, 1e12)

    def fail() -> None:
        charge(1e12)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await run_bounded(fail)


def test_other_threads_have_no_limit() -> None:
    """Work on a model's thread does not count for the event loop."""
    done: list[int | None] = []

    def step() -> None:
        thread = threading.Thread(target=lambda: done.append(work(1e12)))
        thread.start()
        thread.join()

    run_bounded_on_loop(step)
    assert 1 == len(done)


async def test_the_next_work_starts_after_the_last_result_is_read() -> None:
    """Results do not pile up while the event loop is busy."""
    starts: list[int] = []
    results: list[int] = []

    async def one(number: int) -> None:
        await off_loop(starts.append, number)
        assert len(starts) == len(results) + 1
        results.append(number)

    first = asyncio.gather(*(one(number) for number in range(5)))
    await asyncio.sleep(0)
    time.sleep(0.02)  # noqa: ASYNC251  # the busy loop
    assert len(starts) <= 1
    await first
    assert results == [0, 1, 2, 3, 4]


async def test_work_of_a_cancelled_caller_does_not_block_others() -> None:
    """It ends on its thread, and the next work starts."""
    released = threading.Event()
    slow_work = asyncio.create_task(off_loop(released.wait, 10))
    await asyncio.sleep(0)
    slow_work.cancel()
    await asyncio.gather(slow_work, return_exceptions=True)
    found = asyncio.create_task(off_loop(int, "7"))
    await asyncio.sleep(0)
    released.set()
    assert 7 == await asyncio.wait_for(found, 20)
