"""Retries: by default one more attempt, and only for calls that were never sent."""

from __future__ import annotations

import asyncio
import contextlib
import math
from typing import Any

import pytest
from structlog.testing import capture_logs

from gateway.ir.attempts import ATTEMPT
from gateway.ir.bodies.streams import close_stream
from gateway.ir.calls import InferRequest, InferResponse, ModelLoadRequest, StreamInferRequest
from gateway.ir.context import CallSequence, Context, ModelRef, Origin
from gateway.ir.errors import (
    ConnectFailure,
    DeadlineExceeded,
    GatewayError,
    InternalError,
    InvalidRequest,
    NotReady,
    NotSent,
    Overloaded,
    Unavailable,
)
from gateway.policies.limits.policy import CallLimits
from gateway.policies.limits.retry import (
    AttemptTimeout,
    RetryBudget,
    RetryRules,
    RetryStream,
    retry_reason,
)
from gateway.service import Service
from tests.fakes import FakeClock, FakeStream, ScriptedService, settle

M = ModelRef("m")
CALL = InferRequest(model=M)
STREAM = StreamInferRequest(model=M, request=CALL)
REPLY = InferResponse(model=M, outputs=())
UNSENT = NotSent("refused")


def retrying(service: ScriptedService, draw: float = 0.0) -> tuple[CallLimits, FakeClock]:
    return limited(service, RetryRules(), draw)


def limited(
    service: Service, rules: RetryRules, draw: float = 0.0, **settings: Any
) -> tuple[CallLimits, FakeClock]:
    clock = FakeClock()
    retries = RetryBudget(rules, draw=lambda: draw, sleep=clock.sleep, clock=clock, **settings)
    return CallLimits(service, retries=retries, clock=clock), clock


@pytest.mark.parametrize(("draw", "pause_s"), [(0.0, 0.0), (0.5, 0.0125), (1.0, 0.025)])
async def test_unsent_call_is_retried_after_a_pause(draw: float, pause_s: float) -> None:
    """The second attempt follows at a random time within 25 ms."""
    service = ScriptedService(UNSENT, REPLY)
    retry, clock = retrying(service, draw)
    assert REPLY == await retry(CALL)
    assert ([CALL, CALL], [pause_s]) == (service.calls, clock.sleeps)


async def test_pauses_double_up_to_a_maximum() -> None:
    """Each attempt follows a longer pause, and the last error is raised."""
    service = ScriptedService(*[UNSENT] * 5)
    rules = RetryRules(attempts=5, base_s=0.1, max_s=0.3, least=9)
    retry, clock = limited(service, rules, draw=1.0)
    with pytest.raises(NotSent):
        await retry(CALL)
    assert [0.1, 0.2, 0.3, 0.3] == clock.sleeps


REPLIED = Origin("oip.http", None)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ConnectFailure("refused"), "connect_failure"),
        (NotSent("went away"), "unsent"),
        (Unavailable("reset"), "reset_before_answer"),
        (Unavailable("no instance", origin=REPLIED), "unavailable"),
        (NotReady("loading", origin=REPLIED), "unavailable"),
        (Overloaded("full", origin=REPLIED), "overloaded"),
        (DeadlineExceeded("late"), "timeout"),
        (InvalidRequest("wrong"), None),
        (InternalError("defect"), None),
    ],
)
async def test_only_errors_of_listed_reasons_are_retried(
    error: GatewayError, reason: str | None
) -> None:
    """Each error has one reason; `unsent` includes failed connections."""
    assert reason == retry_reason(error)
    for listed in ("unsent", "connect_failure", "reset_before_answer", "unavailable", "timeout"):
        service = ScriptedService(error, always=REPLY)
        retry, _ = limited(service, RetryRules(reasons=frozenset({listed})))
        with contextlib.suppress(GatewayError):
            await retry(CALL)
        is_part = (listed, reason) == ("unsent", "connect_failure")
        assert (2 if listed == reason or is_part else 1) == len(service.calls)


async def test_load_is_not_retried_after_it_was_sent() -> None:
    """Configured reasons apply to inferences, not to model control."""
    service = ScriptedService(Unavailable("reset"), Unavailable("reset"), always=None)
    retry, _ = limited(service, RetryRules(reasons=frozenset({"reset_before_answer"})))
    with pytest.raises(Unavailable):
        await retry(ModelLoadRequest(model=M))
    assert 1 == len(service.calls)


