"""Lines about calls: their fields, and how many are missing."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
from structlog.testing import capture_logs

from gateway.ir.calls import InferRequest, InferResponse, ModelMetadataRequest
from gateway.ir.context import Client, Context, ModelRef, Origin
from gateway.ir.errors import Overloaded
from gateway.ir.tensors.tensor import array_tensor
from gateway.telemetry.call_path import CallPath
from gateway.telemetry.log.access_log import AccessLog, check_format
from gateway.telemetry.log.call_log import PASSTHROUGH, CallLog, CallRecord, WarningBudget
from gateway.telemetry.upstream_metrics import EndpointAttempts
from gateway.wire.http import HttpRequest
from tests.fakes import FakeClock

WIRE = HttpRequest("POST", "/v2/models/m/infer", body=(b"12345",))
CONTEXT = Context(
    "oip.http", request_id="r-1", origin=Origin("oip.http", WIRE), client=Client("10.0.0.1", "a/1")
)


def record(code: str = "ok", **path: Any) -> CallRecord:
    return CallRecord(
        "InferRequest",
        "m",
        "",
        CONTEXT,
        CallPath(**path),
        code,
        None,
        0.0125,
        1000.0,
    )


async def test_line_contains_only_known_fields() -> None:
    """Code and model come first, and empty fields are left out."""
    found = record(
        route="r",
        target="t",
        endpoint="h:1",
        attempts=2,
        upstream_s=0.01,
        queued_s=0.001,
        batched_s=0.0005,
    )
    tensor = array_tensor("x", np.zeros(4, np.float32))
    with capture_logs() as logs:
        CallLog().call(found, None, InferResponse(model=ModelRef("m"), outputs=(tensor,)))
    (line,) = logs
    assert ["code", "model", "ms"] == list(line)[:3]
    assert {
        "event": "call",
        "log_level": "info",
        "code": "ok",
        "model": "m",
        "ms": 12.5,
        "kind": "InferRequest",
        "protocol": "oip.http",
        "route": "r",
        "target": "t",
        "endpoint": "h:1",
        "attempts": 2,
        "upstream_ms": 10.0,
        "queue_ms": 1.5,
        "request_bytes": 5,
        "response_bytes": 16,
        "request_id": "r-1",
        "client": "10.0.0.1",
        "agent": "a/1",
    } == line


async def test_missing_lines_are_reported_without_a_later_line() -> None:
    """Closing the log writes the summary; failures have lines of their own."""
    log = CallLog(1, clock=FakeClock())
    with capture_logs() as logs:
        for _ in range(3):
            log.call(record(), None)
        log.call(record("overloaded"), Overloaded("busy"))
        log.rejected("main", "oip.http", Overloaded("busy"))
        log.close()
    assert [
        ("call", "info"),
        ("call", "warning"),
        ("lines about calls are missing", "warning"),
    ] == [(line["event"], line["log_level"]) for line in logs]
    assert (3, "calls_per_second") == (logs[-1]["skipped"], logs[-1]["skipped_by"])


async def test_lines_only_in_the_access_log_are_reported_missing(tmp_path: Path) -> None:
    """An access log does not hide that the log lacks the same lines."""
    log = CallLog(1, AccessLog(tmp_path / "access.log", "json"), clock=FakeClock())
    with capture_logs() as logs:
        for _ in range(3):
            log.call(record(), None)
        for _ in range(2):
            log.rejected("main", "oip.http", Overloaded("busy"))
        log.close()
    assert ["call", "rejected", "lines about calls are missing"] == [each["event"] for each in logs]
    assert 3 == logs[-1]["skipped"]


async def test_format_may_contain_the_path_of_a_forwarded_request(tmp_path: Path) -> None:
    """The line of a forwarded request has no model."""
    access = AccessLog(tmp_path / "access.log", check_format("{kind} {path}"))
    found = CallRecord(PASSTHROUGH, "", "", CONTEXT, CallPath(), "ok", None, 0.01, 1000.0)
    CallLog(0, access).call(found, None)
    assert access.flush(20.0)
    access.close()
    assert f"{PASSTHROUGH} {WIRE.path}\n" == (tmp_path / "access.log").read_text()


async def test_new_settings_keep_the_count_of_missing_lines() -> None:
    """A reload may change the number of lines in a second."""
    log = CallLog(1, clock=FakeClock())
    with capture_logs() as logs:
        for _ in range(3):
            log.call(record(), None)
        log.configure(2, None)
        log.close()
    assert ["call", "lines about calls are missing"] == [each["event"] for each in logs]
    assert 2 == logs[-1]["skipped"]


async def test_timer_writes_the_summary() -> None:
    """Missing lines are reported within a second, without closing the log."""
    log = CallLog(1)
    loop = asyncio.get_running_loop()
    later: list[object] = []
    with capture_logs() as logs:
        for _ in range(2):
            log.call(record(), None)
        summary = log._summary  # the timer itself would take a second
        assert summary is not None
        assert summary.when() - loop.time() <= 1.0
        later.append(summary._callback())  # type: ignore[attr-defined]
    assert 1 == logs[-1]["skipped"]
    log.close()


def test_number_of_warnings_per_second_is_limited() -> None:
    """Warnings beyond the budget are dropped, and the next one counts them."""
    budget = WarningBudget(2)
    assert [0, 0, None, None] == [budget.admit(now) for now in (100.0, 100.2, 100.4, 100.9)]
    assert 2 == budget.admit(101.5)


async def test_questions_of_an_inference_are_no_attempts() -> None:
    """The metadata of a model may be needed before its inference, which was sent once."""
    path = CallPath()
    endpoint = EndpointAttempts("h:1")
    for kind in (ModelMetadataRequest, ModelMetadataRequest, InferRequest):
        endpoint.record(kind, path, 0.001, "ok")
    assert 1 == path.attempts_of("InferRequest")
    assert 2 == path.attempts_of("ModelMetadataRequest")
    inference = record(attempts=1, questions=2)
    with capture_logs() as logs:
        CallLog().call(inference, None, None)
    assert 1 == logs[0]["attempts"]
