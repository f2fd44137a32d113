"""The side of a client: requests to servers of TorchServe, and their responses.

Nothing tells the inputs of such a server's models: `models.NAME.signature` declares them.

Source: docs/protocols/torchserve.md, "9. Upstreams".
"""

from typing import Any, Final

import orjson

from gateway.api.protocol import unsupported
from gateway.ir.calls import (
    Call,
    InferRequest,
    InferResponse,
    ModelReadyRequest,
    OpaqueCall,
    ServerLiveRequest,
    ServerReadyRequest,
)
from gateway.ir.context import ModelRef, Origin
from gateway.ir.errors import GatewayError, InvalidRequest, MalformedMessage, UpstreamProtocolError
from gateway.ir.limits import MessageLimits
from gateway.protocols.torchserve.errors import OK, http_error_class
from gateway.protocols.torchserve.http.form_fields import JSON_TYPE, media_type, multipart_form
from gateway.protocols.torchserve.http.opaque import NAME, write_opaque
from gateway.protocols.torchserve.messages import (
    BodyReader,
    Item,
    check_plain,
    required_model,
    write_fields,
    write_request,
)
from gateway.protocols.torchserve.models import BodyForms, client_version
from gateway.protocols.torchserve.paths import PING, PREDICTIONS
from gateway.wire.errors import clip, is_error_status, read_error_text, strip_traceback
from gateway.wire.http import Buffer, Headers, HttpRequest, HttpResponse
from gateway.wire.metadata import http_headers
from gateway.wire.url_names import url_segment

_HEALTH: Final = (ModelReadyRequest, ServerLiveRequest, ServerReadyRequest)
_SUCCESS: Final = range(200, 300)


def encode_call(call: Call[Any], models: BodyForms) -> HttpRequest:
    """Write a request.

    Raises:
        Unsupported: The protocol does not carry it, or has no such request.
    """
    context = call.context
    if isinstance(call, _HEALTH):
        headers = Headers(http_headers(context))
        return HttpRequest("GET", PING, "", headers, (), context.deadline)
    if isinstance(call, OpaqueCall):
        name = "" if call.model is None else call.model.name
        version = "" if call.model is None else call.model.version
        return write_opaque(call, client_version(version, models.form(name)))
    if not isinstance(call, InferRequest):
        raise unsupported(call, NAME)
    check_plain(call)
    model = required_model(call)
    form = models.form(model.name)
    path = f"{PREDICTIONS}/{url_segment(model.name)}"
    if model.version:
        path += f"/{url_segment(client_version(model.version, form))}"
    kind: str
    body: Buffer
    if form.has_columns:
        kind, body = multipart_form(write_fields(call.inputs))
    else:
        kind, body = write_request(call, form)
    headers = Headers((("Content-Type", kind), *http_headers(context), *_sequence(call)))
    return HttpRequest("POST", path, "", headers, (body,), context.deadline)


def _sequence(call: InferRequest) -> tuple[tuple[str, str], ...]:
    sequence = call.sequence
    if sequence is None:
        return ()
    pairs = [("ts_request_sequence_id", str(sequence.id))]
    if sequence.start:
        pairs.append(("ts_request_sequence_start", "true"))
    if sequence.end:
        pairs.append(("ts_request_sequence_end", "true"))
    return tuple(pairs)


def decode_reply(
    call: Call[Any],
    wire: HttpResponse,
    models: BodyForms,
    reader: BodyReader,
    limits: MessageLimits,
) -> Any:
    """Read a response to *call*.

    Raises:
        GatewayError: The error in the response, with the response as origin.
        MalformedMessage: The response cannot be used.
    """
    if isinstance(call, _HEALTH):
        return wire.status == OK
    if wire.status not in _SUCCESS:
        raise _error_of(call, wire, limits)
    if isinstance(call, OpaqueCall):
        return Origin(NAME, wire)
    model = call.model or ModelRef("")
    is_json = media_type(wire.headers.get("content-type")) == JSON_TYPE
    item = Item(wire.view, is_json, "response")
    try:
        outputs = reader.response(item, models.form(model.name))
    except InvalidRequest as error:
        if isinstance(error, MalformedMessage):
            raise
        raise MalformedMessage(error.message) from error
    return InferResponse(model=model, outputs=outputs, batch_size=1)


def _error_of(call: Call[Any], wire: HttpResponse, limits: MessageLimits) -> GatewayError:
    if not is_error_status(wire.status):
        return UpstreamProtocolError(
            f"upstream responded with HTTP status {wire.status}: expected {OK}; redirections are "
            "not followed",
            model=call.model,
        )
    text, kind = read_error_text(wire.view, limits.error_text_bytes), None
    try:
        document = orjson.loads(wire.view[: limits.json_bytes])
    except orjson.JSONDecodeError:
        document = None
    if type(document) is dict:
        kind, found = document.get("type"), document.get("message")
        text = found if isinstance(found, str) else text
    text = clip(strip_traceback(text), limits.error_text_bytes)
    text = text or f"upstream responded with status {wire.status} and no text"
    error = http_error_class(wire.status, kind)(text, model=call.model)
    error.origin = Origin(NAME, wire)
    return error