async def test_retries_are_limited_to_a_share_of_the_calls() -> None:
    """Even if calls fail quickly, the upstream gets at most 1.2 times the calls and three."""
    service = ScriptedService(always=Unavailable("reset"))
    counted: list[tuple[str, str]] = []
    rules = RetryRules(reasons=frozenset({"reset_before_answer"}))
    retry, clock = limited(service, rules, report=lambda *found: counted.append(found))
    for _ in range(1000):
        clock.advance(0.001)
        with contextlib.suppress(Unavailable):
            await retry(CALL)
    assert 1150 < len(service.calls) <= 1203
    assert len(service.calls) - 1000 == counted.count(("reset_before_answer", "failed"))
    assert 2000 - len(service.calls) == counted.count(("reset_before_answer", "no_budget"))


async def test_exhausted_budget_is_logged_once() -> None:
    """The log has one line when the budget is exhausted, and one when it is available again."""
    service = ScriptedService(always=Unavailable("reset"))
    retry, clock = limited(service, RetryRules(reasons=frozenset({"reset_before_answer"})))
    with capture_logs() as lines:
        for _ in range(20):
            with contextlib.suppress(Unavailable):
                await retry(CALL)
        clock.advance(60)
        with contextlib.suppress(Unavailable):
            await retry(CALL)
    events = [line["event"] for line in lines if line["event"] != "retry"]
    assert ["retry budget exhausted", "retry budget available"] == events[:2]


@pytest.mark.parametrize("elsewhere", [True, False])
async def test_retry_avoids_failed_endpoints(elsewhere: bool) -> None:
    """With `elsewhere`, a retry avoids every failed endpoint; the attempt is reset afterwards."""
    avoided: list[tuple[str, ...]] = []

    def fail(_call: object) -> None:
        attempt = ATTEMPT.get()
        avoided.append(() if attempt is None else attempt.avoid)
        error = NotSent("refused")
        error.attempted = f"e{len(avoided)}"
        raise error

    rules = RetryRules(attempts=3, elsewhere=elsewhere)
    retry, _ = limited(ScriptedService(fail, fail, fail), rules)
    with pytest.raises(NotSent):
        await retry(CALL)
    assert ([(), ("e1",), ("e1", "e2")] if elsewhere else [(), (), ()]) == avoided
    assert ATTEMPT.get() is None


async def test_attempt_that_times_out_is_cancelled_and_retried() -> None:
    """The attempt ends at its own timeout, well before the deadline of the call."""
    cancellation = asyncio.Event()

    async def hang(_call: object) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancellation.set()

    service = ScriptedService(hang, REPLY)
    rules = RetryRules(reasons=frozenset({"timeout"}))
    retries = RetryBudget(rules, draw=lambda: 0.0)
    limits = CallLimits(AttemptTimeout(service, 0.02), 5.0, retries=retries)
    assert REPLY == await limits(CALL)
    assert cancellation.is_set()
    ends = [call.context.deadline for call in service.calls]
    assert ends[0] is not None
    assert ends[1] is not None
    assert 0.01 < ends[1] - ends[0] < 4.0


async def test_deadline_covers_all_attempts() -> None:
    """The last attempt has the remaining time, and then the caller gets its error."""
    service = ScriptedService()
    rules = RetryRules(reasons=frozenset({"timeout"}), attempts=5)
    retries = RetryBudget(rules, draw=lambda: 0.0)
    limits = CallLimits(AttemptTimeout(service, 0.2), 1.0, retries=retries)
    with pytest.raises(DeadlineExceeded):
        await limits(CALL)
    assert 2 <= len(service.calls) == service.cancelled


async def test_cancelled_caller_cancels_the_attempt() -> None:
    """No attempt runs on, and no call counts as in flight."""
    service = ScriptedService(UNSENT)
    retry, _ = retrying(service)
    task = asyncio.ensure_future(retry(CALL))
    await settle()
    assert 2 == len(service.calls)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert (1, 0, 0) == (service.cancelled, retry._retries.active, retry._retries._retrying)


