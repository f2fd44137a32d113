from __future__ import annotations

import asyncio
import threading
import time

import pytest

from gateway.concurrency.offload import limit_memory, off_loop, run_bounded, run_bounded_on_loop
from gateway.ir.errors import Overloaded
from gateway.ir.work import LongWork, charge, reserve

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


class _Held:
    """Memory of which so many bytes are free, also for what work may need later or not."""

    def __init__(self, free: int, *, has_spare: bool = False) -> None:
        self.free = free
        self.has_spare = has_spare
        self.used = 0
        self.grown: list[int] = []

    async def grow(self, size: int) -> None:
        if size > self.free - self.used:
            raise Overloaded("no memory for a message")
        await asyncio.sleep(0)
        self.grown.append(size)
        self.used += size

    def try_grow(self, size: int) -> bool:
        found = self.has_spare and size <= self.free - self.used
        self.used += size * found
        return found

    def close(self) -> None:
        self.used = 0


def build(steps: list[tuple[int, int]], done: list[int]) -> int:
    for size, built in steps:
        reserve(size, built)
        done.append(built)
    return len(done)


async def test_long_work_reserves_what_it_builds_beyond_its_share() -> None:
    """Eight times the message and 4 MiB need no reservation; what exceeds them all has one."""
    memory, mib, done = _Held(1 << 30), 1 << 20, list[int]()
    limit_memory(lambda: memory)
    assert 2 == await off_loop(build, [(mib, 8 * mib), (mib, 4 * mib)], done)
    assert [] == memory.grown
    done.clear()
    assert 3 == await off_loop(build, [(mib, 13 * mib), (mib, 2 * mib)], done)
    # It starts again when the memory is there, and once more when it needs the rest.
    assert [mib, 2 * mib] == memory.grown
    assert [13 * mib, 13 * mib, 2 * mib] == done
    assert 0 == memory.used


async def test_work_of_small_steps_starts_again_a_few_times() -> None:
    """A message of a million small fields took a minute of CPU: it began anew for each of them."""
    memory, mib, done = _Held(1 << 30, has_spare=True), 1 << 20, list[int]()
    limit_memory(lambda: memory)
    await off_loop(build, [(mib, mib)] * 500, done)
    assert len(memory.grown) <= 8
    assert len(done) <= 4 * 500


async def test_work_without_its_memory_is_refused_before_it_builds() -> None:
    """The error of the reservation is that of the work, and everything is released."""
    memory, done = _Held(1 << 20), list[int]()
    limit_memory(lambda: memory)
    with pytest.raises(Overloaded):
        await off_loop(build, [(10, 1 << 30)], done)
    assert ([], 0) == (done, memory.used)


async def test_other_work_has_its_turn_while_one_waits_for_memory() -> None:
    """A wait for memory holds no turn, so that those who hold the memory can finish."""
    memory, free = _Held(1 << 30), asyncio.Event()
    grow = memory.grow

    async def late(size: int) -> None:
        await free.wait()
        await grow(size)

    memory.grow = late  # type: ignore[method-assign]  # a double
    limit_memory(lambda: memory)
    waiting = asyncio.ensure_future(off_loop(build, [(10, 1 << 25)], []))
    assert LOOP != await off_loop(work, 1)
    assert not waiting.done()
    free.set()
    assert 1 == await waiting


def test_the_event_loop_builds_nothing_large() -> None:
    """What needs a reservation is long work, whatever it costs."""
    with pytest.raises(LongWork):
        run_bounded_on_loop(reserve, 10, 1 << 25)
    assert run_bounded_on_loop(reserve, 10, 1 << 20) is None
    assert reserve(10, 1 << 30) is None  # type: ignore[func-returns-value]  # elsewhere


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
