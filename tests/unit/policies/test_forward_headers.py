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


READ_ONLY_CALLS: list[Call[Any]] = [
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


@pytest.mark.parametrize("call", [*READ_ONLY_CALLS, *CALLS], ids=lambda call: type(call).__name__)
async def test_read_only_calls_get_their_own_headers(call: Call[Any]) -> None:
    """Configured headers replace those of the same name; other calls are unchanged."""
    service = ScriptedService(always=True)
    metadata = (("key", "of the calls"), ("traceparent", "00-1"))
    await QuestionHeaders(service, {"KEY": "of the probes"})(call.with_metadata(metadata))
    expected = (("traceparent", "00-1"), ("key", "of the probes"))
    assert (expected if call in READ_ONLY_CALLS else metadata) == service.calls[0].context.metadata


async def test_only_trace_headers_are_forwarded_by_default() -> None:
    """Credentials and all other headers are dropped."""
    found = await forwarded(
        ("authorization", "secret"), ("x-tenant", "a"), ("traceparent", "00-1"), ("tracestate", "s")
    )
    assert (("traceparent", "00-1"), ("tracestate", "s")) == found


async def test_listed_headers_are_forwarded() -> None:
    """Names match in any case, and by prefix."""
    found = await forwarded(
        ("x-tenant", "a"), ("x-fwd-1", "b"), ("y", "c"), allowed=("X-Tenant", "x-fwd-*")
    )
    assert (("x-tenant", "a"), ("x-fwd-1", "b")) == found


@pytest.mark.parametrize("name", ["host", "content-length", "connection", "x-request-id"])
async def test_headers_of_one_hop_are_never_forwarded(name: str) -> None:
    """Framing headers and the request id belong to one hop, even if all are listed."""
    assert () == await forwarded((name, "v"), allowed=("*", name))


async def test_request_id_is_forwarded_from_the_context() -> None:
    """The call's own id is forwarded, and not the header of the client."""
    service = ScriptedService(always=True)
    theirs = Context(metadata=(("x-request-id", "theirs"),), request_id="ours")
    await ForwardHeaders(service, (), {})(InferRequest(context=theirs))
    assert Context(request_id="ours") == service.calls[0].context


async def test_forwarded_headers_are_not_shared_between_callers() -> None:
    """The headers of one caller are never sent with another caller's call."""
    service = ScriptedService(always=True)
    policy = ForwardHeaders(service, ("x-tenant",), {})
    first, second = ((("x-tenant", name), ("y", "z")) for name in "ab")
    for metadata in (first, first, second, first, ()):
        await policy(InferRequest(context=Context(metadata=metadata)))
    found = [call.context.metadata for call in service.calls]
    assert [first[:1], first[:1], second[:1], first[:1], ()] == found


async def test_configured_headers_replace_those_of_the_caller() -> None:
    """A listed header of the caller is replaced by an added one of the same name."""
    found = await forwarded(
        ("authorization", "theirs"), allowed=("authorization",), added={"Authorization": "ours"}
    )
    assert (("authorization", "ours"),) == found
