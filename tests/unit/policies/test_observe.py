"""Observe: one report and one log line for each call, whatever its outcome."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from structlog.testing import capture_logs

from gateway.ir.bodies.streams import close_stream
from gateway.ir.calls import (
    Call,
    InferRequest,
    InferResponse,
    ModelReadyRequest,
    ServerLiveRequest,
    StreamInferRequest,
)
from gateway.ir.context import Context, ModelRef
from gateway.ir.errors import Overloaded, Unavailable
from gateway.policies.observe import Observe
from gateway.telemetry.call_path import CALL_PATH, CallPath, record_target
from gateway.telemetry.log.call_log import CallLog, CallRecord
from tests.fakes import FakeClock, FakeStream, ScriptedService, settle

M = ModelRef("m", "2")
CALL = InferRequest(model=M, context=Context(protocol="oip.http", request_id="r-1"))
REPLY = InferResponse(model=M, outputs=())


def observation(kind: str = "InferRequest", code: str = "ok", **fields: Any) -> CallRecord:
    usual: dict[str, Any] = {
        "kind": kind,
        "model": "m",
        "version": "2",
        "context": CALL.context,
        "path": CallPath(model="m"),
        "code": code,
        "limit": None,
        "seconds": 0.0,
        "ended": 1000.0,
    }
    return CallRecord(**{**usual, **fields})


async def test_call_is_reported_with_route_target_and_time() -> None:
    """The report has the chosen route and target, and the time from call to reply."""
    clock, seen = FakeClock(), list[CallRecord]()

    def respond(_call: Call[Any]) -> InferResponse:
        _record_route("blue")
        record_target("triton")
        clock.advance(0.25)
        return REPLY

    with capture_logs() as logs:
        observe = Observe(ScriptedService(respond), seen.append, calls=CallLog(), clock=clock)
        assert REPLY == await observe(CALL)
    assert [
        observation(path=CallPath("blue", "triton", model="m"), seconds=0.25, ended=1000.25)
    ] == seen
    assert [
        {
            "event": "call",
            "log_level": "info",
            "kind": "InferRequest",
            "model": "m",
            "version": "2",
            "protocol": "oip.http",
            "route": "blue",
            "target": "triton",
            "code": "ok",
            "ms": 250.0,
            "request_id": "r-1",
        }
    ] == logs
    assert CALL_PATH.get() is None


@pytest.mark.parametrize(
    ("error", "code", "limit"),
    [
        (Unavailable("refused"), "unavailable", None),
        (Overloaded("full", limit="queue"), "overloaded", "queue"),
        (RuntimeError("secret of a bug"), "internal", None),
        (asyncio.CancelledError(), "cancelled", None),
    ],
)
async def test_failure_is_reported_and_raised(
    error: BaseException, code: str, limit: str | None
) -> None:
    """Every failure is reported with its code and limit, and raised unchanged."""
    seen: list[CallRecord] = []
    observe = Observe(ScriptedService(error), seen.append, calls=CallLog(), clock=FakeClock())
    with capture_logs() as logs, pytest.raises(type(error)) as caught:
        await observe(CALL)
    assert caught.value is error
    assert [observation(code=code, limit=limit)] == seen
    assert (code, "warning") == (logs[0]["code"], logs[0]["log_level"])
    assert limit == logs[0].get("limit")
    assert "secret" not in str(logs)


async def test_stream_is_reported_at_its_end() -> None:
    """The time of a stream ends when it is closed."""
    clock, seen = FakeClock(), list[CallRecord]()
    observe = Observe(ScriptedService(FakeStream([REPLY])), seen.append, clock=clock)
    call = StreamInferRequest(model=M, request=CALL, context=CALL.context)
    items = await observe(call)
    clock.advance(1)
    assert ([REPLY], []) == ([await anext(items)], seen)
    clock.advance(1)
    await close_stream(items)
    assert [observation("StreamInferRequest", seconds=2.0, ended=1002.0)] == seen


async def test_successful_probes_are_counted_and_not_logged() -> None:
    """A failed health call writes a line."""
    seen: list[CallRecord] = []
    service = ScriptedService(True, Unavailable("x"))
    observe = Observe(service, seen.append, calls=CallLog(), clock=FakeClock())
    with capture_logs() as logs:
        await observe(ServerLiveRequest())
        with pytest.raises(Unavailable):
            await observe(ModelReadyRequest(model=M))
    assert [("", "ok"), ("m", "unavailable")] == [(o.model, o.code) for o in seen]
    assert ["unavailable"] == [entry["code"] for entry in logs]


async def test_log_can_be_disabled() -> None:
    """If no lines are allowed, calls are still reported."""
    seen: list[CallRecord] = []
    with capture_logs() as logs:
        await Observe(ScriptedService(REPLY), seen.append, calls=CallLog(0))(CALL)
    assert (1, []) == (len(seen), logs)


async def test_lines_are_sampled_under_load() -> None:
    """Lines beyond the limit per second are skipped, and the next line counts them."""
    clock = FakeClock()
    service = ScriptedService(always=REPLY)
    observe = Observe(service, lambda _seen: None, calls=CallLog(2), clock=clock)
    with capture_logs() as logs:
        for _ in range(5):
            await observe(CALL)
        clock.advance(1)
        await observe(CALL)
    assert [None, None, 3] == [entry.get("skipped") for entry in logs]
    assert "calls_per_second" == logs[2]["skipped_by"]


async def test_concurrent_calls_have_separate_call_paths() -> None:
    """Two calls in progress do not write into one another's call path."""
    seen: list[CallRecord] = []

    async def route(call: Call[Any]) -> InferResponse:
        name = call.context.request_id
        _record_route(name)
        await asyncio.sleep(0)
        record_target(name)
        return REPLY

    observe = Observe(ScriptedService(always=route), seen.append)
    await asyncio.gather(
        observe(CALL.with_context(request_id="a")), observe(CALL.with_context(request_id="b"))
    )
    await settle()
    assert [("a", "a"), ("b", "b")] == [(o.path.route, o.path.target) for o in seen]


def _record_route(name: str) -> None:
    path = CALL_PATH.get()
    assert path is not None
    path.route = name
