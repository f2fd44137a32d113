"""Open Inference on the paths of a SageMaker container, with the option `sagemaker`.

Requests name no model: the default model of the listener has them. Triton's own containers read the
same bodies.

Source: docs/protocols/open-inference.md, "6. HTTP endpoints".
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final, cast

from gateway.api.protocol import Handling
from gateway.ir.calls import Call, InferRequest, ServerReadyRequest
from gateway.ir.context import ModelRef
from gateway.ir.errors import GatewayError, MalformedMessage
from gateway.protocols.oip.http.context import NAME, context_of
from gateway.protocols.oip.http.infer_request import RequestTemplates, decode_request
from gateway.protocols.oip.options import check_options
from gateway.wire.errors import MethodNotAllowed
from gateway.wire.heads.path_claims import PathClaim
from gateway.wire.heads.sagemaker import custom_attributes, inference_id
from gateway.wire.http import Headers, HttpRequest, HttpResponse

PING: Final = "/ping"
INVOCATIONS: Final = "/invocations"
PATHS: Final = frozenset({PING, INVOCATIONS})

KEY: Final = "sagemaker"
_LENGTH: Final = "Inference-Header-Content-Length"
_BINARY: Final = re.compile(
    r"application/vnd\.sagemaker-triton\.binary\+json;\s*json-header-size=(\d{1,18})", re.IGNORECASE
)
_BINARY_TYPE: Final = "application/vnd.sagemaker-triton.binary+json"
_DEFAULT: Final = ModelRef("")
_CLAIMS: Final = (
    PathClaim(PING, is_public=True, option=KEY),
    PathClaim(INVOCATIONS, option=KEY),
)
_PLACES: Final = frozenset({"content-type", "inference-header-content-length"})


def container_claims(options: Mapping[str, Any]) -> tuple[PathClaim, ...]:
    """Return the paths that a listener's option `sagemaker` adds.

    Raises:
        ValueError: The option is wrong.
    """
    return _CLAIMS if check_options({KEY: options.get(KEY, False)})[KEY] else ()


def with_own_replies(
    calls: Mapping[type[Call[Any]], Handling],
) -> Mapping[type[Call[Any]], Handling]:
    """Return how a codec handles calls, with the responses to requests on the two paths."""
    own = (InferRequest, ServerReadyRequest)
    return {
        kind: replace(each, encode_reply=partial(_encode_reply, each)) if kind in own else each
        for kind, each in calls.items()
    }


def decode_own(wire: HttpRequest, templates: RequestTemplates, request_id: str) -> Call[Any]:
    """Read a client's request on one of the two paths.

    Raises:
        InvalidRequest: Method, headers or body is wrong.
        TooLarge: A limit is exceeded.
    """
    if wire.path == PING:
        _check_method(wire, "GET", "HEAD")
        return ServerReadyRequest(about=_DEFAULT, context=context_of(wire, None))
    _check_method(wire, "POST")
    call = decode_request(_DEFAULT, _with_length(wire), templates, request_id)
    own = inference_id(wire.headers)
    if own and not call.context.request_id:
        call = call.with_context(request_id=own)
    return call


def attributes_of(call: Call[Any] | None, error: GatewayError) -> tuple[tuple[str, str], ...]:
    """Return the custom attributes of a request that failed; those of a call that was read."""
    wire = None if call is None else _request_of(call)
    return custom_attributes(Headers(error.metadata) if wire is None else wire.headers)


def _encode_reply(handling: Handling, call: Call[Any], reply: object) -> HttpResponse:
    """Write the response to *call*; its type has the size of the JSON, if it is binary."""
    response: HttpResponse = cast("Any", handling.encode_reply)(call, reply)
    wire = _request_of(call)
    if wire is None:
        return response
    length = response.headers.get(_LENGTH.lower())
    pairs = response.headers.pairs
    if length is not None:
        kind = ("Content-Type", f"{_BINARY_TYPE};json-header-size={length}")
        pairs = (kind, *response.headers.without(_PLACES).pairs)
    headers = Headers((*pairs, *custom_attributes(wire.headers)))
    return HttpResponse(response.status, headers, response.body, response.is_compressible)


def _with_length(wire: HttpRequest) -> HttpRequest:
    """Return a request whose header has the length of the JSON, if its type has it."""
    kind = wire.headers.get("content-type") or ""
    if not kind.lower().startswith(_BINARY_TYPE):
        return wire
    found = _BINARY.fullmatch(kind.strip())
    if found is None:
        raise MalformedMessage(
            f"content type {kind[:100]!r} has no size of the JSON: expected "
            f"{_BINARY_TYPE};json-header-size=N"
        )
    headers = Headers((*wire.headers.without(_PLACES).pairs, (_LENGTH, found[1])))
    return HttpRequest(
        wire.method, wire.path, wire.query, headers, wire.body, wire.deadline, client=wire.client
    )


def _check_method(wire: HttpRequest, *allowed: str) -> None:
    if wire.method not in allowed:
        allow = ", ".join(allowed)
        raise MethodNotAllowed(
            f"method {wire.method[:32]!r} is not allowed on {wire.path}: expected {allow}",
            allow=allow,
        )


def _request_of(call: Call[Any]) -> HttpRequest | None:
    """Return the request on one of the two paths that a call comes from."""
    origin = call.context.origin
    wire = None if origin is None or origin.codec != NAME else origin.wire
    is_own = isinstance(wire, HttpRequest) and wire.path in PATHS
    return wire if is_own else None
