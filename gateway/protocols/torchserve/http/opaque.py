"""Requests that are passed on to a server of TorchServe as they are.

They are explanations, and predictions where the option `forward` is on.

Source: docs/protocols/torchserve.md, "9. Upstreams".
"""

from typing import Final

from gateway.ir.calls import OpaqueCall
from gateway.ir.context import Context, ModelRef, Origin
from gateway.ir.errors import Unsupported
from gateway.protocols.torchserve.paths import EXPLANATIONS
from gateway.wire.http import Headers, HttpRequest, HttpResponse
from gateway.wire.metadata import http_headers
from gateway.wire.url_names import url_segment

NAME: Final = "torchserve.http"
_OF_THE_REQUEST: Final = frozenset({"accept", "content-type"})
_OF_THE_RESPONSE: Final = frozenset({"content-type"})


def read_opaque(
    wire: HttpRequest, model: ModelRef | None, context: Context, path: str
) -> OpaqueCall:
    """Return a request as a call; *path* is what stands before the model in it."""
    return OpaqueCall(model=model, context=context, message=Origin(NAME, wire, path))


def write_opaque(call: OpaqueCall, version: str) -> HttpRequest:
    """Return the request that passes *call* on, under the target's name of the model.

    Raises:
        Unsupported: It came in another protocol, or names no model.
    """
    message, model = call.message, call.model
    if message.codec != NAME or model is None or not model.name:
        what = "explanations" if message.form == EXPLANATIONS else "such requests"
        raise Unsupported(f"only a server of TorchServe gets {what}", model=model)
    request: HttpRequest = message.wire
    kept = [pair for pair in request.headers.pairs if pair[0].lower() in _OF_THE_REQUEST]
    headers = Headers((*kept, *http_headers(call.context)))
    path = f"{message.form}/{url_segment(model.name)}"
    if version:
        path += f"/{url_segment(version)}"
    return HttpRequest("POST", path, "", headers, request.body, call.context.deadline)


def write_answer(reply: Origin) -> HttpResponse:
    """Return the server's response as the client gets it."""
    wire: HttpResponse = reply.wire
    kept = [pair for pair in wire.headers.pairs if pair[0].lower() in _OF_THE_RESPONSE]
    return HttpResponse(wire.status, Headers(kept), wire.body)
