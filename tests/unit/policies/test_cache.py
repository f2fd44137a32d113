"""Cache: equal requests share a call, and its reply is kept for a while."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import numpy as np
import pytest

from gateway.ir.calls import (
    InferRequest,
    InferResponse,
    ModelLoadRequest,
    ModelMetadataRequest,
    ModelUnloadRequest,
    StreamInferRequest,
)
from gateway.ir.context import CallSequence, Client, Context, ModelRef, Origin
from gateway.ir.errors import Cancelled, DeadlineExceeded, GatewayError, Unavailable, UpstreamError
from gateway.ir.identity import Identity
from gateway.ir.metadata import ModelMetadata
from gateway.ir.tensors.data import ArrayData, ItemsData, RawData, SharedMemoryData
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.tensor import (
    RequestedOutput,
    Tensor,
    array_tensor,
    as_numpy,
    as_raw,
    items_tensor,
    raw_tensor,
)
from gateway.policies.access.apart import apart_by
from gateway.policies.batch.merge import SHARED_NEEDS
from gateway.policies.cache import Cache, cache_key
from tests.fakes import FakeClock, FakeStream, ScriptedService, settle

M = ModelRef("m")
ENTRY_BYTES = 1024 + 4


def ints(name: str, *values: int) -> Tensor:
    return array_tensor(name, np.array(values, np.int32))


def request(*values: int, id: str = "", **fields: Any) -> InferRequest:  # noqa: A002
    return InferRequest(model=M, inputs=(ints("x", *values),), id=id, **fields)


def reply(*values: int, **fields: Any) -> InferResponse:
    return InferResponse(model=M, outputs=(ints("y", *values),), **fields)


class Metered:
    """Records the reports of the cache."""

    def __init__(self) -> None:
        self.outcomes: list[str] = []
        self.stored_bytes = 0

    def looked_up(self, outcome: str) -> None:
        self.outcomes.append(outcome)

    def stored(self, size_bytes: int) -> None:
        self.stored_bytes += size_bytes

    def evicted(self, reason: str, size_bytes: int) -> None:
        self.outcomes.append(reason)
        self.stored_bytes -= size_bytes


def build(*script: Any, **fields: Any) -> tuple[Cache, ScriptedService, Metered, FakeClock]:
    target, meter, clock = ScriptedService(*script), Metered(), FakeClock()
    return Cache(target, meter=meter, clock=clock, **fields), target, meter, clock


# --- cached replies ---


async def test_equal_request_is_served_from_the_cache() -> None:
    """An equal request gets the cached reply with its own id."""
    cache, target, meter, _ = build(reply(7, id="a", parameters={"p": 1}))
    assert reply(7, id="a", parameters={"p": 1}) == await cache(request(1, id="a"))
    assert reply(7, id="b", parameters={"p": 1}) == await cache(request(1, id="b"))
    assert reply(7, id="", parameters={"p": 1}) == await cache(request(1))
    assert 1 == len(target.calls)
    assert ["miss", "hit", "hit"] == meter.outcomes


async def test_cached_call_requests_a_complete_reply() -> None:
    """The call has the needs of every codec, since other callers may get its reply."""
    cache, target, _, _ = build(reply(7))
    call = request(1, context=Context(origin=Origin("c", b"wire")))
    await cache(call)
    assert [SHARED_NEEDS, call.context.origin] == [
        target.calls[0].context.needs,
        target.calls[0].context.origin,
    ]


async def test_cached_replies_are_copies_without_origin() -> None:
    """A cached reply holds no wire message, and does not change with the model's array."""
    array = np.array([7], np.int32)
    original = InferResponse(
        model=M, outputs=(array_tensor("y", array),), origin=Origin("c", b"wire")
    )
    cache, _, _, _ = build(original)
    assert original is await cache(request(1))
    array[0] = 8
    found = await cache(request(1))
    assert [7] == as_numpy(found.outputs[0]).tolist()
    assert None is found.origin
    assert not np.shares_memory(as_numpy(found.outputs[0]), array)


