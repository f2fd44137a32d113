from __future__ import annotations

import asyncio
import gc
from functools import partial
from typing import Any

import pytest

from gateway.ir.calls import (
    Call,
    ModelMetadataRequest,
    ModelReadyRequest,
    RepositoryIndexRequest,
    ServerLiveRequest,
)
from gateway.ir.context import ModelRef
from gateway.ir.errors import InvalidRequest, ModelNotFound, NotFound, Unavailable, Unsupported
from gateway.ir.metadata import RepositoryEntry
from gateway.routing.model_discovery import Discover
from gateway.telemetry.call_path import CALL_PATH, CallPath
from tests.fakes import settle


class Server:
    """An upstream with models, and perhaps without an index."""

    def __init__(self, *models: str, index: bool = True, away: bool = False) -> None:
        self.models = list(models)
        self.index = index
        self.away = away
        self.calls: list[str] = []

    async def __call__(self, call: Call[Any], /) -> Any:
        self.calls.append(type(call).__name__)
        await asyncio.sleep(0)
        if self.away:
            raise Unavailable("away")
        if isinstance(call, RepositoryIndexRequest):
            if not self.index:
                raise Unsupported("no index")
            return tuple(RepositoryEntry(name) for name in self.models)
        assert call.model is not None
        if call.model.name not in self.models:
            raise ModelNotFound("not here")
        return self if isinstance(call, ModelMetadataRequest) else True


def about(name: str) -> ModelMetadataRequest:
    return ModelMetadataRequest(model=ModelRef(name))


async def test_look_ups_counted_as_attempts_of_the_first_call() -> None:
    """The time of concurrent look-ups made its upstream time longer than the whole call."""
    CALL_PATH.set(path := CallPath())

    async def counting(server: Server, call: Call[Any]) -> Any:
        recorded = CALL_PATH.get()
        if recorded is not None:
            recorded.attempts += 1
        return await server(call)

    servers = {"a": partial(counting, Server()), "b": partial(counting, Server("m"))}
    await Discover(servers)(about("m"))
    assert ("b", 1) == (path.target, path.attempts)


async def test_finds_the_upstream_that_lists_the_model() -> None:
    """The first upstream with the model replies, and the result is cached."""
    one, two = Server("a"), Server("b", "m")
    discover = Discover({"one": one, "two": two})
    for _ in range(2):
        found: Any = await discover(about("m"))
        assert two is found
    assert ["RepositoryIndexRequest"] == one.calls


async def test_the_order_of_upstreams_decides() -> None:
    """A model of two upstreams is served by the first one."""
    one, two = Server("m"), Server("m")
    found: Any = await Discover({"one": one, "two": two})(about("m"))
    assert one is found


async def test_model_readiness_replaces_a_missing_index() -> None:
    """An upstream without an index receives a readiness call for the model."""
    one, two = Server("a", index=False), Server("m", index=False)
    found: Any = await Discover({"one": one, "two": two})(about("m"))
    assert two is found
    assert ["RepositoryIndexRequest", "ModelReadyRequest"] == one.calls


async def test_an_unknown_model_is_reported_with_the_upstreams() -> None:
    """The negative result is cached for a while."""
    one, two = Server("a"), Server("b")
    discover = Discover({"one": one, "two": two})
    for _ in range(3):
        with pytest.raises(
            ModelNotFound, match="no upstream serves model 'm'; upstreams: one, two"
        ):
            await discover(about("m"))
    assert 1 == len(one.calls)


async def test_an_unreachable_upstream_may_have_the_model() -> None:
    """The error is "unavailable" instead of "not found", and is not cached."""
    one, two = Server("a"), Server("m", away=True)
    discover = Discover({"one": one, "two": two})
    with pytest.raises(Unavailable, match="'two' is unavailable: away"):
        await discover(about("m"))
    two.away = False
    found: Any = await discover(about("m"))
    assert two is found


async def test_concurrent_calls_share_one_lookup() -> None:
    """Ten concurrent calls request the index of an upstream once."""
    one, two = Server("a"), Server("m")
    discover = Discover({"one": one, "two": two})
    await asyncio.gather(*(discover(about("m")) for _ in range(10)))
    assert 1 == one.calls.count("RepositoryIndexRequest")


async def test_a_cancelled_call_does_not_cancel_the_shared_lookup() -> None:
    """The look-up continues for the other callers."""
    one, two = Server("a"), Server("m")
    discover = Discover({"one": one, "two": two})
    first = asyncio.ensure_future(discover(about("m")))
    second = asyncio.ensure_future(discover(about("m")))
    await asyncio.sleep(0)
    first.cancel()
    found: Any = await second
    assert two is found


async def test_a_moved_model_is_found_again() -> None:
    """The first call fails, and the next one looks the model up again."""
    one, two = Server("a"), Server("m")
    discover = Discover({"one": one, "two": two})
    await discover(about("m"))
    one.models, two.models = ["m"], []
    with pytest.raises(ModelNotFound, match="not here"):
        await discover(about("m"))
    found: Any = await discover(about("m"))
    assert one is found


async def test_lookup_results_expire() -> None:
    """After `ttl_s` the upstreams are called again."""
    one, two = Server("a"), Server("m")
    discover = Discover({"one": one, "two": two}, ttl_s=0.0)
    await discover(about("m"))
    await discover(about("m"))
    assert 2 == one.calls.count("RepositoryIndexRequest")


async def test_a_not_found_error_skips_the_upstream() -> None:
    """An upstream that reports the model as unknown does not serve it."""

    class Odd(Server):
        async def __call__(self, call: Call[Any], /) -> Any:
            if isinstance(call, ModelReadyRequest):
                raise NotFound("what model?")
            return await super().__call__(call)

    two = Server("m")
    found: Any = await Discover({"one": Odd(index=False), "two": two})(about("m"))
    assert two is found


async def test_a_call_without_a_model_is_rejected() -> None:
    """Discovery serves no server calls."""
    with pytest.raises(InvalidRequest, match="names no model"):
        await Discover({"one": Server("m")})(ServerLiveRequest())


async def test_a_failed_lookup_of_cancelled_calls_was_logged() -> None:
    """An exception that no task retrieves would be logged as an error."""
    reported = list[object]()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    caller = asyncio.ensure_future(Discover({"a": Server(away=True), "b": Server("m")})(about("x")))
    await asyncio.sleep(0)
    caller.cancel()
    await settle()
    del caller
    gc.collect()
    assert reported == []
