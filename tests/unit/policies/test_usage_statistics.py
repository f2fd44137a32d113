"""UsageStatistics: usage counted by the gateway, or statistics of the target."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.ir.calls import (
    Call,
    InferRequest,
    InferResponse,
    ModelMetadataRequest,
    ModelStatisticsRequest,
    RepositoryIndexRequest,
    StreamInferRequest,
)
from gateway.ir.context import ModelRef
from gateway.ir.errors import ModelNotFound, Unsupported, UpstreamError
from gateway.ir.metadata import ModelMetadata, ModelState, RepositoryEntry
from gateway.ir.statistics import Duration, ModelStatistics
from gateway.policies.usage_statistics import UsageStatistics
from gateway.telemetry.call_path import CALL_PATH, CallPath, record_queue_time
from gateway.telemetry.usage.model_usage import Usage
from tests.fakes import FakeClock, FakeStream, ScriptedService

M = ModelRef("m")
INFER = InferRequest(model=M)
MINE = ModelStatisticsRequest(model=M, own=True)
THEIRS = ModelStatisticsRequest(model=M)
TARGET_STATISTICS = ModelStatistics(name="m", version="7", inference_count=99)
ENTRIES = (
    RepositoryEntry("m", "1", ModelState.READY),
    RepositoryEntry("m", "2", ModelState.READY),
    RepositoryEntry("off", "1", ModelState.UNAVAILABLE),
)


class Served:
    """A router with one model of two versions; inferences take a second."""

    def __init__(self, clock: FakeClock, statistics: Any = None) -> None:
        self._clock = clock
        self._statistics = Unsupported("no statistics") if statistics is None else statistics
        self.failure: Exception | None = None

    async def __call__(self, call: Call[Any], /) -> Any:
        if isinstance(call, ModelStatisticsRequest):
            if isinstance(self._statistics, Exception):
                raise self._statistics
            return self._statistics
        if isinstance(call, RepositoryIndexRequest):
            return ENTRIES
        if call.model is not None and call.model.name != "m":
            raise ModelNotFound("not served")
        if isinstance(call, ModelMetadataRequest):
            return ModelMetadata(name="m", versions=("1", "2"))
        self._clock.advance(1.0)
        record_queue_time(0.25)
        if self.failure is not None:
            raise self.failure
        reply = InferResponse(model=ModelRef("inner", "2"), outputs=())
        return FakeStream([reply, reply]) if isinstance(call, StreamInferRequest) else reply


def tally(statistics: Any = None) -> tuple[UsageStatistics, Served]:
    """Return a tally around the router, and the router."""
    clock = FakeClock()
    served = Served(clock, statistics)
    return UsageStatistics(served, Usage(now_ms=lambda: 5), clock=clock), served


async def test_nothing_is_counted_if_targets_count() -> None:
    """If targets count themselves, the gateway counts no inference."""
    service = ScriptedService(InferResponse(model=M, outputs=()), (TARGET_STATISTICS,))
    usage = Usage()
    layer = UsageStatistics(service, usage, is_counting=lambda: False)
    await layer(INFER)
    assert ((), (TARGET_STATISTICS,)) == (usage.of(None), await layer(THEIRS))


async def test_usage_is_counted_by_requested_name_and_replying_version() -> None:
    """Successes and failures have separate counts and times, and so has queue time."""
    counting, served = tally()
    token = CALL_PATH.set(CallPath())
    await counting(INFER)
    CALL_PATH.reset(token)
    served.failure = UpstreamError("failed", model=ModelRef("inner", "2"))
    with pytest.raises(UpstreamError):
        await counting(INFER)
    found = {one.version: one for one in await counting(MINE)}
    assert {"1", "2"} == set(found)
    used = found["2"].inference
    assert (Duration(1, 1_000_000_000), Duration(1, 1_000_000_000)) == (used.success, used.fail)
    assert (250_000_000, 750_000_000) == (used.queue.ns, used.compute_infer.ns)
    assert (1, 1, 5) == (
        found["2"].inference_count,
        found["2"].execution_count,
        found["2"].last_inference_ms,
    )
    assert ModelStatistics(name="m", version="1") == found["1"]


async def test_stream_is_counted_at_its_end() -> None:
    """A stream is one inference of the version that replies, whatever the number of its replies."""
    counting, _ = tally()
    items = await counting(StreamInferRequest(model=M, request=INFER))
    assert 0 == sum(one.inference_count for one in await counting(MINE))
    assert 2 == len([item async for item in items])
    found = {one.version: one.inference_count for one in await counting(MINE)}
    assert {"1": 0, "2": 1} == found


async def test_names_that_are_not_served_are_not_counted() -> None:
    """Clients cannot fill the memory with names of their own."""
    counting, _ = tally()
    with pytest.raises(ModelNotFound):
        await counting(InferRequest(model=ModelRef("x")))
    with pytest.raises(ModelNotFound):
        await counting(ModelStatisticsRequest(model=ModelRef("x"), own=True))


async def test_statistics_of_the_target_take_precedence() -> None:
    """The gateway's counts are used only if the target has none."""
    assert (TARGET_STATISTICS,) == await tally((TARGET_STATISTICS,))[0](THEIRS)
    counting, _ = tally()
    await counting(INFER)
    assert 1 == sum(one.inference_count for one in await counting(THEIRS))


async def test_all_models_include_those_without_target_statistics() -> None:
    """Models whose targets have no statistics are added with the gateway's counts."""
    other = ModelStatistics(name="n", version="1")
    found = await tally((other,))[0](ModelStatisticsRequest())
    assert (
        other,
        ModelStatistics(name="m", version="1"),
        ModelStatistics(name="m", version="2"),
    ) == found
    assert (TARGET_STATISTICS,) == await tally((TARGET_STATISTICS,))[0](ModelStatisticsRequest())


async def test_statistics_of_one_version_exclude_others() -> None:
    """Other versions of the model are left out."""
    counting, _ = tally()
    await counting(INFER)
    call = ModelStatisticsRequest(model=ModelRef("m", "2"), own=True)
    assert ["2"] == [one.version for one in await counting(call)]


async def test_other_calls_pass_through() -> None:
    """Calls other than inferences and statistics are unchanged."""
    service = ScriptedService(ENTRIES)
    assert ENTRIES == await UsageStatistics(service, Usage())(RepositoryIndexRequest())
