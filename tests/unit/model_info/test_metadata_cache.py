"""MetadataCache: metadata are fetched once and kept for a while."""

from __future__ import annotations

import asyncio
import gc

import pytest

from gateway.ir.calls import InferRequest, InferResponse, ModelMetadataRequest
from gateway.ir.context import Context, ModelRef, Need
from gateway.ir.errors import DeadlineExceeded, Unavailable
from gateway.ir.metadata import ModelMetadata
from gateway.model_info import metadata_cache
from gateway.model_info.metadata_cache import MetadataCache
from tests.fakes import FakeClock, ScriptedService, settle

M = ModelRef("m")
FOUND = ModelMetadata(name="m")
CALL = ModelMetadataRequest(
    model=M, context=Context(protocol="p", metadata=(("authorization", "x"),), deadline=1001.0)
)


async def test_metadata_are_cached_for_the_ttl() -> None:
    """The service is called again after the TTL has expired."""
    clock, newer = FakeClock(), ModelMetadata(name="m", platform="new")
    service = ScriptedService(FOUND, newer)
    cache = MetadataCache(service, ttl_s=30, clock=clock)
    assert [FOUND, FOUND] == [await cache(CALL), await cache(CALL)]
    clock.advance(30)
    assert newer == await cache(CALL)


async def test_versions_are_cached_separately() -> None:
    """Metadata of another version are fetched by a call of their own."""
    service = ScriptedService(FOUND, FOUND)
    cache = MetadataCache(service)
    await cache(CALL)
    await cache(ModelMetadataRequest(model=ModelRef("m", "2")))
    assert [M, ModelRef("m", "2")] == [call.model for call in service.calls]


async def test_metadata_with_batching_are_cached_separately() -> None:
    """Metadata without the batch size do not serve a caller that needs it."""
    needs = frozenset({Need.BATCHING})
    service = ScriptedService(FOUND, ModelMetadata(name="m", max_batch_size=8))
    cache = MetadataCache(service)
    batching_call = ModelMetadataRequest(model=M, context=Context(needs=needs | {Need.NAMES}))
    found = [
        (await cache(call)).max_batch_size for call in (CALL, batching_call, CALL, batching_call)
    ]
    assert [None, 8, None, 8] == found
    assert [frozenset(), needs] == [call.context.needs for call in service.calls]


async def test_lookup_has_no_context_of_the_caller() -> None:
    """A shared lookup has no caller's headers, and a deadline of its own."""
    service = ScriptedService(FOUND)
    await MetadataCache(service, timeout_s=5, clock=FakeClock(1000.0))(CALL)
    assert [ModelMetadataRequest(model=M, context=Context(deadline=1005.0))] == service.calls


async def test_failures_are_not_cached() -> None:
    """After a failure the next caller fetches the metadata again."""
    cache = MetadataCache(ScriptedService(Unavailable("down"), FOUND))
    with pytest.raises(Unavailable):
        await cache(CALL)
    await settle()
    assert FOUND == await cache(CALL)


async def test_optional_lookup_caches_failures() -> None:
    """`get_or_none` returns None for ten seconds after a failure, or until `forget`."""
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


async def test_number_of_cached_failures_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest failure is evicted first."""
    monkeypatch.setattr(metadata_cache, "_LIMIT", 2)
    service = ScriptedService(always=Unavailable("gone"))
    cache = MetadataCache(service)
    for name in ("a", "b", "c", "b", "c", "a"):
        await cache.get_or_none(ModelRef(name))
    assert ["a", "b", "c", "a"] == [call.model.name for call in service.calls if call.model]


async def test_concurrent_callers_share_a_lookup() -> None:
    """The lookup continues when the caller that started it is cancelled."""
    service = ScriptedService()
    cache = MetadataCache(service)
    tasks = [asyncio.ensure_future(cache(CALL)) for _ in range(3)]
    await settle()
    tasks[0].cancel()
    await settle()
    service.waiting[0].set_result(FOUND)
    assert [FOUND, FOUND] == list(await asyncio.gather(*tasks[1:]))
    assert (1, True) == (len(service.calls), tasks[0].cancelled())


async def test_failed_lookup_without_callers_is_not_reported() -> None:
    """An exception that is never retrieved would be logged as an error."""
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


async def test_lookup_times_out() -> None:
    """A service without a reply does not block callers forever."""
    service = ScriptedService()
    with pytest.raises(DeadlineExceeded, match=r"no metadata of model 'm' within 0\.01 s"):
        await MetadataCache(service, timeout_s=0.01)(CALL)
    assert 1 == service.cancelled


async def test_timeout_error_of_the_service_is_unchanged() -> None:
    """A TimeoutError of the service is not taken for the lookup's own."""
    with pytest.raises(TimeoutError, match="theirs"):
        await MetadataCache(ScriptedService(TimeoutError("theirs")))(CALL)


async def test_number_of_cached_models_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest entry is evicted for a new one."""
    monkeypatch.setattr(metadata_cache, "_LIMIT", 2)
    service = ScriptedService(always=FOUND)
    cache = MetadataCache(service)
    for name in ("a", "b", "c", "b", "a"):
        await cache(ModelMetadataRequest(model=ModelRef(name)))
    assert ["a", "b", "c", "a"] == [str(call.model) for call in service.calls]


async def test_other_calls_pass_through() -> None:
    """Other calls, and metadata calls without a model, are not cached."""
    reply = InferResponse(model=M, outputs=())
    service = ScriptedService(reply, FOUND)
    cache = MetadataCache(service)
    assert reply == await cache(InferRequest(model=M))
    assert FOUND == await cache(ModelMetadataRequest())
    assert 2 == len(service.calls)


async def test_stale_metadata_are_invalidated_once_a_second() -> None:
    """After an error all metadata of the model are fetched again, at most once a second."""
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
