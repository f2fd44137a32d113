from __future__ import annotations

from typing import Any

import pytest

from gateway.ir.calls import (
    Call,
    InferRequest,
    ModelConfigRequest,
    ModelLoadRequest,
    ModelMetadataRequest,
    ModelReadyRequest,
    RepositoryIndexRequest,
    ServerMetadataRequest,
    ServerReadyRequest,
    StreamInferRequest,
    TraceSettingRequest,
)
from gateway.ir.context import Context, ModelRef
from gateway.policies.forward_headers import ForwardHeaders, QuestionHeaders
from tests.fakes import ScriptedService


async def forwarded(
    *metadata: tuple[str, str],
    allowed: tuple[str, ...] = (),
    added: dict[str, str] | None = None,
) -> tuple[tuple[str, str], ...]:
    service = ScriptedService(always=True)
    policy = ForwardHeaders(service, allowed, added or {})
    await policy(InferRequest(context=Context(metadata=metadata)))
    context: Context = service.calls[0].context
    return context.metadata


QUESTIONS: list[Call[Any]] = [
    ServerReadyRequest(),
    ServerMetadataRequest(),
    ModelReadyRequest(model=ModelRef("m")),
    ModelMetadataRequest(model=ModelRef("m")),
    ModelConfigRequest(model=ModelRef("m")),
    RepositoryIndexRequest(),
]
CALLS: list[Call[Any]] = [
    InferRequest(model=ModelRef("m")),
    StreamInferRequest(model=ModelRef("m"), request=InferRequest(model=ModelRef("m"))),
    ModelLoadRequest(model=ModelRef("m")),
    TraceSettingRequest(),
]


@pytest.mark.parametrize("call", [*QUESTIONS, *CALLS], ids=lambda call: type(call).__name__)
async def test_questions_have_headers_of_their_own(call: Call[Any]) -> None:
    """Those of the same name are replaced; calls that run or change something are untouched."""
    service = ScriptedService(always=True)
    metadata = (("key", "of the calls"), ("traceparent", "00-1"))
    await QuestionHeaders(service, {"KEY": "of the probes"})(call.with_metadata(metadata))
    expected = (("traceparent", "00-1"), ("key", "of the probes"))
    assert (expected if call in QUESTIONS else metadata) == service.calls[0].context.metadata


async def test_nothing_crosses_by_itself() -> None:
    """Credentials and everything else end here; tracing goes on."""
    found = await forwarded(
        ("authorization", "secret"), ("x-tenant", "a"), ("traceparent", "00-1"), ("tracestate", "s")
    )
    assert (("traceparent", "00-1"), ("tracestate", "s")) == found


async def test_listed_headers_cross() -> None:
    """By name in any case, and by prefix."""
    found = await forwarded(
        ("x-tenant", "a"), ("x-fwd-1", "b"), ("y", "c"), allowed=("X-Tenant", "x-fwd-*")
    )
    assert (("x-tenant", "a"), ("x-fwd-1", "b")) == found


@pytest.mark.parametrize("name", ["host", "content-length", "connection", "x-request-id"])
async def test_some_never_cross_as_they_came(name: str) -> None:
    """Framing and the id belong to one hop, even when everything is listed."""
    assert () == await forwarded((name, "v"), allowed=("*", name))


async def test_the_request_id_goes_on() -> None:
    """The call's own id, in its context, and not the header it came in."""
    service = ScriptedService(always=True)
    theirs = Context(metadata=(("x-request-id", "theirs"),), request_id="ours")
    await ForwardHeaders(service, (), {})(InferRequest(context=theirs))
    assert Context(request_id="ours") == service.calls[0].context


async def test_callers_with_other_headers_get_their_own() -> None:
    """What crossed of one caller's headers is never sent for another's."""
    service = ScriptedService(always=True)
    policy = ForwardHeaders(service, ("x-tenant",), {})
    first, second = ((("x-tenant", name), ("y", "z")) for name in "ab")
    for metadata in (first, first, second, first, ()):
        await policy(InferRequest(context=Context(metadata=metadata)))
    found = [call.context.metadata for call in service.calls]
    assert [first[:1], first[:1], second[:1], first[:1], ()] == found


async def test_added_headers_win() -> None:
    """What the configuration adds replaces what a caller sends."""
    found = await forwarded(
        ("authorization", "theirs"), allowed=("authorization",), added={"Authorization": "ours"}
    )
    assert (("authorization", "ours"),) == found
