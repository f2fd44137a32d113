"""Errors over HTTP to and from `{"error": text}` with a status.

`../errors.py` has the tables, `infer_response.py` reads an upstream's text.

Source: Open Inference Protocol, "Error Response"; docs/protocols/open-inference.md, "16. Errors".
"""

from typing import Any, Final

from gateway.ir.calls import Call, InferRequest
from gateway.ir.context import ModelRef
from gateway.ir.errors import GatewayError, ModelNotFound, NotFound
from gateway.ir.limits import MessageLimits
from gateway.protocols.oip.errors import http_error_class, http_status_of, text_of
from gateway.protocols.oip.http.context import NAME
from gateway.protocols.oip.http.infer_response import error_text
from gateway.wire.http import HttpResponse
from gateway.wire.json_errors import JsonErrorForm

_NO_ID: Final = "[request id: <id_unknown>]"


def error_form(not_ready: int) -> JsonErrorForm:
    """Return the form of errors; *not_ready* is the status for a model that is not ready."""
    return JsonErrorForm(
        codec=NAME,
        row=lambda error: (http_status_of(error, not_ready), ""),
        document=lambda _status, _kind, text: {"error": text},
        text=text_of,
        keeps_status=True,
        error_class=_class_of,
        no_error="{}",
    )


def _class_of(model: ModelRef | None, status: int, _kind: str, text: str) -> type[GatewayError]:
    found = http_error_class(status, text)
    return ModelNotFound if found is NotFound and model is not None else found


def text_in_response(call: Call[Any], wire: HttpResponse, limits: MessageLimits) -> str:
    """Return the text of an error in an upstream's response to *call*."""
    text = error_text(wire, limits)
    if isinstance(call, InferRequest) and not call.id and call.context.request_id:
        # The client sent no id, and Triton's text has the gateway's.
        text = text.replace(f"[request id: {call.context.request_id}]", _NO_ID)
    return text
