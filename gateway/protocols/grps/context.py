"""What travels beside a grps message over HTTP and gRPC: headers, request id, deadline."""

from __future__ import annotations

import re
from typing import Final

from gateway.ir.context import Context, Origin
from gateway.protocols.grps.calls import REPLY_NEEDS
from gateway.wire.grpc import GrpcRequest, Metadata
from gateway.wire.http import HttpRequest

REQUEST_ID: Final = "x-request-id"

_REQUEST_ID_BYTES: Final = 128
_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9a-z-]+")
# "-bin" ends the keys of bytes, "grpc-" begins the runtime's own.
_KEY: Final = re.compile(r"(?!grpc-)[0-9a-z_.-]+(?<!-bin)")

# About one connection or one body: written anew by codec and transport, never passed on.
_OF_ONE_MESSAGE: Final = frozenset(
    {
        "accept",
        "accept-encoding",
        "connection",
        "content-encoding",
        "content-length",
        "content-type",
        "expect",
        "host",
        "inference-header-content-length",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "user-agent",
    }
)


def http_context(wire: HttpRequest, codec: str, form: object) -> Context:
    """Return what travels beside a client's HTTP message; *form* is noted for the answer."""
    metadata = tuple([(name.lower(), value) for name, value in wire.headers.pairs])
    request_id = sane_id(wire.headers.get(REQUEST_ID) or "")
    origin = Origin(codec, wire, form)
    return Context(codec, metadata, request_id, wire.deadline, None, REPLY_NEEDS, origin)


def http_headers(context: Context) -> tuple[tuple[str, str], ...]:
    """Return the headers of a request to an upstream, the id of the call among them.

    All that the context holds and HTTP can carry: what may cross was decided before
    (`gateway.policies.forward`).
    """
    headers = tuple(
        [
            (name, value)
            for name, value in context.metadata
            if not name.startswith("grpc-") and _NAME.fullmatch(name) and _may_cross(name, value)
        ]
    )
    if context.request_id and REQUEST_ID not in dict(headers):
        headers = (*headers, (REQUEST_ID, context.request_id))
    return headers


def grpc_context(wire: GrpcRequest, codec: str, form: object) -> Context:
    """Return what travels beside a client's gRPC message; *form* is noted for the answer."""
    metadata = tuple([(key, value) for key, value in wire.metadata if isinstance(value, str)])
    request_id = sane_id(dict(metadata).get(REQUEST_ID, ""))
    origin = Origin(codec, wire, form)
    return Context(codec, metadata, request_id, wire.deadline, None, REPLY_NEEDS, origin)


def grpc_metadata(context: Context) -> Metadata:
    """Return the metadata of a request to an upstream, as `http_headers`."""
    metadata: Metadata = tuple(
        [
            (name, value)
            for name, value in context.metadata
            if _KEY.fullmatch(name) and _may_cross(name, value)
        ]
    )
    if context.request_id and REQUEST_ID not in dict(metadata):
        metadata = (*metadata, (REQUEST_ID, context.request_id))
    return metadata


def sane_id(text: str) -> str:
    """Return a request id; "" for one that is not fit for a log: the gateway makes its own."""
    sane = len(text) <= _REQUEST_ID_BYTES and text.isascii() and text.isprintable()
    return text if sane else ""


def _may_cross(name: str, value: str) -> bool:
    return name not in _OF_ONE_MESSAGE and value.isascii() and value.isprintable()
