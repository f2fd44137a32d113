"""How threads share the interpreter."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from gateway.app.process import shorten_switch_interval


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    before = sys.getswitchinterval()
    yield
    sys.setswitchinterval(before)


def test_threads_take_turns_quickly() -> None:
    """A model's thread waits half a millisecond for the event loop, not five."""
    shorten_switch_interval()
    assert 0.0005 == pytest.approx(sys.getswitchinterval())