async def test_cached_reply_expires() -> None:
    """After `max_age_s` the target is called again."""
    cache, target, meter, clock = build(reply(7), reply(8), max_age_s=60)
    await cache(request(1))
    clock.advance(59)
    assert reply(7) == await cache(request(1))
    clock.advance(1)
    assert reply(8) == await cache(request(1))
    assert ["miss", "hit", "expired", "miss"] == meter.outcomes
    assert (2, ENTRY_BYTES, ENTRY_BYTES) == (
        len(target.calls),
        cache.used_bytes,
        meter.stored_bytes,
    )


async def test_least_recently_used_reply_is_evicted() -> None:
    """The size of all cached replies is limited."""
    cache, _, meter, _ = build(reply(1), reply(2), reply(3), max_bytes=2 * ENTRY_BYTES)
    for value in (1, 2, 1, 3, 1):
        assert reply(value) == await cache(request(value))
    assert ["miss", "miss", "hit", "miss", "evicted", "hit"] == meter.outcomes
    assert (2 * ENTRY_BYTES, 2 * ENTRY_BYTES) == (cache.used_bytes, meter.stored_bytes)


async def test_reply_larger_than_the_cache_is_not_stored() -> None:
    """An oversized reply does not evict others."""
    cache, _, meter, _ = build(reply(1), reply(2, 2), max_bytes=ENTRY_BYTES)
    for values in ((1,), (2,), (1,)):
        await cache(request(*values))
    assert ["miss", "miss", "hit"] == meter.outcomes


@pytest.mark.parametrize(
    "result",
    [
        reply(1, is_final=False),
        reply(1, batch_size=1),
        reply(1, error=UpstreamError("no")),
        InferResponse(model=M, outputs=(Tensor("y", None, (1,), RawData(memoryview(b"1"))),)),
        InferResponse(
            model=M, outputs=(Tensor("y", Datatype.INT32, None, RawData(memoryview(b"1234"))),)
        ),
        InferResponse(
            model=M, outputs=(Tensor("y", Datatype.INT32, (1,), SharedMemoryData("r", 0, 4)),)
        ),
    ],
    ids=["not final", "batch apart", "an error", "no datatype", "no shape", "elsewhere"],
)
async def test_incomplete_reply_is_not_stored(result: InferResponse) -> None:
    """Only a complete, successful reply can serve other callers."""
    cache, target, _, _ = build(result, result)
    await cache(request(1))
    await cache(request(1))
    assert 2 == len(target.calls)


async def test_errors_are_not_stored() -> None:
    """After an error the next request calls the target again."""
    cache, _, meter, _ = build(UpstreamError("no"), reply(7))
    with pytest.raises(UpstreamError):
        await cache(request(1))
    assert reply(7) == await cache(request(1))
    assert ["miss", "miss"] == meter.outcomes


@pytest.mark.parametrize(
    "call",
    [
        request(1, sequence=CallSequence(7)),
        request(1, batch_size=1),
        request(1).changed(
            inputs=(Tensor("x", Datatype.INT32, (1,), SharedMemoryData("r", 0, 4)),)
        ),
        request(1, outputs=(RequestedOutput("y", shared=SharedMemoryData("r", 0, 4)),)),
    ],
    ids=["sequence", "batch apart", "input elsewhere", "output elsewhere"],
)
async def test_uncacheable_request_always_calls_the_target(call: InferRequest) -> None:
    """Requests with sequences, a separate batch size or shared memory are not cached."""
    cache, target, meter, _ = build(reply(1), reply(2))
    assert [reply(1), reply(2)] == [await cache(call), await cache(call)]
    assert ([call, call], []) == (target.calls, meter.outcomes)


async def test_streams_and_other_calls_pass_through() -> None:
    """Calls other than unary inferences are not cached."""
    stream, metadata = FakeStream([]), ModelMetadata(name="m")
    cache, _, meter, _ = build(stream, metadata)
    assert stream is await cache(StreamInferRequest(model=M, request=request(1)))
    assert metadata == await cache(ModelMetadataRequest(model=M))
    assert [] == meter.outcomes


