"""The note of the way a call took."""

from __future__ import annotations

from gateway.telemetry.call_path import TAKEN, Taken, note_route, note_target


def test_notes_reach_who_asked_for_them() -> None:
    """Route and target are written into the note of the call in progress."""
    token = TAKEN.set(Taken())
    try:
        note_route("blue")
        note_target("triton")
        assert Taken("blue", "triton") == TAKEN.get()
    finally:
        TAKEN.reset(token)


def test_notes_are_dropped_when_nobody_asked() -> None:
    """Without an observer there is no note, and noting is harmless."""
    note_route("blue")
    note_target("triton")
    assert TAKEN.get() is None
