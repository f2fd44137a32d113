"""Tests of outputs in shared memory: what a client reads is what the model wrote for its call."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gateway.ir.calls import InferRequest, InferResponse, ModelLoadRequest
from gateway.ir.context import Context, ModelRef, Origin
from gateway.ir.errors import (
    GatewayError,
    InvalidRequest,
    Unavailable,
    UpstreamError,
    UpstreamProtocolError,
)
from gateway.ir.metadata import ModelConfiguration
from gateway.ir.tensors.data import RawData, SharedMemoryData
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.tensor import RequestedOutput, Tensor, as_raw
from gateway.policies.cache import Cache
from gateway.policies.hand_over.policy import HandOver
from gateway.policies.hand_over.pool import RegionPool
from gateway.policies.hand_over.replies import FixedOutputs
from gateway.policies.limits.retry import RetryBudget, RetryRules
from tests.fakes import FakeClock, ScriptedService, settle
from tests.unit.policies.hand_over.fake_triton import TRITON, FakeTriton, bytes_tensor
from tests.unit.policies.hand_over.test_policy import Parts, registered

KIB, MIB = 1024, 1 << 20
SIZE = 100 * KIB
MODEL = ModelRef("m")
Y = {"name": "y", "data_type": "TYPE_UINT8", "dims": [SIZE]}


def repeated(read: bytes) -> bytes:
    return read[:1] * SIZE


def call_of(number: int, *names: str, **fields: Any) -> InferRequest:
    outputs = tuple([RequestedOutput(name) for name in names])
    inputs = (bytes_tensor("x", bytes([number])),)
    return InferRequest(model=MODEL, inputs=inputs, outputs=outputs, **fields)


def is_reply_to(number: int, reply: InferResponse) -> bool:
    return bytes([number]) * SIZE == bytes(as_raw(reply.outputs[0]))


@asynccontextmanager
async def replying(
    folder: Path, *, most: int = 4 * MIB, learns: bool = True
) -> AsyncIterator[Parts]:
    """Build a hand-over whose model replies with 100 KiB, which it has learnt."""
    triton, pool, clock = FakeTriton(folder), RegionPool(most, str(folder)), FakeClock()
    triton.answer, triton.outputs = repeated, [Y]
    layer = HandOver(
        triton,
        triton,
        pool,
        lambda: TRITON,
        most_bytes=64 * MIB,
        clock=clock,
        folder=str(folder),
    )
    layer.identify()
    if learns:
        await learnt(layer)
        assert 0 == triton.writes
    try:
        yield Parts(layer, pool, triton, clock, folder)
    finally:
        await layer.close()
        pool.close()


async def learnt(layer: HandOver) -> None:
    """Let two replies come as bytes: one to learn from, one until the region is registered."""
    await layer(call_of(0))
    await wait_for_question(layer._fixed_outputs)
    await layer(call_of(0))
    await registered(layer)


async def wait_for_question(fixed: FixedOutputs) -> None:
    """Wait for the configuration of the last model."""
    assert fixed._question is not None
    await asyncio.wait([fixed._question])


@pytest.mark.parametrize("names", [(), ("y",)], ids=["all", "named"])
async def test_large_reply_of_a_known_model_comes_in_shared_memory(
    tmp_path: Path, names: tuple[str, ...]
) -> None:
    """It is a view of the region, which nobody can write, and has the description of the other."""
    async with replying(tmp_path) as it:
        reply = await it.layer(call_of(1, *names))
        assert (1, 3) == (it.triton.writes, len(it.triton.requested))
        assert is_reply_to(1, reply)
        (output,) = reply.outputs
        assert (("y", Datatype.UINT8, (SIZE,), {})) == (
            output.name,
            output.datatype,
            output.shape,
            output.parameters,
        )
        view = as_raw(output)
        assert view.readonly
        assert it.pool.find(view) is not None


async def test_memory_is_used_again_after_the_last_view_is_gone(tmp_path: Path) -> None:
    """A slice of a reply keeps its bytes, and 200 replies one after the other need one piece."""
    async with replying(tmp_path, most=MIB) as it:
        part = as_raw((await it.layer(call_of(1))).outputs[0])[KIB : 3 * KIB]
        for number in range(200):
            assert is_reply_to(number, await it.layer(call_of(number)))
        assert 201 == it.triton.writes
        assert bytes([1]) * 2 * KIB == part


async def test_cached_replies_hold_no_memory_of_the_pool(tmp_path: Path) -> None:
    """The cache copies what it keeps: more replies than the pool has room for come from it."""
    async with replying(tmp_path, most=512 * KIB) as it:
        cache = Cache(it.layer)
        for _ in range(2):
            for number in range(1, 20):
                assert is_reply_to(number, await cache(call_of(number)))
        assert 19 == it.triton.writes
        assert cache.used_bytes > 19 * SIZE


async def test_full_pool_lets_replies_come_as_bytes(tmp_path: Path) -> None:
    """Clients that read slowly hold pieces; further replies are right, too."""
    async with replying(tmp_path, most=512 * KIB) as it:
        replies = [await it.layer(call_of(number)) for number in range(10)]
        assert 5 == it.triton.writes
        assert all(is_reply_to(number, reply) for number, reply in enumerate(replies))


@pytest.mark.parametrize(
    "outputs",
    [
        (RequestedOutput("y", classes=3),),
        (RequestedOutput("y", shared=SharedMemoryData("client", 0, 8)),),
    ],
    ids=["classes", "region of the client"],
)
async def test_other_requested_outputs_stay(
    tmp_path: Path, outputs: tuple[RequestedOutput, ...]
) -> None:
    """Classes and the client's own regions are requested as the client did."""
    async with replying(tmp_path) as it:
        seen = it.layer._inner = ScriptedService(always=InferResponse(model=MODEL, outputs=()))
        await it.layer(call_of(1).changed(outputs=outputs))
        sent = seen.calls[0]
        assert isinstance(sent, InferRequest)
        assert outputs == sent.outputs


