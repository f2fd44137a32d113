"""The note of the way a call took."""

from __future__ import annotations

from gateway.telemetry.call_path import CALL_PATH, CallPath, record_route, record_target


def test_notes_reach_who_asked_for_them() -> None:
    """Route and target are written into the note of the call in progress."""
    token = CALL_PATH.set(CallPath())
    try:
        record_route("blue")
        record_target("triton")
        assert CallPath("blue", "triton") == CALL_PATH.get()
    finally:
        CALL_PATH.reset(token)


def test_notes_are_dropped_when_nobody_asked() -> None:
    """Without an observer there is no note, and noting is harmless."""
    record_route("blue")
    record_target("triton")
    assert CALL_PATH.get() is None
