"""Tests of SharedMemory: disabled, forwarded and mapped."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gateway.ir.bodies.streams import close_stream
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
from gateway.ir.tensors.data import RawData, SharedMemoryData
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.tensor import RequestedOutput, Tensor, array_tensor, as_raw
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


class FakeBudget:
    """A memory budget that records its highest use."""

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


def mapped(
    segment: Path, inner: ScriptedService, **settings: Any
) -> tuple[SharedMemory, FakeBudget]:
    regions = Regions(folder=str(segment.parent))
    regions.register(REGION)
    budget = settings.pop("budget", FakeBudget())
    memory = CopyRegions(regions, budget, settings.pop("message_bytes", 1000))
    return SharedMemory(inner, memory), budget


async def test_only_allowed_keys_are_registered(segment: Path) -> None:
    """A client cannot register a segment whose key is not allowed."""
    regions = Regions(folder=str(segment.parent))
    refusing = CopyRegions(regions, FakeBudget(), 1000, ("app-*", "/se"))
    with pytest.raises(Forbidden, match=r"region 'r' has the key '/seg'.*shared_memory: keys"):
        await refusing.control(REGISTER)
    assert regions.list_regions() == ()
    await CopyRegions(regions, FakeBudget(), 1000, ("app-*", "/se?")).control(REGISTER)
    assert (REGION,) == regions.list_regions()
    regions.close()


async def test_other_calls_pass_through() -> None:
    """Calls without shared memory are unchanged."""
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
async def test_disabled_shared_memory_rejects_tensors(call: Any, text: str) -> None:
    """If shared memory is disabled, every region is unregistered."""
    with pytest.raises(RegionNotFound, match=text):
        await SharedMemory(ScriptedService(), SharedMemoryOff())(call)


@pytest.mark.parametrize(
    "call", [REGISTER, SharedUnregisterRequest(region="r"), SharedStatusRequest()]
)
async def test_disabled_shared_memory_rejects_control_calls(call: Any) -> None:
    """If shared memory is disabled, regions cannot be registered, unregistered or listed."""
    with pytest.raises(Unsupported, match="not enabled here"):
        await SharedMemory(ScriptedService(), SharedMemoryOff())(call)


async def test_disabled_shared_memory_keeps_replies() -> None:
    """If shared memory is disabled, replies are passed on unchanged."""
    assert await SharedMemoryOff().store_outputs(CALL, REPLY) is REPLY


async def test_mapped_tensors_are_copied_in_and_out(segment: Path) -> None:
    """The target gets plain tensors; the output is written to the caller's region."""
    inner = ScriptedService(REPLY)
    service, budget = mapped(segment, inner)
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
    assert (budget.most, budget.used) == (16, 0)


async def test_mapped_regions_are_managed_by_the_gateway(segment: Path) -> None:
    """Control calls for mapped regions reach no upstream."""
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
        (CALL, {"budget": FakeBudget(15)}, Overloaded),
    ],
)
async def test_invalid_call_is_rejected_before_the_target(
    segment: Path, call: InferRequest, settings: dict[str, Any], failure: type[GatewayError]
) -> None:
    """References outside of regions and too many bytes are rejected; no memory stays reserved."""
    inner = ScriptedService()
    service, budget = mapped(segment, inner, **settings)
    with pytest.raises(failure):
        await service(call)
    assert (inner.calls, budget.used) == ([], 0)


async def test_output_larger_than_its_reserved_bytes_is_rejected(segment: Path) -> None:
    """An output that does not fit is an error, and nothing is written."""
    service, budget = mapped(segment, ScriptedService(REPLY))
    small = RequestedOutput("y", shared=SharedMemoryData("r", 16, 15))
    with pytest.raises(RegionUnusable, match="16 bytes, the request reserves 15"):
        await service(CALL.changed(outputs=(small,)))
    assert content(segment) == bytes(range(64))
    assert budget.used == 0


async def test_shrunk_segment_fails_its_request(segment: Path) -> None:
    """A segment that shrinks after its registration raises RegionUnusable."""
    service, budget = mapped(segment, ScriptedService(always=REPLY))
    shorten(segment)
    with pytest.raises(RegionUnusable, match="shrank the segment"):
        await service(CALL)
    assert budget.used == 0


@pytest.mark.parametrize("ending", ["failure", "cancellation"])
async def test_memory_is_released_after_failure_or_cancellation(segment: Path, ending: str) -> None:
    """The reservation ends when the target fails or the caller is cancelled."""
    inner = ScriptedService(*([Unavailable("gone")] if ending == "failure" else []))
    service, budget = mapped(segment, inner)
    task = asyncio.ensure_future(service(CALL))
    await asyncio.sleep(0)
    if ending == "cancellation":
        assert budget.used == 16
        task.cancel()
    with pytest.raises((Unavailable, asyncio.CancelledError)):
        await task
    assert budget.used == 0


async def test_stream_replies_are_written_to_shared_memory(segment: Path) -> None:
    """Memory stays reserved until the stream ends."""
    inner = ScriptedService(FakeStream([REPLY, REPLY]))
    service, budget = mapped(segment, inner)
    items = await service(StreamInferRequest(model=M, request=CALL))
    (sent,) = inner.calls
    assert isinstance(sent, StreamInferRequest)
    assert not sent.request.shares_memory
    found = [await anext(items), await anext(items)]
    assert [item.outputs[1].data for item in found] == [SharedMemoryData("r", 16, 16)] * 2
    assert budget.used == 16
    await close_stream(items)
    assert budget.used == 0


async def test_memory_is_released_if_a_stream_is_not_opened(segment: Path) -> None:
    """A stream that the target rejects keeps no reservation."""
    service, budget = mapped(segment, ScriptedService(Unavailable("gone")))
    with pytest.raises(Unavailable):
        await service(StreamInferRequest(model=M, request=CALL))
    assert budget.used == 0


def test_request_shares_memory_through_any_tensor() -> None:
    """One input or output in shared memory is enough."""
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
async def test_server_metadata_list_shared_memory_extensions(
    memory: Any, expected: tuple[str, ...]
) -> None:
    """The extensions are those kinds of shared memory that are available."""
    service = ScriptedService(ServerMetadata("s", "1", ("parameters",)))
    found = await SharedMemory(service, memory)(ServerMetadataRequest())
    assert ServerMetadata("s", "1", ("parameters", *expected)) == found


async def test_cuda_calls_do_not_affect_system_regions(segment: Path) -> None:
    """Unregistering or listing CUDA regions does not include system regions."""
    service, _ = mapped(segment, ScriptedService())
    await service(SharedUnregisterRequest(is_cuda=True))
    assert () == await service(SharedStatusRequest(is_cuda=True))
    assert (REGION,) == await service(SharedStatusRequest(is_cuda=False))
    await service(SharedUnregisterRequest(is_cuda=False))
    assert () == await service(SharedStatusRequest())
