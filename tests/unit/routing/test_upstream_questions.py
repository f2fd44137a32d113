"""Questions to the server that go on to upstreams: all of them asked, one answer."""

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
from gateway.routing.upstream_questions import RefreshModelIndex, UpstreamQuestions
from tests.fakes import ScriptedService

M = ModelRef("m")
LACKS = Unsupported("no such question")
DOWN = Unavailable("connection refused")


def targets(*answers: Any) -> UpstreamQuestions:
    """Return the question's way to upstreams that answer so, in their order."""
    upstreams = {f"u{n}": ScriptedService(always=answer) for n, answer in enumerate(answers)}
    return UpstreamQuestions(ScriptedService(always=True), upstreams, lambda name: name != "hidden")


def used(name: str, count: int, version: str = "1") -> ModelStatistics:
    """Return statistics of so many inferences."""
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
async def test_the_identity_may_be_that_of_a_server(
    server: ServerMetadata | None, name: str, version: str
) -> None:
    """Name and version are the server's, once it is known; the extensions are the gateway's."""
    inner = ScriptedService(always=ServerMetadata("gateway", "1", ("ours",)))
    questions = UpstreamQuestions(inner, {}, lambda _name: True, lambda: server)
    assert ServerMetadata(name, version, ("ours",)) == await questions(ServerMetadataRequest())


QUESTIONS: list[Call[Any]] = [TraceSettingRequest(), LogSettingsRequest()]


@pytest.mark.parametrize("call", QUESTIONS)
async def test_settings_are_those_of_the_first_that_has_them(call: Call[Any]) -> None:
    """Upstreams without such settings, or out of reach, are passed over."""
    assert {"a": ("1",)} == await targets(LACKS, DOWN, {"a": ("1",)}, {"a": ("2",)})(call)


async def test_a_change_is_made_everywhere_or_fails() -> None:
    """One upstream that does not make the change fails the request; one that lacks it does not."""
    call = TraceSettingRequest(changes={"trace_level": ("OFF",)})
    assert {"a": ("1",)} == await targets(LACKS, {"a": ("1",)}, {"a": ("1",)})(call)
    with pytest.raises(InvalidRequest, match="unknown setting"):
        await targets({"a": ("1",)}, InvalidRequest("unknown setting"))(call)


@pytest.mark.parametrize(
    ("answers", "error"),
    [((LACKS, LACKS), Unsupported), ((), Unsupported), ((LACKS, DOWN), Unavailable)],
)
async def test_nobody_can_be_asked(answers: tuple[Any, ...], error: type[Exception]) -> None:
    """Where no upstream has it the question is not supported; an outage is told as one."""
    with pytest.raises(error):
        await targets(*answers)(TraceSettingRequest())


async def test_statistics_are_those_of_all() -> None:
    """The same model at two upstreams is added up; models that are not served are left out."""
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
async def test_questions_to_the_gateway_stay_here(call: Call[Any]) -> None:
    """What the gateway itself answers, and every other call, goes through."""
    assert await targets(DOWN)(call) is True


async def test_loading_has_models_listed_anew() -> None:
    """After a load, good or bad, the index is asked for again; nothing else has that effect."""
    forgotten: list[str] = []
    relisting = RefreshModelIndex(
        ScriptedService(None, True, DOWN), lambda: forgotten.append("now")
    )
    await relisting(ModelLoadRequest(model=M))
    await relisting(ModelReadyRequest(model=M))
    with pytest.raises(Unavailable):
        await relisting(ModelLoadRequest(model=M))
    assert ["now", "now"] == forgotten


async def test_what_is_not_modelled_goes_to_the_first_that_can_read_it() -> None:
    """Those of other protocols are passed over; a refusal of the server's own is the answer."""
    call = OpaqueCall(message=Origin("oip.http", "question"))
    answer = Origin("oip.http", "answer")
    assert answer == await targets(LACKS, answer, DOWN)(call)
    with pytest.raises(Unsupported, match=r"no upstream of this gateway supports oip\.http"):
        await targets(LACKS)(call)
    refusal = Unsupported("its own words", origin=answer)
    with pytest.raises(Unsupported, match="its own words"):
        await targets(refusal, answer)(call)


async def test_a_bug_is_no_upstream_that_is_passed_over() -> None:
    """Only errors of the gateway's taxonomy are an upstream's word."""
    with pytest.raises(RuntimeError, match="bug"):
        await targets({"a": ("1",)}, RuntimeError("bug"))(TraceSettingRequest())