@pytest.mark.parametrize("kind", [ModelLoadRequest, ModelUnloadRequest])
async def test_load_or_unload_clears_the_cache(kind: Any) -> None:
    """Replies that are still in flight are not stored either."""
    cache, target, meter, _ = build(reply(7), *[lambda _call: None] * 2, reply(9))
    await cache(request(1))
    target._script.clear()
    pending = asyncio.ensure_future(cache(request(2)))
    await settle()
    target._script.append(lambda _call: None)
    await cache(kind(model=M))
    target.waiting[0].set_result(reply(8))
    assert reply(8) == await pending
    target._script += [reply(9), reply(10)]
    assert [reply(9), reply(10)] == [await cache(request(1)), await cache(request(2))]
    assert ["miss", "miss", "cleared", "miss", "miss"] == meter.outcomes


# --- concurrent calls ---


async def test_concurrent_equal_requests_share_a_call() -> None:
    """Each caller gets the same reply with its own id."""
    cache, target, meter, _ = build()
    tasks = [asyncio.ensure_future(cache(request(1, id=name))) for name in "abc"]
    await settle()
    target.waiting[0].set_result(reply(7, id="a"))
    assert [reply(7, id=name) for name in "abc"] == await asyncio.gather(*tasks)
    assert (1, ["miss", "shared", "shared"]) == (len(target.calls), meter.outcomes)


async def test_shared_call_outlives_its_first_caller() -> None:
    """Cancelled callers do not end the call, and the others get its reply."""
    cache, target, _, _ = build()
    tasks = [asyncio.ensure_future(cache(request(1, id=name))) for name in "abc"]
    await settle()
    tasks[0].cancel()
    tasks[1].cancel()
    await settle()
    assert 0 == target.cancelled
    target.waiting[0].set_result(reply(7, id="a"))
    assert reply(7, id="c") == await tasks[2]
    assert tasks[0].cancelled()


async def test_call_without_callers_is_cancelled() -> None:
    """A caller that arrives in the same moment starts a new call."""
    cache, target, _, _ = build()
    task = asyncio.ensure_future(cache(request(1)))
    await settle()
    task.cancel()
    await asyncio.sleep(0)
    again = asyncio.ensure_future(cache(request(1)))
    await settle()
    assert 1 == target.cancelled
    target.waiting[1].set_result(reply(8))
    assert reply(8) == await again


async def test_error_after_cancellation_is_ignored() -> None:
    """A target that raises an error on cancellation causes no unhandled exception."""

    async def stubborn(_call: object) -> InferResponse:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise UpstreamError("too late") from None
        raise AssertionError

    reported: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(
        lambda _loop, context: reported.append(context)
    )
    cache, _, _, _ = build(stubborn)
    task = asyncio.ensure_future(cache(request(1)))
    await settle()
    task.cancel()
    await settle()
    assert task.cancelled()
    del task
    gc.collect()  # a task reports its unhandled exception when it is collected
    assert [] == reported


async def test_failure_reaches_every_caller() -> None:
    """Each caller of a shared call gets an error object of its own."""
    cache, target, _, _ = build()
    tasks = [asyncio.ensure_future(cache(request(1))) for _ in range(2)]
    await settle()
    target.waiting[0].set_exception(Unavailable("down", model=M))
    one, two = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(one, Unavailable)
    assert isinstance(two, Unavailable)
    assert one is not two
    assert ("down", M) == (two.message, two.model)


@pytest.mark.parametrize("error", [DeadlineExceeded, Cancelled])
async def test_timeout_of_one_caller_does_not_end_others(error: type[GatewayError]) -> None:
    """If the shared call ends with its caller's deadline, the others start a new call."""
    cache, target, meter, _ = build()
    tasks = [asyncio.ensure_future(cache(request(1, id=name))) for name in "abc"]
    await settle()
    target.waiting[0].set_exception(error("over"))
    await settle()
    target.waiting[1].set_result(reply(7))
    found = await asyncio.gather(*tasks, return_exceptions=True)
    assert [error, reply(7, id=""), reply(7, id="c")] == [type(found[0]), *found[1:]]
    assert ["miss", "shared", "shared", "miss", "shared"] == meter.outcomes


async def test_call_cancelled_by_the_target_raises_cancelled() -> None:
    """A call that the target cancels is an error, not a cancellation of the caller."""
    cache, target, _, _ = build()
    task = asyncio.ensure_future(cache(request(1)))
    await settle()
    target.waiting[0].cancel()
    with pytest.raises(Cancelled, match="the target cancelled"):
        await task


