"""MetadataCache.get_or_none: metadata and failures are cached for a while."""

from __future__ import annotations

import pytest

from gateway.ir.context import ModelRef, Need
from gateway.ir.errors import NotFound
from gateway.ir.metadata import ModelMetadata
from gateway.model_info import metadata_cache as module
from gateway.model_info.metadata_cache import MetadataCache
from tests.fakes import FakeClock, ScriptedService

M = ModelRef("m")
FOUND = ModelMetadata(name="m")


async def test_metadata_are_cached() -> None:
    """The metadata are fetched once in the TTL, with the need for batching."""
    clock, target = FakeClock(), ScriptedService(FOUND, None)
    cache = MetadataCache(target, ttl_s=10, clock=clock)
    assert [FOUND, FOUND] == [
        await cache.get_or_none(M, batching=True),
        await cache.get_or_none(M, batching=True),
    ]
    assert frozenset({Need.BATCHING}) == target.calls[0].context.needs
    clock.advance(10)
    target._script.clear()
    target._script.append(NotFound("gone"))
    assert None is await cache.get_or_none(M, batching=True)


async def test_failure_is_cached() -> None:
    """A model without metadata is not looked up for every request."""
    clock, target = FakeClock(), ScriptedService(NotFound("no"), FOUND)
    cache = MetadataCache(target, ttl_s=10, clock=clock)
    assert [None, None] == [
        await cache.get_or_none(M, batching=True),
        await cache.get_or_none(M, batching=True),
    ]
    assert 1 == len(target.calls)
    clock.advance(10)
    assert FOUND == await cache.get_or_none(M, batching=True)


async def test_forget_removes_metadata_and_failures() -> None:
    """After `forget` the metadata are fetched again."""
    target = ScriptedService(NotFound("no"), FOUND, FOUND)
    cache = MetadataCache(target)
    for expected in (None, FOUND, FOUND):
        assert expected == await cache.get_or_none(M, batching=True)
        cache.forget(M)
    assert 3 == len(target.calls)


async def test_number_of_cached_failures_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients choose versions, so the oldest failure is evicted."""
    monkeypatch.setattr(module, "_LIMIT", 2)
    target = ScriptedService(always=NotFound("no"))
    cache = MetadataCache(target)
    for version in ("1", "2", "3", "1"):
        await cache.get_or_none(ModelRef("m", version), batching=True)
    assert 4 == len(target.calls)
