"""Tests of HandOver: what the server reads is what the client sent, whatever ends a call."""

from __future__ import annotations

import asyncio
import gc
import os
import random
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from gateway.ir.calls import Call, InferRequest, InferResponse, SharedRegisterRequest
from gateway.ir.context import Context, ModelRef, Origin
from gateway.ir.errors import ConnectFailure, InternalError, Unavailable
from gateway.ir.metadata import ServerMetadata, SharedRegion
from gateway.ir.tensors.data import SharedMemoryData
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.tensor import RequestedOutput, Tensor, as_raw
from gateway.policies.hand_over.policy import HandOver
from gateway.policies.hand_over.pool import Region, RegionPool
from tests.fakes import FakeClock, ScriptedService, settle
from tests.unit.policies.hand_over.fake_triton import (
    TRITON,
    FakeTriton,
    bytes_tensor,
    received,
)

KIB, MIB = 1024, 1 << 20
DATA = random.Random(1).randbytes(100 * KIB)  # noqa: S311  # it must be repeatable


@dataclass
class Parts:
    """A hand-over with its pool, its server and its clock."""

    layer: HandOver
    pool: RegionPool
    triton: FakeTriton
    clock: FakeClock
    folder: Path


@asynccontextmanager
async def handing_over(
    folder: Path,
    *,
    waits: bool = False,
    server: ServerMetadata | None = TRITON,
    most: int = 4 * MIB,
    triton: FakeTriton | None = None,
    registers: bool = True,
) -> AsyncIterator[Parts]:
    """Build a hand-over whose first region is registered."""
    server_of, pool, clock = (
        triton or FakeTriton(folder),
        RegionPool(most, str(folder)),
        FakeClock(),
    )
    layer = HandOver(
        server_of,
        server_of,
        pool,
        lambda: server,
        most_bytes=64 * MIB,
        clock=clock,
        folder=str(folder),
        upstream="u",
    )
    layer.identify()
    parts = Parts(layer, pool, server_of, clock, folder)
    if registers:
        await layer(call_of(DATA))
        await registered(layer)
        server_of.reads.clear()
    server_of._waits = waits
    try:
        yield parts
    finally:
        await layer.close()
        pool.close()


async def registered(layer: HandOver) -> None:
    """Wait for the registration in the background, which makes the region on a thread."""
    async with asyncio.timeout(20):
        while (task := layer._registering) is not None and not task.done():
            await asyncio.wait([task])


def call_of(data: bytes | memoryview, **fields: Any) -> InferRequest:
    return InferRequest(model=ModelRef("m"), inputs=(bytes_tensor("x", data),), **fields)


def written(lines: Sequence[Mapping[str, Any]]) -> list[Any]:
    """Return the events of the lines that the log has by default."""
    return [line["event"] for line in lines if line["log_level"] != "debug"]


def raw_of(reply: InferResponse) -> bytes:
    return bytes(as_raw(reply.outputs[0]))


async def test_first_call_is_sent_as_bytes_and_the_next_in_shared_memory(tmp_path: Path) -> None:
    """No call waits for the registration."""
    async with handing_over(tmp_path) as it:
        assert (0, 1, 1) == (it.triton.handed_over, it.triton.as_bytes, it.triton.registrations)
        assert raw_of(await it.layer(call_of(DATA))) == DATA
        assert 1 == it.triton.handed_over
        assert "" == it.layer.reason


async def test_message_in_the_pool_is_not_copied(tmp_path: Path) -> None:
    """A message that was received into a piece is named where it is, with its small tensors."""
    async with handing_over(tmp_path) as it:
        memory = received(it.pool.memory(len(DATA)), DATA)
        inputs = (bytes_tensor("a", memory[:99_968]), bytes_tensor("b", memory[99_968:]))
        reply = await it.layer(InferRequest(model=ModelRef("m"), inputs=inputs))
        assert raw_of(reply) == DATA
        (region,) = it.pool.regions
        assert 1 == len(region._pieces)


async def test_small_and_other_calls_pass_unchanged(tmp_path: Path) -> None:
    """Calls below 64 KiB, with elements that are no bytes, and of unknown members, are as they were."""
    async with handing_over(tmp_path) as it:
        texts = Tensor("t", Datatype.BYTES, (1,), bytes_tensor("", DATA).data)
        unknown = Context(origin=Origin("oip.http", None, unknown=b"{}"))
        for call in (
            call_of(DATA[: 64 * KIB - 1]),
            InferRequest(model=ModelRef("m"), inputs=(texts,)),
            call_of(DATA, context=unknown),
        ):
            await it.layer(call)
        assert 0 == it.triton.handed_over


