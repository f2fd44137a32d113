"""Hedging: a limited second attempt for a slow call, and one reply."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from typing import Any

import pytest
from structlog.testing import capture_logs

from gateway.ir.attempts import ATTEMPT
from gateway.ir.calls import InferRequest, InferResponse, StreamInferRequest
from gateway.ir.context import CallSequence, ModelRef
from gateway.ir.errors import GatewayError, Unavailable
from gateway.policies.limits.hedge import Hedge, HedgeRules
from gateway.policies.limits.policy import CallLimits
from tests.fakes import FakeClock, FakeStream, ScriptedService, settle
from tests.simulation.virtual_time import in_virtual_time

M = ModelRef("m")
CALL = InferRequest(model=M)
FIRST = InferResponse(model=ModelRef("m", "1"), outputs=())
SECOND = InferResponse(model=ModelRef("m", "2"), outputs=())
AT_ONCE = HedgeRules(after_s=0.0, at_most=1.0)


class Hedged:
    """A hedge above a service that the test controls."""

    def __init__(self, rules: HedgeRules = AT_ONCE, **settings: Any) -> None:
        self.won: list[str] = []
        self.service = ScriptedService()
        self.hedge = Hedge(self.service, rules, report=self.won.append, **settings)

    async def start(self, attempts: int = 2) -> asyncio.Task[InferResponse]:
        """Begin a call, and wait for its attempts."""
        task = asyncio.ensure_future(self.hedge(CALL))
        async with asyncio.timeout(20):
            while len(self.service.waiting) < attempts:  # noqa: ASYNC110  # a timer of the loop
                await asyncio.sleep(0)
        return task


@pytest.mark.parametrize("winner", [0, 1])
async def test_first_reply_wins_and_the_other_attempt_is_cancelled(winner: int) -> None:
    """The caller gets the first reply of either attempt, and nothing runs on."""
    hedged = Hedged()
    task = await hedged.start()
    hedged.service.waiting[winner].set_result((FIRST, SECOND)[winner])
    assert (FIRST, SECOND)[winner] == await task
    await settle()
    assert (1, [("first", "second")[winner]]) == (hedged.service.cancelled, hedged.won)


async def test_fast_call_has_one_attempt() -> None:
    """No second attempt is sent before its delay."""
    service = ScriptedService(FIRST)
    assert FIRST == await Hedge(service, HedgeRules(after_s=5.0, at_most=1.0))(CALL)
    assert 1 == len(service.calls)


@pytest.mark.parametrize("failing", [0, 1])
async def test_other_attempt_decides_if_one_fails(failing: int) -> None:
    """An error is no reply while another attempt may still succeed."""
    hedged = Hedged()
    task = await hedged.start()
    hedged.service.waiting[failing].set_exception(Unavailable("reset"))
    await settle()
    hedged.service.waiting[1 - failing].set_result(FIRST)
    assert FIRST == await task
    assert [("second", "first")[failing]] == hedged.won


async def test_first_attempts_error_is_raised_if_both_fail() -> None:
    """The caller gets one error."""
    hedged = Hedged()
    task = await hedged.start()
    hedged.service.waiting[1].set_exception(Unavailable("second"))
    await settle()
    hedged.service.waiting[0].set_exception(Unavailable("first"))
    with pytest.raises(Unavailable, match="first"):
        await task
    assert ["none"] == hedged.won


async def test_cancelled_caller_cancels_both_attempts() -> None:
    """No attempt runs without a caller."""
    hedged = Hedged()
    task = await hedged.start()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await settle()
    assert 2 == hedged.service.cancelled


async def test_deadline_covers_both_attempts() -> None:
    """Both attempts are cancelled at the deadline of the call."""
    service = ScriptedService()
    limits = CallLimits(Hedge(service, AT_ONCE), 0.5)
    with pytest.raises(GatewayError, match=r"within 0\.5 s"):
        await limits(CALL)
    await settle()
    assert 2 == len(service.calls) == service.cancelled


@in_virtual_time
async def test_second_attempt_avoids_the_first_endpoint() -> None:
    """The first attempt is still running at its endpoint."""
    avoided: list[tuple[str, ...]] = []

    async def attempt_of(_call: object) -> None:
        attempt = ATTEMPT.get()
        assert attempt is not None
        avoided.append(attempt.avoid)
        attempt.tried = f"e{len(avoided)}"
        await asyncio.Event().wait()

    hedge = Hedge(ScriptedService(attempt_of, attempt_of), AT_ONCE)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(hedge(CALL), 0.5)
    assert [(), ("e1",)] == avoided


@pytest.mark.parametrize(
    "call", [StreamInferRequest(model=M, request=CALL), CALL.changed(sequence=CallSequence(1))]
)
async def test_streams_and_sequences_have_one_attempt(call: Any) -> None:
    """Only a stateless call with one reply can be sent twice."""
    service = ScriptedService(FakeStream([FIRST]))
    await Hedge(service, AT_ONCE)(call)
    await settle()
    assert 1 == len(service.calls)


async def test_second_attempts_are_limited_to_a_share_of_the_calls() -> None:
    """If every call is slow, one in twenty has a second attempt; the log reports it."""
    clock = FakeClock()

    async def slow(_call: object) -> InferResponse:
        await settle()
        return FIRST

    service = ScriptedService(always=slow)
    hedge = Hedge(service, HedgeRules(after_s=0.0, at_most=0.05), clock=clock)
    with capture_logs() as lines:
        for _ in range(100):
            await hedge(CALL)
    assert 5 >= len(service.calls) - 100 >= 4
    assert "hedging paused" == lines[0]["event"]


async def test_delay_follows_the_latency_percentile() -> None:
    """No call is hedged before enough latencies are known."""
    clock = FakeClock()
    latencies = iter([0.01] * 90 + [0.2] * 10 + [0.01] * 1000)

    async def taking(_call: object) -> InferResponse:
        clock.advance(next(latencies))
        return FIRST

    hedge = Hedge(ScriptedService(always=taking), HedgeRules(percentile=95.0), clock=clock)
    for _ in range(19):
        await hedge(CALL)
    early = hedge._after_s
    for _ in range(101):
        await hedge(CALL)
    assert [None, 0.2] == [early, round(hedge._after_s or 0, 6)]


async def test_hedged_calls_leave_no_garbage() -> None:
    """A failure leaves no reference cycle, which would hold the message."""

    async def fail(_call: object) -> None:
        await settle()
        raise Unavailable("reset")

    hedge = Hedge(ScriptedService(always=fail), AT_ONCE)
    gc.collect()
    gc.disable()
    try:
        for _ in range(5):
            with contextlib.suppress(Unavailable):
                await hedge(CALL)
        await settle()
        assert 0 == gc.collect()
    finally:
        gc.enable()
