"""The tests of the native implementation once more on uvloop, which production runs on."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop

from tests.integration import test_grpc_endings, test_grpc_lifecycle, test_grpc_limits
from tests.integration.grpc_echo import MAKES

Scenario = Callable[[], Coroutine[Any, Any, None]]
# grpcio's own asyncio client cannot change loops within one process.
FOREIGN = "aio."
SCENARIOS: list[Scenario] = [
    function
    for module in (test_grpc_endings, test_grpc_limits, test_grpc_lifecycle)
    for name, function in vars(module).items()
    if name.startswith("test_")
    and not inspect.signature(function).parameters
    and FOREIGN not in inspect.getsource(function)
]


@pytest.fixture(autouse=True)
def native(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run them on the native implementation alone."""
    monkeypatch.setattr(MAKES, "server", "native")
    monkeypatch.setattr(MAKES, "client", "native")


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_on_uvloop(scenario: Scenario) -> None:
    """Each scenario also passes on uvloop."""
    uvloop.run(scenario())