async def test_cancelled_call_is_read_to_its_end(tmp_path: Path) -> None:
    """The server reads what was sent, although its memory was free to be used by the next message."""
    async with handing_over(tmp_path, waits=True, most=MIB) as it:
        memory = received(it.pool.memory(len(DATA)), DATA)
        task = asyncio.ensure_future(it.layer(call_of(memory)))
        await settle()
        task.cancel()
        del memory
        with pytest.raises(asyncio.CancelledError):
            await task
        del task
        gc.collect()
        for _ in range(40):
            other = it.pool.memory(len(DATA))
            assert other is not None
            other[:] = bytes(len(other))
        it.triton.waiting[0].set_result(None)
        await settle()
        assert [DATA] == it.triton.reads


@pytest.mark.parametrize(
    ("failure", "is_used_again"),
    [
        (ConnectFailure("refused"), True),
        (Unavailable("reset"), False),
        (InternalError("the model failed", origin=Origin("oip.http", None)), False),
    ],
    ids=lambda value: type(value).__name__,
)
async def test_piece_of_a_failed_call(
    tmp_path: Path, failure: Exception, is_used_again: bool
) -> None:
    """A piece is written again after an error only if the server certainly did not get the call."""
    async with handing_over(tmp_path, most=128 * KIB) as it:
        it.layer._inner = ScriptedService(failure)
        with pytest.raises(type(failure)):
            await it.layer(call_of(DATA))
        assert (it.pool.allocate(128 * KIB) is not None) is is_used_again


async def test_restarted_server_gets_the_regions_again(tmp_path: Path) -> None:
    """The call that finds no region is repeated as bytes; later ones are handed over again."""
    async with handing_over(tmp_path) as it:
        it.triton.restart()
        assert raw_of(await it.layer(call_of(DATA))) == DATA
        assert (0, 2) == (it.triton.handed_over, it.triton.as_bytes)
        await registered(it.layer)
        assert raw_of(await it.layer(call_of(DATA))) == DATA
        assert 1 == it.triton.handed_over


async def test_calls_that_meet_one_restart_count_once(tmp_path: Path) -> None:
    """Many calls that find no region register it once, and leave the hand-over on."""
    async with handing_over(tmp_path) as it:
        it.triton.restart()
        replies = await asyncio.gather(*[it.layer(call_of(DATA)) for _ in range(10)])
        assert {DATA} == {*map(raw_of, replies)}
        await registered(it.layer)
        assert (2, "") == (it.triton.registrations, it.layer.reason)


async def test_server_that_forgets_all_the_time_gets_bytes(tmp_path: Path) -> None:
    """Several servers behind one address do not cost each call a second one."""
    async with handing_over(tmp_path) as it:
        for _ in range(10):
            it.triton.restart()
            assert raw_of(await it.layer(call_of(DATA))) == DATA
            await registered(it.layer)
        assert "forgets" in it.layer.reason
        assert 6 == it.triton.registrations


async def test_region_in_use_is_unregistered_after_the_inference(tmp_path: Path) -> None:
    """The server keeps a region that was replaced until no inference reads it."""
    async with handing_over(tmp_path, waits=True, most=512 * KIB) as it:
        (name,) = it.triton.regions
        for _ in range(2):
            task = asyncio.ensure_future(it.layer(call_of(DATA)))
            await settle()
            task.cancel()
            await asyncio.wait([task])
        await settle()
        assert () == it.pool.regions
        assert [name] == [*it.triton.regions]
        for future in it.triton.waiting:
            future.set_result(None)
        async with asyncio.timeout(20):
            assert it.layer._releasing is not None
            await asyncio.wait([it.layer._releasing])
        assert {} == it.triton.regions
        assert [DATA, DATA] == it.triton.reads


@pytest.mark.parametrize(
    ("server", "reason"),
    [
        (ServerMetadata("ovms", "1", TRITON.extensions), "the server is 'ovms', not a Triton"),
        (ServerMetadata("triton", "2.51.0", ()), "does not announce the extension"),
        (ServerMetadata("triton", "2.50.1", TRITON.extensions), "Triton 2.50.1, at least 2.51"),
        (ServerMetadata("triton", "x", TRITON.extensions), "at least 2.51"),
    ],
)
async def test_other_servers_get_bytes(tmp_path: Path, server: ServerMetadata, reason: str) -> None:
    """The status says why."""
    async with handing_over(tmp_path, server=server) as it:
        assert raw_of(await it.layer(call_of(DATA))) == DATA
        assert reason in it.layer.reason
        assert 0 == it.triton.registrations


