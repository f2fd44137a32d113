"""The id of a request: where it is read, which ids are valid, and that made ones differ."""

from __future__ import annotations

from gateway.wire.grpc import GrpcRequest, GrpcResponse, Metadata
from gateway.wire.heads.request_id import (
    attach_grpc_request_id,
    attach_http_request_id,
    grpc_request_id,
    http_request_id,
    metadata_request_id,
    new_request_ids,
    valid_request_id,
)
from gateway.wire.http import Headers, HttpRequest, HttpResponse


def test_ids_are_read_from_headers_and_metadata() -> None:
    """The last one of gRPC metadata counts; bytes are no id."""
    headers = Headers([("X-Request-Id", "r")])
    assert "r" == http_request_id(HttpRequest("GET", "/", headers=headers))
    assert "" == http_request_id(HttpRequest("GET", "/"))
    pairs = (("x-request-id", "a"), ("x-request-id", "b"))
    assert "b" == grpc_request_id(GrpcRequest("/s/m", metadata=pairs))
    pair: Metadata = (("x-request-id", b"a"),)
    assert "" == metadata_request_id(pair)


def test_made_ids_are_valid_and_differ() -> None:
    """Each source has a prefix of its own, because processes share a log."""
    sources = [new_request_ids() for _ in range(2)]
    made = [next(source) for source in sources for _ in range(3)]
    assert 6 == len(set(made))
    assert made == [valid_request_id(each) for each in made]


def test_ids_are_attached_to_responses() -> None:
    """HTTP writes them as a header, and gRPC as trailing metadata."""
    assert "r" == attach_http_request_id(HttpResponse(200), "r").request_id
    response = attach_grpc_request_id(GrpcResponse(metadata=(("a", "b"),)), "r")
    assert (("a", "b"), ("x-request-id", "r")) == response.metadata
