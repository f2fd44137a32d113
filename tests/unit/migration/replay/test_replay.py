"""Replay: pace, order, selections, and omitted calls."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gateway.ir.calls import Call, InferRequest, InferResponse, StreamInferRequest
from gateway.ir.context import CallSequence, Context, ModelRef, Origin
from gateway.ir.errors import ErrorCode, InvalidRequest, NotFound, NotSent, Unavailable
from gateway.ir.tensors.data import SharedMemoryData
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.tensor import Tensor, array_tensor, as_numpy
from gateway.migration.captures.capture import Capture
from gateway.migration.compare.conditions import parse_fail_if, parse_fail_unless
from gateway.migration.compare.replies import Result
from gateway.migration.compare.rules import OutputRule, OutputRules
from gateway.migration.compare.tensors import Outcome
from gateway.migration.evidence.verdicts import unjudged_calls
from gateway.migration.replay.differences import compare_captures
from gateway.migration.replay.replay import (
    Replay,
    ReplayOptions,
    ReplayOutcome,
    ReplayReport,
    replayed_call,
)
from gateway.migration.replay.selection import parse_models, parse_selection
from gateway.shadow.records.privacy import Privacy
from gateway.shadow.records.records import FORWARDED, Recordable, RecordedCall
from tests.fakes import FakeStream, ScriptedService
from tests.unit.migration.captures.kit import recorder
from tests.unit.shadow.kit import recordable

SERVER = Origin("oip.http", None)
FULL = Privacy(payload="full", parameters=True)


def reply(value: float) -> InferResponse:
    return InferResponse(
        model=ModelRef("m"), outputs=(array_tensor("y", np.array([value], np.float32)),)
    )


def request(number: int, sequence: CallSequence | None = None) -> InferRequest:
    return InferRequest(
        model=ModelRef("m"),
        context=Context(protocol="oip.http", request_id=f"r{number}"),
        inputs=(array_tensor("x", np.array([number], np.float32)),),
        sequence=sequence,
    )


def calls_of(directory: Path, *sources: Any, privacy: Privacy = FULL) -> list[RecordedCall]:
    """Return recorded calls of requests, or of `Recordable`s."""
    made = recorder(directory, privacy)
    for number, source in enumerate(sources):
        made.samples("m", f"r{number}")
        made.put(_recordable(number, source) if isinstance(source, InferRequest) else source)
    made.close()
    return list(Capture(directory).calls())


def _recordable(number: int, call: InferRequest) -> Recordable:
    items = [(1, reply(number))]
    return recordable(number * 1000, request=call, context=call.context, items=items)


def has_waiting(service: ScriptedService, count: int) -> bool:
    return len(service.waiting) >= count


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110  # a double has no event for it
        await asyncio.sleep(0)


async def replayed(
    service: Any, calls: list[RecordedCall], rules: OutputRules | None = None, **options: Any
) -> ReplayReport:
    return await Replay(service, ReplayOptions(**options), rules or OutputRules()).run(iter(calls))


def echo(call: Call[Any]) -> InferResponse:
    assert isinstance(call, InferRequest)
    return reply(float(as_numpy(call.inputs[0])[0]))


async def test_replies_are_compared_with_the_recorded_ones(tmp_path: Path) -> None:
    """A server with the same replies matches, and another one does not."""
    calls = calls_of(tmp_path, *map(request, range(10)))
    same = await replayed(ScriptedService(always=echo), calls)
    assert (same.sent, same.failed, same.summary.outcomes) == (10, 0, {Outcome.MATCH: 10})
    other = await replayed(ScriptedService(always=lambda _: reply(3.0)), calls)
    assert other.summary.counts("mismatch") == (9, 10)
    loose = OutputRules(outputs={"y": OutputRule(atol=10.0)})
    found = await replayed(ScriptedService(always=lambda _: reply(3.0)), calls, loose)
    assert found.summary.counts("mismatch") == (0, 10)


async def test_a_reference_server_replaces_the_recorded_replies(tmp_path: Path) -> None:
    """With a reference both servers receive each call, and recorded replies are not needed."""
    calls = calls_of(
        tmp_path,
        *map(request, range(3)),
        privacy=Privacy(payload="full", tensors={"y": "none"}, parameters=True),
    )
    alone = await replayed(ScriptedService(always=echo), calls)
    assert (alone.uncompared, alone.summary.compared) == (3, 0)
    reference = ScriptedService(always=lambda _: reply(1.0))
    both = Replay(ScriptedService(always=echo), ReplayOptions(), OutputRules(), reference=reference)
    report = await both.run(iter(calls))
    assert report.summary.counts("mismatch") == (2, 3)
    assert len(reference.calls) == 3


async def test_errors_are_outcomes_and_unreachable_servers_fail(tmp_path: Path) -> None:
    """Errors of the new server are counted; a call that it did not receive is a failure."""
    calls = calls_of(tmp_path, *map(request, range(4)))
    errors = [InvalidRequest("no", origin=SERVER), Unavailable("busy", origin=SERVER)]
    service = ScriptedService(*errors, NotSent("unreachable"), echo)
    report = await replayed(service, calls, concurrency=1)
    assert report.summary.outcomes == {Outcome.NEW_ERROR: 3, Outcome.MATCH: 1}
    assert report.failed == 1


async def test_calls_without_payload_are_omitted(tmp_path: Path) -> None:
    """They are counted with the reason."""
    calls = calls_of(tmp_path, *map(request, range(3)), privacy=Privacy())
    service = ScriptedService()
    report = await replayed(service, calls)
    assert report.left_out == {"payload not recorded": 3}
    assert (report.sent, service.calls) == (0, [])


async def test_a_sequence_keeps_its_order(tmp_path: Path) -> None:
    """The next call of a sequence waits for the one before; other calls do not."""
    first, second = CallSequence(5, start=True), CallSequence(5, end=True)
    calls = calls_of(tmp_path, request(0, first), request(1, second), request(2))
    service = ScriptedService()
    task = asyncio.ensure_future(replayed(service, calls))
    await until(lambda: len(service.waiting) >= 2)
    for _ in range(10):
        await asyncio.sleep(0)
    ids = [call.context.request_id for call in service.calls]
    assert ids == ["r0", "r2"]
    service.waiting[0].set_result(reply(0))
    await until(lambda: len(service.waiting) >= 3)
    for future in service.waiting[1:]:
        future.set_result(reply(1))
    assert (await task).sent == 3


async def test_a_failed_call_skips_the_rest_of_its_sequence(tmp_path: Path) -> None:
    """A failed call loses the state of its sequence."""
    calls = calls_of(tmp_path, *(request(number, CallSequence(5)) for number in range(3)))
    report = await replayed(ScriptedService(NotFound("gone")), calls)
    assert report.sent == 1
    assert report.left_out == {"an earlier call of its sequence failed": 2}


async def test_a_sequence_with_the_id_of_a_failed_one_is_sent(tmp_path: Path) -> None:
    """Only the rest of the failed sequence is skipped, not the next one with its id."""
    parts = [
        CallSequence(5, start=True),
        CallSequence(5),
        CallSequence(5, start=True),
        CallSequence(5, end=True),
    ]
    calls = calls_of(tmp_path, *(request(number, each) for number, each in enumerate(parts)))
    report = await replayed(ScriptedService(NotFound("gone"), reply(2), reply(3)), calls)
    assert report.sent == 3
    assert report.left_out == {"an earlier call of its sequence failed": 1}


async def test_the_same_error_at_the_end_of_a_stream_matches(tmp_path: Path) -> None:
    """A recorded stream item with an error is the result, like that of the server."""
    error = NotFound("gone")
    items = [reply(1), reply(2).changed(outputs=(), error=error)]
    source = recordable(kind="StreamInferRequest", items=list(enumerate(items)))
    calls = calls_of(tmp_path, source)
    service = ScriptedService(lambda _: FakeStream(items))
    report = await replayed(service, calls)
    assert report.summary.outcomes == {Outcome.MATCH: 1}


async def test_a_call_with_an_unreadable_reply_counts_as_sent(tmp_path: Path) -> None:
    """It counts as sent and unreadable, and not as omitted."""
    calls = calls_of(tmp_path, request(0))
    broken = Tensor("y", Datatype.FP32, (1,), SharedMemoryData("region", 0, 4))
    unreadable = reply(0).changed(outputs=(broken,))
    report = await replayed(ScriptedService(unreadable), calls)
    assert (report.sent, report.left_out, report.uncompared) == (1, {}, 0)
    assert (report.summary.compared, report.unreadable.total()) == (0, 1)


async def test_a_recorded_stream_is_sent_as_a_stream(tmp_path: Path) -> None:
    """The items of a stream are compared in order."""
    source = recordable(kind="StreamInferRequest", items=[(1, reply(1)), (2, reply(2))])
    calls = calls_of(tmp_path, source)

    def stream(call: Call[Any]) -> AsyncIterator[InferResponse]:
        assert isinstance(call, StreamInferRequest)
        return FakeStream([reply(1), reply(2)])

    report = await replayed(ScriptedService(stream), calls)
    assert report.summary.outcomes == {Outcome.MATCH: 1}


async def test_speed_and_rate_set_the_pace(tmp_path: Path) -> None:
    """Twice the speed halves the recorded times; a rate ignores them."""
    calls = calls_of(tmp_path, *map(request, range(3)))  # 1 ms apart
    made = Replay(ScriptedService(always=echo), ReplayOptions(speed=2.0), OutputRules())
    assert [made._due(call.call.at_us - calls[0].call.at_us, 0) for call in calls] == [
        0.0,
        0.0005,
        0.001,
    ]
    rated = Replay(ScriptedService(always=echo), ReplayOptions(rate=100.0), OutputRules())
    assert [rated._due(0, number) for number in range(3)] == [0.0, 0.01, 0.02]
    report = await made.run(iter(calls))
    assert report.sent == len(report.lags_s) == 3


async def test_late_replies_do_not_delay_calls(tmp_path: Path) -> None:
    """Replay is open loop: all calls are in flight although none has a reply."""
    calls = calls_of(tmp_path, *map(request, range(100)))
    service = ScriptedService()
    task = asyncio.ensure_future(replayed(service, calls, rate=1e6))
    await until(lambda: len(service.waiting) >= 100)
    for future in service.waiting:
        future.set_result(reply(0))
    assert (await task).sent == 100


async def test_concurrency_and_limit_bound_the_calls(tmp_path: Path) -> None:
    """At most `concurrency` calls are in flight, and at most `limit` are sent."""
    calls = calls_of(tmp_path, *map(request, range(10)))
    service = ScriptedService()
    task = asyncio.ensure_future(replayed(service, calls, concurrency=2, limit=4))
    for sent in (2, 4):
        await until(partial(has_waiting, service, sent))
        assert len(service.calls) == sent
        for future in service.waiting[sent - 2 :]:
            future.set_result(reply(0))
    assert (await task).sent == 4


async def test_stop_ends_the_replay(tmp_path: Path) -> None:
    """The sent calls are reported."""
    calls = calls_of(tmp_path, *map(request, range(10)))
    made = Replay(ScriptedService(always=echo), ReplayOptions(rate=0.001), OutputRules())
    task = asyncio.ensure_future(made.run(iter(calls)))
    await until(lambda: made.report.sent == 1)
    made.stop()
    report = await task
    assert (report.sent, report.stopped) == (1, True)


async def test_a_call_without_a_reply_times_out(tmp_path: Path) -> None:
    """Only the call ends after the timeout; the replay continues."""
    calls = calls_of(tmp_path, request(0))
    report = await replayed(ScriptedService(), calls, timeout_s=-0.99)
    assert report.summary.outcomes == {Outcome.TIMEOUT: 1}


def test_captures_are_compared_by_request_id(tmp_path: Path) -> None:
    """Calls of only one capture are missing, and the order does not matter."""
    calls_of(tmp_path / "a", *map(request, range(3)))
    calls_of(tmp_path / "b", *map(request, (2, 1, 7)))
    skipped: list[str] = []
    summary = compare_captures(
        Capture(tmp_path / "a"), Capture(tmp_path / "b"), OutputRules(), skipped.append
    )
    assert (summary.compared, summary.missing, skipped) == (2, 2, [])
    assert summary.counts("mismatch") == (1, 2)  # the replies of row 2 are 2 and 0


def test_selections_match_patterns(tmp_path: Path) -> None:
    """All terms must hold, and `!=` negates a pattern."""
    (call,) = calls_of(tmp_path, request(0))
    for text, expected in (
        ("model=m and protocol=oip.*", True),
        ("model=m and protocol!=oip.*", False),
        ("code=ok", True),
    ):
        assert parse_selection(text).includes(call) == expected
    for text in ("model", "speed=1"):
        with pytest.raises(ValueError, match=text.split("=")[0]):
            parse_selection(text)


def test_models_can_be_renamed() -> None:
    """The version is optional."""
    assert parse_models(["a=b", "c=d:2"]) == {"a": ModelRef("b"), "c": ModelRef("d", "2")}
    with pytest.raises(ValueError, match="OLD=NEW"):
        parse_models(["a"])


async def test_recorded_errors_are_the_reference(tmp_path: Path) -> None:
    """The same error at the new server is a match."""
    source = recordable(items=[], code=ErrorCode.NOT_FOUND.value)
    calls = calls_of(tmp_path, source)
    report = await replayed(ScriptedService(NotFound("gone", origin=SERVER)), calls)
    assert report.summary.outcomes == {Outcome.MATCH: 1}


def refused(number: int, kind: str = "InferRequest", **fields: Any) -> Recordable:
    """Return a call that the gateway refused, after or while it read it."""
    code = ErrorCode.INVALID_ARGUMENT.value
    call = request(number)
    values = {"request": call, "context": call.context, "items": [], "code": code, "kind": kind}
    return recordable(number * 1000, **values, is_refused=True, **fields)


@pytest.mark.parametrize(
    ("source", "reply_of", "is_failure"),
    [
        (refused(0), echo, False),
        (refused(0), InvalidRequest("no"), False),
        (refused(0), InvalidRequest("no", origin=SERVER), True),
        (refused(0, ""), echo, False),
        (request(0), InvalidRequest("no"), True),
    ],
)
async def test_a_refusal_of_the_gateway_is_no_result_of_a_server(
    tmp_path: Path, source: Any, reply_of: Any, is_failure: bool
) -> None:
    """It has an outcome of its own, whatever the other side does, and passes no comparison."""
    calls = calls_of(tmp_path, source)
    summary = (await replayed(ScriptedService(reply_of), calls)).summary
    assert (summary.outcomes, summary.counts("refused")) == ({Outcome.REFUSED: 1}, (1, 1))
    assert (summary.failed, summary.compared) == (is_failure, 0)
    assert "1 of 1 calls were refused by the gateway" in " ".join(unjudged_calls(summary, []))
    condition = parse_fail_if("refused>0")
    assert (condition.failure(summary), unjudged_calls(summary, [condition])[is_failure:]) == (
        "refused 100.00% > 0.00%",
        [],
    )
    assert parse_fail_unless("refused<1%@95%").failure(summary)


@pytest.mark.parametrize("is_refused", [False, True])
def test_a_new_result_has_a_refusal_of_its_own(tmp_path: Path, is_refused: bool) -> None:
    """The refusal of the recorded call is not that of the replayed one."""
    for record in calls_of(tmp_path, refused(0), request(1)):
        result = Result(error=ErrorCode.INVALID_ARGUMENT, is_refused=is_refused)
        assert replayed_call(record, ReplayOutcome(result, 0.1), "new").is_refused is is_refused


async def test_forwarded_calls_are_not_sent_and_not_missing(tmp_path: Path) -> None:
    """Only their messages are recorded: a replay and a comparison count them."""
    call = request(1)
    forwarded = recordable(1000, request=call, context=call.context, kind=FORWARDED, items=[])
    calls = calls_of(tmp_path / "a", request(0), forwarded)
    service = ScriptedService(always=echo)
    report = await replayed(service, calls)
    assert (report.sent, report.summary.forwarded, len(service.calls)) == (1, 1, 1)
    calls_of(tmp_path / "b", request(0))
    for new in ("a", "b"):
        captures = Capture(tmp_path / "a"), Capture(tmp_path / new)
        found = compare_captures(*captures, OutputRules(), lambda _reason: None)
        assert (found.calls, found.forwarded, found.missing, found.uncompared) == (1, 1, 0, 0)


async def test_a_failed_write_of_results_ends_the_replay(tmp_path: Path) -> None:
    """A full disk is raised, and not lost in a task."""
    calls = calls_of(tmp_path, *map(request, range(200)))

    def full(*_: object) -> None:
        raise OSError("disk full")

    made = Replay(
        ScriptedService(always=echo), ReplayOptions(concurrency=1), OutputRules(), on_done=full
    )
    with pytest.raises(OSError, match="disk full"):
        await made.run(iter(calls))
    assert made.report.sent < 200