async def test_unknown_server_gets_no_region(tmp_path: Path) -> None:
    """Before the first probe nothing is known, and nothing is registered."""
    async with handing_over(tmp_path, server=None) as it:
        assert 0 == it.triton.registrations


async def test_refused_region_is_offered_again_after_a_minute(tmp_path: Path) -> None:
    """The reason names no region, and no further call offers it within a minute."""
    triton = FakeTriton(tmp_path)
    text = "Unable to open shared memory region: '/tensor-gateway-0123'"
    triton.refusal = InternalError(text, origin=Origin("oip.http", None))
    async with handing_over(tmp_path, triton=triton) as it:
        assert "the server refused a region" in it.layer.reason
        assert "as the same user or in hand_over_group" in it.layer.reason
        assert "0123" not in it.layer.reason
        # What the server does not read is not kept.
        assert () == it.pool.regions
        assert not await asyncio.to_thread(os.listdir, tmp_path)
        triton.refusal = None
        await it.layer(call_of(DATA))
        await registered(it.layer)
        assert 0 == triton.registrations
        it.clock.advance(61)
        await it.layer(call_of(DATA))
        await registered(it.layer)
        assert (1, "") == (triton.registrations, it.layer.reason)


async def test_server_that_is_down_has_refused_nothing(tmp_path: Path) -> None:
    """Its regions are offered again soon, because it starts in seconds."""
    triton = FakeTriton(tmp_path)
    triton.refusal = ConnectFailure("cannot connect")
    async with handing_over(tmp_path, triton=triton) as it:
        assert "no large tensor yet" == it.layer.reason
        triton.refusal = None
        it.clock.advance(1)
        await it.layer(call_of(DATA))
        await registered(it.layer)
        assert (1, "") == (triton.registrations, it.layer.reason)


async def test_restarted_server_is_offered_what_was_refused(tmp_path: Path) -> None:
    """What the former one refused is offered to it, without the pause of a minute."""
    triton = FakeTriton(tmp_path)
    triton.refusal = InternalError("no", origin=Origin("oip.http", None))
    async with handing_over(tmp_path, triton=triton) as it:
        triton.refusal = None
        it.layer.identify()
        await it.layer(call_of(DATA))
        await registered(it.layer)
        assert (1, "") == (triton.registrations, it.layer.reason)
    it.layer.identify()
    await it.layer(call_of(DATA))
    assert 1 == triton.registrations


async def test_a_reason_is_logged_once(tmp_path: Path) -> None:
    """A server that refuses each minute has one line, and one that is no Triton has none."""
    triton = FakeTriton(tmp_path)
    triton.refusal = InternalError("no", origin=Origin("oip.http", None))
    with capture_logs() as lines:
        async with handing_over(tmp_path, triton=triton) as it:
            for _ in range(3):
                it.clock.advance(61)
                await it.layer(call_of(DATA))
                await registered(it.layer)
        other = ServerMetadata("ovms", "1", TRITON.extensions)
        async with handing_over(tmp_path, server=other):
            pass
    assert ["large tensors go as bytes"] == written(lines)


async def test_a_shortage_is_logged_once(tmp_path: Path) -> None:
    """A pool that cannot grow stays as it is, and says so in one line."""
    async with handing_over(tmp_path, most=64 * MIB) as it:
        with capture_logs() as lines:
            it.triton.refusal = InternalError("no", origin=Origin("oip.http", None))
            for _ in range(3):
                it.clock.advance(61)
                assert it.pool.allocate(31 * MIB) is not None or it.pool.needs_region
                await it.layer(call_of(DATA))
                await registered(it.layer)
        assert ["shared memory stays small"] == written(lines)
        assert "" == it.layer.reason


async def test_full_folder_is_a_reason(tmp_path: Path) -> None:
    """Without memory for a region tensors go as bytes."""
    triton, pool = FakeTriton(tmp_path), RegionPool(MIB, str(tmp_path / "none"))
    layer = HandOver(triton, triton, pool, lambda: TRITON, most_bytes=64 * MIB, clock=FakeClock())
    layer.identify()
    assert raw_of(await layer(call_of(DATA))) == DATA
    await registered(layer)
    assert f"no shared memory of {MIB} bytes: No such file or directory" == layer.reason


async def test_two_endpoints_of_one_server_share_its_regions(tmp_path: Path) -> None:
    """The second registration of a region is no error."""
    async with handing_over(tmp_path) as it:
        other = HandOver(
            it.triton,
            it.triton,
            it.pool,
            lambda: TRITON,
            most_bytes=64 * MIB,
            folder=str(tmp_path),
        )
        other.identify()
        await other(call_of(DATA))
        await registered(other)
        assert ("", 1) == (other.reason, len(it.triton.regions))
        assert raw_of(await other(call_of(DATA))) == DATA
        assert 1 == it.triton.handed_over
        await other.close()


