"""Messages as a head and a body: the contents of a head, and messages decoded from it."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.ir.errors import GatewayError
from gateway.migration.replay.wire_messages import (
    READING_HEADERS,
    Message,
    body_of,
    head_of,
    read_request,
    request_of,
    response_of,
    write_file,
)
from gateway.registry import protocol
from gateway.wire.grpc import GrpcRequest, GrpcResponse, GrpcStatus
from gateway.wire.http import Headers, HttpRequest, HttpResponse
from gateway.wire.stream import Frame

SECRET = (("Authorization", "Bearer x"), ("Cookie", "a=b"))


def test_a_head_has_only_the_needed_fields() -> None:
    """Other query parameters and headers are omitted."""
    headers = Headers((("NV-InferRequest", "batch_size: 1"), *SECRET))
    message = HttpRequest("POST", "/api/infer/m", "token=x&format=binary&format=x", headers)
    assert head_of(message, READING_HEADERS) == {
        "carrier": "http",
        "method": "POST",
        "path": "/api/infer/m?format=binary",
        "headers": [["NV-InferRequest", "batch_size: 1"]],
    }


@pytest.mark.parametrize(
    "message",
    [
        HttpRequest("POST", "/v2", "format=json", Headers((("Accept", "x"),)), (b"ab", b"c")),
        GrpcRequest("/a.B/C", (b"abc",)),
        Frame((b"abc",), 7),
    ],
    ids=lambda each: type(each).__name__,
)
def test_requests_round_trip(message: HttpRequest | GrpcRequest | Frame) -> None:
    """Head and body together are the request."""
    found = request_of(head_of(message, READING_HEADERS), body_of(message))
    assert head_of(found, READING_HEADERS) == head_of(message, READING_HEADERS)
    assert body_of(found) == body_of(message)


def test_the_content_encoding_is_dropped() -> None:
    """The body is stored decoded, so the header would be wrong."""
    head = {
        "carrier": "http",
        "method": "POST",
        "path": "/",
        "headers": [["Content-Encoding", "gzip"]],
    }
    found = request_of(head, b"x")
    assert isinstance(found, HttpRequest)
    assert found.headers.pairs == ()


@pytest.mark.parametrize(
    "message",
    [
        HttpResponse(404, Headers((("NV-Status", "x"),)), (b"abc",)),
        GrpcResponse((b"abc",)),
        GrpcResponse((), GrpcStatus.NOT_FOUND),
        Frame((b"abc",), None),
    ],
    ids=str,
)
def test_responses_round_trip(message: Message) -> None:
    """The status is a part of the head."""
    found = response_of(head_of(message, READING_HEADERS), body_of(message))
    assert head_of(found, READING_HEADERS) == head_of(message, READING_HEADERS)
    assert body_of(found) == body_of(message)


@pytest.mark.parametrize(
    "head",
    [
        {},
        {"carrier": "http"},
        {"carrier": "grpc"},
        {"carrier": "http", "method": "POST", "path": "/", "headers": 7},
    ],
    ids=str,
)
def test_a_malformed_head_raises_an_error(head: dict[str, Any]) -> None:
    """A row of an untrusted file raises no other error."""
    for read in (request_of, response_of):
        with pytest.raises(GatewayError, match="is not that of a re"):
            read(head, b"")


def test_a_stream_file_has_exactly_one_frame() -> None:
    """Shorter and longer files are rejected."""
    binding = protocol("graphpipe").carriers["tcp"]
    data = write_file(binding, Frame((b"abcdefgh",)))
    assert body_of(read_request(binding, data, "")) == b"abcdefgh"
    for wrong in (data[:-1], data + data, b""):
        with pytest.raises(GatewayError):
            read_request(binding, wrong, "")
