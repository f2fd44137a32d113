"""Tests of SharedMemory: refused, forwarded and mapped."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gateway.ir.calls import (
    InferRequest,
    InferResponse,
    ServerLiveRequest,
    ServerMetadataRequest,
    SharedRegisterRequest,
    SharedStatusRequest,
    SharedUnregisterRequest,
    StreamInferRequest,
)
from gateway.ir.context import Context, ModelRef, Origin
from gateway.ir.data import RawData, SharedMemoryData
from gateway.ir.datatypes import Datatype
from gateway.ir.errors import (
    Forbidden,
    GatewayError,
    InvalidRequest,
    Overloaded,
    RegionExists,
    RegionNotFound,
    RegionUnusable,
    TooLarge,
    Unavailable,
    Unsupported,
)
from gateway.ir.metadata import ServerMetadata, SharedRegion
from gateway.ir.streams import close_stream
from gateway.ir.tensor import RequestedOutput, Tensor, array_tensor, as_raw
from gateway.policies.shared_memory.forwarded import ForwardedRegions, ForwardRegions
from gateway.policies.shared_memory.policy import CopyRegions, SharedMemory, SharedMemoryOff
from gateway.policies.shared_memory.regions import Regions
from tests.fakes import FakeStream, ScriptedService

M = ModelRef("m")
IN, OUT = SharedMemoryData("r", 0, 16), SharedMemoryData("r", 16, 32)
X = Tensor("x", Datatype.INT32, (4,), IN)
PLAIN = array_tensor("p", np.arange(2, dtype="<i4"))
CALL = InferRequest(
    model=M, inputs=(X, PLAIN), outputs=(RequestedOutput("y", shared=OUT), RequestedOutput("z"))
)
Y, Z = array_tensor("y", np.arange(4, dtype="<i4")), array_tensor("z", np.zeros(2, "<f4"))
REPLY = InferResponse(model=M, outputs=(Z, Y))
REGION = SharedRegion(name="r", size_bytes=64, key="/seg")
REGISTER = SharedRegisterRequest(region=REGION)


class Room:
    """Bytes in flight, counted."""

    def __init__(self, limit: int = 1000) -> None:
        self.limit = limit
        self.used = 0
        self.most = 0

    def try_acquire(self, size: int, /) -> bool:
        if self.used + size > self.limit:
            return False
        self.used += size
        self.most = max(self.most, self.used)
        return True

    def release(self, size: int, /) -> None:
        self.used -= size


@pytest.fixture
def segment(tmp_path: Path) -> Path:
    """A segment of 64 bytes, called "seg"."""
    file = tmp_path / "seg"
    file.write_bytes(bytes(range(64)))
    return file


def content(segment: Path) -> bytes:
    return segment.read_bytes()


def shorten(segment: Path) -> None:
    segment.write_bytes(b"short")


def mapped(segment: Path, inner: ScriptedService, **settings: Any) -> tuple[SharedMemory, Room]:
    regions = Regions(folder=str(segment.parent))
    regions.register(REGION)
    room = settings.pop("room", Room())
    memory = CopyRegions(regions, room, settings.pop("message_bytes", 1000))
    return SharedMemory(inner, memory), room


async def test_only_allowed_keys_are_registered(segment: Path) -> None:
    """A segment of the server whose name is not known here cannot be reached by a client."""
    regions = Regions(folder=str(segment.parent))
    refusing = CopyRegions(regions, Room(), 1000, ("app-*", "/se"))
    with pytest.raises(Forbidden, match=r"region 'r' has the key '/seg'.*shared_memory: keys"):
        await refusing.control(REGISTER)
    assert regions.list_regions() == ()
    await CopyRegions(regions, Room(), 1000, ("app-*", "/se?")).control(REGISTER)
    assert (REGION,) == regions.list_regions()
    regions.close()


async def test_other_calls_go_through() -> None:
    """Nothing is changed in calls that share no memory."""
    inner = ScriptedService(REPLY, True)
    service = SharedMemory(inner, SharedMemoryOff())
    call = InferRequest(model=M, inputs=(PLAIN,), outputs=(RequestedOutput("z"),))
    assert await service(call) is REPLY
    assert inner.calls[0] is call
    assert await service(ServerLiveRequest()) is True


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (CALL, "input 'x' refers to the unregistered shared memory region 'r': .* not enabled"),
        (InferRequest(model=M, outputs=CALL.outputs), "output 'y' refers to"),
        (StreamInferRequest(model=M, request=CALL), "not enabled"),
    ],
)
async def test_off_knows_no_region(call: Any, text: str) -> None:
    """Where nothing is shared, a tensor in shared memory is in a region that is not there."""
    with pytest.raises(RegionNotFound, match=text):
        await SharedMemory(ScriptedService(), SharedMemoryOff())(call)


@pytest.mark.parametrize(
    "call", [REGISTER, SharedUnregisterRequest(region="r"), SharedStatusRequest()]
)
async def test_off_takes_no_region(call: Any) -> None:
    """Where nothing is shared, nothing is registered."""
    with pytest.raises(Unsupported, match="not enabled here"):
        await SharedMemory(ScriptedService(), SharedMemoryOff())(call)


async def test_off_changes_no_answer() -> None:
    """What was answered all the same is passed on."""
    assert await SharedMemoryOff().store_outputs(CALL, REPLY) is REPLY


async def test_map_brings_inputs_and_takes_outputs(segment: Path) -> None:
    """The target sees plain tensors; the caller's output lies where it wanted it."""
    inner = ScriptedService(REPLY)
    service, room = mapped(segment, inner)
    call = CALL.with_context(origin=Origin("c", object()))
    reply = await service(call)
    (sent,) = inner.calls
    assert isinstance(sent, InferRequest)
    assert not sent.shares_memory
    assert sent.context.origin is None
    assert bytes(as_raw(sent.inputs[0])) == bytes(range(16))
    assert sent.inputs[1] is PLAIN
    assert [output.name for output in sent.outputs] == ["y", "z"]
    assert reply.outputs == (Z, Tensor("y", Datatype.INT32, (4,), SharedMemoryData("r", 16, 16)))
    after = content(segment)
    assert after[16:32] == np.arange(4, dtype="<i4").tobytes()
    assert after[:16] + after[32:] == bytes(range(16)) + bytes(range(32, 64))
    assert (room.most, room.used) == (16, 0)


