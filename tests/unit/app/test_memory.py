from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys

from gateway.app.memory import GivesBack, leave_what_stays

PROGRAM = """
import resource
from gateway.app.memory import keep_large_buffers
done = keep_large_buffers(128 << 20)
for _ in range(5):
    bytes(bytearray(602112))
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(100):
    bytes(bytearray(602112))
print(done, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def run(**variables: str) -> tuple[str, int]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    out = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**kept, **variables},
        capture_output=True,
        check=True,
        text=True,
    ).stdout.split()
    return out[0], int(out[1])


def test_large_buffers_come_without_page_faults() -> None:
    """Buffers of 602,112 bytes, taken and given back a hundred times, fault hardly any page."""
    done, faults = run()
    assert done == "True"
    assert faults < 1000


def test_an_operators_own_setting_stays() -> None:
    """Nothing is changed where the environment already says how to allocate."""
    done, faults = run(MALLOC_MMAP_THRESHOLD_="131072")
    assert done == "False"
    assert faults > 10_000


def test_what_stays_is_not_looked_at_again() -> None:
    """Objects there were are left out of collections; later ones are collected as ever."""
    kept: list[object] = []
    usual = gc.get_threshold()
    try:
        leave_what_stays()
        assert gc.get_threshold()[0] > usual[0]
        assert not any(each is kept for each in gc.get_objects())
        cycle: list[object] = []
        cycle.append(cycle)
        del cycle
        assert gc.collect() >= 1
    finally:
        gc.unfreeze()
        gc.set_threshold(*usual)
    assert any(each is kept for each in gc.get_objects())


FREED = """
import asyncio
from pathlib import Path
from gateway.app.memory import GivesBack, keep_large_buffers

def resident():
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if "VmRSS" in line)
    return int(line.split()[1]) // 1024

async def main():
    # Between the large ones lie small ones that live on.
    large, small = [], []
    for _ in range(100):
        large.append(bytearray(602112))
        small.append(bytearray(2000))
    large.clear()
    before = resident()
    memory = GivesBack(lambda: True, 0.05)
    memory.start()
    await asyncio.sleep(0.2)
    memory.stop()
    print(before - resident())

keep_large_buffers(128 << 20)
asyncio.run(main())
"""


def test_what_lies_free_between_buffers_goes_back() -> None:
    """Nearly all of 57 MiB, freed among small buffers that live, is the system's again."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    out = subprocess.run(
        [sys.executable, "-c", FREED], env=kept, capture_output=True, check=True, text=True
    ).stdout
    assert int(out) > 40


async def test_nothing_is_done_while_anything_is_in_flight() -> None:
    """It is looked again and again, and trimmed only when it is idle; nothing after the end."""
    looks = 0

    def idle() -> bool:
        nonlocal looks
        looks += 1
        return False

    memory = GivesBack(idle, 0.005)
    memory.start()
    async with asyncio.timeout(5):
        while looks < 3:  # noqa: ASYNC110  # nothing announces it
            await asyncio.sleep(0.005)
    memory.stop()
    memory.stop()
    seen = looks
    await asyncio.sleep(0.03)
    assert seen == looks
