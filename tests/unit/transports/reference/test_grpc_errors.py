"""The origin of a status, from the texts that the C core uses."""

from __future__ import annotations

import pytest
from grpc import StatusCode

from gateway.ir.errors import (
    ConnectFailure,
    DeadlineExceeded,
    GatewayError,
    TooLarge,
    Unavailable,
)
from gateway.transports.reference.grpc_client import local_failure

REFUSED = "failed to connect to all addresses; last error: UNKNOWN: Connection refused"

CASES: list[tuple[StatusCode, str, bool, bool, type[GatewayError] | None]] = [
    (StatusCode.UNAVAILABLE, REFUSED, False, False, ConnectFailure),
    # The upstream is a proxy whose own upstream is away: it was asked.
    (StatusCode.UNAVAILABLE, REFUSED, True, False, None),
    (StatusCode.UNAVAILABLE, "errors resolving no.such:1: []", False, False, ConnectFailure),
    (StatusCode.UNAVAILABLE, "DNS resolution failed for x", False, False, ConnectFailure),
    (StatusCode.UNAVAILABLE, "Socket closed", False, False, Unavailable),
    (StatusCode.UNAVAILABLE, "Stream removed (GOAWAY)", True, False, Unavailable),
    (StatusCode.UNAVAILABLE, "model not ready", True, False, None),
    (StatusCode.DEADLINE_EXCEEDED, "", True, True, DeadlineExceeded),
    (StatusCode.DEADLINE_EXCEEDED, "too slow", True, False, None),
    (
        StatusCode.RESOURCE_EXHAUSTED,
        "Stream removed (CLIENT: Received message larger than max (2 vs. 1))",
        True,
        False,
        TooLarge,
    ),
    (
        StatusCode.RESOURCE_EXHAUSTED,
        "SERVER: Received message larger than max (2 vs. 1)",
        True,
        False,
        None,
    ),
    (StatusCode.RESOURCE_EXHAUSTED, "queue full", True, False, None),
    (StatusCode.INTERNAL, "CUDA error", True, False, None),
    (StatusCode.CANCELLED, "", True, False, None),
]


@pytest.mark.parametrize(("code", "details", "connected", "late", "kind"), CASES)
def test_a_status_is_classified_as_local_or_the_servers(
    code: StatusCode, details: str, connected: bool, late: bool, kind: type[GatewayError] | None
) -> None:
    """It is the server's unless its details and the connection show a local failure."""
    failure = local_failure("host:1", code, details, connected=connected, late=late)
    assert kind is (None if failure is None else type(failure))
    assert failure is None or "host:1" in failure.message


def test_long_details_are_truncated() -> None:
    """Long details of a peer do not flood the error text."""
    details = "x" * 100_000
    failure = local_failure("host:1", StatusCode.UNAVAILABLE, details, connected=False, late=False)
    assert failure is not None
    assert len(failure.message) < 300
