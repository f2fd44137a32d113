"""Inference over HTTP in its five places: infer, generate, and the streams of either.

`infer_stream` and MLServer's `generate` and `generate_stream` take whole inference requests,
Triton's `generate` and `generate_stream` flat objects; which of the two a body is shows in its
`inputs`.  Here is what is asked and in which form it is answered; requests.py, replies.py,
generate.py and events.py have the forms themselves.

Source: docs/protocols/open-inference.md, "6. HTTP endpoints" and "10. Streams".
"""

from __future__ import annotations

from typing import Final

from gateway.ir.calls import InferRequest, InferResponse, StreamInferRequest
from gateway.ir.context import Context, ModelRef
from gateway.ir.errors import GatewayError, InvalidRequest, UpstreamError
from gateway.ir.limits import MessageLimits
from gateway.protocols.oip.errors import HTTP_OK
from gateway.protocols.oip.http.context import NAME, context_of
from gateway.protocols.oip.http.generate import decode_generate, generated, read_members
from gateway.protocols.oip.http.infer_request import (
    ALL_BINARY,
    ALL_JSON,
    InferReplyFormat,
    RequestMoulds,
    decode_request,
)
from gateway.protocols.oip.http.infer_response import (
    ReplyMoulds,
    decode_response,
    encode_response,
    error_text,
)
from gateway.protocols.oip.http.management import json_response
from gateway.protocols.oip.http.paths import OipRoute
from gateway.protocols.oip.http.sse import event, json_event
from gateway.protocols.oip.json.binary_tensors import LENGTH_HEADER
from gateway.protocols.oip.json.parse import read_leniently
from gateway.wire.errors import clip
from gateway.wire.http import HttpRequest, HttpResponse

GENERATED: Final = "generated"
"""Form of an answer to a request of the generate extension."""

_SEQUENCE: Final = ("sequence_id", "sequence_start", "sequence_end")
_GENERATE: Final = frozenset({"generate", "generate_stream"})


def decode_inference(
    route: OipRoute, model: ModelRef, wire: HttpRequest, moulds: RequestMoulds, request_id: str
) -> InferRequest | StreamInferRequest:
    """Read an inference request, or one for a stream of answers, as `route` has it.

    Raises:
        InvalidRequest: The body is wrong, or a stream is to have binary outputs.
        TooLarge: A limit is exceeded.
        Unsupported: It asks for something that is not served.
    """
    request = None
    if route.action in _GENERATE and wire.headers.get(LENGTH_HEADER.lower()) is None:
        request = decode_generate(model, wire, moulds.limits, lambda: context_of(wire, GENERATED))
    if request is None:
        request = decode_request(model, wire, moulds, request_id)
    if route.call is not StreamInferRequest:
        return request
    if _asks_binary(request.context):
        raise InvalidRequest(
            "the request asks for binary outputs, and the answers of a stream over HTTP are JSON: "
            "leave out 'binary_data' and 'binary_data_output', or ask over gRPC"
        )
    return StreamInferRequest(model=model, context=request.context, request=request)


def encode_answer(call: InferRequest, reply: InferResponse) -> HttpResponse:
    """Write the one answer to *call*; all binary to one that was not decoded here.

    Raises:
        Unsupported: JSON was asked for and cannot carry an output.
    """
    form = _form(call.context)
    if type(form) is InferReplyFormat:
        return encode_response(call, reply, form)
    if form == GENERATED:
        return json_response(HTTP_OK, generated(call, reply))
    return encode_response(call, reply, ALL_BINARY)


def encode_event(
    call: StreamInferRequest, item: InferResponse, limits: MessageLimits
) -> HttpResponse:
    """Write one response of a stream, or the error that stands in its place.

    Raises:
        Unsupported: JSON cannot carry an output.
    """
    if item.error is not None:
        return error_event(item.error, limits)
    if _form(call.context) == GENERATED:
        return json_event(generated(call.request, item))
    return event(*encode_response(call.request, item, ALL_JSON).body)


def error_event(error: GatewayError, limits: MessageLimits) -> HttpResponse:
    """Write an error that comes after an answer."""
    return json_event({"error": clip(error.message, limits.error_text_bytes)})


def decode_event(
    call: StreamInferRequest, sent_id: str, wire: HttpResponse, moulds: ReplyMoulds
) -> InferResponse:
    """Read one event of an upstream's stream; it does not tell whether it is the last.

    Raises:
        MalformedMessage, InvalidTensor, TooLarge: It cannot be used.
        UpstreamProtocolError: It is the answer to another request.
    """
    limits = moulds.limits
    members = read_leniently(wire.view, "an event", limits).members
    if "error" in members and "outputs" not in members:
        failed = UpstreamError(error_text(wire, limits), model=call.model)
        model = call.model or ModelRef("")
        return InferResponse(model=model, outputs=(), final=False, error=failed)
    return decode_response(call.request, sent_id, wire, moulds).changed(final=False)


def decode_generated(
    call: StreamInferRequest, wire: HttpResponse, limits: MessageLimits
) -> InferResponse:
    """Read one event of an upstream's `generate_stream`, whose members may be outputs.

    Raises:
        MalformedMessage, TooLarge: It cannot be used.
    """
    members = dict(read_leniently(wire.view, "an event", limits).members)
    model = call.model or ModelRef("")
    if "error" in members and "model_name" not in members:
        failed = UpstreamError(error_text(wire, limits), model=call.model)
        return InferResponse(model=model, outputs=(), final=False, error=failed)
    version = members.pop("model_version", "")
    for key in ("model_name", "id", *_SEQUENCE):
        members.pop(key, None)
    return InferResponse(
        model=ModelRef(model.name, version if type(version) is str else model.version),
        outputs=(),
        id=call.request.id,
        final=False,
        flat_members=read_members(members),
    )


def _form(context: Context) -> object:
    origin = context.origin
    return origin.form if origin is not None and origin.codec == NAME else None


def _asks_binary(context: Context) -> bool:
    form = _form(context)
    return isinstance(form, InferReplyFormat) and (form.default or True in form.listed.values())
