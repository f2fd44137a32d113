"""Headers of calls: decoding, and round trips."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.transports.grpc.headers import (
    GrpcRequestHead,
    GrpcResponseHead,
    read_request_head,
    read_response_head,
    request_block,
    status_of_http,
    trailers_block,
    trailers_only_block,
    with_metadata,
)
from gateway.transports.http2.frames import Http2StreamError, MissingPseudoHeaders
from gateway.transports.http2.hpack import NO_ENTRIES, decode_block
from gateway.wire.grpc import GrpcStatus, Metadata

METADATA: st.SearchStrategy[Metadata] = st.lists(
    st.tuples(st.just("x-text"), st.text(st.characters(min_codepoint=32, max_codepoint=126)))
    | st.tuples(st.just("x-data-bin"), st.binary(max_size=50)),
    max_size=4,
).map(tuple)

CALL = [
    (b":method", b"POST"),
    (b":scheme", b"http"),
    (b":path", b"/s/m"),
    (b"content-type", b"application/grpc+proto"),
]


def fields(block: bytes) -> list[tuple[bytes, bytes]]:
    """Decode a header block."""
    return decode_block(block, NO_ENTRIES, 1 << 20)[0]


@given(metadata=METADATA, left_s=st.none() | st.floats(0.001, 1e6))
def test_request_head_round_trip(metadata: Metadata, left_s: float | None) -> None:
    """Path, metadata and timeout of a call survive; the timeout is never longer."""
    head = read_request_head(
        fields(request_block("/s/m", "h:1", "http", metadata, left_s)), 1 << 20
    )
    assert isinstance(head, GrpcRequestHead)
    assert ("/s/m", 200, 0, "identity") == (
        head.path,
        head.http_status,
        head.oversized,
        head.coding,
    )
    assert metadata == tuple(pair for pair in head.metadata if pair[0] != "user-agent")
    if left_s is None:
        assert head.timeout_s is None
    else:
        assert head.timeout_s is not None
        assert left_s - 0.02 <= head.timeout_s <= left_s + 1e-9 or left_s > 99_999


@given(status=st.sampled_from(list(GrpcStatus)), details=st.text(max_size=50), metadata=METADATA)
def test_response_status_round_trip(status: GrpcStatus, details: str, metadata: Metadata) -> None:
    """Status, details and metadata survive, in trailers and in trailers-only responses."""
    details = details.encode("utf-8", "replace").decode()
    expected = GrpcResponseHead(None, False, status, details, metadata, "identity")
    assert expected == read_response_head(fields(trailers_block(status, details, metadata)))
    alone = read_response_head(fields(trailers_only_block(status, details, metadata)))
    assert isinstance(alone, GrpcResponseHead)
    assert (200, True, status, details) == (
        alone.http_status,
        alone.is_grpc,
        alone.status,
        alone.details,
    )


@pytest.mark.parametrize(
    "extra",
    [
        [(b":path", b"/again")],
        [(b"x-a", b"1"), (b":authority", b"late")],
        [(b"Upper", b"x")],
        [(b"connection", b"close")],
        [(b"transfer-encoding", b"chunked")],
        [(b":status", b"200")],
        [(b"x y", b"1")],
        [(b"x-a", b"a\r\nb")],
        [(b"te", b"gzip")],
        [(b"content-length", b"+1")],
        [(b"content-length", b"1"), (b"content-length", b"2")],
    ],
)
def test_forbidden_request_headers_are_a_stream_error(extra: list[tuple[bytes, bytes]]) -> None:
    """A request with malformed or repeated headers resets its stream."""
    assert isinstance(read_request_head([*CALL, *extra], 1 << 20), Http2StreamError)


@pytest.mark.parametrize("missing", [b":method", b":scheme", b":path"])
def test_a_missing_pseudo_header_is_a_stream_error(missing: bytes) -> None:
    """A request needs its method, scheme and path."""
    fields = [field for field in CALL if field[0] != missing]
    assert isinstance(read_request_head(fields, 1 << 20), Http2StreamError)


def test_trailers_are_distinguished_from_a_request_head() -> None:
    """Trailers have no pseudo-headers at all; malformed ones are an ordinary stream error."""
    assert isinstance(read_request_head([(b"x", b"y")], 1 << 20), MissingPseudoHeaders)
    assert isinstance(read_request_head([], 1 << 20), MissingPseudoHeaders)
    assert not isinstance(read_request_head([(b"X", b"y")], 1 << 20), MissingPseudoHeaders)


def test_content_length_is_not_metadata() -> None:
    """The transport keeps content-length for itself; a repeated equal value is valid."""
    twice = [(b"content-length", b"12")] * 2
    head = read_request_head([*CALL, *twice], 1 << 20)
    assert isinstance(head, GrpcRequestHead)
    assert (12, ()) == (head.length, head.metadata)


@pytest.mark.parametrize(
    "fields",
    [
        [(b":status", b"200"), (b":status", b"200")],
        [(b"x", b"y"), (b":status", b"200")],
        [(b":path", b"/")],
        [(b"X", b"y")],
        [(b"x", b"a\nb")],
        [(b"connection", b"close")],
    ],
)
def test_forbidden_response_headers_are_a_stream_error(fields: list[tuple[bytes, bytes]]) -> None:
    """The rules for request headers hold for responses."""
    assert isinstance(read_response_head(fields), Http2StreamError)


def test_invalid_metadata_is_dropped_on_receipt() -> None:
    """Headers that belong to the transport are not metadata; odd values are, as over HTTP.

    A trusted proxy may send such a name of a client.
    """
    odd = [
        (b"x!y", b"1"),
        (b"x-a", b"\xff"),
        (b"x-b", b"a\tb"),
        (b"x-bin", b"!"),
        (b"te", b"trailers"),
        (b"grpc-timeout", b"soon"),
        (b"grpc-trace-bin", b"AA"),
        (b"x-two-bin", b"AAE,/w"),
        (b"user-agent", b"me"),
    ]
    head = read_request_head([*CALL, *odd], 1 << 20)
    assert isinstance(head, GrpcRequestHead)
    expected = (
        ("x-a", "\xff"),
        ("x-b", "a\tb"),
        ("x-two-bin", b"\0\1"),
        ("x-two-bin", b"\xff"),
        ("user-agent", "me"),
    )
    assert (None, expected) == (head.timeout_s, head.metadata)


@pytest.mark.usefixtures("build")
def test_invalid_metadata_is_dropped_on_sending() -> None:
    """Metadata follows the block in order, without pairs that gRPC cannot carry."""
    sendable: list[tuple[str, str | bytes]] = [
        ("x-request-id", "1" * 36),
        ("x-empty", ""),
        ("k" * 126, "v" * 126),
        ("x-long", "v" * 1000),
        ("x-data-bin", b"\0\1"),
    ]
    odd: list[tuple[str, str | bytes]] = [
        ("", "1"),
        ("te", "trailers"),
        ("grpc-x", "1"),
        ("Upper", "1"),
        ("x-tab", "a\tb"),
        ("x-word", "é"),
        ("x-bin", "text"),
        ("x-text", b"bytes"),
    ]
    assert b"block" == with_metadata(b"block", ())
    for each in odd:
        plain = with_metadata(b"", (sendable[0], each, sendable[1]))
        assert [(b"x-request-id", b"1" * 36), (b"x-empty", b"")] == fields(plain)
    expected = [
        (key.encode(), b"AAE" if isinstance(value, bytes) else value.encode())
        for key, value in sendable
    ]
    assert expected == fields(with_metadata(b"", tuple(sendable)))


@pytest.mark.parametrize(("limit", "oversized"), [(250, 0), (249, 249)])
def test_metadata_size_is_counted_as_in_hpack(limit: int, oversized: int) -> None:
    """Each field counts its bytes and 32; a size equal to the limit passes."""
    size = sum(len(name) + len(value) + 32 for name, value in CALL)
    found = read_request_head([*CALL, (b"x", b"v" * (250 - size - 33))], limit)
    assert isinstance(found, GrpcRequestHead)
    assert oversized == found.oversized


@pytest.mark.parametrize(
    ("field", "status"),
    [((b":method", b"GET"), 405), ((b"content-type", b"text/html"), 415)],
)
def test_a_request_that_is_not_grpc_has_an_http_status(
    field: tuple[bytes, bytes], status: int
) -> None:
    """Another method or content type has the status of an HTTP response."""
    head = read_request_head([field if each[0] == field[0] else each for each in CALL], 1 << 20)
    assert isinstance(head, GrpcRequestHead)
    assert status == head.http_status


@pytest.mark.parametrize("value", [b"17", b"-1", b"x", b"", b"99999999999"])
def test_an_invalid_grpc_status_is_unknown(value: bytes) -> None:
    """A number that gRPC does not define, or text, is UNKNOWN."""
    head = read_response_head([(b"grpc-status", value)])
    assert isinstance(head, GrpcResponseHead)
    assert GrpcStatus.UNKNOWN is head.status


def test_an_http_status_maps_to_a_grpc_status() -> None:
    """A proxy's HTTP response without a gRPC status has one."""
    assert [GrpcStatus.UNAVAILABLE, GrpcStatus.UNIMPLEMENTED, GrpcStatus.UNKNOWN] == [
        status_of_http(status) for status in (503, 404, 500)
    ]