# --- keys ---


def test_key_ignores_data_form_and_input_order() -> None:
    """Equal content has one key, whatever its memory layout or input order."""
    x, t = ints("x", 1, 2), items_tensor("t", (2,), [b"a", b"bc"])
    raw_x = raw_tensor("x", Datatype.INT32, (2,), as_raw(x))
    raw_t = raw_tensor("t", Datatype.BYTES, (2,), as_raw(t))
    views = Tensor("t", Datatype.BYTES, (2,), ItemsData([memoryview(b"a"), b"bc"]))
    strided = Tensor("x", Datatype.INT32, (2,), ArrayData(np.array([1, 9, 2], np.int32)[::2]))
    calls = [(x, t), (t, x), (raw_x, raw_t), (raw_x, views), (strided, t)]
    assert 1 == len({cache_key(InferRequest(model=M, inputs=inputs)) for inputs in calls})


def test_key_ignores_ids_timeouts_and_priority() -> None:
    """Fields that do not affect the reply are not in the key."""
    here = Context(deadline=1.0, metadata=(("traceparent", "a"), ("x-request-id", "b")))
    assert cache_key(request(1)) == cache_key(
        request(1, id="i", priority=3, timeout_us=9, context=here)
    )


@pytest.mark.parametrize(
    "other",
    [
        request(2),
        request(1).changed(model=ModelRef("m", "1")),
        request(1).changed(model=ModelRef("n")),
        request(1).changed(model=None),
        request(1).changed(inputs=(ints("z", 1),)),
        request(1).changed(inputs=(ints("x", 1), ints("z", 1))),
        request(1).changed(inputs=(array_tensor("x", np.array([1], np.uint32)),)),
        request(1).changed(inputs=(array_tensor("x", np.array([[1]], np.int32)),)),
        request(1, outputs=(RequestedOutput("y"),)),
        request(1, parameters={"p": 1}),
        request(1, parameters={"p": True}),
        request(1, context=Context(metadata=(("authorization", "me"),))),
    ],
    ids=[
        "data",
        "version",
        "model",
        "no model",
        "name",
        "inputs",
        "datatype",
        "shape",
        "outputs",
        "parameters",
        "type of a parameter",
        "header",
    ],
)
def test_key_covers_everything_that_affects_the_reply(other: InferRequest) -> None:
    """No caller gets the reply to a different request."""
    keys = {cache_key(one) for one in (request(1), request(1, parameters={"p": 1.0}), other)}
    assert 3 == len(keys)


def test_key_includes_the_boundaries_of_tensors() -> None:
    """Moving bytes from one tensor to the next changes the key."""
    keys = {
        cache_key(
            InferRequest(
                model=M, inputs=(items_tensor("a", (1,), [a]), items_tensor("b", (1,), [b]))
            )
        )
        for a, b in ((b"xy", b"z"), (b"x", b"yz"))
    }
    assert 2 == len(keys)


async def test_large_inputs_are_hashed_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """More than 256 KiB is hashed in a thread, so the event loop is not blocked."""
    moved = []
    original = asyncio.to_thread

    async def to_thread(function: Any, *arguments: Any) -> Any:
        moved.append(function)
        return await original(function, *arguments)

    monkeypatch.setattr(asyncio, "to_thread", to_thread)
    cache, target, _, _ = build(reply(7), reply(8))
    large = InferRequest(model=M, inputs=(array_tensor("x", np.zeros(262_145, np.uint8)),))
    just = InferRequest(model=M, inputs=(array_tensor("x", np.zeros(262_144, np.uint8)),))
    assert [reply(7), reply(7), reply(8)] == [await cache(one) for one in (large, large, just)]
    assert ([cache_key, cache_key], 2) == (moved, len(target.calls))


async def test_replies_of_clients_are_separate() -> None:
    """With `apart: client` an equal request of another client is a call of its own."""
    contexts = [Context(client=Client(identity=Identity(name))) for name in ("one", "two")]
    cache, target, meter, _ = build(reply(1), reply(2), apart=apart_by("client"))
    for context in (*contexts, *contexts):
        await cache(request(1, context=context))
    assert len(target.calls) == 2
    assert meter.outcomes == ["miss", "miss", "hit", "hit"]
