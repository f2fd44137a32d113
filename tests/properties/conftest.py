"""For properties: one event loop for all examples, and a time limit by their number."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest
from hypothesis import settings

Run = Callable[[Coroutine[Any, Any, Any]], Any]

# A test of 50 examples has pytest's usual 60 s.
_EXAMPLES, _TIMEOUT_S = 50, 60


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give properties a time that grows with the number of examples."""
    most = settings.default.max_examples if settings.default else _EXAMPLES
    for item in items:
        if getattr(getattr(item, "obj", None), "is_hypothesis_test", False):
            item.add_marker(pytest.mark.timeout(max(1, most // _EXAMPLES) * _TIMEOUT_S))


@pytest.fixture(scope="session")
def run() -> Iterator[Run]:
    """Run a coroutine to its end; making a loop for each example costs more than the example."""
    with asyncio.Runner() as runner:
        yield runner.run
