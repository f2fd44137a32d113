"""Inference over HTTP on its five paths: infer, generate, and the streams of both.

`infer_stream` and MLServer's `generate` and `generate_stream` have complete inference requests,
Triton's `generate` and `generate_stream` flat objects; the member `inputs` tells them apart.  This
module decides between the forms; `infer_request.py`, `infer_response.py`, `generate.py` and
`sse.py` have the forms themselves.

Source: docs/protocols/open-inference.md, "6. HTTP endpoints" and "10. Streams".
"""

from typing import Any, Final

from gateway.ir.calls import Call, InferRequest, InferResponse, StreamInferRequest
from gateway.ir.context import Context, ModelRef
from gateway.ir.errors import GatewayError, InvalidRequest, UpstreamError
from gateway.ir.limits import MessageLimits
from gateway.ir.values.nearest import DecimalMembers, loads_to_odd
from gateway.protocols.oip.dialects import Dialect
from gateway.protocols.oip.errors import GENERATE_FAILED, HTTP_OK, text_of
from gateway.protocols.oip.http.context import NAME, context_of
from gateway.protocols.oip.http.generate import decode_generate, generated, read_members
from gateway.protocols.oip.http.infer_request import (
    ALL_JSON,
    InferReplyFormat,
    RequestTemplates,
    decode_request,
)
from gateway.protocols.oip.http.infer_response import (
    ReplyTemplates,
    decode_response,
    encode_response,
    error_text,
    model_text,
)
from gateway.protocols.oip.http.paths import OipRoute
from gateway.protocols.oip.http.sse import event, json_event
from gateway.protocols.oip.json.binary_tensors import LENGTH_HEADER
from gateway.protocols.oip.json.parse import read_leniently
from gateway.protocols.oip.json.write import JsonTargets
from gateway.wire.http import HttpRequest, HttpResponse

GENERATED: Final = "generated"
"""Form of the reply to a request of the generate extension."""

_SEQUENCE: Final = ("sequence_id", "sequence_start", "sequence_end")
_GENERATE: Final = frozenset({"generate", "generate_stream"})


def decode_inference(
    route: OipRoute,
    model: ModelRef,
    wire: HttpRequest,
    templates: RequestTemplates,
    request_id: str,
    dialect: Dialect | None = None,
) -> InferRequest | StreamInferRequest:
    """Read an inference request, or one for a stream, as `route` determines.

    With *dialect* it is read as `decode_request` does.

    Raises:
        InvalidRequest: The body is wrong, or requests binary outputs of a stream.
        TooLarge: A limit is exceeded.
        Unsupported: It needs an extension that is not enabled.
    """
    request = None
    if route.action in _GENERATE and wire.headers.get(LENGTH_HEADER.lower()) is None:
        request = decode_generate(
            model,
            wire,
            templates.limits,
            lambda: context_of(wire, GENERATED),
            None if dialect is None else dialect.reads_words,
        )
    if request is None:
        request = decode_request(model, wire, templates, request_id, dialect)
    if route.call is not StreamInferRequest:
        return request
    if _asks_binary(request.context):
        raise InvalidRequest(
            "the request needs binary outputs, and streams over HTTP are JSON: "
            "leave out 'binary_data' and 'binary_data_output', or use gRPC"
        )
    return StreamInferRequest(model=model, context=request.context, request=request)


def encode_event(
    call: StreamInferRequest,
    item: InferResponse,
    limits: MessageLimits,
    targets: JsonTargets,
) -> HttpResponse:
    """Write one item of a stream, or its error.

    Raises:
        Unsupported: JSON cannot represent an output.
    """
    if item.error is not None:
        status = GENERATE_FAILED if is_generated(call) else HTTP_OK
        return error_event(item.error, limits, status)
    if is_generated(call):
        return json_event(generated(call.request, item, targets))
    return event(*encode_response(call.request, item, ALL_JSON, targets).body)


def error_event(error: GatewayError, limits: MessageLimits, status: int = HTTP_OK) -> HttpResponse:
    """Write an error as an event; *status* is that of the response if the event is the first."""
    return json_event({"error": text_of(error, limits.error_text_bytes)}, status)


def is_generated(call: Call[Any]) -> bool:
    """Return whether *call* has the form of the generate extension."""
    return _form(call.context) == GENERATED


def decode_event(
    call: StreamInferRequest,
    sent_id: str,
    wire: HttpResponse,
    templates: ReplyTemplates,
    dialect: Dialect,
) -> InferResponse:
    """Read one event of an upstream's stream, which does not mark the last one.

    Raises:
        MalformedMessage, InvalidTensor, TooLarge: It cannot be used.
        UpstreamProtocolError: It is the response to another request.
    """
    limits = templates.limits
    members = read_leniently(wire.view, "an event", limits).members
    if members.get("error") is not None and "outputs" not in members:
        failed = UpstreamError(error_text(wire, limits), model=call.model)
        model = call.model or ModelRef("")
        return InferResponse(model=model, outputs=(), is_final=False, error=failed)
    reply = decode_response(call.request, sent_id, wire, templates, dialect, None)
    return reply.changed(is_final=False)


def decode_generated(
    call: StreamInferRequest, wire: HttpResponse, limits: MessageLimits
) -> InferResponse:
    """Read one event of an upstream's `generate_stream`, whose members may be outputs.

    Raises:
        MalformedMessage, TooLarge: It cannot be used.
    """
    document = read_leniently(wire.view, "an event", limits)
    members, text = dict(document.members), document.text
    model = call.model or ModelRef("")
    if members.get("error", ...) is None:
        del members["error"]
    if "error" in members and "model_name" not in members:
        failed = UpstreamError(error_text(wire, limits), model=call.model)
        return InferResponse(model=model, outputs=(), is_final=False, error=failed)
    version = model_text(members, "model_version", limits)
    for key in ("model_name", "model_version", "id", *_SEQUENCE):
        members.pop(key, None)
    return InferResponse(
        model=ModelRef(model.name, version),
        outputs=(),
        id=call.request.id,
        is_final=False,
        flat_members=DecimalMembers(read_members(members, limits), lambda: loads_to_odd(text)),
        has_nonfinite_words=True,
    )


def _form(context: Context) -> object:
    origin = context.origin
    return origin.form if origin is not None and origin.codec == NAME else None


def _asks_binary(context: Context) -> bool:
    form = _form(context)
    return isinstance(form, InferReplyFormat) and (form.default or True in form.listed.values())
