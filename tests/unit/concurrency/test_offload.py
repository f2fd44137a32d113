from __future__ import annotations

import asyncio
import threading
import time

import pytest

from gateway.concurrency.offload import inline, off_loop, wherever
from gateway.ir.work import LongWork, charge

LOOP = threading.main_thread().ident


def work(items: float, steps: int = 1) -> int | None:
    for _ in range(steps):
        charge(items)
    return threading.get_ident()


def test_short_work_is_done_here() -> None:
    """What is expected to take 20 ms stays where it is."""
    assert LOOP == inline(work, 40_000)


@pytest.mark.parametrize(("items", "steps"), [(40_001, 1), (10_001, 4)])
def test_long_work_is_not(items: float, steps: int) -> None:
    """The steps of one piece of work count together; the next piece begins anew."""
    with pytest.raises(LongWork):
        inline(work, items, steps)
    assert LOOP == inline(work, 40_000)


async def test_long_work_is_done_on_one_thread() -> None:
    """However much it is: nothing bounds the thread, nor anything after it."""
    first, second = await off_loop(work, 1e12), await off_loop(work, 1e12)
    assert LOOP != first
    assert first == second
    charge(1e12)


async def test_work_is_done_wherever_it_may() -> None:
    """Short work is done at once, long work on the thread; errors are those of the work."""
    assert LOOP == await wherever(work, 1)
    assert LOOP != await wherever(work, 1e12)

    def fail() -> None:
        charge(1e12)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await wherever(fail)


def test_other_threads_are_not_bound() -> None:
    """Work of a model's thread is not that of the event loop, whatever this one does meanwhile."""
    done: list[int | None] = []

    def step() -> None:
        thread = threading.Thread(target=lambda: done.append(work(1e12)))
        thread.start()
        thread.join()

    inline(step)
    assert 1 == len(done)


async def test_the_next_work_begins_when_the_last_result_is_taken() -> None:
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


async def test_work_of_a_caller_that_left_does_not_block_others() -> None:
    """It ends on its thread, and the next one begins."""
    go_on = threading.Event()
    slow_work = asyncio.create_task(off_loop(go_on.wait, 10))
    await asyncio.sleep(0)
    slow_work.cancel()
    await asyncio.gather(slow_work, return_exceptions=True)
    found = asyncio.create_task(off_loop(int, "7"))
    await asyncio.sleep(0)
    go_on.set()
    assert 7 == await asyncio.wait_for(found, 10)
