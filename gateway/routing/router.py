"""Router: sends each call to the first matching route, and calls to the server to `server`."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar, cast

from gateway.concurrency.ttl_lookup import TtlLookup
from gateway.ir.bounded_dict import BoundedDict
from gateway.ir.calls import (
    Call,
    InferRequest,
    ModelConfigRequest,
    ModelMetadataRequest,
    ModelReadyRequest,
    ServerReadyRequest,
    StreamInferRequest,
    with_model,
)
from gateway.ir.context import GATEWAY_CLIENT, Context, ModelRef
from gateway.ir.errors import GatewayError, ModelNotFound, ModelNotNamed, NoRoute
from gateway.routing.match import MAX_CACHED, Matcher, RouteVerdict, Rule
from gateway.service import ReplyCoroutine, Service, bound_call
from gateway.telemetry.call_path import current_path

R = TypeVar("R")

_ABOUT_A_MODEL = (
    InferRequest,
    StreamInferRequest,
    ModelMetadataRequest,
    ModelConfigRequest,
    ModelReadyRequest,
)
_MAX_LISTED = 10
_NAMELESS = (
    "the request names no model, and no default model is configured (default_model of the listener)"
)


@dataclass(frozen=True, slots=True)
class Route:
    """A rule and the service for the calls that match it."""

    name: str
    rule: Rule
    service: Service


class Router:
    """Calls the first route whose rule matches.

    Args:
        routes: In order of precedence.
        server: Handles calls to the server itself.
        default_model: Model of a call that must name a model and does not; "" for no default.
    """

    def __init__(
        self, routes: Sequence[Route], server: Service, *, default_model: str = ""
    ) -> None:
        self._routes = tuple(routes)
        self._server = server
        self._default_model = default_model
        self._matcher = Matcher([route.rule for route in self._routes])
        # Model names come from clients.
        self._found: BoundedDict[tuple[ModelRef | None, str], tuple[str, Service]]
        self._found = BoundedDict(MAX_CACHED)
        self._readiness = KnownReadiness()
        self._entries = [(route.name, bound_call(route.service)) for route in self._routes]

    def __call__(self, call: Call[R], /) -> ReplyCoroutine[R]:
        """Route *call*.

        Raises:
            ModelNotFound: No route matches the model's name.
            NoRoute: Routes match the model, but not the version, protocol or headers.
            InvalidRequest: The call must name a model, names none, and there is no default.
        """
        found = self._found.get((call.model, call.context.protocol))
        if found is None:
            return self._route(call)
        name, service = found
        path = current_path()
        if path is not None:
            path.route = name
        return service(call)

    def _route(self, call: Call[R]) -> ReplyCoroutine[R]:
        """Route a call for which no route has been found yet."""
        if call.model is None or not call.model.name:
            if type(call) not in _ABOUT_A_MODEL:
                if isinstance(call, ServerReadyRequest) and call.about is not None:
                    return cast("ReplyCoroutine[R]", self._is_ready(call, call.about))
                return self._server(call)
            if not self._default_model:
                return _failing(ModelNotNamed(_NAMELESS))
            call = self._with_default(call)
        index = self._matcher.find(call)
        if index is None:
            return _failing(self._no_match(call))
        found = self._entries[index]
        if self._matcher.is_static:
            self._found[call.model, call.context.protocol] = found
        path = current_path()
        if path is not None:
            path.route = found[0]
        return found[1](call)

    def matches_model(self, name: str, /) -> bool:
        """Return whether some route matches a model of this name."""
        return self._matcher.matches_model(name)

    def explain(self, call: Call[Any], /) -> list[tuple[Route, RouteVerdict]]:
        """Return each route with its verdict on *call*, in order; the first match is used."""
        return list(zip(self._routes, self._matcher.explain(call), strict=True))

    async def _is_ready(self, call: ServerReadyRequest, about: ModelRef) -> bool:
        """Return whether the gateway and one model are ready; the model is not waited for."""
        name = about.name or self._default_model
        if not name:
            return await self._server(call.changed(about=None))
        if not await self._server(call):
            return False
        model = ModelRef(name, about.version)
        return await self._readiness.is_ready(model, call.context, self)

    def _with_default(self, call: Call[R]) -> Call[R]:
        version = "" if call.model is None else call.model.version
        return with_model(call, ModelRef(self._default_model, version))

    def _no_match(self, call: Call[Any]) -> ModelNotFound | NoRoute:
        model = call.model or ModelRef("")
        if not self._matcher.matches_model(model.name):
            return ModelNotFound(f"model {model.name!r} is not served here", model=model)
        version = f" version {model.version!r}" if model.version else ""
        return NoRoute(
            f"no route matches model {model.name!r}{version} over {call.context.protocol!r}; "
            f"routes: {self._rules_text()}",
            model=model,
        )

    def _rules_text(self) -> str:
        texts = [_rule_text(route.rule) for route in self._routes[:_MAX_LISTED]]
        more = len(self._routes) - _MAX_LISTED
        return "; ".join(texts) + (f" and {more} more" if more > 0 else "")


async def _failing(error: GatewayError) -> Any:
    try:
        raise error
    finally:
        del error  # its traceback refers to this frame: end the reference cycle


def _rule_text(rule: Rule) -> str:
    text = repr(rule.model)
    if rule.versions:
        text += f" version {' or '.join(map(repr, rule.versions))}"
    if rule.protocols:
        text += f" over {' or '.join(map(repr, rule.protocols))}"
    if rule.headers:  # names only: values may be secrets
        text += f" with header {' and '.join(map(repr, rule.headers))}"
    if rule.clients or rule.groups or rule.tiers:
        text += " of some clients"
    return text


_TTL_S: Final = 1.0
_WAIT_S: Final = 0.25
"""Platforms wait 2 s for a probe, and the limit of the gateway is 0.5 s."""
_TIMEOUT_S: Final = 5.0
_MOST_KNOWN: Final = 64


class KnownReadiness:
    """Whether models are ready: the last known state, if a server does not answer at once.

    Args:
        clock: Monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._lookup: TtlLookup[ModelRef, bool] = TtlLookup(
            self._ask, _TTL_S, 0, _MOST_KNOWN, clock
        )
        self._known: BoundedDict[ModelRef, bool] = BoundedDict(_MOST_KNOWN)

    async def is_ready(self, model: ModelRef, context: Context, service: Service) -> bool:
        """Return whether *model* is ready; false if that was never known.

        Args:
            model: The model.
            context: Of the caller, whose route the question takes.
            service: Replies to a ModelReadyRequest.
        """
        found = self._lookup.peek(model)
        if found is not None:
            return found
        question = self._lookup.ask(model, context, service)
        await asyncio.wait([question], timeout=_WAIT_S)
        return self._known.get(model, False)

    async def _ask(self, model: ModelRef, context: Context, service: Service) -> bool:
        own = Context(context.protocol, context.metadata, client=GATEWAY_CLIENT)
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                found = await service(ModelReadyRequest(model=model, context=own))
        except (GatewayError, TimeoutError):
            found = False
        self._known[model] = found
        return found
