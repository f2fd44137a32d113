"""Reads HTTP requests of grps as messages: content types, queries, bodies, customised routes.

Source: docs/protocols/grps.md, "8. HTTP", "14. Customised routes".
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from gateway.ir.calls import (
    Call,
    InferRequest,
    ServerStatusRequest,
    ServerTrendsRequest,
    StreamInferRequest,
)
from gateway.ir.errors import InvalidRequest, MalformedMessage
from gateway.ir.limits import MessageLimits
from gateway.ir.values.nearest import loads_to_odd
from gateway.protocols.grps import methods
from gateway.protocols.grps.content import ReplyFormat
from gateway.protocols.grps.custom.routes import FORM_BODY, QUERY_BODY, CustomRoute, route_content
from gateway.protocols.grps.errors import Unreadable
from gateway.protocols.grps.http.paths import GrpsRoute, Surface
from gateway.protocols.grps.json.document import has_one_spelling, read_document
from gateway.protocols.grps.json.message import read_request
from gateway.protocols.grps.messages import ContentFormat, GrpsMessage
from gateway.protocols.grps.options import GrpsOptions
from gateway.protocols.grps.protobuf.message import read_message
from gateway.wire.heads.metadata import http_context
from gateway.wire.heads.url_names import read_query
from gateway.wire.http import HttpRequest, media_type

NAME: Final = "grps.http"

JSON_TYPE: Final = "application/json"
BYTES_TYPE: Final = "application/octet-stream"
_PROTO_TYPES: Final = ("application/proto", "application/x-protobuf")
_PROTO_TEXT: Final = "application/proto-text"
_FORM_TYPE: Final = "application/x-www-form-urlencoded"
_BODY: Final = "the HTTP body"
_BOTH: Final = "Bad Request, err: Streaming and ret ndarray are not supported at the same time."


@dataclass(frozen=True, slots=True)
class Reader:
    """Reads HTTP requests of one listener.

    Attributes:
        customized: Its customised routes, by path.
    """

    limits: MessageLimits
    settings: GrpsOptions
    customized: Mapping[str, CustomRoute]

    def read(self, route: GrpsRoute, wire: HttpRequest) -> Call[Any]:
        """Return the call of *wire*.

        Raises:
            InvalidRequest: Content type or body is wrong.
            NotFound: No model is named, and there is no default.
            TooLarge: A limit is exceeded.
        """
        if route.surface is Surface.CUSTOM and route.custom is not None:
            return self._customized(route, route.custom, wire)
        if route.surface is Surface.BRPC:
            return self._brpc(route, wire)
        if route.method == methods.PREDICT:
            return self._predict(route, wire)
        if route.surface in (Surface.PAGE, Surface.SERIES):
            return self._shown(route, wire)
        message = GrpsMessage()
        if route.method == methods.MODEL_METADATA:
            message = read_request(self._document(wire), self.limits, wire.view)
        return self._call(route, message, wire)

    def _shown(self, route: GrpsRoute, wire: HttpRequest) -> Call[Any]:
        if route.surface is Surface.PAGE:
            context = http_context(wire, NAME, frozenset(), ReplyFormat(route=route))
            return ServerStatusRequest(context=context, trends=True)
        route = route.called(read_query(wire.query).get("name", ""))
        context = http_context(wire, NAME, frozenset(), ReplyFormat(route=route))
        return ServerTrendsRequest(context=context)

    def _predict(self, route: GrpsRoute, wire: HttpRequest) -> Call[Any]:
        query = read_query(wire.query)
        kind = _content_type(wire)
        if kind is None:
            raise InvalidRequest("No content type in headers.")
        if kind not in (JSON_TYPE, BYTES_TYPE):
            raise InvalidRequest(
                f"Unsupported content type {kind[:64]!r}: expected {JSON_TYPE} or {BYTES_TYPE}"
            )
        view = wire.view
        if not len(view):
            raise InvalidRequest("The http body is empty.")
        document: dict[str, Any] | None = None
        if kind == BYTES_TYPE:
            message = GrpsMessage(form=ContentFormat.BIN_DATA, data=view)
        else:
            document = read_document(view, _BODY, self.limits)
            message = read_request(document, self.limits, view)
        message = self._with_model(route, message, query)
        streaming = self.settings.streaming.is_requested(query, wire.headers, document)
        ndarray = query.get("return-ndarray", "").lower() == "true"
        if streaming and ndarray:
            raise InvalidRequest(_BOTH)
        if streaming:
            route = route.streamed()
        is_whole = not (streaming or self.settings.changes_messages) and (
            query.get("model", message.model) == message.model
            and len(query) == (wire.query.count("&") + 1 if wire.query else 0)
            and (document is None or has_one_spelling(document))
        )
        return self._call(route, message, wire, ndarray=ndarray, whole=NAME if is_whole else "")

    def _with_model(
        self, route: GrpsRoute, message: GrpsMessage, query: Mapping[str, str]
    ) -> GrpsMessage:
        """Return *message* with the model of the payload, else of the query, else of the route."""
        if message.model:
            return message
        key = query.get("model", "")
        if not key and route.custom is not None and route.custom.model is not None:
            key = methods.model_key(route.custom.model, GrpsOptions())
        return methods.keyed(message, key) if key else message

    def _brpc(self, route: GrpsRoute, wire: HttpRequest) -> Call[Any]:
        """Read a message as brpc's HTTP layer does; empty without a body.

        Args:
            route: From `reply_route`.
            wire: The request.
        """
        kind = _content_type(wire)
        view = wire.view
        if kind == _PROTO_TEXT:
            raise Unreadable(f"{_PROTO_TEXT} is not supported: expected JSON or protobuf")
        if route.is_binary:
            return self._call(route, read_message(view, self.limits), wire)
        message = GrpsMessage()
        if len(view):
            try:
                document = read_document(view, _BODY, self.limits)
            except MalformedMessage as error:
                raise Unreadable(error.message) from error
            # Only two methods need data; the others accept any object.
            if route.method in (methods.PREDICT, methods.MODEL_METADATA):
                message = read_request(document, self.limits, view)
        return self._call(route, message, wire)

    def _call(
        self,
        route: GrpsRoute,
        message: GrpsMessage,
        wire: HttpRequest,
        *,
        ndarray: bool = False,
        whole: str = "",
    ) -> Call[Any]:
        form = ReplyFormat(message.form, ndarray, route, message.model)
        context = http_context(wire, NAME, methods.REPLY_NEEDS, form, whole)
        return methods.decode_method(route.method, message, context, self.settings, self.limits)

    def _document(self, wire: HttpRequest) -> dict[str, Any]:
        kind = _content_type(wire)
        if kind != JSON_TYPE:
            raise InvalidRequest(f"Unsupported content type {str(kind)[:64]!r}: expected JSON")
        return read_document(wire.view, _BODY, self.limits)

    def _customized(self, route: GrpsRoute, custom: CustomRoute, wire: HttpRequest) -> Call[Any]:
        query = read_query(wire.query)
        document = self._custom_document(custom, wire, query)

        @cache
        def reread() -> Mapping[str, Any]:
            if custom.body in (QUERY_BODY, FORM_BODY):
                return document
            found: Mapping[str, Any] = loads_to_odd(wire.view)
            return found

        inputs, parameters = route_content(custom, document, self.limits, reread)
        stream = custom.stream
        streaming = stream is not None and stream.switch.is_requested(query, wire.headers, document)
        route = route.streamed() if streaming else route
        context = http_context(wire, NAME, methods.REPLY_NEEDS, ReplyFormat(None, route=route))
        model = custom.model
        if model is None:
            model = methods.model_of(query.get("model", ""), self.settings, self.limits)
        request = InferRequest(model=model, context=context, inputs=inputs, parameters=parameters)
        if streaming:
            return StreamInferRequest(model=model, context=context, request=request)
        return request

    def _custom_document(
        self, custom: CustomRoute, wire: HttpRequest, query: Mapping[str, str]
    ) -> Mapping[str, Any]:
        if custom.body == QUERY_BODY:
            return query
        if custom.body != FORM_BODY:
            return read_document(wire.view, _BODY, self.limits)
        if _content_type(wire) != _FORM_TYPE:
            raise InvalidRequest(f"Unsupported content type: expected {_FORM_TYPE}")
        try:
            return read_query(str(wire.view, "ascii"))
        except UnicodeDecodeError as error:
            raise MalformedMessage("the form is not percent-encoded ASCII") from error


def reply_route(route: GrpsRoute, wire: HttpRequest) -> GrpsRoute:
    """Return *route* with the form of the response to *wire*, also where the request is wrong.

    brpc's HTTP layer responds in the form of the request: protobuf or JSON.
    """
    if route.surface is Surface.BRPC and _content_type(wire) in _PROTO_TYPES:
        return route.as_binary()
    return route


def _content_type(wire: HttpRequest) -> str | None:
    """Return the content type without parameters, in lower case; None when it is missing."""
    found = wire.headers.get("content-type")
    return None if found is None else media_type(found)
