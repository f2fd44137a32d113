"""The event loop with in-memory connections."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from benchmarks.wires import MemoryLoop


@pytest.fixture
def loop() -> Iterator[MemoryLoop]:
    """Yield a loop that does not run."""
    found = MemoryLoop()
    yield found
    found.close()


@pytest.mark.parametrize(("factor", "expected"), [(1, 100), (10_000, 1_000_000)])
def test_timers_are_extended_by_the_factor(loop: MemoryLoop, factor: int, expected: float) -> None:
    """Under valgrind, timers do not fire more often on a slow machine."""
    loop.timer_factor = factor
    for handle in (
        loop.call_later(100, print),
        loop.call_at(loop.time() + 100, print),
    ):
        assert handle.when() - loop.time() == pytest.approx(expected, rel=0.2)
        handle.cancel()
