"""The id of a request, `x-request-id`: how it is read, checked, made and attached.

A client may send one.  The gateway makes one where there is none that can be logged.  It returns
with the response, goes to the upstream, and stands in the log.
"""

import itertools
import os
from collections.abc import Iterator
from typing import Final

from gateway.ir.context import REQUEST_ID
from gateway.wire.grpc import GrpcRequest, GrpcResponse, Metadata
from gateway.wire.http import Headers, HttpRequest, HttpResponse, is_printable_ascii

_MAX_BYTES: Final = 128


def valid_request_id(text: str) -> str:
    """Return a request id; "" for one that cannot be logged: the gateway creates its own then."""
    if not text:
        return ""
    return text if len(text) <= _MAX_BYTES and is_printable_ascii(text) else ""


def header_request_id(headers: Headers) -> str:
    """Return the valid request id in HTTP headers; "" for none."""
    return valid_request_id(headers.get(REQUEST_ID) or "")


def metadata_request_id(metadata: Metadata) -> str:
    """Return the last valid request id in gRPC metadata; "" for none."""
    found = ""
    for key, value in metadata:
        if key == REQUEST_ID and isinstance(value, str):
            found = valid_request_id(value)
    return found


def http_request_id(wire: HttpRequest) -> str:
    """Return the request id in the headers of *wire*; "" for none."""
    return header_request_id(wire.headers)


def grpc_request_id(wire: GrpcRequest) -> str:
    """Return the request id in the metadata of *wire*; "" for none."""
    return metadata_request_id(wire.metadata)


def new_request_ids() -> Iterator[str]:
    """Return request ids without an end; no other source makes the same, in any process."""
    # On the path of every request: neither a class nor a generator, which would need a frame.
    return map(f"{os.urandom(6).hex()}-%x".__mod__, itertools.count(1))


def attach_http_request_id(response: HttpResponse, request_id: str) -> HttpResponse:
    """Return *response* with the request id, which becomes a header."""
    return HttpResponse(
        response.status, response.headers, response.body, response.is_compressible, request_id
    )


def attach_grpc_request_id(response: GrpcResponse, request_id: str) -> GrpcResponse:
    """Return *response* with the request id as trailing metadata."""
    metadata = (*response.metadata, (REQUEST_ID, request_id))
    return GrpcResponse(response.message, response.status, response.details, metadata)