async def test_map_answers_about_its_regions(segment: Path) -> None:
    """Regions are the gateway's: no upstream is asked."""
    inner = ScriptedService()
    service, _ = mapped(segment, inner)
    assert await service(SharedStatusRequest()) == (REGION,)
    with pytest.raises(RegionExists):
        await service(REGISTER)
    await service(SharedUnregisterRequest(region="r"))
    assert await service(SharedStatusRequest()) == ()
    await service(REGISTER)
    assert await service(SharedStatusRequest()) == (REGION,)
    assert inner.calls == []


@pytest.mark.parametrize(
    ("call", "settings", "failure"),
    [
        (
            CALL.changed(inputs=(Tensor("x", None, None, SharedMemoryData("q", 0, 1)),)),
            {},
            RegionNotFound,
        ),
        (
            CALL.changed(outputs=(RequestedOutput("y", shared=SharedMemoryData("r", 60, 5)),)),
            {},
            InvalidRequest,
        ),
        (CALL, {"message_bytes": 15}, TooLarge),
        (CALL, {"room": Room(15)}, Overloaded),
    ],
)
async def test_map_refuses_before_it_asks(
    segment: Path, call: InferRequest, settings: dict[str, Any], failure: type[GatewayError]
) -> None:
    """Places outside of regions and too many bytes are refused; nothing stays held."""
    inner = ScriptedService()
    service, room = mapped(segment, inner, **settings)
    with pytest.raises(failure):
        await service(call)
    assert (inner.calls, room.used) == ([], 0)


