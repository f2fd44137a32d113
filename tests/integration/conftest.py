"""Fixtures that run a module's tests on both transport implementations."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
import structlog

from gateway.telemetry.log import logs
from tests.integration import fork_server
from tests.integration.grpc_echo import MAKES
from tests.integration.http_kit import HTTP_MAKES

# Server and client. The reference implementations before each other would test libraries alone.
_PAIRS = [("native", "native"), ("native", "reference"), ("reference", "native")]
BY_PAIR = pytest.fixture(params=_PAIRS, ids=lambda pair: f"{pair[0]}-server-{pair[1]}-client")


@pytest.fixture(autouse=True, scope="module")
def forked_processes() -> Iterator[None]:
    """Fork the processes of gateways; a module whose processes start from nothing replaces this."""
    with fork_server.forking():
        yield


@pytest.fixture
def json_logs() -> None:
    """Log as a gateway does.

    Loggers of modules do not cache this configuration, which would hide their lines from the tests
    that follow.
    """
    logs.configure("info", "json", sys.stderr)
    structlog.configure(cache_logger_on_first_use=False)


@pytest.fixture(params=["reference", "native"])
def http_makes(request: pytest.FixtureRequest) -> Iterator[str]:
    """Run the test on each implementation of the HTTP server."""
    HTTP_MAKES.server = request.param
    yield request.param
    HTTP_MAKES.server = "reference"


@pytest.fixture(params=["reference", "native"])
def http_clients(request: pytest.FixtureRequest) -> Iterator[str]:
    """Run the test on each implementation of the HTTP client."""
    HTTP_MAKES.client = request.param
    yield request.param
    HTTP_MAKES.client = "reference"


@pytest.fixture(params=["reference", "native"])
def http_pairs(request: pytest.FixtureRequest) -> Iterator[str]:
    """Run the test on each implementation of the HTTP transports, the same for both sides."""
    HTTP_MAKES.server = HTTP_MAKES.client = request.param
    yield request.param
    HTTP_MAKES.server = HTTP_MAKES.client = "reference"


@BY_PAIR
def http_sides(request: pytest.FixtureRequest) -> Iterator[tuple[str, str]]:
    """Run the test once for each pairing of a server's and a client's implementation."""
    HTTP_MAKES.server, HTTP_MAKES.client = request.param
    yield request.param
    HTTP_MAKES.server = HTTP_MAKES.client = "reference"


@BY_PAIR
def grpc_makes(request: pytest.FixtureRequest) -> Iterator[tuple[str, str]]:
    """Run the test once for each pairing of a server's and a client's implementation."""
    MAKES.server, MAKES.client = request.param
    yield request.param
    MAKES.server = MAKES.client = "reference"
