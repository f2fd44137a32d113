"""The record of a call's path."""

from __future__ import annotations

from gateway.telemetry.call_path import CALL_PATH, CallPath, current_route, record_target


def test_the_target_is_recorded_for_the_current_call() -> None:
    """The target is written into the record of the call in progress."""
    token = CALL_PATH.set(CallPath("blue"))
    try:
        record_target("triton")
        assert CallPath("blue", "triton") == CALL_PATH.get()
        assert "blue" == current_route()
    finally:
        CALL_PATH.reset(token)


def test_without_a_record_nothing_is_recorded() -> None:
    """Without a record, recording does nothing."""
    record_target("triton")
    assert CALL_PATH.get() is None
    assert "" == current_route()
