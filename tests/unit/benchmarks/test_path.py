"""The path of a request through the files of the gateway."""

from __future__ import annotations

import re

import pytest

from benchmarks.path import Calls
from benchmarks.stages import path
from gateway.accelerator import BUILD
from gateway.ir.limits import check_name
from gateway.ir.tensors.datatypes import datatype_of

# A trace of each call makes a request ten times slower.
pytestmark = pytest.mark.timeout(120)

BOUNDS = {"compiled": (36, 62, 8), "plain Python": (43, 78, 8)}
"""The files of a request, the changes from one file to another, and the services that it passes."""

SERVICES = frozenset(
    {
        "policies/observe.py",
        "routing/router.py",
        "policies/limits/policy.py",
        "routing/balancing/endpoints.py",
        "policies/forward_headers.py",
        "policies/complete/policy.py",
        "policies/hand_over/policy.py",
        "upstream.py",
    }
)
"""The modules of the services."""


def test_records_only_calls_of_the_gateway() -> None:
    """Calls of other packages are omitted, and consecutive calls in one file are one visit."""
    with Calls() as calls:
        re.escape("x")
        check_name("model name", "x", 1, "model_name_bytes")
        check_name("model name", "y", 1, "model_name_bytes")
        datatype_of("float32")
    assert ["ir/limits.py", "ir/tensors/datatypes.py"] == calls.files
    assert calls.text("x").startswith("x: 2 files, 1 changes of file, 3 calls\n")


def test_a_small_json_request_passes_few_files() -> None:
    """A JSON request to gRPC passes no more files than ARCHITECTURE.md documents."""
    # A timer that fires during the request, on a machine with other work, adds its own files.
    found = min((path("json-grpc", lambda _text: None) for _ in range(3)), key=len)
    counts = re.match(r"json-grpc: (\d+) files, (\d+) changes of file", found)
    assert counts is not None
    files, changes, services = BOUNDS[BUILD]
    assert int(counts[1]) <= files
    assert int(counts[2]) <= changes
    visits = [line.split()[1] for line in found.splitlines()[1:]]
    layers = ("policies/", "routing/", "upstream.py")
    assert {file for file in visits if file.startswith(layers)} <= SERVICES
    assert len(SERVICES) <= services
    assert visits[0] == "transports/http1/server_connection.py"
    assert {"frontend/frontend.py", "upstream.py"} <= set(visits)
