"""Server calls to all upstreams, whose replies become one."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.ir.calls import (
    Call,
    LogSettingsRequest,
    ModelLoadRequest,
    ModelReadyRequest,
    ModelStatisticsRequest,
    OpaqueCall,
    ServerLiveRequest,
    ServerMetadataRequest,
    TraceSettingRequest,
)
from gateway.ir.context import ModelRef, Origin
from gateway.ir.errors import InvalidRequest, Unavailable, Unsupported
from gateway.ir.metadata import ServerMetadata
from gateway.ir.statistics import Duration, InferStatistics, ModelStatistics
from gateway.routing.upstream_queries import RefreshModelIndex, UpstreamQuestions
from tests.fakes import ScriptedService

M = ModelRef("m")
LACKS = Unsupported("no such question")
DOWN = Unavailable("connection refused")


def targets(*answers: Any) -> UpstreamQuestions:
    """Return a service whose upstreams have these replies, in their order."""
    upstreams = {f"u{n}": ScriptedService(always=reply) for n, reply in enumerate(answers)}
    return UpstreamQuestions(ScriptedService(always=True), upstreams, lambda name: name != "hidden")


def used(name: str, count: int, version: str = "1") -> ModelStatistics:
    """Return statistics of *count* inferences."""
    return ModelStatistics(
        name=name,
        version=version,
        last_inference_ms=count,
        inference_count=count,
        inference=InferStatistics(success=Duration(count, 10 * count)),
    )


@pytest.mark.parametrize(
    ("server", "name", "version"),
    [(None, "gateway", "1"), (ServerMetadata("triton", "2.51.0", ("theirs",)), "triton", "2.51.0")],
)
async def test_metadata_may_have_the_identity_of_a_server(
    server: ServerMetadata | None, name: str, version: str
) -> None:
    """Name and version are the server's, once known; the extensions are the gateway's."""
    inner = ScriptedService(always=ServerMetadata("gateway", "1", ("ours",)))
    questions = UpstreamQuestions(inner, {}, lambda _name: True, lambda: server)
    assert ServerMetadata(name, version, ("ours",)) == await questions(ServerMetadataRequest())


QUESTIONS: list[Call[Any]] = [TraceSettingRequest(), LogSettingsRequest()]


@pytest.mark.parametrize("call", QUESTIONS)
async def test_settings_are_those_of_the_first_upstream_with_them(call: Call[Any]) -> None:
    """Upstreams without such settings, or unreachable, are skipped."""
    assert {"a": ("1",)} == await targets(LACKS, DOWN, {"a": ("1",)}, {"a": ("2",)})(call)


async def test_changes_apply_to_all_upstreams_or_fail() -> None:
    """An upstream that rejects the change fails the call; one without settings does not."""
    call = TraceSettingRequest(changes={"trace_level": ("OFF",)})
    assert {"a": ("1",)} == await targets(LACKS, {"a": ("1",)}, {"a": ("1",)})(call)
    with pytest.raises(InvalidRequest, match="unknown setting"):
        await targets({"a": ("1",)}, InvalidRequest("unknown setting"))(call)


@pytest.mark.parametrize(
    ("answers", "error"),
    [((LACKS, LACKS), Unsupported), ((), Unsupported), ((LACKS, DOWN), Unavailable)],
)
async def test_calls_without_a_capable_upstream_fail(
    answers: tuple[Any, ...], error: type[Exception]
) -> None:
    """They are unsupported, or unavailable if an upstream is unreachable."""
    with pytest.raises(error):
        await targets(*answers)(TraceSettingRequest())


async def test_statistics_are_summed_over_upstreams() -> None:
    """Models that are not served are omitted."""
    service = targets((used("m", 3), used("n", 1)), LACKS, (used("m", 4), used("hidden", 9)))
    found = await service(ModelStatisticsRequest())
    assert (used("m", 3) + used("m", 4), used("n", 1)) == found
    assert (7, 70, 4) == (
        found[0].inference_count,
        found[0].inference.success.ns,
        found[0].last_inference_ms,
    )


OWN: list[Call[Any]] = [
    LogSettingsRequest(own=True),
    ModelStatisticsRequest(own=True),
    ServerLiveRequest(),
]


@pytest.mark.parametrize("call", OWN)
async def test_calls_for_the_gateway_are_not_forwarded(call: Call[Any]) -> None:
    """Calls for the gateway itself, and all other calls, are passed to the inner service."""
    assert await targets(DOWN)(call) is True


async def test_a_load_refreshes_the_model_index() -> None:
    """A failed load does so, too; other calls do not."""
    forgotten: list[str] = []
    refresh = RefreshModelIndex(ScriptedService(None, True, DOWN), lambda: forgotten.append("now"))
    await refresh(ModelLoadRequest(model=M))
    await refresh(ModelReadyRequest(model=M))
    with pytest.raises(Unavailable):
        await refresh(ModelLoadRequest(model=M))
    assert ["now", "now"] == forgotten


async def test_opaque_calls_reach_the_first_capable_upstream() -> None:
    """Upstreams of other protocols are skipped; a rejection by the server itself is returned."""
    call = OpaqueCall(message=Origin("oip.http", "question"))
    reply = Origin("oip.http", "answer")
    assert reply == await targets(LACKS, reply, DOWN)(call)
    with pytest.raises(Unsupported, match=r"no upstream of this gateway supports oip\.http"):
        await targets(LACKS)(call)
    refusal = Unsupported("its own words", origin=reply)
    with pytest.raises(Unsupported, match="its own words"):
        await targets(refusal, reply)(call)


async def test_internal_errors_are_not_skipped() -> None:
    """Only gateway errors count as replies of an upstream."""
    with pytest.raises(RuntimeError, match="bug"):
        await targets({"a": ("1",)}, RuntimeError("bug"))(TraceSettingRequest())
