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
    UpstreamProtocolError,
)
from gateway.transports.reference.grpc_errors import Ending, local_failure

REFUSED = "failed to connect to all addresses; last error: UNKNOWN: Connection refused"

CASES: list[tuple[Ending, type[GatewayError] | None]] = [
    (Ending(StatusCode.UNAVAILABLE, REFUSED, is_connected=False, is_late=False), ConnectFailure),
    # The upstream is a proxy whose own upstream is away: it was asked.
    (Ending(StatusCode.UNAVAILABLE, REFUSED, is_connected=True, is_late=False), None),
    (
        Ending(
            StatusCode.UNAVAILABLE,
            "errors resolving no.such:1: []",
            is_connected=False,
            is_late=False,
        ),
        ConnectFailure,
    ),
    (
        Ending(
            StatusCode.UNAVAILABLE, "DNS resolution failed for x", is_connected=False, is_late=False
        ),
        ConnectFailure,
    ),
    (
        Ending(StatusCode.UNAVAILABLE, "Socket closed", is_connected=False, is_late=False),
        Unavailable,
    ),
    (
        Ending(StatusCode.UNAVAILABLE, "Stream removed (GOAWAY)", is_connected=True, is_late=False),
        Unavailable,
    ),
    (Ending(StatusCode.UNAVAILABLE, "model not ready", is_connected=True, is_late=False), None),
    (Ending(StatusCode.DEADLINE_EXCEEDED, "", is_connected=True, is_late=True), DeadlineExceeded),
    (Ending(StatusCode.DEADLINE_EXCEEDED, "too slow", is_connected=True, is_late=False), None),
    (
        Ending(
            StatusCode.RESOURCE_EXHAUSTED,
            "Stream removed (CLIENT: Received message larger than max (2 vs. 1))",
            is_connected=True,
            is_late=False,
        ),
        TooLarge,
    ),
    (
        Ending(
            StatusCode.RESOURCE_EXHAUSTED,
            "SERVER: Received message larger than max (2 vs. 1)",
            is_connected=True,
            is_late=False,
        ),
        None,
    ),
    (
        Ending(
            StatusCode.RESOURCE_EXHAUSTED,
            "Stream removed (received metadata size exceeds hard limit)",
            is_connected=True,
            is_late=False,
        ),
        UpstreamProtocolError,
    ),
    (Ending(StatusCode.RESOURCE_EXHAUSTED, "queue full", is_connected=True, is_late=False), None),
    (
        Ending(
            StatusCode.INTERNAL, "Stream removed (bad frame)", is_connected=False, is_late=False
        ),
        UpstreamProtocolError,
    ),
    (Ending(StatusCode.INTERNAL, "CUDA error", is_connected=True, is_late=False), None),
    (Ending(StatusCode.CANCELLED, "", is_connected=True, is_late=False), None),
]


@pytest.mark.parametrize(("ending", "kind"), CASES)
def test_a_status_is_classified_as_local_or_the_servers(
    ending: Ending, kind: type[GatewayError] | None
) -> None:
    """It is the server's unless its details and the connection show a local failure."""
    failure = local_failure("host:1", ending)
    assert kind is (None if failure is None else type(failure))
    assert failure is None or "host:1" in failure.message


def test_long_details_are_truncated() -> None:
    """Long details of a peer do not flood the error text."""
    ending = Ending(StatusCode.UNAVAILABLE, "x" * 100_000, is_connected=False, is_late=False)
    failure = local_failure("host:1", ending)
    assert failure is not None
    assert len(failure.message) < 300