async def test_attempt_timeout_limits_the_first_reply_of_a_stream() -> None:
    """A silent stream is opened again; later replies have no attempt timeout."""

    class Silent(FakeStream):
        async def __anext__(self) -> InferResponse:
            await asyncio.Event().wait()
            raise AssertionError

    silent = Silent([])
    service = ScriptedService(silent, FakeStream([REPLY]))
    rules = RetryRules(reasons=frozenset({"timeout"}))
    limits = CallLimits(AttemptTimeout(service, 0.02), retries=RetryBudget(rules))
    items = await limits(STREAM)
    assert [REPLY] == [item async for item in items]
    assert (1, None) == (silent.closed, service.calls[1].context.deadline)


async def test_call_has_two_attempts_by_default() -> None:
    """If the second attempt fails, its error is raised."""
    last = NotSent("refused again")
    service = ScriptedService(UNSENT, last, REPLY)
    with pytest.raises(NotSent) as caught:
        await retrying(service)[0](CALL)
    assert (last, 2) == (caught.value, len(service.calls))


@pytest.mark.parametrize("error", [Unavailable("broke off"), Overloaded("full")])
async def test_call_that_may_have_run_is_not_retried(error: GatewayError) -> None:
    """By default only a call that was never sent is retried."""
    service = ScriptedService(error, REPLY)
    with pytest.raises(type(error)):
        await retrying(service)[0](CALL)
    assert 1 == len(service.calls)


async def test_sequence_requests_are_not_retried() -> None:
    """No request of a sequence is sent twice, neither unary nor as a stream."""
    call = CALL.changed(sequence=CallSequence(1))
    service = ScriptedService(UNSENT, FakeStream([UNSENT]))
    retry, _ = retrying(service)
    with pytest.raises(NotSent):
        await retry(call)
    items = await retry(StreamInferRequest(model=M, request=call))
    with pytest.raises(NotSent):
        await anext(items)
    assert 2 == len(service.calls)


@pytest.mark.parametrize(("left_s", "attempts"), [(0.0125, 1), (0.013, 2)])
async def test_pause_must_fit_the_deadline(left_s: float, attempts: int) -> None:
    """A second attempt that could only start too late is not made."""
    service = ScriptedService(UNSENT, UNSENT)
    retry, clock = retrying(service, draw=0.5)
    call = InferRequest(model=M, context=Context(deadline=clock() + left_s))
    with pytest.raises(NotSent):
        await retry(call)
    assert attempts == len(service.calls)


@pytest.mark.parametrize(("calls", "retries"), [(5, 3), (40, 8)])
async def test_concurrent_retries_are_limited(calls: int, retries: int) -> None:
    """A fifth of the calls in flight, or three, may be retried at the same time."""
    service = ScriptedService()
    asleep = asyncio.Event()

    async def sleep(_seconds: float) -> None:
        await asleep.wait()

    retry = CallLimits(service, retries=RetryBudget(sleep=sleep))
    tasks = [asyncio.ensure_future(retry(CALL)) for _ in range(calls)]
    await settle()
    for future in service.waiting:
        future.set_exception(UNSENT)
    await settle()
    asleep.set()
    await settle()
    for future in service.waiting[calls:]:
        future.set_result(REPLY)
    found = await asyncio.gather(*tasks, return_exceptions=True)
    assert (retries, calls - retries) == (found.count(REPLY), found.count(UNSENT))
    assert (0, 0) == (retry._retries.active, retry._retries._retrying)


async def test_unsent_stream_is_opened_again() -> None:
    """A stream that fails before its first reply is retried; the caller sees one stream."""
    service = ScriptedService(FakeStream([UNSENT]), FakeStream([REPLY, REPLY]))
    retry, clock = retrying(service)
    items = await retry(STREAM)
    assert [REPLY, REPLY] == [item async for item in items]
    assert ([0.0], 0) == (clock.sleeps, retry._retries.active)


async def test_failure_to_open_a_stream_counts_as_an_attempt() -> None:
    """A stream that cannot be opened has one more attempt, not two."""
    service = ScriptedService(UNSENT, FakeStream([UNSENT]), FakeStream([REPLY]))
    items = await retrying(service)[0](STREAM)
    with pytest.raises(NotSent):
        await anext(items)
    assert 2 == len(service.calls)


