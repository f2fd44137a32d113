"""Whose status it is: the table of words the C core uses."""

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
    (Ending(StatusCode.UNAVAILABLE, REFUSED, connected=False, late=False), ConnectFailure),
    # The upstream is a proxy whose own upstream is away: it was asked.
    (Ending(StatusCode.UNAVAILABLE, REFUSED, connected=True, late=False), None),
    (
        Ending(
            StatusCode.UNAVAILABLE, "errors resolving no.such:1: []", connected=False, late=False
        ),
        ConnectFailure,
    ),
    (
        Ending(StatusCode.UNAVAILABLE, "DNS resolution failed for x", connected=False, late=False),
        ConnectFailure,
    ),
    (Ending(StatusCode.UNAVAILABLE, "Socket closed", connected=False, late=False), Unavailable),
    (
        Ending(StatusCode.UNAVAILABLE, "Stream removed (GOAWAY)", connected=True, late=False),
        Unavailable,
    ),
    (Ending(StatusCode.UNAVAILABLE, "model not ready", connected=True, late=False), None),
    (Ending(StatusCode.DEADLINE_EXCEEDED, "", connected=True, late=True), DeadlineExceeded),
    (Ending(StatusCode.DEADLINE_EXCEEDED, "too slow", connected=True, late=False), None),
    (
        Ending(
            StatusCode.RESOURCE_EXHAUSTED,
            "Stream removed (CLIENT: Received message larger than max (2 vs. 1))",
            connected=True,
            late=False,
        ),
        TooLarge,
    ),
    (
        Ending(
            StatusCode.RESOURCE_EXHAUSTED,
            "SERVER: Received message larger than max (2 vs. 1)",
            connected=True,
            late=False,
        ),
        None,
    ),
    (
        Ending(
            StatusCode.RESOURCE_EXHAUSTED,
            "Stream removed (received metadata size exceeds hard limit)",
            connected=True,
            late=False,
        ),
        UpstreamProtocolError,
    ),
    (Ending(StatusCode.RESOURCE_EXHAUSTED, "queue full", connected=True, late=False), None),
    (
        Ending(StatusCode.INTERNAL, "Stream removed (bad frame)", connected=False, late=False),
        UpstreamProtocolError,
    ),
    (Ending(StatusCode.INTERNAL, "CUDA error", connected=True, late=False), None),
    (Ending(StatusCode.CANCELLED, "", connected=True, late=False), None),
]


@pytest.mark.parametrize(("ending", "kind"), CASES)
def test_ending(ending: Ending, kind: type[GatewayError] | None) -> None:
    """An ending is the server's answer unless its words and the connection say otherwise."""
    failure = local_failure("host:1", ending)
    assert kind is (None if failure is None else type(failure))
    assert failure is None or "host:1" in failure.message


def test_long_details_are_cut() -> None:
    """What the other side wrote does not flood the error."""
    ending = Ending(StatusCode.UNAVAILABLE, "x" * 100_000, connected=False, late=False)
    failure = local_failure("host:1", ending)
    assert failure is not None
    assert len(failure.message) < 300
