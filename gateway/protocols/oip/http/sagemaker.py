"""Open Inference on the paths of a SageMaker container, with the option `sagemaker`.

Requests name no model: the default model of the listener has them. Triton's own containers read the
same bodies.

Source: docs/protocols/open-inference.md, "6. HTTP endpoints".
"""

import re
from collections.abc import Mapping
from typing import Any, Final, TypeVar

from gateway.api.protocol import Codec
from gateway.ir.calls import Call, ServerReadyRequest
from gateway.ir.context import ModelRef
from gateway.ir.errors import GatewayError, MalformedMessage
from gateway.ir.limits import MessageLimits
from gateway.protocols.oip.http.codec import HttpCodec
from gateway.protocols.oip.http.context import context_of
from gateway.protocols.oip.http.infer_request import decode_request
from gateway.protocols.oip.options import check_options
from gateway.wire.errors import MethodNotAllowed
from gateway.wire.heads.path_claims import PathClaim
from gateway.wire.heads.sagemaker import custom_attributes, inference_id
from gateway.wire.http import Headers, HttpRequest, HttpResponse, with_headers

R = TypeVar("R")

PING: Final = "/ping"
INVOCATIONS: Final = "/invocations"

_KEY: Final = "sagemaker"
_LENGTH: Final = "Inference-Header-Content-Length"
_BINARY: Final = re.compile(
    r"application/vnd\.sagemaker-triton\.binary\+json;\s*json-header-size=(\d{1,18})", re.IGNORECASE
)
_BINARY_TYPE: Final = "application/vnd.sagemaker-triton.binary+json"
_DEFAULT: Final = ModelRef("")
_CLAIMS: Final = (
    PathClaim(PING, is_public=True, option=_KEY),
    PathClaim(INVOCATIONS, option=_KEY),
)
_PLACES: Final = frozenset({"content-type", "inference-header-content-length"})


def make_codec(
    limits: MessageLimits, options: Mapping[str, Any]
) -> Codec[HttpRequest, HttpResponse]:
    """Return the codec of a listener or an upstream.

    Raises:
        ValueError: An option is wrong.
    """
    is_container = check_options(options).get(_KEY, False)
    return (ContainerCodec if is_container else HttpCodec)(limits, options)


def container_claims(options: Mapping[str, Any]) -> tuple[PathClaim, ...]:
    """Return the paths that a listener's option `sagemaker` adds.

    Raises:
        ValueError: The option is wrong.
    """
    return _CLAIMS if check_options({_KEY: options.get(_KEY, False)})[_KEY] else ()


class ContainerCodec(HttpCodec):
    """Open Inference over HTTP, with the two paths of a container."""

    def decode_call(self, wire: HttpRequest, request_id: str = "", /) -> Call[Any]:
        """Read a client's request, as `HttpCodec` does."""
        if wire.path not in {PING, INVOCATIONS}:
            return super().decode_call(wire, request_id)
        return self._decode_own(wire, request_id)

    def encode_reply(self, call: Call[R], reply: R, /) -> HttpResponse:
        """Write the response to *call*; its type has the size of the JSON, if it is binary."""
        response = super().encode_reply(call, reply)
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

    def encode_error(self, call: Call[Any] | None, error: GatewayError, /) -> HttpResponse:
        """Write *error*, with the custom attributes of its request."""
        response = super().encode_error(call, error)
        wire = None if call is None else _request_of(call)
        extra = custom_attributes(Headers(error.metadata) if wire is None else wire.headers)
        return with_headers(response, extra)

    def _decode_own(self, wire: HttpRequest, request_id: str) -> Call[Any]:
        if wire.path == PING:
            _check_method(wire, "GET", "HEAD")
            return ServerReadyRequest(about=_DEFAULT, context=context_of(wire, None))
        _check_method(wire, "POST")
        call = decode_request(_DEFAULT, _with_length(wire), self.request_templates, request_id)
        own = inference_id(wire.headers)
        if own and not call.context.request_id:
            call = call.with_context(request_id=own)
        return call


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
    wire = None if origin is None or origin.codec != ContainerCodec.name else origin.wire
    is_own = isinstance(wire, HttpRequest) and wire.path in {PING, INVOCATIONS}
    return wire if is_own else None