async def test_regions_of_killed_gateways_are_unregistered(tmp_path: Path) -> None:
    """Those without a file go; those of other gateways, and of clients, stay."""
    triton = FakeTriton(tmp_path)
    (tmp_path / "tensor-gateway-live").write_bytes(bytes(1))
    for name in ("tensor-gateway-live", "tensor-gateway-dead", "client"):
        triton.regions[name] = None  # type: ignore[assignment]  # nobody reads it
    async with handing_over(tmp_path, triton=triton) as it:
        (own,) = [region.name for region in it.pool.regions]
        assert {"tensor-gateway-live", "client", own} == {*triton.regions}


async def test_closed_endpoint_unregisters_its_regions(tmp_path: Path) -> None:
    """The server frees the memory, and a second close does nothing."""
    async with handing_over(tmp_path) as it:
        await it.layer.close()
        assert {} == it.triton.regions
        await it.layer.close()


async def test_closed_endpoint_unregisters_the_regions_of_killed_processes(tmp_path: Path) -> None:
    """The process in place of a killed one may have had no large tensor for the server."""
    async with handing_over(tmp_path) as it:
        (own,) = it.pool.regions
        killed = Region(str(tmp_path), MIB)
        await it.triton(
            SharedRegisterRequest(
                region=SharedRegion(name=killed.name, key=f"/{killed.name}", size_bytes=MIB)
            )
        )
        killed.unlink()
        assert {own.name, killed.name} == set(it.triton.regions)
        await it.layer.close()
        assert {} == it.triton.regions


async def test_region_whose_registration_is_under_way_is_unregistered(tmp_path: Path) -> None:
    """The server has it, although the endpoint that closes has no reply."""
    async with handing_over(tmp_path, registers=False) as it:
        mapped = asyncio.Event()

        async def without_reply(call: Call[Any], /) -> Any:
            reply = await it.triton(call)
            if isinstance(call, SharedRegisterRequest):
                mapped.set()
                await asyncio.Event().wait()
            return reply

        it.layer._questions = without_reply
        await it.layer(call_of(DATA))
        await mapped.wait()
        assert 1 == len(it.triton.regions)
        await it.layer.close()
        assert {} == it.triton.regions


async def test_requested_outputs_stay(tmp_path: Path) -> None:
    """Outputs that a client wants in its own region are requested there."""
    async with handing_over(tmp_path) as it:
        seen = it.layer._inner = ScriptedService(
            always=InferResponse(model=ModelRef("m"), outputs=())
        )
        output = RequestedOutput("y", shared=SharedMemoryData("client", 0, 8))
        await it.layer(call_of(DATA, outputs=(output,)))
        sent = seen.calls[0]
        assert isinstance(sent, InferRequest)
        assert (output,) == sent.outputs
        assert isinstance(sent.inputs[0].data, SharedMemoryData)


@pytest.mark.parametrize("seed", range(15))
async def test_what_is_read_is_what_was_sent(tmp_path: Path, seed: int) -> None:
    """Random sizes and orders, one in ten cancelled, and a server that restarts: no wrong tensor."""
    draw = random.Random(seed)  # noqa: S311  # it must be repeatable
    async with handing_over(tmp_path, waits=True, most=8 * MIB) as it:
        running: list[tuple[bytes, asyncio.Future[InferResponse]]] = []
        for step in range(300):
            action = draw.random()
            if action < 0.4:
                data = bytes([step % 256]) * draw.randrange(64 * KIB, 300 * KIB)
                memory = it.pool.memory(len(data)) if draw.random() < 0.7 else None
                view = memoryview(data) if memory is None else received(memory, data)
                running.append((data, asyncio.ensure_future(it.layer(call_of(view)))))
                del memory, view
            elif action < 0.44 and running:
                running.pop(draw.randrange(len(running)))[1].cancel()
            elif action < 0.45:
                it.triton.restart()
            elif it.triton.waiting:
                it.triton.waiting.pop(draw.randrange(len(it.triton.waiting))).set_result(None)
            await settle()
            if draw.random() < 0.05:
                await registered(it.layer)
            done = [each for each in running if each[1].done()]
            running = [each for each in running if not each[1].done()]
            for data, future in done:
                assert raw_of(await future) == data
        while it.triton.waiting:
            it.triton.waiting.pop().set_result(None)
            await settle()
        for data, future in running:
            assert raw_of(await future) == data
        # Also those whose callers have left: each has the bytes of one message.
        assert all(len({*read}) == 1 for read in it.triton.reads)
        assert it.triton.handed_over > 20