async def test_stream_has_all_attempts_that_the_rules_allow() -> None:
    """A stream that fails before its first reply is retried as often as a call."""
    streams = [FakeStream([UNSENT]), FakeStream([UNSENT]), FakeStream([REPLY, REPLY])]
    service = ScriptedService(*streams)
    outcomes: list[tuple[str, str]] = []
    rules = RetryRules(attempts=3)
    retry, _ = limited(service, rules, report=lambda *outcome: outcomes.append(outcome))
    items = await retry(STREAM)
    assert [REPLY, REPLY] == [item async for item in items]
    assert [("unsent", "failed"), ("unsent", "ok")] == outcomes
    assert (3, 0) == (len(service.calls), retry._retries._retrying)


async def test_retried_stream_may_be_empty() -> None:
    """A retried stream without replies is complete."""
    service = ScriptedService(FakeStream([UNSENT]), FakeStream([]))
    items = await retrying(service)[0](STREAM)
    assert [] == [item async for item in items]


async def test_stream_is_not_retried_after_a_reply() -> None:
    """After the first reply a failure is raised to the caller."""
    service = ScriptedService(FakeStream([REPLY, UNSENT]), FakeStream([REPLY]))
    items = await retrying(service)[0](STREAM)
    assert REPLY == await anext(items)
    with pytest.raises(NotSent):
        await anext(items)
    assert 1 == len(service.calls)


async def test_close_reaches_the_stream_below() -> None:
    """A stream that its caller closes is closed below, and no longer in flight."""
    stream = FakeStream([REPLY])
    retry, _ = retrying(ScriptedService(stream))
    items = await retry(STREAM)
    assert (REPLY, 1) == (await anext(items), retry._retries.active)
    await close_stream(items)
    assert (1, 0) == (stream.closed, retry._retries.active)


async def test_empty_stream_is_complete() -> None:
    """A stream without replies is a success."""
    items = await retrying(ScriptedService(FakeStream([])))[0](STREAM)
    assert [] == [item async for item in items]


async def test_retry_stream_is_an_iterator() -> None:
    """A RetryStream can be iterated like any other stream."""
    stream = RetryStream(RetryBudget(), ScriptedService(), STREAM, FakeStream([REPLY]))
    assert [REPLY] == [item async for item in stream]


def refused(**attributes: Any) -> Overloaded:
    error = Overloaded("full", origin=REPLIED)
    for name, value in attributes.items():
        setattr(error, name, value)
    return error


@pytest.mark.parametrize(
    ("attributes", "pause_s"),
    [
        ({}, 0.0),
        ({"retry_after_s": 0.2}, 0.2),
        ({"retry_after_s": 1.0}, None),
        ({"retry_after_s": 1.0, "has_alternative": True}, 0.0),
        ({"retry_after_s": math.inf, "has_alternative": True}, None),
        ({"has_alternative": False}, None),
    ],
)
async def test_a_refusal_is_retried_where_and_when_a_server_may_serve_it(
    attributes: dict[str, Any], pause_s: float | None
) -> None:
    """At another endpoint at once; at the same one after the time that it asks for, if short."""
    service = ScriptedService(refused(**attributes), REPLY)
    retry, clock = limited(service, RetryRules(reasons=frozenset({"overloaded"})))
    if pause_s is None:
        with pytest.raises(Overloaded, match="full"):
            await retry(CALL)
        assert [] == clock.sleeps
    else:
        assert REPLY == await retry(CALL)
        assert [pause_s] == clock.sleeps


@pytest.mark.parametrize(("elsewhere", "attempts"), [(True, 64), (False, 35)])
async def test_a_burst_of_refusals_exhausted_the_budget(elsewhere: bool, attempts: int) -> None:
    """Calls that another endpoint serves need none: they are no further load."""
    service = ScriptedService(always=lambda _call: refused_unless_retried())

    def refused_unless_retried() -> InferResponse:
        if ATTEMPT.get() is None:
            raise refused(has_alternative=True)
        return REPLY

    rules = RetryRules(reasons=frozenset({"overloaded"}), elsewhere=elsewhere)
    retry, _ = limited(service, rules)
    results = await asyncio.gather(*(retry(CALL) for _ in range(32)), return_exceptions=True)
    assert attempts == len(service.calls)
    assert results.count(REPLY) == attempts - 32
