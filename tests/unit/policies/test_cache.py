"""Cache: the same question is asked once, and its answer kept for a while."""

from __future__ import annotations

import asyncio
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
from gateway.ir.context import Context, ModelRef, Origin, Sequence
from gateway.ir.data import ArrayData, ItemsData, RawData, SharedMemoryData
from gateway.ir.datatypes import Datatype
from gateway.ir.errors import Cancelled, DeadlineExceeded, GatewayError, Unavailable, UpstreamError
from gateway.ir.metadata import ModelMetadata
from gateway.ir.tensor import (
    RequestedOutput,
    Tensor,
    array_tensor,
    as_numpy,
    as_raw,
    items_tensor,
    raw_tensor,
)
from gateway.policies.batch.merge import SHARED_NEEDS
from gateway.policies.cache import Cache, cache_key
from tests.fakes import FakeClock, FakeStream, ScriptedService, settle

M = ModelRef("m")
ENTRY_BYTES = 1024 + 4


def ints(name: str, *values: int) -> Tensor:
    return array_tensor(name, np.array(values, np.int32))


def ask(*values: int, id: str = "", **fields: Any) -> InferRequest:  # noqa: A002
    return InferRequest(model=M, inputs=(ints("x", *values),), id=id, **fields)


def reply(*values: int, **fields: Any) -> InferResponse:
    return InferResponse(model=M, outputs=(ints("y", *values),), **fields)


class Metered:
    """Remembers what it is told."""

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


def made(*script: Any, **fields: Any) -> tuple[Cache, ScriptedService, Metered, FakeClock]:
    target, meter, clock = ScriptedService(*script), Metered(), FakeClock()
    return Cache(target, meter=meter, clock=clock, **fields), target, meter, clock


# --- kept answers ---


async def test_the_second_time_nobody_is_asked() -> None:
    """The same request has the same answer, with the caller's own id."""
    cache, target, meter, _ = made(reply(7, id="a", parameters={"p": 1}))
    assert reply(7, id="a", parameters={"p": 1}) == await cache(ask(1, id="a"))
    assert reply(7, id="b", parameters={"p": 1}) == await cache(ask(1, id="b"))
    assert reply(7, id="", parameters={"p": 1}) == await cache(ask(1))
    assert 1 == len(target.calls)
    assert ["miss", "hit", "hit"] == meter.outcomes


async def test_the_target_is_asked_for_whole_answers() -> None:
    """What one caller's codec can do without, the next one's may need."""
    cache, target, _, _ = made(reply(7))
    call = ask(1, context=Context(origin=Origin("c", b"wire")))
    await cache(call)
    assert [SHARED_NEEDS, call.context.origin] == [
        target.calls[0].context.needs,
        target.calls[0].context.origin,
    ]


async def test_kept_answers_are_copies_without_origin() -> None:
    """What is kept neither holds a message nor changes with a model's own array."""
    array = np.array([7], np.int32)
    answer = InferResponse(
        model=M, outputs=(array_tensor("y", array),), origin=Origin("c", b"wire")
    )
    cache, _, _, _ = made(answer)
    assert answer is await cache(ask(1))
    array[0] = 8
    found = await cache(ask(1))
    assert [7] == as_numpy(found.outputs[0]).tolist()
    assert None is found.origin
    assert not np.shares_memory(as_numpy(found.outputs[0]), array)


async def test_answers_grow_old() -> None:
    """After its time an answer is asked for again."""
    cache, target, meter, clock = made(reply(7), reply(8), max_age_s=60)
    await cache(ask(1))
    clock.advance(59)
    assert reply(7) == await cache(ask(1))
    clock.advance(1)
    assert reply(8) == await cache(ask(1))
    assert ["miss", "hit", "expired", "miss"] == meter.outcomes
    assert (2, ENTRY_BYTES, ENTRY_BYTES) == (
        len(target.calls),
        cache.used_bytes,
        meter.stored_bytes,
    )


async def test_the_least_recently_used_makes_room() -> None:
    """What is kept has so many bytes at most."""
    cache, _, meter, _ = made(reply(1), reply(2), reply(3), max_bytes=2 * ENTRY_BYTES)
    for value in (1, 2, 1, 3, 1):
        assert reply(value) == await cache(ask(value))
    assert ["miss", "miss", "hit", "miss", "evicted", "hit"] == meter.outcomes
    assert (2 * ENTRY_BYTES, 2 * ENTRY_BYTES) == (cache.used_bytes, meter.stored_bytes)


async def test_an_answer_larger_than_all_room_is_not_kept() -> None:
    """It does not drive out the others either."""
    cache, _, meter, _ = made(reply(1), reply(2, 2), max_bytes=ENTRY_BYTES)
    for values in ((1,), (2,), (1,)):
        await cache(ask(*values))
    assert ["miss", "miss", "hit"] == meter.outcomes


