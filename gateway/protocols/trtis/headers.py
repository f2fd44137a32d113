"""What travels beside a TensorRT v1 message over HTTP: headers, request id, deadline."""

from __future__ import annotations

import re
from typing import Any, Final

from gateway.ir.context import Context, Need, Origin
from gateway.wire.http import HttpRequest

NAME: Final = "trtis.http"
REPLY_NEEDS: Final = frozenset({Need.NAMES, Need.DATATYPES, Need.SHAPES, Need.BATCHING})
NEEDS: Final = REPLY_NEEDS | {Need.OUTPUTS}

REQUEST, RESPONSE, STATUS = "NV-InferRequest", "NV-InferResponse", "NV-Status"

_REQUEST_ID = "x-request-id"
_REQUEST_ID_BYTES = 128
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9a-z-]+")

# About one connection or one message: written anew by codec and transport, never passed on.
_OF_ONE_MESSAGE = frozenset(
    {
        "accept",
        "accept-encoding",
        "connection",
        "content-encoding",
        "content-length",
        "content-type",
        "expect",
        "host",
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
_OWN = "nv-"


def context_of(wire: HttpRequest, form: Any) -> Context:
    """Return what travels beside a client's message; *form* is noted for the answer."""
    headers = wire.headers
    request_id = headers.get(_REQUEST_ID) or ""
    if request_id and not _is_sane(request_id):
        request_id = ""  # not fit for a log: the gateway makes one
    metadata = tuple([(name.lower(), value) for name, value in headers.pairs])
    origin = Origin(NAME, wire, form)
    return Context(NAME, metadata, request_id, wire.deadline, None, REPLY_NEEDS, origin)


def headers_of(context: Context) -> tuple[tuple[str, str], ...]:
    """Return the headers of a request to an upstream, the id of the call among them.

    All that the context holds and HTTP can carry: what may cross was decided before
    (`gateway.policies.forward`).
    """
    headers: tuple[tuple[str, str], ...] = ()
    if context.metadata:
        headers = tuple([entry for entry in context.metadata if _may_cross(*entry)])
    if context.request_id and _REQUEST_ID not in dict(headers):
        headers = (*headers, (_REQUEST_ID, context.request_id))
    return headers


def _may_cross(name: str, value: str) -> bool:
    """Tell whether an entry is a header of the call: gRPC metadata may have come this way."""
    return (
        name not in _OF_ONE_MESSAGE
        and not name.startswith(("grpc-", _OWN))
        and _NAME.fullmatch(name) is not None
        and value.isascii()
        and value.isprintable()
    )


def _is_sane(text: str) -> bool:
    return len(text) <= _REQUEST_ID_BYTES and text.isascii() and text.isprintable()
