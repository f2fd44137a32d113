from __future__ import annotations

import math

import pytest

from gateway.ir.context import Context, Need
from gateway.wire.grpc import GrpcRequest, GrpcResponse, GrpcStatus
from gateway.wire.heads.metadata import (
    grpc_context,
    grpc_metadata,
    http_context,
    http_headers,
    retry_after_s,
)
from gateway.wire.heads.request_id import valid_request_id
from gateway.wire.http import Headers, HttpRequest, HttpResponse

NEEDS = frozenset({Need.NAMES})


def test_headers_become_a_context() -> None:
    """Names are in lower case; the id, deadline and wire form are kept."""
    wire = HttpRequest("GET", "/", headers=Headers([("X-Request-Id", "r"), ("A", "b")]), deadline=3)
    context = http_context(wire, "c", NEEDS, "form")
    assert (("x-request-id", "r"), ("a", "b")) == context.metadata
    assert ("c", "r", 3, NEEDS) == (
        context.protocol,
        context.request_id,
        context.deadline,
        context.needs,
    )
    assert context.origin is not None
    assert ("c", wire, "form") == (context.origin.codec, context.origin.wire, context.origin.form)


def test_metadata_becomes_a_context() -> None:
    """It is text: bytes are base64."""
    wire = GrpcRequest("/s/m", metadata=(("a", "b"), ("c-bin", b"\x00"), ("x-request-id", "r")))
    context = grpc_context(wire, "c", NEEDS)
    assert (("a", "b"), ("c-bin", "AA=="), ("x-request-id", "r")) == context.metadata
    assert "r" == context.request_id


def test_base64_becomes_binary_metadata() -> None:
    """Commas separate values, the padding may be missing, and what is not base64 is left out."""
    pairs = (("a-bin", "AA==, AAE"), ("b-bin", "A"), ("c-bin", "\u00e9"), ("grpc-d-bin", "AA=="))
    expected = (("a-bin", b"\0"), ("a-bin", b"\0\1"))
    assert expected == grpc_metadata(Context(metadata=pairs))
    assert pairs[:1] == http_headers(Context(metadata=pairs[:1]))


@pytest.mark.parametrize("bad", ["a\nb", "é", "x" * 129])
def test_request_id_unsafe_for_logs_is_dropped(bad: str) -> None:
    """The gateway generates another id."""
    assert "" == valid_request_id(bad)
    wire = HttpRequest("GET", "/", headers=Headers([("x-request-id", bad)]))
    assert "" == http_context(wire, "c", NEEDS).request_id
    assert (
        ""
        == grpc_context(GrpcRequest("/", metadata=(("x-request-id", bad),)), "c", NEEDS).request_id
    )


METADATA = (
    ("x-tag", "v"),
    ("host", "h"),
    ("grpc-timeout", "1S"),
    ("bad name", "v"),
    ("ctl", "a\r\nb"),
    ("nv-status", "s"),
)


def test_headers_of_a_call_are_forwarded() -> None:
    """Headers of one message and invalid names are dropped, odd values are percent-encoded."""
    context = Context(metadata=METADATA, request_id="r")
    tag, control, status = ("x-tag", "v"), ("ctl", "a%0D%0Ab"), ("nv-status", "s")
    assert (tag, control, status, ("x-request-id", "r")) == http_headers(context)
    assert (tag, control, ("x-request-id", "r")) == http_headers(context, without="nv-")
    assert (("x-request-id", "r"),) == http_headers(
        Context(metadata=(("x-request-id", "r"),), request_id="r")
    )
    assert () == http_headers(Context())


def test_metadata_of_a_call_is_forwarded() -> None:
    """The rules are those of headers, with stricter keys."""
    context = Context(metadata=(*METADATA, ("odd!", "v"), ("b-bin", "v")), request_id="r")
    tag, control, status = ("x-tag", "v"), ("ctl", "a%0D%0Ab"), ("nv-status", "s")
    assert (tag, control, status, ("x-request-id", "r")) == grpc_metadata(context)
    assert () == grpc_metadata(Context())


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
