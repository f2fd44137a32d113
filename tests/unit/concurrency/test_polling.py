"""What is looked at again and again."""

from __future__ import annotations

import asyncio

import structlog

from gateway.concurrency.polling import Polling


async def test_looks_go_on_after_a_failure_until_they_are_stopped() -> None:
    """A failure is logged; a stop ends a look in progress, and a second stop is harmless."""
    looks: list[int] = []
    third, is_cancelled = asyncio.Event(), asyncio.Event()

    async def look() -> None:
        looks.append(len(looks))
        if len(looks) == 1:
            raise ZeroDivisionError
        if len(looks) == 3:
            third.set()
            try:
                await asyncio.Event().wait()
            finally:
                is_cancelled.set()

    polling = Polling(look, period_s=0.0)
    with structlog.testing.capture_logs() as lines:
        polling.start()
        await third.wait()
        await polling.stop()
    assert is_cancelled.is_set()
    assert [0, 1, 2] == looks
    assert ["internal error"] == [line["event"] for line in lines]
    await polling.stop()
