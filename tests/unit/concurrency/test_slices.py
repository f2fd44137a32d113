"""Long work on the event loop, in slices."""

from __future__ import annotations

import asyncio

from gateway.concurrency.slices import SLICE_S, in_slices
from tests.fakes import FakeClock


async def test_other_work_runs_after_each_slice() -> None:
    """A step that ends a slice lets others run before the next one; a short step does not."""
    clock = FakeClock()
    seen: list[object] = []

    async def bystander() -> None:
        while True:
            seen.append("other")
            await asyncio.sleep(0)

    other = asyncio.create_task(bystander())
    async for step in in_slices(range(6), clock):
        seen.append(step)
        clock.advance(SLICE_S / 2)
    other.cancel()
    assert [0, 1, "other", 2, 3, "other", 4, 5, "other"] == seen
