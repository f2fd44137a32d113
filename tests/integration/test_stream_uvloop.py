"""The byte stream tests once more on uvloop, which production runs on."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import uvloop

from tests.integration import (
    test_stream_beside,
    test_stream_client,
    test_stream_server,
    test_stream_tls,
)

Scenario = Callable[..., Coroutine[Any, Any, None]]
SCENARIOS: list[tuple[Scenario, str]] = [
    (function, carrier)
    for module in (test_stream_server, test_stream_client, test_stream_tls, test_stream_beside)
    for name, function in vars(module).items()
    if name.startswith("test_")
    and not name.endswith("_are_freed_at_once")  # objects of ours: no matter of the loop
    and set(inspect.signature(function).parameters) <= {"address", "tmp_path"}
    for carrier in (
        ("tcp", "unix") if "address" in inspect.signature(function).parameters else ("",)
    )
]


@pytest.mark.parametrize(
    ("scenario", "carrier"), SCENARIOS, ids=[f"{case[0].__name__}-{case[1]}" for case in SCENARIOS]
)
def test_on_uvloop(scenario: Scenario, carrier: str, tmp_path: Path) -> None:
    """Each scenario also passes on uvloop."""
    arguments = {
        "tmp_path": tmp_path,
        "address": f"unix:{tmp_path}/s" if carrier == "unix" else "127.0.0.1:0",
    }
    parameters = inspect.signature(scenario).parameters
    uvloop.run(scenario(**{name: value for name, value in arguments.items() if name in parameters}))
