"""The tests of HTTP, gRPC and byte streams once more on uvloop, which production runs on."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from inspect import getsource, signature
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import uvloop

from tests.integration import (
    test_grpc_endings,
    test_grpc_lifecycle,
    test_grpc_limits,
    test_http_client,
    test_http_limits,
    test_http_server,
    test_stream_beside,
    test_stream_client,
    test_stream_server,
    test_stream_tls,
)
from tests.integration.grpc_echo import MAKES

Scenario = Callable[..., Coroutine[Any, Any, None]]
# grpcio's own asyncio client cannot change loops within one process.
FOREIGN = "aio."


def scenarios(*modules: ModuleType, arguments: frozenset[str] = frozenset()) -> list[Any]:
    """Return the tests of modules that have no other arguments, with what they need of a transport."""
    return [
        pytest.param(
            function,
            marks=[mark for mark in getattr(function, "pytestmark", ()) if mark.name == "needs"],
            id=name,
        )
        for module in modules
        for name, function in vars(module).items()
        if name.startswith("test_")
        and not name.endswith("_are_freed_at_once")  # objects of ours: no matter of the loop
        and set(signature(function).parameters) <= arguments
        and FOREIGN not in getsource(function)
    ]


@pytest.mark.usefixtures("http_pairs")
@pytest.mark.parametrize(
    "scenario", scenarios(test_http_server, test_http_limits, test_http_client)
)
def test_http_on_uvloop(scenario: Scenario) -> None:
    """Each scenario also passes on uvloop."""
    uvloop.run(scenario())


@pytest.mark.parametrize(
    "scenario", scenarios(test_grpc_endings, test_grpc_limits, test_grpc_lifecycle)
)
def test_grpc_on_uvloop(scenario: Scenario, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each scenario of the native implementation also passes on uvloop."""
    monkeypatch.setattr(MAKES, "server", "native")
    monkeypatch.setattr(MAKES, "client", "native")
    uvloop.run(scenario())


STREAM_MODULES = (test_stream_server, test_stream_client, test_stream_tls, test_stream_beside)
STREAMS = scenarios(*STREAM_MODULES, arguments=frozenset({"address", "tmp_path"}))


@pytest.mark.parametrize(
    ("scenario", "carrier"),
    [
        pytest.param(*each.values, carrier, marks=each.marks, id=f"{each.id}-{carrier}")
        for each in STREAMS
        for carrier in ("tcp", "unix")[: 1 + ("address" in signature(each.values[0]).parameters)]
    ],
)
def test_streams_on_uvloop(scenario: Scenario, carrier: str, tmp_path: Path) -> None:
    """Each scenario also passes on uvloop, over each kind of socket that it takes."""
    address = f"unix:{tmp_path}/s" if carrier == "unix" else "127.0.0.1:0"
    arguments = {"tmp_path": tmp_path, "address": address}
    uvloop.run(scenario(**{name: arguments[name] for name in signature(scenario).parameters}))
