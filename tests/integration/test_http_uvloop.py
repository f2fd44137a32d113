"""The HTTP tests once more on uvloop, which production runs on."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop

from tests.integration import test_http_client, test_http_limits, test_http_server

Scenario = Callable[[], Coroutine[Any, Any, None]]
SCENARIOS: list[Scenario] = [
    function
    for module in (test_http_server, test_http_limits, test_http_client)
    for name, function in vars(module).items()
    if name.startswith("test_") and not inspect.signature(function).parameters
]


def needs(scenario: Scenario) -> list[pytest.Mark]:
    """Return what a scenario needs of the implementation."""
    return [mark for mark in getattr(scenario, "pytestmark", ()) if mark.name == "needs"]


@pytest.mark.usefixtures("http_pairs")
@pytest.mark.parametrize(
    "scenario",
    [pytest.param(each, marks=needs(each), id=each.__name__) for each in SCENARIOS],
)
def test_on_uvloop(scenario: Scenario) -> None:
    """Each scenario also passes on uvloop."""
    uvloop.run(scenario())