@pytest.mark.parametrize(
    "answer",
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
async def test_answers_that_others_could_not_use_are_not_kept(answer: InferResponse) -> None:
    """Only a whole answer is an answer for everybody."""
    cache, target, _, _ = made(answer, answer)
    await cache(ask(1))
    await cache(ask(1))
    assert 2 == len(target.calls)


async def test_errors_are_not_kept() -> None:
    """The next one asks again."""
    cache, _, meter, _ = made(UpstreamError("no"), reply(7))
    with pytest.raises(UpstreamError):
        await cache(ask(1))
    assert reply(7) == await cache(ask(1))
    assert ["miss", "miss"] == meter.outcomes


@pytest.mark.parametrize(
    "call",
    [
        ask(1, sequence=Sequence(7)),
        ask(1, batch_size=1),
        ask(1).changed(inputs=(Tensor("x", Datatype.INT32, (1,), SharedMemoryData("r", 0, 4)),)),
        ask(1, outputs=(RequestedOutput("y", shared=SharedMemoryData("r", 0, 4)),)),
    ],
    ids=["sequence", "batch apart", "input elsewhere", "output elsewhere"],
)
async def test_never_shared(call: InferRequest) -> None:
    """What depends on more than the request, or is answered elsewhere, is asked each time."""
    cache, target, meter, _ = made(reply(1), reply(2))
    assert [reply(1), reply(2)] == [await cache(call), await cache(call)]
    assert ([call, call], []) == (target.calls, meter.outcomes)


async def test_streams_and_questions_pass() -> None:
    """Everything that is no plain inference goes through."""
    stream, metadata = FakeStream([]), ModelMetadata(name="m")
    cache, _, meter, _ = made(stream, metadata)
    assert stream is await cache(StreamInferRequest(model=M, request=ask(1)))
    assert metadata == await cache(ModelMetadataRequest(model=M))
    assert [] == meter.outcomes


@pytest.mark.parametrize("kind", [ModelLoadRequest, ModelUnloadRequest])
async def test_another_model_gives_other_answers(kind: Any) -> None:
    """Loading and unloading through here forgets everything, answers on their way included."""
    cache, target, meter, _ = made(reply(7), *[lambda _call: None] * 2, reply(9))
    await cache(ask(1))
    target._script.clear()
    on_its_way = asyncio.ensure_future(cache(ask(2)))
    await settle()
    target._script.append(lambda _call: None)
    await cache(kind(model=M))
    target.waiting[0].set_result(reply(8))
    assert reply(8) == await on_its_way
    target._script += [reply(9), reply(10)]
    assert [reply(9), reply(10)] == [await cache(ask(1)), await cache(ask(2))]
    assert ["miss", "miss", "cleared", "miss", "miss"] == meter.outcomes


# --- one call for all who ask now ---


async def test_many_share_a_call() -> None:
    """Who asks the same meanwhile waits for the same answer, each with its own id."""
    cache, target, meter, _ = made()
    tasks = [asyncio.ensure_future(cache(ask(1, id=name))) for name in "abc"]
    await settle()
    target.waiting[0].set_result(reply(7, id="a"))
    assert [reply(7, id=name) for name in "abc"] == await asyncio.gather(*tasks)
    assert (1, ["miss", "shared", "shared"]) == (len(target.calls), meter.outcomes)


async def test_who_caused_the_call_may_leave() -> None:
    """The others get its answer."""
    cache, target, _, _ = made()
    tasks = [asyncio.ensure_future(cache(ask(1, id=name))) for name in "abc"]
    await settle()
    tasks[0].cancel()
    tasks[1].cancel()
    await settle()
    assert 0 == target.cancelled
    target.waiting[0].set_result(reply(7, id="a"))
    assert reply(7, id="c") == await tasks[2]
    assert tasks[0].cancelled()


async def test_when_all_have_left_the_call_is_cancelled() -> None:
    """And who comes in the same moment asks anew."""
    cache, target, _, _ = made()
    task = asyncio.ensure_future(cache(ask(1)))
    await settle()
    task.cancel()
    await asyncio.sleep(0)
    again = asyncio.ensure_future(cache(ask(1)))
    await settle()
    assert 1 == target.cancelled
    target.waiting[1].set_result(reply(8))
    assert reply(8) == await again


async def test_an_error_after_all_have_left_is_nobodys() -> None:
    """A target that answers a cancellation with an error leaves no complaint behind."""

    async def stubborn(_call: object) -> InferResponse:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise UpstreamError("too late") from None
        raise AssertionError

    cache, _, _, _ = made(stubborn)
    task = asyncio.ensure_future(cache(ask(1)))
    await settle()
    task.cancel()
    await settle()
    assert task.cancelled()


async def test_a_failure_is_everybodys() -> None:
    """Who waited for the call is told of its error, each by an error of its own."""
    cache, target, _, _ = made()
    tasks = [asyncio.ensure_future(cache(ask(1))) for _ in range(2)]
    await settle()
    target.waiting[0].set_exception(Unavailable("down", model=M))
    one, two = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(one, Unavailable)
    assert isinstance(two, Unavailable)
    assert one is not two
    assert ("down", M) == (two.message, two.model)


@pytest.mark.parametrize("error", [DeadlineExceeded, Cancelled])
async def test_the_time_of_one_is_not_that_of_others(error: type[GatewayError]) -> None:
    """When the call ends with its own caller's time, the others ask anew."""
    cache, target, meter, _ = made()
    tasks = [asyncio.ensure_future(cache(ask(1, id=name))) for name in "abc"]
    await settle()
    target.waiting[0].set_exception(error("over"))
    await settle()
    target.waiting[1].set_result(reply(7))
    found = await asyncio.gather(*tasks, return_exceptions=True)
    assert [error, reply(7, id=""), reply(7, id="c")] == [type(found[0]), *found[1:]]
    assert ["miss", "shared", "shared", "miss", "shared"] == meter.outcomes


async def test_a_target_that_gives_up() -> None:
    """A call that is cancelled from within is an error, not the caller's own end."""
    cache, target, _, _ = made()
    task = asyncio.ensure_future(cache(ask(1)))
    await settle()
    target.waiting[0].cancel()
    with pytest.raises(Cancelled, match="the target cancelled"):
        await task


# --- keys ---


def test_forms_and_order_do_not_matter() -> None:
    """The same content has one key, however it lies in memory and in which order it came."""
    x, t = ints("x", 1, 2), items_tensor("t", (2,), [b"a", b"bc"])
    raw_x = raw_tensor("x", Datatype.INT32, (2,), as_raw(x))
    raw_t = raw_tensor("t", Datatype.BYTES, (2,), as_raw(t))
    views = Tensor("t", Datatype.BYTES, (2,), ItemsData([memoryview(b"a"), b"bc"]))
    strided = Tensor("x", Datatype.INT32, (2,), ArrayData(np.array([1, 9, 2], np.int32)[::2]))
    calls = [(x, t), (t, x), (raw_x, raw_t), (raw_x, views), (strided, t)]
    assert 1 == len({cache_key(InferRequest(model=M, inputs=inputs)) for inputs in calls})


def test_neither_do_ids_times_and_priority() -> None:
    """What does not change the answer is not in the key."""
    here = Context(deadline=1.0, metadata=(("traceparent", "a"), ("x-request-id", "b")))
    assert cache_key(ask(1)) == cache_key(ask(1, id="i", priority=3, timeout_us=9, context=here))


@pytest.mark.parametrize(
    "other",
    [
        ask(2),
        ask(1).changed(model=ModelRef("m", "1")),
        ask(1).changed(model=ModelRef("n")),
        ask(1).changed(model=None),
        ask(1).changed(inputs=(ints("z", 1),)),
        ask(1).changed(inputs=(ints("x", 1), ints("z", 1))),
        ask(1).changed(inputs=(array_tensor("x", np.array([1], np.uint32)),)),
        ask(1).changed(inputs=(array_tensor("x", np.array([[1]], np.int32)),)),
        ask(1, outputs=(RequestedOutput("y"),)),
        ask(1, parameters={"p": 1}),
        ask(1, parameters={"p": True}),
        ask(1, context=Context(metadata=(("authorization", "me"),))),
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
def test_what_may_change_the_answer_is_in_the_key(other: InferRequest) -> None:
    """Nobody gets another's answer."""
    keys = {cache_key(one) for one in (ask(1), ask(1, parameters={"p": 1.0}), other)}
    assert 3 == len(keys)


def test_tensors_do_not_run_into_one_another() -> None:
    """Where one tensor ends and the next begins is part of the key."""
    keys = {
        cache_key(
            InferRequest(
                model=M, inputs=(items_tensor("a", (1,), [a]), items_tensor("b", (1,), [b]))
            )
        )
        for a, b in ((b"xy", b"z"), (b"x", b"yz"))
    }
    assert 2 == len(keys)


async def test_large_inputs_are_hashed_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """More than 256 KiB is hashed on a thread: others do not wait for it."""
    moved = []
    original = asyncio.to_thread

    async def to_thread(function: Any, *arguments: Any) -> Any:
        moved.append(function)
        return await original(function, *arguments)

    monkeypatch.setattr(asyncio, "to_thread", to_thread)
    cache, target, _, _ = made(reply(7), reply(8))
    large = InferRequest(model=M, inputs=(array_tensor("x", np.zeros(262_145, np.uint8)),))
    just = InferRequest(model=M, inputs=(array_tensor("x", np.zeros(262_144, np.uint8)),))
    assert [reply(7), reply(7), reply(8)] == [await cache(one) for one in (large, large, just)]
    assert ([cache_key, cache_key], 2) == (moved, len(target.calls))
