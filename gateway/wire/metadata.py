"""What travels beside a message, whatever its protocol: headers or metadata, request id, deadline.

In: a client's headers become a Context. Out: what a Context holds becomes the headers of a request
to an upstream. `gateway.policies.forward_headers` has decided what may cross; here only what the
carrier cannot hold, and what belongs to one message or connection, is left out.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from gateway.ir.context import HOP_BY_HOP_HEADERS, REQUEST_ID, Context, Need, Origin
from gateway.wire.grpc import GrpcRequest, Metadata
from gateway.wire.http import Headers, HttpRequest

_REQUEST_ID_BYTES: Final = 128
_NAME: Final = re.compile(r"(?!grpc-)[!#$%&'*+.^_`|~0-9a-z-]+")
# Keys of metadata that hold text: "-bin" ends those of bytes, "grpc-" begins the runtime's own.
_KEY: Final = re.compile(r"(?!grpc-)[0-9a-z_.-]+(?<!-bin)")


def http_context(
    wire: HttpRequest, codec: str, needs: frozenset[Need], form: object = None
) -> Context:
    """Return what travels beside a client's HTTP request; *form* is noted for the answer."""
    metadata, request_id = sender_metadata(wire.headers)
    origin = Origin(codec, wire, form)
    return Context(codec, metadata, request_id, wire.deadline, None, needs, origin)


def sender_metadata(headers: Headers) -> tuple[tuple[tuple[str, str], ...], str]:
    """Return what a client's headers say of it: all of them as metadata, and its request id."""
    return headers.lowered, valid_request_id(headers.get(REQUEST_ID) or "")


def grpc_context(
    wire: GrpcRequest,
    codec: str,
    needs: frozenset[Need],
    form: object = None,
    request_id: str = "",
) -> Context:
    """Return what travels beside a client's gRPC message.

    Args:
        wire: The message.
        codec: Name of who reads it.
        needs: What the answer needs.
        form: Noted for the answer.
        request_id: For a message whose client gave it no sane one.
    """
    origin = Origin(codec, wire, form)
    metadata = wire.metadata
    if not metadata:  # most clients send no fields of their own
        return Context(codec, (), request_id, wire.deadline, None, needs, origin)
    texts = tuple([(key, value) for key, value in metadata if isinstance(value, str)])
    found = ""
    for key, value in texts:
        if key == REQUEST_ID:
            found = valid_request_id(value)
    return Context(codec, texts, found or request_id, wire.deadline, None, needs, origin)


def http_headers(context: Context, *, without: str = "") -> tuple[tuple[str, str], ...]:
    """Return the headers of a request to an upstream, the id of the call among them.

    Args:
        context: Of the call.
        without: Prefix, in lower case, of the headers that the protocol writes itself.
    """
    if not context.metadata:
        return ((REQUEST_ID, context.request_id),) if context.request_id else ()
    headers = tuple(
        [
            (name, value)
            for name, value in context.metadata
            if _may_cross(name, value)
            and _NAME.fullmatch(name)
            and not (without and name.startswith(without))
        ]
    )
    if context.request_id and REQUEST_ID not in dict(headers):
        headers = (*headers, (REQUEST_ID, context.request_id))
    return headers


def grpc_metadata(context: Context) -> Metadata:
    """Return the metadata of a request to an upstream, the id of the call among it."""
    if not context.metadata:
        return ((REQUEST_ID, context.request_id),) if context.request_id else ()
    metadata = []
    named = False
    for pair in context.metadata:  # on the path of every inference: a plain loop
        name, value = pair
        if _is_key(name) and value.isascii() and value.isprintable():
            metadata.append(pair)
            named = named or name == REQUEST_ID
    if context.request_id and not named:
        metadata.append((REQUEST_ID, context.request_id))
    return tuple(metadata)


def valid_request_id(text: str) -> str:
    """Return a request id; "" for one that is not fit for a log: the gateway makes its own."""
    if not text:
        return ""
    sane = len(text) <= _REQUEST_ID_BYTES and text.isascii() and text.isprintable()
    return text if sane else ""


@lru_cache(1024)  # the same few, message for message
def _is_key(name: str) -> bool:
    """Tell whether metadata of this name may cross and be sent as text."""
    return name not in HOP_BY_HOP_HEADERS and _KEY.fullmatch(name) is not None


def _may_cross(name: str, value: str) -> bool:
    return name not in HOP_BY_HOP_HEADERS and value.isascii() and value.isprintable()