async def test_call_with_unknown_members_stays(tmp_path: Path) -> None:
    """A request that must be sent as it is has no output named for it."""
    async with replying(tmp_path) as it:
        unknown = Context(origin=Origin("oip.http", None, unknown=b"{}"))
        assert is_reply_to(1, await it.layer(call_of(1, context=unknown)))
        assert 0 == it.triton.writes


async def test_unknown_members_of_a_reply_stay(tmp_path: Path) -> None:
    """What the server adds to a reply reaches the client."""
    origin = Origin("oip.http", None, unknown=b"{}")
    async with replying(tmp_path) as it:
        reply = InferResponse(model=MODEL, outputs=(), origin=origin)
        it.layer._inner = ScriptedService(always=reply)
        found = (await it.layer(call_of(1))).origin
        assert found is not None
        assert b"{}" == found.unknown


@pytest.mark.parametrize(
    ("configured", "batch", "found", "expected"),
    [
        ([{**Y, "dims": [-1]}], 0, {"y": SIZE}, {}),
        ([{**Y, "data_type": "TYPE_STRING"}], 0, {"y": SIZE}, {}),
        ([{**Y, "dims": [SIZE + 1]}], 0, {"y": SIZE}, {}),
        ([Y, {**Y, "name": "z", "dims": [4]}], 0, {"y": SIZE, "z": 4}, {"y": SIZE, "z": 0}),
        ([Y, {**Y, "name": "z", "dims": [-1]}], 0, {"y": SIZE, "z": 9}, {"y": SIZE, "z": 0}),
        ([Y, {**Y, "name": "z"}], 0, {"y": SIZE}, {}),
        (
            [{**Y, "dims": [SIZE // 8], "data_type": "TYPE_FP32"}],
            8,
            {"y": 4 * SIZE},
            {"y": 4 * SIZE},
        ),
        ([], 0, {"y": SIZE}, {}),
    ],
    ids=["variable", "texts", "other size", "small", "one variable", "lacking", "batch", "nothing"],
)
async def test_sizes_that_the_configuration_fixes(
    configured: list[dict[str, Any]], batch: int, found: dict[str, int], expected: dict[str, int]
) -> None:
    """Only outputs of a known and fixed size are requested, and only if all can be named."""
    document = {"max_batch_size": batch, "output": configured}
    fixed = FixedOutputs(ScriptedService(always=ModelConfiguration(document)), 4 * MIB)
    call = InferRequest(model=MODEL, inputs=(tensor("x", (8, 2), 16),))
    outputs = tuple([tensor(name, (size,), size) for name, size in found.items()])
    fixed.learn(call, InferResponse(model=MODEL, outputs=outputs))
    await wait_for_question(fixed)
    assert expected == fixed.sizes(call)


def tensor(name: str, shape: tuple[int, ...], size: int) -> Tensor:
    return Tensor(name, Datatype.UINT8, shape, RawData(memoryview(bytes(size))))


async def test_reply_above_the_limit_is_not_requested() -> None:
    """The client of the server refuses such a message, so no shared memory goes around it."""
    document = {"output": [Y]}
    fixed = FixedOutputs(ScriptedService(always=ModelConfiguration(document)), SIZE - 1)
    fixed.learn(call_of(1), InferResponse(model=MODEL, outputs=(tensor("y", (SIZE,), SIZE),)))
    await wait_for_question(fixed)
    assert {} == fixed.sizes(call_of(1))


async def test_large_replies_of_another_model_make_no_region(tmp_path: Path) -> None:
    """Where the size varies, nothing is registered for replies alone."""
    async with replying(tmp_path, learns=False) as it:
        it.triton.outputs = [{**Y, "dims": [-1]}]
        for number in range(3):
            assert is_reply_to(number, await it.layer(call_of(number)))
            await wait_for_question(it.layer._fixed_outputs)
        assert (0, ()) == (it.triton.registrations, it.pool.regions)


async def test_models_with_small_replies_are_looked_at_once_in_a_hundred(tmp_path: Path) -> None:
    """Other calls pass without a frame more, and a model that is replaced is noticed."""
    async with replying(tmp_path, learns=False) as it:
        it.triton.answer = bytes
        for _ in range(2):
            await it.layer(call_of(1))
        asks = [it.layer._fixed_outputs.has_interest(call_of(1)) for _ in range(100)]
        assert [False] * 99 + [True] == asks
        assert () == it.pool.regions


async def test_smaller_reply_is_right_and_the_last_one(tmp_path: Path) -> None:
    """Its size is that of its shape. The model is not trusted any more."""
    async with replying(tmp_path) as it:
        it.triton.answer = lambda read: read * (70 * KIB)
        for _ in range(2):
            reply = await it.layer(call_of(7))
            assert bytes([7]) * (70 * KIB) == as_raw(reply.outputs[0])
        assert 1 == it.triton.writes


async def test_larger_reply_fails_once_and_may_be_repeated_by_the_rules(tmp_path: Path) -> None:
    """The model has run, so only a route that allows such retries repeats the call."""
    async with replying(tmp_path) as it:
        it.triton.answer = lambda read: read * (2 * SIZE)
        with pytest.raises(Unavailable, match="other outputs than its configuration") as caught:
            await it.layer(call_of(7))
        ran = len(it.triton.reads)
        assert "tensor-gateway-" not in caught.value.message
        for reasons, repeats in (({"unsent"}, False), ({"reset_before_answer"}, True)):
            retries = RetryBudget(RetryRules(reasons=frozenset(reasons)))
            assert repeats is (retries.pause_s(call_of(7), caught.value) is not None)
        reply = await it.layer(call_of(7))
        assert bytes([7]) * (2 * SIZE) == as_raw(reply.outputs[0])
        assert (ran + 1, 0) == (len(it.triton.reads), it.triton.writes)


async def test_calls_with_large_inputs_do_not_let_it_be_learnt_again(tmp_path: Path) -> None:
    """A model whose replies were lost once is not trusted, though others are as it says."""
    async with replying(tmp_path) as it:
        it.triton.answer = lambda read: read * (2 * SIZE)
        with pytest.raises(Unavailable):
            await it.layer(call_of(7))
        it.triton.answer = repeated
        large = call_of(7).changed(inputs=(bytes_tensor("x", bytes(SIZE)),))
        for _ in range(3):
            await it.layer(large)
            await settle()
        assert {} == it.layer._fixed_outputs.sizes(large)


async def test_reply_that_lacks_an_output_is_lost_once(tmp_path: Path) -> None:
    """A call that names no output needs none of them."""
    async with replying(tmp_path) as it:
        it.layer._inner = ScriptedService(UpstreamProtocolError("response lacks the output 'y'"))
        with pytest.raises(Unavailable, match="other outputs"):
            await it.layer(call_of(7))
        assert {} == it.layer._fixed_outputs.sizes(call_of(7))


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (InvalidRequest("wrong input"), {"y": SIZE}),
        (UpstreamProtocolError("no response"), {"y": SIZE}),
        (UpstreamError("the model failed"), {}),
    ],
)
async def test_other_errors_stay(
    tmp_path: Path, error: GatewayError, expected: dict[str, int]
) -> None:
    """They are those of the server. After a failure, whose text may be withheld, it learns again."""
    async with replying(tmp_path) as it:
        it.layer._inner = ScriptedService(error)
        with pytest.raises(type(error), match=error.message):
            await it.layer(call_of(7, "y"))
        assert expected == it.layer._fixed_outputs.sizes(call_of(7))


@pytest.mark.parametrize("restarts", [False, True])
async def test_loaded_model_is_learnt_again(tmp_path: Path, restarts: bool) -> None:
    """After a call that loads it, or a start of its server, its first reply comes as bytes."""
    async with replying(tmp_path) as it:
        if restarts:
            it.layer.identify()
        else:
            inner, it.layer._inner = it.layer._inner, ScriptedService(None)
            await it.layer(ModelLoadRequest(model=MODEL))
            it.layer._inner = inner
        it.triton.answer = lambda read: read * (2 * SIZE)
        it.triton.outputs = [{**Y, "dims": [2 * SIZE]}]
        for writes in (0, 1):
            reply = await it.layer(call_of(7))
            assert bytes([7]) * (2 * SIZE) == as_raw(reply.outputs[0])
            assert writes == it.triton.writes
            await wait_for_question(it.layer._fixed_outputs)


async def test_restarted_server_replies_with_bytes_at_first(tmp_path: Path) -> None:
    """The call that finds no region is repeated, for the model has not run; it may be another."""
    async with replying(tmp_path) as it:
        it.triton.restart()
        it.triton.outputs = [{**Y, "dims": [2 * SIZE]}]
        it.triton.answer = lambda read: read * (2 * SIZE)
        for number, writes in ((3, 0), (4, 1)):
            reply = await it.layer(call_of(number))
            assert bytes([number]) * (2 * SIZE) == as_raw(reply.outputs[0])
            assert (writes, number) == (it.triton.writes, len(it.triton.reads))
            await registered(it.layer)
            await wait_for_question(it.layer._fixed_outputs)


@pytest.mark.parametrize("seed", range(10))
async def test_reply_is_that_of_its_call(tmp_path: Path, seed: int) -> None:
    """Some callers leave, some read late, and the server restarts: each reply has its own bytes."""
    draw = random.Random(seed)  # noqa: S311  # it must be repeatable
    async with replying(tmp_path, most=3 * MIB) as it:
        it.triton._waits = True
        running: list[tuple[int, asyncio.Future[InferResponse]]] = []
        held: list[tuple[int, InferResponse]] = []
        for step in range(400):
            action, number = draw.random(), step % 251
            if action < 0.4:
                running.append((number, asyncio.ensure_future(it.layer(call_of(number)))))
            elif action < 0.45 and running:
                running.pop(draw.randrange(len(running)))[1].cancel()
            elif action < 0.46:
                it.triton.restart()
            elif action < 0.6 and held:
                number, reply = held.pop(draw.randrange(len(held)))
                assert is_reply_to(number, reply)
                del reply
            elif it.triton.waiting:
                it.triton.waiting.pop(draw.randrange(len(it.triton.waiting))).set_result(None)
            await settle()
            if draw.random() < 0.05:
                await registered(it.layer)
            held += [(number, await each) for number, each in running if each.done()]
            running = [each for each in running if not each[1].done()]
        while it.triton.waiting:
            it.triton.waiting.pop().set_result(None)
            await settle()
        held += [(number, await each) for number, each in running]
        assert all(is_reply_to(number, reply) for number, reply in held)
        assert it.triton.writes > 30
