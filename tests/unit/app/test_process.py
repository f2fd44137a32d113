"""How threads share the interpreter."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest

from gateway.app.process import memory_bound, shorten_switch_interval
from gateway.app.worker_slot import WorkerSlot


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    before = sys.getswitchinterval()
    yield
    sys.setswitchinterval(before)


def test_threads_take_turns_quickly() -> None:
    """A model's thread waits half a millisecond for the event loop, not five."""
    shorten_switch_interval()
    assert 0.0005 == pytest.approx(sys.getswitchinterval())


def test_a_bound_of_memory_is_a_size_or_a_share() -> None:
    """Workers divide a percentage of the limit among themselves; a size is that of each."""
    one, two = WorkerSlot(1, 1), WorkerSlot(1, 2)
    assert 1 << 30 == memory_bound("1GiB", two)
    whole, half = memory_bound("50%", one), memory_bound("50%", two)
    assert 0 < whole <= os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    assert whole // 2 <= half <= whole // 2 + 1
