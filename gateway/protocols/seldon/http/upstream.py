"""The side of a client: requests to Seldon's servers, and their responses.

Source: docs/protocols/seldon.md, "9. Servers".
"""

import base64
from typing import Any, Final

import orjson

from gateway.api.protocol import unsupported
from gateway.ir import errors
from gateway.ir.calls import (
    Call,
    InferRequest,
    InferResponse,
    ModelMetadataRequest,
    ModelReadyRequest,
    OpaqueCall,
    ServerLiveRequest,
    ServerReadyRequest,
)
from gateway.ir.context import ModelRef, Origin
from gateway.ir.limits import MessageLimits
from gateway.protocols.seldon.declarations import SeldonForm
from gateway.protocols.seldon.errors import (
    JSON,
    OK,
    error_of_response,
    is_failure,
)
from gateway.protocols.seldon.http.paths import FEEDBACK, METADATA, PREDICTIONS, STATUS
from gateway.protocols.seldon.http.replies import data_json, meta_json
from gateway.protocols.seldon.http.requests import PayloadReader
from gateway.protocols.seldon.messages import (
    PayloadKind,
    check_plain,
    meta_of,
    only_element,
    only_text,
    own_tags,
    payload_kind,
)
from gateway.protocols.seldon.metadata import read_metadata
from gateway.protocols.seldon.options import SeldonOptions, ValueRules
from gateway.wire.http import Headers, HttpRequest, HttpResponse
from gateway.wire.json_values import read_value
from gateway.wire.metadata import http_headers
from gateway.wire.row_values import RowStyle
from gateway.wire.rows import read_rows_document

_HEALTH: Final = (ModelReadyRequest, ServerLiveRequest, ServerReadyRequest)
_OF_THE_MESSAGE: Final = frozenset({"accept", "content-type"})


def encode_call(
    call: Call[Any], options: SeldonOptions, style: RowStyle, codec: str
) -> HttpRequest:
    """Write a request to a server.

    Raises:
        Unsupported: The protocol does not carry it, or has no such request.
    """
    context = call.context
    headers = http_headers(context)
    if isinstance(call, InferRequest):
        body = _prediction(call, options, style)
        return HttpRequest(
            "POST", PREDICTIONS, "", Headers((JSON, *headers)), (body,), context.deadline
        )
    if isinstance(call, OpaqueCall):
        return _feedback(call, codec)
    if isinstance(call, ModelMetadataRequest):
        path = METADATA
    elif isinstance(call, _HEALTH):
        path = STATUS
    else:
        raise unsupported(call, codec)
    return HttpRequest("GET", path, "", Headers(headers), (), context.deadline)


def _prediction(call: InferRequest, options: SeldonOptions, style: RowStyle) -> bytes:
    check_plain(call)
    meta = meta_json(call.id, dict(call.parameters))
    tensor = call.inputs[0]
    try:
        kind = payload_kind(tensor, options, has_integers=True)
        if kind is PayloadKind.TEXT:
            item = only_element(tensor)
            text = only_text(tensor)
            if text is None:
                return b'{"binData":"%b","meta":%b}' % (base64.b64encode(item), meta)
            return b'{"meta":%b,"strData":%b}' % (meta, orjson.dumps(text))
        data = data_json(tensor, kind, style, (), "input")
    except errors.InvalidOutput as error:
        raise errors.Unsupported(error.message.replace("output", "input", 1)) from error
    return b'{"data":%b,"meta":%b}' % (data, meta)


def _feedback(call: OpaqueCall, codec: str) -> HttpRequest:
    message = call.message
    if message.codec != codec:
        raise errors.Unsupported("only a server of Seldon takes feedback", model=call.model)
    request: HttpRequest = message.wire
    kept = [pair for pair in request.headers.pairs if pair[0].lower() in _OF_THE_MESSAGE]
    headers = Headers((*kept, *http_headers(call.context)))
    body, deadline = request.body, call.context.deadline
    return HttpRequest("POST", FEEDBACK, request.query, headers, body, deadline)


def write_answer(reply: Origin) -> HttpResponse:
    """Return the server's answer to feedback as the client gets it."""
    wire: HttpResponse = reply.wire
    kept = [pair for pair in wire.headers.pairs if pair[0].lower() in _OF_THE_MESSAGE]
    return HttpResponse(wire.status, Headers(kept), wire.body)


def decode_reply(
    call: Call[Any],
    wire: HttpResponse,
    rules: ValueRules,
    limits: MessageLimits,
    declared: SeldonForm,
    codec: str,
) -> Any:
    """Read a server's response to *call*; *declared* is what is declared of its model.

    Raises:
        GatewayError: It is an error, or cannot be used.
    """
    if isinstance(call, _HEALTH):
        return wire.status == OK
    if wire.status != OK:
        raise error_of_response(call.model, wire, codec, limits)
    if isinstance(call, OpaqueCall):
        return Origin(codec, wire)
    try:
        if isinstance(call, ModelMetadataRequest):
            document = read_value(wire.view, "the response", limits)
            name = "" if call.model is None else call.model.name
            return read_metadata(document, name, limits)
        if isinstance(call, InferRequest):
            return _read_prediction(call, wire, rules, limits, declared, codec)
    except errors.InvalidRequest as error:
        if isinstance(error, errors.MalformedMessage | errors.InvalidTensor):
            raise
        raise errors.MalformedMessage(error.message) from error
    raise unsupported(call, codec)


def _read_prediction(
    call: InferRequest,
    wire: HttpResponse,
    rules: ValueRules,
    limits: MessageLimits,
    declared: SeldonForm,
    codec: str,
) -> InferResponse:
    document = read_rows_document(wire.view, "the response", limits)
    if is_failure(document.plain("status")):
        raise error_of_response(call.model, wire, codec, limits)
    payload = PayloadReader(document, limits, rules, declared).read()
    meta = meta_of(document.plain("meta"), limits)
    return InferResponse(
        model=call.model or ModelRef(""),
        outputs=payload.tensors,
        id=call.id,
        parameters=own_tags(meta, call),
        origin=Origin(codec, wire),
    )
