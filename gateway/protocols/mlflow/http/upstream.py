"""The side of a client: requests to MLflow's scoring servers, and their responses.

Nothing can be asked of such a server but `/ping`: `models.NAME.signature` declares its model.

Source: docs/protocols/mlflow.md, "7. Servers".
"""

from typing import Any, Final

import orjson

from gateway.api.protocol import unsupported
from gateway.ir.calls import (
    Call,
    InferRequest,
    InferResponse,
    ModelReadyRequest,
    ServerLiveRequest,
    ServerReadyRequest,
)
from gateway.ir.context import JsonParameter, ModelRef, Origin
from gateway.ir.data import UntypedRules
from gateway.ir.errors import (
    ERROR_CLASSES,
    GatewayError,
    InvalidRequest,
    MalformedMessage,
    Unsupported,
    UpstreamProtocolError,
)
from gateway.ir.limits import MessageLimits
from gateway.protocols.mlflow.errors import CODES, JSON, OK
from gateway.protocols.mlflow.http.form import NAME
from gateway.protocols.mlflow.options import OBJECT, MlflowOptions
from gateway.protocols.mlflow.paths import INVOCATIONS, PING
from gateway.wire.errors import error_class_of_http, is_error_status, read_error_text
from gateway.wire.http import Headers, HttpRequest, HttpResponse
from gateway.wire.metadata import http_headers
from gateway.wire.row_values import RowStyle, columns_json, value_json
from gateway.wire.rows import RowsReader, read_rows_document

_HEALTH: Final = (ModelReadyRequest, ServerLiveRequest, ServerReadyRequest)
_RULES: Final = UntypedRules(protocol="mlflow", has_b64=False, has_nulls=True)
_KEY: Final = "predictions"


def encode_call(call: Call[Any], options: MlflowOptions, style: RowStyle) -> HttpRequest:
    """Write a request.

    Raises:
        Unsupported: The protocol does not carry it, or has no such request.
    """
    context = call.context
    if isinstance(call, _HEALTH):
        headers = Headers(http_headers(context))
        return HttpRequest("GET", PING, "", headers, (), context.deadline)
    if not isinstance(call, InferRequest):
        raise unsupported(call, NAME)
    _check_plain(call)
    headers = Headers((JSON, *http_headers(context)))
    inputs = call.inputs
    if len(inputs) == 1 and options.single_input != OBJECT:
        text = value_json(inputs[0], style)
    else:
        text = columns_json(inputs, style)
    parameters = {
        name: orjson.Fragment(value.encode()) if isinstance(value, JsonParameter) else value
        for name, value in call.parameters.items()
    }
    members = b',"params":%b' % orjson.dumps(parameters) if parameters else b""
    body = b'{"inputs":%b%b}' % (text, members)
    return HttpRequest("POST", INVOCATIONS, "", headers, (body,), context.deadline)


def decode_reply(call: Call[Any], wire: HttpResponse, limits: MessageLimits) -> Any:
    """Read a response to *call*.

    Raises:
        GatewayError: The error in the response, with the response as origin.
        MalformedMessage: The response cannot be used.
    """
    if isinstance(call, _HEALTH):
        return wire.status == OK
    if wire.status != OK:
        raise _error_of(call, wire, limits)
    document = read_rows_document(wire.view, "the response", limits)
    if _KEY not in document.members:
        raise MalformedMessage(f"the response has no {_KEY!r}")
    reader = RowsReader(document, limits, _RULES)
    found = document.members[_KEY]
    try:
        is_rows = type(found) is not dict and _begins_with_object(found)
        outputs = reader.rows(_KEY) if is_rows else reader.columns(_KEY)
    except InvalidRequest as error:
        raise MalformedMessage(error.message) from error
    return InferResponse(model=call.model or ModelRef(""), outputs=outputs)


def _begins_with_object(value: Any) -> bool:
    if not hasattr(value, "__getitem__") or isinstance(value, str) or hasattr(value, "keys"):
        return False
    return len(value) > 0 and hasattr(value[0], "keys")


def _check_plain(request: InferRequest) -> None:
    if request.sequence is not None:
        raise Unsupported("MLflow has no sequences", model=request.model)
    for output in request.outputs:
        if output.classes or output.shared is not None:
            raise Unsupported(
                f"output {output.name!r} as classes or in shared memory: MLflow has neither",
                model=request.model,
            )


def _error_of(call: Call[Any], wire: HttpResponse, limits: MessageLimits) -> GatewayError:
    if not is_error_status(wire.status):
        return UpstreamProtocolError(
            f"upstream responded with HTTP status {wire.status}: expected {OK}; redirections are "
            "not followed",
            model=call.model,
        )
    text = read_error_text(wire.view, limits.error_text_bytes)
    kind = error_class_of_http(wire.status)
    try:
        document = orjson.loads(wire.view[: limits.json_bytes])
    except orjson.JSONDecodeError:
        document = None
    if type(document) is dict:
        found = document.get("message") or document.get("detail")
        text = found if type(found) is str else text
        code = CODES.get(document["error_code"]) if "error_code" in document else None
        kind = ERROR_CLASSES.get(code, kind) if code is not None else kind
    error = kind(text or f"HTTP status {wire.status} without a text", model=call.model)
    error.origin = Origin(NAME, wire)
    return error
