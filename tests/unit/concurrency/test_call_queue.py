"""CallQueue: which of three times ends a wait, and the error of each."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.concurrency.call_queue import CallQueue
from gateway.concurrency.limiter import ControlledDelay, Limiter
from gateway.ir.context import ModelRef
from gateway.ir.errors import DeadlineExceeded, GatewayError, Overloaded, QueueTimeout
from tests.fakes import settle
from tests.simulation.virtual_time import elapse, now, simulate

M = ModelRef("m")


def acquired(queue: CallQueue, limiter: Limiter, **errors: Any) -> Any:
    """Return a coroutine that waits, with an error for each reason."""
    reasons: dict[str, Any] = {
        "full": lambda: Overloaded("full"),
        "too_long": lambda: Overloaded("too long"),
        "too_late": lambda: DeadlineExceeded("too late"),
    }
    return queue.acquire(limiter, **(reasons | errors))


@pytest.mark.parametrize(
    ("times", "after_s", "expected"),
    [
        (
            {"timeout_us": 2_000_000, "longest_s": 3.0, "left_s": 4.0},
            2.0,
            "Request timeout expired",
        ),
        ({"timeout_us": 2_000_000, "longest_s": 1.0, "left_s": 4.0}, 1.0, "too long"),
        ({"timeout_us": 2_000_000, "longest_s": 3.0, "left_s": 0.5}, 0.5, "too late"),
        ({"longest_s": 3.0}, 3.0, "too long"),
        ({"left_s": 3.0}, 3.0, "too late"),
    ],
)
def test_the_shortest_time_decides(times: dict[str, Any], after_s: float, expected: str) -> None:
    """The caller's own queue timeout, the configured time, or the deadline of the call."""

    async def run() -> GatewayError:
        limiter = Limiter(1)
        assert limiter.try_acquire()
        began = now()
        with pytest.raises(GatewayError) as caught:
            await acquired(CallQueue("a slot of 'x'", M, **times), limiter)
        assert after_s == pytest.approx(now() - began)
        assert 0 == limiter.queued
        return caught.value

    assert simulate(run).message.startswith(expected)


def test_a_wait_without_times_ends_with_the_slot() -> None:
    """Nothing bounds it, and it returns what the limiter grants."""

    async def run() -> None:
        limiter = Limiter(1)
        assert limiter.try_acquire()
        queue = CallQueue("a slot")
        assert queue.seconds is None
        waiting = asyncio.ensure_future(acquired(queue, limiter))
        await elapse(3600)
        assert not waiting.done()
        limiter.release()
        assert await waiting is None

    simulate(run)


async def test_a_full_queue_has_its_own_error() -> None:
    """It is raised at once."""
    limiter = Limiter(1, queue=0)
    assert limiter.try_acquire()
    with pytest.raises(Overloaded, match="full"):
        await acquired(CallQueue("a slot", longest_s=60.0), limiter)


@pytest.mark.parametrize("own", [True, False])
def test_a_late_queue_has_its_own_error(own: bool) -> None:
    """Without one, the call has waited for too long."""

    async def run() -> str:
        limiter = Limiter(1, delay=ControlledDelay(0.1, 1.0))
        assert limiter.try_acquire()
        first = asyncio.ensure_future(acquired(CallQueue("a slot"), limiter))
        await elapse(1.5)
        errors = {"late": lambda: Overloaded("late")} if own else {}
        with pytest.raises(Overloaded) as caught:
            await acquired(CallQueue("a slot", longest_s=60.0), limiter, **errors)
        limiter.release()
        await first
        return caught.value.message

    assert ("late" if own else "too long") == simulate(run)


async def test_a_caller_that_leaves_keeps_no_slot() -> None:
    """Its error is its own, and the next caller is served."""
    limiter = Limiter(1)
    assert limiter.try_acquire()
    waiting = asyncio.ensure_future(acquired(CallQueue("a slot"), limiter))
    await settle()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    limiter.release()
    assert (0, 0) == (limiter.used, limiter.queued)


def test_only_a_queue_timeout_expires() -> None:
    """A queue that is no limiter, such as that of batches, asks for the error alone."""
    assert CallQueue("a batch", M).expired() is None
    assert CallQueue("a batch", M, timeout_us=20, longest_s=1e-6).expired() is None
    error = CallQueue("a batch", M, timeout_us=20).expired()
    assert isinstance(error, QueueTimeout)
    assert "waited for a batch longer than 20 us" in error.message
