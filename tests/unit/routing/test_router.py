"""The router: routes for models, one service for the server, and errors for other calls."""

from __future__ import annotations

import pytest

from gateway.ir.calls import (
    InferRequest,
    InferResponse,
    ModelReadyRequest,
    ServerLiveRequest,
    StreamInferRequest,
)
from gateway.ir.context import Context, ModelRef
from gateway.ir.errors import InvalidRequest, ModelNotFound, NoRoute
from gateway.routing.match import Rule
from gateway.routing.router import Route, Router
from gateway.telemetry.call_path import CALL_PATH, CallPath
from tests.fakes import FakeStream, ScriptedService

REPLY = InferResponse(model=ModelRef("m"), outputs=())


def infer(name: str, version: str = "") -> InferRequest:
    return InferRequest(model=ModelRef(name, version), context=Context(protocol="oip.http"))


async def test_a_model_call_uses_the_first_matching_route() -> None:
    """The call path records the name of the route."""
    first, second = ScriptedService(always=True), ScriptedService(REPLY)
    router = Router(
        [Route("one", Rule(model="x"), first), Route("two", Rule(model="m*"), second)],
        ScriptedService(),
    )
    token = CALL_PATH.set(path := CallPath())
    try:
        assert REPLY == await router(infer("m1"))
    finally:
        CALL_PATH.reset(token)
    assert ("two", [], [infer("m1")]) == (path.route, first.calls, second.calls)


async def test_a_server_call_reaches_the_server() -> None:
    """A call without a model is not routed."""
    server = ScriptedService(True)
    assert await Router([], server)(ServerLiveRequest()) is True
    assert [ServerLiveRequest()] == server.calls


async def test_an_unknown_model_is_not_found() -> None:
    """No route matches its name."""
    router = Router([Route("one", Rule(model="x"), ScriptedService())], ScriptedService())
    with pytest.raises(ModelNotFound) as caught:
        await router(infer("m"))
    assert ("model 'm' is not served here", ModelRef("m")) == (
        caught.value.message,
        caught.value.model,
    )


async def test_no_route_error_lists_the_routes_of_the_model() -> None:
    """Header names are listed, but not their values."""
    rule = Rule(model="m", versions=("1", "2"), protocols=("grps.*",), headers={"x-key": "secret"})
    router = Router([Route("one", rule, ScriptedService())], ScriptedService())
    with pytest.raises(NoRoute) as caught:
        await router(infer("m", "3"))
    assert caught.value.message == (
        "no route matches model 'm' version '3' over 'oip.http'; routes: "
        "'m' version '1' or '2' over 'grps.*' with header 'x-key'"
    )


async def test_long_lists_of_routes_are_cut() -> None:
    """The error lists ten routes and the number of the others."""
    routes = [Route(str(n), Rule(model="m", versions=("1",)), ScriptedService()) for n in range(12)]
    with pytest.raises(NoRoute) as caught:
        await Router(routes, ScriptedService())(infer("m"))
    assert caught.value.message.endswith("'m' version '1' and 2 more")
    assert 10 == caught.value.message.count("version '1'")


async def test_a_call_without_a_model_gets_the_default() -> None:
    """The configured default model replaces an empty name."""
    service = ScriptedService(REPLY, FakeStream([]), True)
    router = Router([Route("one", Rule(), service)], ScriptedService(), default_model="d")
    await router(InferRequest())
    await router(StreamInferRequest(request=InferRequest()))
    await router(ModelReadyRequest(model=ModelRef("", "2")))
    stream = service.calls[1]
    assert isinstance(stream, StreamInferRequest)
    assert (ModelRef("d"), ModelRef("d")) == (stream.model, stream.request.model)
    assert [ModelRef("d"), ModelRef("d"), ModelRef("d", "2")] == [c.model for c in service.calls]


async def test_a_call_without_a_model_is_rejected_without_a_default() -> None:
    """The error reports the missing default model."""
    with pytest.raises(InvalidRequest, match="names no model, and no default model is configured"):
        await Router([], ScriptedService())(InferRequest())


def test_explain_pairs_routes_with_verdicts() -> None:
    """Each route has its verdict on the call."""
    routes = [
        Route("one", Rule(model="x"), ScriptedService()),
        Route("two", Rule(), ScriptedService()),
    ]
    router = Router(routes, ScriptedService())
    assert [("one", False), ("two", True)] == [
        (route.name, verdict.is_match) for route, verdict in router.explain(infer("m"))
    ]
    assert router.matches_model("whatever")


async def test_a_route_with_header_conditions_is_described() -> None:
    """The error has the names of the headers."""
    rule = Rule(model="m", headers={"x-a": "1", "x-b": "2"})
    with pytest.raises(NoRoute, match=r"routes: 'm' with header 'x-a' and 'x-b'$"):
        await Router([Route("one", rule, ScriptedService())], ScriptedService())(infer("m"))
