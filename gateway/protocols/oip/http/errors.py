"""Errors over HTTP to and from `{"error": text}` with a status.

`../errors.py` has the tables, `infer_response.py` reads an upstream's text.

Source: Open Inference Protocol, "Error Response"; docs/protocols/open-inference.md, "16. Errors".
"""

from typing import Any, Final

from gateway.ir.calls import Call, InferRequest
from gateway.ir.context import Origin
from gateway.ir.errors import (
    GatewayError,
    ModelNotFound,
    NotFound,
    UpstreamProtocolError,
)
from gateway.ir.limits import MessageLimits
from gateway.protocols.oip.errors import http_error_class, http_status_of, text_of
from gateway.protocols.oip.http.context import NAME
from gateway.protocols.oip.http.infer_response import error_text
from gateway.protocols.oip.json.binary_tensors import JSON_HEADERS
from gateway.protocols.oip.json.parse import dump
from gateway.wire.errors import extra_headers, is_error_status
from gateway.wire.http import Headers, HttpResponse

_NO_ID: Final = "[request id: <id_unknown>]"


def error_response(
    error: GatewayError, limits: MessageLimits, not_ready: int, status: int | None = None
) -> HttpResponse:
    """Write *error*; one of an upstream of this protocol keeps its status. Never raises.

    Args:
        error: The failure.
        limits: For the length of its text.
        not_ready: The status for a model that is not ready.
        status: That of the response, whatever the error is; None for that of the error.
    """
    if status is None:
        status = _status_of(error, not_ready)
    extra = extra_headers(error)
    headers = Headers((*JSON_HEADERS.pairs, *extra)) if extra else JSON_HEADERS
    text = text_of(error, limits.error_text_bytes)
    return HttpResponse(status, headers, (dump({"error": text}),))


def _status_of(error: GatewayError, not_ready: int) -> int:
    origin = error.origin
    if origin is not None and origin.codec == NAME and is_error_status(origin.wire.status):
        return int(origin.wire.status)
    return http_status_of(error, not_ready)


def error_of_status(call: Call[Any], wire: HttpResponse, limits: MessageLimits) -> GatewayError:
    """Return the error in an upstream's response of another status than 200, with it as origin."""
    text = error_text(wire, limits)
    if isinstance(call, InferRequest) and not call.id and call.context.request_id:
        # The client sent no id, and Triton's text has the gateway's.
        text = text.replace(f"[request id: {call.context.request_id}]", _NO_ID)
    if not is_error_status(wire.status):
        return UpstreamProtocolError(
            f"upstream responded with HTTP status {wire.status}: {text}", model=call.model
        )
    kind = http_error_class(wire.status, text)
    if kind is NotFound and call.model is not None:
        kind = ModelNotFound
    return kind(text, model=call.model, origin=Origin(NAME, wire))
