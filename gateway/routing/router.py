"""Router: gives each call to the route that takes it, and questions to the server to `server`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from gateway.ir.calls import (
    Call,
    InferRequest,
    ModelConfigRequest,
    ModelMetadataRequest,
    ModelReadyRequest,
    StreamInferRequest,
)
from gateway.ir.context import ModelRef
from gateway.ir.errors import GatewayError, InvalidRequest, ModelNotFound, NoRoute
from gateway.routing.match import Matcher, Rule, Verdict
from gateway.service import ReplyCoroutine, Service
from gateway.telemetry.call_path import record_route

R = TypeVar("R")

_ABOUT_A_MODEL = (
    InferRequest,
    StreamInferRequest,
    ModelMetadataRequest,
    ModelConfigRequest,
    ModelReadyRequest,
)
_LISTED = 10
_NAMELESS = "the request names no model, and no default model is configured"


@dataclass(frozen=True, slots=True)
class Route:
    """A rule and the service that answers what it takes."""

    name: str
    rule: Rule
    service: Service


class Router:
    """Calls the first route whose rule matches.

    Args:
        routes: In order of precedence.
        server: Answers questions to the server itself.
        default_model: Model meant by a call about a model that names none; "" for no such model.
    """

    def __init__(
        self, routes: Sequence[Route], server: Service, *, default_model: str = ""
    ) -> None:
        self._routes = tuple(routes)
        self._server = server
        self._default_model = default_model
        self._matcher = Matcher([route.rule for route in self._routes])

    def __call__(self, call: Call[R], /) -> ReplyCoroutine[R]:
        """Route *call*.

        Raises:
            ModelNotFound: No route takes a model of this name.
            NoRoute: Routes take the model, but not this version, protocol or header.
            InvalidRequest: The call needs a model, names none, and there is no default.
        """
        if call.model is None or not call.model.name:
            if type(call) not in _ABOUT_A_MODEL:
                return self._server(call)
            if not self._default_model:
                return _refused(InvalidRequest(_NAMELESS))
            call = self._with_default(call)
        index = self._matcher.find(call)
        if index is None:
            return _refused(self._refusal(call))
        route = self._routes[index]
        record_route(route.name)
        return route.service(call)

    def matches_model(self, name: str, /) -> bool:
        """Return whether some route takes a model of this name."""
        return self._matcher.matches_model(name)

    def explain(self, call: Call[Any], /) -> list[tuple[Route, Verdict]]:
        """Return each route with its verdict on *call*, in order; the first match is taken."""
        return list(zip(self._routes, self._matcher.explain(call), strict=True))

    def _with_default(self, call: Call[R]) -> Call[R]:
        version = "" if call.model is None else call.model.version
        return with_model(call, ModelRef(self._default_model, version))

    def _refusal(self, call: Call[Any]) -> ModelNotFound | NoRoute:
        model = call.model or ModelRef("")
        if not self._matcher.matches_model(model.name):
            return ModelNotFound(f"model {model.name!r} is not served here", model=model)
        version = f" version {model.version!r}" if model.version else ""
        return NoRoute(
            f"no route takes model {model.name!r}{version} over {call.context.protocol!r}; "
            f"there are routes for {self._served()}",
            model=model,
        )

    def _served(self) -> str:
        texts = [_described(route.rule) for route in self._routes[:_LISTED]]
        left = len(self._routes) - _LISTED
        return "; ".join(texts) + (f" and {left} more" if left > 0 else "")


async def _refused(error: GatewayError) -> Any:
    try:
        raise error
    finally:
        del error  # which holds this frame from here on


def with_model(call: Call[R], model: ModelRef) -> Call[R]:
    """Return *call* about *model*; the inference inside a stream is changed with it."""
    if isinstance(call, StreamInferRequest):
        inner = call.request.changed(model=model)
        return cast("Call[R]", call.changed(model=model, request=inner))
    return call.changed(model=model)


def _described(rule: Rule) -> str:
    text = repr(rule.model)
    if rule.versions:
        text += f" version {' or '.join(map(repr, rule.versions))}"
    if rule.protocols:
        text += f" over {' or '.join(map(repr, rule.protocols))}"
    if rule.headers:  # names only: values may be secrets
        text += f" with header {' and '.join(map(repr, rule.headers))}"
    return text
