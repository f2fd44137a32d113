"""When a server wants a refused call again, in headers of HTTP and metadata of gRPC."""

from __future__ import annotations

import math

import pytest

from gateway.wire.grpc import GrpcResponse, GrpcStatus
from gateway.wire.http import Headers, HttpResponse
from gateway.wire.retry_after import retry_after_s

AT = ("Date", "Wed, 21 Oct 2015 07:27:30 GMT")


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ([], None),
        ([("Retry-After", "0")], 0.0),
        ([("retry-after", " 7 ")], 7.0),
        ([("Retry-After", "-7")], None),
        ([("Retry-After", "\u0661")], None),
        ([("Retry-After", "soon")], None),
        ([AT, ("Retry-After", "Wed, 21 Oct 2015 07:28:00 GMT")], 30.0),
        ([AT, ("Retry-After", "Wed, 21 Oct 2015 07:27:00 GMT")], 0.0),
        ([("Retry-After", "Wed, 21 Oct 2015 07:28:00 GMT")], None),
        ([("Date", "x"), ("Retry-After", "Wed, 21 Oct 2015 07:28:00 GMT")], None),
    ],
)
def test_reads_retry_after(headers: list[tuple[str, str]], seconds: float | None) -> None:
    """It has seconds, or a date on the clock of the server."""
    assert seconds == retry_after_s(HttpResponse(429, Headers(headers)))


@pytest.mark.parametrize(
    ("value", "seconds"),
    [("250", 0.25), ("0", 0.0), ("-1", math.inf), ("later", math.inf), (b"\x01", math.inf)],
)
def test_reads_pushback(value: str | bytes, seconds: float) -> None:
    """A negative number, or no number, forbids a retry."""
    metadata = (("x", "1"), ("grpc-retry-pushback-ms", value))
    refused = GrpcResponse(status=GrpcStatus.RESOURCE_EXHAUSTED, metadata=metadata)
    assert seconds == retry_after_s(refused)


def test_other_responses_have_no_pause() -> None:
    """So does a status of gRPC without pushback."""
    assert retry_after_s(GrpcResponse(status=GrpcStatus.RESOURCE_EXHAUSTED)) is None
    assert retry_after_s(None) is None
