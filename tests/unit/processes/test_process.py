"""How threads share the interpreter."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from gateway.processes.process import (
    MemoryTrimmer,
    memory_bound,
    shorten_switch_interval,
)
from gateway.processes.worker_slot import WorkerSlot
from tests.simulation.virtual_time import elapse, in_virtual_time


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    before = sys.getswitchinterval()
    yield
    sys.setswitchinterval(before)


def test_the_switch_interval_is_shortened() -> None:
    """The thread of a model waits half a millisecond for the event loop, not five."""
    shorten_switch_interval()
    assert 0.0005 == pytest.approx(sys.getswitchinterval())


def test_a_memory_bound_is_a_size_or_a_share() -> None:
    """Workers divide a percentage of the limit; a size applies to each of them."""
    one, two = WorkerSlot(1, 1), WorkerSlot(1, 2)
    assert 1 << 30 == memory_bound("1GiB", two)
    whole, half = memory_bound("50%", one), memory_bound("50%", two)
    assert 0 < whole <= os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    assert whole // 2 <= half <= whole // 2 + 1


MAPPED = """
import ctypes, sys
from gateway.processes.process import MemoryTrimmer, keep_large_buffers

names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()

class Heap(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in names]

libc = ctypes.CDLL(None)
libc.mallinfo2.restype = Heap
libc.malloc.restype = ctypes.c_void_p

def mapped():
    before = libc.mallinfo2().hblkhd
    buffers = [libc.malloc(ctypes.c_size_t(1 << 20)) for _ in range(64)]
    after = libc.mallinfo2().hblkhd
    for buffer in buffers:
        libc.free(ctypes.c_void_p(buffer))
    return after - before >= 32 << 20  # what is free in the heap is used first

assert keep_large_buffers(16 << 20)
trimmer = MemoryTrimmer(lambda: False)
print(mapped(), trimmer.on_scarce(True) or mapped(), trimmer.on_scarce(False) or mapped())
"""


def test_large_buffers_are_mapped_while_memory_is_scarce() -> None:
    """Freed mapped buffers return to the system at once; otherwise the heap keeps them."""
    command = [sys.executable, "-c", MAPPED]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert ("False True False\n", 0) == (done.stdout, done.returncode), done.stderr


@in_virtual_time
async def test_the_trimmer_trims_often_while_memory_is_scarce() -> None:
    """It trims even with requests in flight; otherwise it waits until the gateway is idle."""
    trims: list[int] = []
    trimmed = asyncio.Event()

    def trim(size: int) -> int:
        trims.append(size)
        trimmed.set()
        return 1

    trimmer = MemoryTrimmer(lambda: False, interval_s=0.001, scarce_interval_s=0.001)
    trimmer._trim = trim
    trimmer.start()
    await elapse(60)
    assert trims == []
    trimmer.on_scarce(True)
    await asyncio.wait_for(trimmed.wait(), 20)
    trimmer.on_scarce(False)
    trimmer.stop()


async def test_the_trimmer_clears_the_attribute_cache() -> None:
    """A name in Python's attribute cache keeps the memory around it from the system."""
    names = [f"attribute_{number}" for number in range(100)]
    unused = [sys.getrefcount(name) for name in names]
    assert [False] * len(names) == [hasattr(MemoryTrimmer, name) for name in names]
    assert sum(unused) < sum(sys.getrefcount(name) for name in names)
    trimmed = asyncio.Event()

    def trim(_size: int) -> int:
        trimmed.set()
        return 1

    trimmer = MemoryTrimmer(lambda: True, interval_s=0.001)
    trimmer._trim = trim
    trimmer.start()
    await asyncio.wait_for(trimmed.wait(), 20)
    trimmer.stop()
    assert unused == [sys.getrefcount(name) for name in names]