async def test_map_refuses_outputs_that_do_not_fit(segment: Path) -> None:
    """An output that is larger than its place is an error of its own; nothing is written."""
    service, room = mapped(segment, ScriptedService(REPLY))
    small = RequestedOutput("y", shared=SharedMemoryData("r", 16, 15))
    with pytest.raises(RegionUnusable, match="16 bytes, the request reserves 15"):
        await service(CALL.changed(outputs=(small,)))
    assert content(segment) == bytes(range(64))
    assert room.used == 0


async def test_map_survives_a_segment_that_shrinks(segment: Path) -> None:
    """A segment cut short between registration and use fails that request alone."""
    service, room = mapped(segment, ScriptedService(always=REPLY))
    shorten(segment)
    with pytest.raises(RegionUnusable, match="shrank the segment"):
        await service(CALL)
    assert room.used == 0


@pytest.mark.parametrize("ending", ["failure", "cancellation"])
async def test_map_gives_back_what_it_holds(segment: Path, ending: str) -> None:
    """Room is given back when the target fails, and when the caller leaves."""
    inner = ScriptedService(*([Unavailable("gone")] if ending == "failure" else []))
    service, room = mapped(segment, inner)
    task = asyncio.ensure_future(service(CALL))
    await asyncio.sleep(0)
    if ending == "cancellation":
        assert room.used == 16
        task.cancel()
    with pytest.raises((Unavailable, asyncio.CancelledError)):
        await task
    assert room.used == 0


async def test_map_serves_streams(segment: Path) -> None:
    """Each answer of a stream is put into its place; room is held until the stream ends."""
    inner = ScriptedService(FakeStream([REPLY, REPLY]))
    service, room = mapped(segment, inner)
    items = await service(StreamInferRequest(model=M, request=CALL))
    (sent,) = inner.calls
    assert isinstance(sent, StreamInferRequest)
    assert not sent.request.shares_memory
    found = [await anext(items), await anext(items)]
    assert [item.outputs[1].data for item in found] == [SharedMemoryData("r", 16, 16)] * 2
    assert room.used == 16
    await close_stream(items)
    assert room.used == 0


async def test_map_gives_back_when_a_stream_is_not_opened(segment: Path) -> None:
    """A stream that the target refuses holds nothing."""
    service, room = mapped(segment, ScriptedService(Unavailable("gone")))
    with pytest.raises(Unavailable):
        await service(StreamInferRequest(model=M, request=CALL))
    assert room.used == 0


def test_a_request_says_whether_it_shares_memory() -> None:
    """One tensor is enough, be it an input or an output."""
    plain = InferRequest(
        model=M,
        inputs=(Tensor("x", Datatype.UINT8, (1,), RawData(memoryview(b"1"))),),
        outputs=(RequestedOutput("y"),),
        context=Context(),
    )
    assert not plain.shares_memory
    assert plain.changed(inputs=(X,)).shares_memory
    assert plain.changed(outputs=CALL.outputs).shares_memory


@pytest.mark.parametrize(
    ("memory", "expected"),
    [
        (SharedMemoryOff(), ()),
        (
            ForwardRegions([], (), ForwardedRegions()),
            ("system_shared_memory", "cuda_shared_memory"),
        ),
    ],
)
async def test_metadata_name_what_is_shared(memory: Any, expected: tuple[str, ...]) -> None:
    """The server's metadata tell which kinds of shared memory can be used here."""
    service = ScriptedService(ServerMetadata("s", "1", ("parameters",)))
    found = await SharedMemory(service, memory)(ServerMetadataRequest())
    assert ServerMetadata("s", "1", ("parameters", *expected)) == found


async def test_all_of_cudas_regions_are_none_of_systems(segment: Path) -> None:
    """Forgetting or listing CUDA's regions leaves those of system memory alone."""
    service, _ = mapped(segment, ScriptedService())
    await service(SharedUnregisterRequest(is_cuda=True))
    assert () == await service(SharedStatusRequest(is_cuda=True))
    assert (REGION,) == await service(SharedStatusRequest(is_cuda=False))
    await service(SharedUnregisterRequest(is_cuda=False))
    assert () == await service(SharedStatusRequest())
