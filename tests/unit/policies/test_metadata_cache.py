"""MetadataCache: asked once, remembered for a while."""

from __future__ import annotations

import asyncio
import gc

import pytest

from gateway.ir.calls import InferRequest, InferResponse, ModelMetadataRequest
from gateway.ir.context import Context, ModelRef, Need
from gateway.ir.errors import DeadlineExceeded, Unavailable
from gateway.ir.metadata import ModelMetadata
from gateway.policies import metadata_cache
from gateway.policies.metadata_cache import MetadataCache
from tests.fakes import FakeClock, ScriptedService, settle

M = ModelRef("m")
FOUND = ModelMetadata(name="m")
CALL = ModelMetadataRequest(
    model=M, context=Context(protocol="p", metadata=(("authorization", "x"),), deadline=1001.0)
)


async def test_answer_holds_for_its_time() -> None:
    """Within the time the service is not asked again; after it, it is."""
    clock, newer = FakeClock(), ModelMetadata(name="m", platform="new")
    service = ScriptedService(FOUND, newer)
    cache = MetadataCache(service, ttl_s=30, clock=clock)
    assert [FOUND, FOUND] == [await cache(CALL), await cache(CALL)]
    clock.advance(30)
    assert newer == await cache(CALL)


async def test_versions_are_remembered_apart() -> None:
    """Another version is another question."""
    service = ScriptedService(FOUND, FOUND)
    cache = MetadataCache(service)
    await cache(CALL)
    await cache(ModelMetadataRequest(model=ModelRef("m", "2")))
    assert [M, ModelRef("m", "2")] == [call.model for call in service.calls]


async def test_batching_is_another_question() -> None:
    """An answer that does not tell how the model batches is none for who has to know."""
    needs = frozenset({Need.BATCHING})
    service = ScriptedService(FOUND, ModelMetadata(name="m", max_batch_size=8))
    cache = MetadataCache(service)
    asking = ModelMetadataRequest(model=M, context=Context(needs=needs | {Need.NAMES}))
    found = [(await cache(call)).max_batch_size for call in (CALL, asking, CALL, asking)]
    assert [None, 8, None, 8] == found
    assert [frozenset(), needs] == [call.context.needs for call in service.calls]


async def test_question_is_the_gateways_own() -> None:
    """No caller's headers or deadline are in a question whose answer others will get."""
    service = ScriptedService(FOUND)
    await MetadataCache(service, timeout_s=5, clock=FakeClock(1000.0))(CALL)
    assert [ModelMetadataRequest(model=M, context=Context(deadline=1005.0))] == service.calls


async def test_failures_are_not_remembered() -> None:
    """After a failure the next caller asks again."""
    cache = MetadataCache(ScriptedService(Unavailable("down"), FOUND))
    with pytest.raises(Unavailable):
        await cache(CALL)
    await settle()
    assert FOUND == await cache(CALL)


async def test_what_can_be_done_without_is_not_asked_for_again_at_once() -> None:
    """A failure is None, and remembered for ten seconds, or until the model may have changed."""
    clock = FakeClock()
    outage = Unavailable("gone")
    service = ScriptedService(outage, outage, FOUND)
    cache = MetadataCache(service, clock=clock)
    assert [None, None] == [await cache.get_or_none(M), await cache.get_or_none(M)]
    assert 1 == len(service.calls)
    clock.advance(10)
    assert await cache.get_or_none(M) is None
    assert 2 == len(service.calls)
    cache.forget(ModelRef("m", "1"))
    assert FOUND == await cache.get_or_none(M)


async def test_what_is_not_told_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest failure is forgotten first."""
    monkeypatch.setattr(metadata_cache, "_LIMIT", 2)
    service = ScriptedService(always=Unavailable("gone"))
    cache = MetadataCache(service)
    for name in ("a", "b", "c", "b", "c", "a"):
        await cache.get_or_none(ModelRef(name))
    assert ["a", "b", "c", "a"] == [call.model.name for call in service.calls if call.model]


async def test_many_ask_once_and_one_may_leave() -> None:
    """Callers share a question, which goes on when the one who caused it leaves."""
    service = ScriptedService()
    cache = MetadataCache(service)
    tasks = [asyncio.ensure_future(cache(CALL)) for _ in range(3)]
    await settle()
    tasks[0].cancel()
    await settle()
    service.waiting[0].set_result(FOUND)
    assert [FOUND, FOUND] == list(await asyncio.gather(*tasks[1:]))
    assert (1, True) == (len(service.calls), tasks[0].cancelled())


async def test_failed_question_of_callers_who_left_is_no_error_of_the_program() -> None:
    """An exception that nobody retrieves would be logged as an error."""
    service, reported = ScriptedService(), list[object]()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    caller = asyncio.ensure_future(MetadataCache(service)(CALL))
    await settle()
    caller.cancel()
    await settle()
    del caller
    service.waiting.pop().set_exception(Unavailable("down"))
    await settle()
    gc.collect()
    assert reported == []


async def test_question_gives_up() -> None:
    """A service that does not answer does not hold callers for ever."""
    service = ScriptedService()
    with pytest.raises(DeadlineExceeded, match=r"no metadata of model 'm' within 0\.01 s"):
        await MetadataCache(service, timeout_s=0.01)(CALL)
    assert 1 == service.cancelled


async def test_timeout_error_of_others_is_not_ours() -> None:
    """A TimeoutError from within is not taken for the question's own."""
    with pytest.raises(TimeoutError, match="theirs"):
        await MetadataCache(ScriptedService(TimeoutError("theirs")))(CALL)


async def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest answer makes room for a new one."""
    monkeypatch.setattr(metadata_cache, "_LIMIT", 2)
    service = ScriptedService(always=FOUND)
    cache = MetadataCache(service)
    for name in ("a", "b", "c", "b", "a"):
        await cache(ModelMetadataRequest(model=ModelRef(name)))
    assert ["a", "b", "c", "a"] == [str(call.model) for call in service.calls]


async def test_other_calls_pass() -> None:
    """Everything else, and a question without a model, goes through."""
    reply = InferResponse(model=M, outputs=())
    service = ScriptedService(reply, FOUND)
    cache = MetadataCache(service)
    assert reply == await cache(InferRequest(model=M))
    assert FOUND == await cache(ModelMetadataRequest())
    assert 2 == len(service.calls)


async def test_doubted_answers_are_asked_for_again() -> None:
    """After an error the model is asked about anew, at most once a second, whatever was asked."""
    needs = frozenset({Need.BATCHING})
    clock, service = FakeClock(), ScriptedService(always=FOUND)
    cache = MetadataCache(service, clock=clock)
    batching = ModelMetadataRequest(model=M, context=Context(needs=needs))
    for call in (CALL, batching):
        await cache(call)
    for seconds, call_count in ((0.5, 2), (0.5, 4), (0.9, 4), (5.0, 6)):
        clock.advance(seconds)
        cache.invalidate_if_stale(M)
        cache.invalidate_if_stale(ModelRef("other"))
        cache.invalidate_if_stale(None)
        for call in (CALL, batching):
            await cache(call)
        assert call_count == len(service.calls)
