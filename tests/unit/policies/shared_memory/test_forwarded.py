"""Tests of ForwardRegions: regions that upstreams use themselves, checked before they are registered."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gateway.ir.calls import (
    InferRequest,
    InferResponse,
    SharedRegisterRequest,
    SharedStatusRequest,
    SharedUnregisterRequest,
    StreamInferRequest,
)
from gateway.ir.context import ModelRef
from gateway.ir.errors import (
    Forbidden,
    InvalidRequest,
    RegionExists,
    RegionNotFound,
    RegionUnusable,
    TooLarge,
    Unsupported,
)
from gateway.ir.metadata import SharedRegion
from gateway.ir.tensors.data import SharedMemoryData
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.tensor import RequestedOutput, Tensor, array_tensor
from gateway.policies.shared_memory.forwarded import ForwardedRegions, ForwardRegions
from gateway.policies.shared_memory.policy import SharedMemory
from tests.fakes import FakeStream, ScriptedService

M = ModelRef("m")
IN, OUT = SharedMemoryData("r", 0, 16), SharedMemoryData("r", 16, 32)
X = Tensor("x", Datatype.INT32, (4,), IN)
PLAIN = array_tensor("p", np.arange(2, dtype="<i4"))
CALL = InferRequest(
    model=M, inputs=(X, PLAIN), outputs=(RequestedOutput("y", shared=OUT), RequestedOutput("z"))
)
Y, Z = array_tensor("y", np.arange(4, dtype="<i4")), array_tensor("z", np.zeros(2, "<f4"))
REGION = SharedRegion(name="r", size_bytes=64, key="/seg")
REGISTER = SharedRegisterRequest(region=REGION)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a segment of 128 bytes, "seg", and files that are no segments."""
    (tmp_path / "seg").write_bytes(bytes(128))
    (tmp_path / "sem.x").write_bytes(bytes(128))
    (tmp_path / "triton_python_backend_shm_region_1").write_bytes(bytes(128))
    (tmp_path / "link").symlink_to("seg")
    os.mkfifo(tmp_path / "pipe")
    return tmp_path


def forwarding(
    folder: Path,
    inner: ScriptedService | None = None,
    *upstreams: ScriptedService,
    keys: tuple[str, ...] = ("*",),
    **settings: Any,
) -> SharedMemory:
    """Return the layer with *upstreams*, or with one that accepts every request."""
    regions = ForwardedRegions(folder=str(folder), **settings)
    targets = upstreams or (ScriptedService(always=lambda _: ()),)
    return SharedMemory(inner or ScriptedService(), ForwardRegions(targets, keys, regions))


async def test_tensors_stay_in_shared_memory(folder: Path) -> None:
    """The call is passed on unchanged, and outputs of the reply stay in shared memory."""
    shared_output = Tensor("y", Datatype.INT32, (4,), SharedMemoryData("r", 16, 16))
    reply = InferResponse(model=M, outputs=(shared_output, Z))
    inner = ScriptedService(reply, FakeStream([reply]))
    service = forwarding(folder, inner)
    await service(REGISTER)
    assert reply is await service(CALL)
    stream = StreamInferRequest(model=M, request=CALL)
    items = await service(stream)
    assert [reply] == [item async for item in items]
    assert [CALL, stream] == inner.calls


async def test_target_without_shared_memory_is_detected(folder: Path) -> None:
    """A client could not decode an output in the reply instead of in shared memory."""
    service = forwarding(folder, ScriptedService(InferResponse(model=M, outputs=(Z, Y))))
    await service(REGISTER)
    with pytest.raises(Unsupported, match="output 'y' is requested in shared memory"):
        await service(CALL)


async def test_region_is_registered_with_every_upstream(folder: Path) -> None:
    """Upstreams without shared memory are ignored."""
    accepting, rejecting = (
        ScriptedService(always=lambda _: None),
        ScriptedService(Unsupported("no")),
    )
    await forwarding(folder, None, rejecting, accepting)(REGISTER)
    assert ([REGISTER], [REGISTER]) == (accepting.calls, rejecting.calls)


async def test_regions_of_all_upstreams_are_listed(folder: Path) -> None:
    """Each name is listed once, with the region of the first upstream."""
    other = SharedRegion(name="a", size_bytes=1, key="/a")
    twin = SharedRegion(name="r", size_bytes=9, key="/twin")
    upstreams = [ScriptedService((REGION,)), ScriptedService((twin, other))]
    assert (other, REGION) == await forwarding(folder, None, *upstreams)(SharedStatusRequest())


@pytest.mark.parametrize(
    ("answers", "failure"),
    [
        ([Unsupported("no"), RegionExists("taken")], RegionExists),
        ([Unsupported("no"), Unsupported("neither")], Unsupported),
        ([ZeroDivisionError()], ZeroDivisionError),
    ],
)
async def test_failed_registration_raises_the_error_of_an_upstream(
    folder: Path, answers: list[Exception], failure: type[Exception]
) -> None:
    """The first upstream with shared memory determines the error; a bug is raised unchanged."""
    upstreams = [ScriptedService(error) for error in answers]
    service = forwarding(folder, None, *upstreams)
    with pytest.raises(failure):
        await service(REGISTER)
    with pytest.raises(RegionNotFound):
        await service(CALL)


@pytest.mark.parametrize(
    ("region", "failure"),
    [
        ({"key": "/triton_python_backend_shm_region_1"}, InvalidRequest),
        ({"key": "triton_python_backend_shm_region_1"}, InvalidRequest),
        ({"key": "//triton_python_backend_shm_region_1"}, InvalidRequest),
        ({"key": "/./triton_python_backend_shm_region_1"}, InvalidRequest),
        ({"key": "/x/../triton_python_backend_shm_region_1"}, InvalidRequest),
        ({"key": "/sem.x"}, InvalidRequest),
        ({"key": ""}, InvalidRequest),
        ({"key": "/.."}, InvalidRequest),
        ({"key": "/none"}, RegionUnusable),
        ({"key": "/link"}, RegionUnusable),
        ({"key": "/pipe"}, RegionUnusable),
        ({"size_bytes": 0}, InvalidRequest),
        ({"size_bytes": 129}, InvalidRequest),
        ({"size_bytes": 64, "offset": 65}, InvalidRequest),
        ({"size_bytes": 1 << 62, "offset": 1 << 62}, InvalidRequest),
    ],
)
async def test_invalid_region_reaches_no_upstream(
    folder: Path, region: dict[str, Any], failure: type[Exception]
) -> None:
    """Each of these regions crashes Triton, or lets a client overwrite its memory."""
    upstream = ScriptedService(always=lambda _: None)
    members = {"name": "r", "size_bytes": 64, "key": "/seg", **region}
    with pytest.raises(failure):
        await forwarding(folder, None, upstream)(
            SharedRegisterRequest(region=SharedRegion(**members))
        )
    assert [] == upstream.calls


async def test_only_allowed_keys_are_registered(folder: Path) -> None:
    """A pattern matches the name of the segment, with or without a slash."""
    with pytest.raises(Forbidden, match="shared_memory: keys"):
        await forwarding(folder, keys=("app-*", "/se"))(REGISTER)
    await forwarding(folder, keys=("app-*", "/se?"))(REGISTER)


async def test_number_of_regions_is_limited(folder: Path) -> None:
    """Unregistering a region makes room for another one."""
    service = forwarding(folder, most=1)
    other = SharedRegisterRequest(region=SharedRegion(name="q", size_bytes=8, key="/seg"))
    await service(REGISTER)
    with pytest.raises(TooLarge, match="at most 1"):
        await service(other)
    await service(SharedUnregisterRequest(region="r"))
    await service(other)
    await service(SharedUnregisterRequest())
    await service(REGISTER)


async def test_tensors_must_lie_in_registered_regions(folder: Path) -> None:
    """A call that refers to bytes outside of its regions reaches no upstream."""
    inner = ScriptedService()
    service = forwarding(folder, inner)
    with pytest.raises(RegionNotFound):
        await service(CALL)
    await service(SharedRegisterRequest(region=SharedRegion(name="r", size_bytes=40, key="seg")))
    with pytest.raises(InvalidRequest, match="refers to 32 bytes from byte 16"):
        await service(CALL)
    assert [] == inner.calls


async def test_offset_of_a_region_moves_to_its_tensors(folder: Path) -> None:
    """Triton before 2.61 adds the offset of a region twice."""
    shared_output = Tensor("y", Datatype.INT32, (4,), SharedMemoryData("r", 48, 16))
    inner = ScriptedService(always=InferResponse(model=M, outputs=(shared_output, Z)))
    region = SharedRegion(name="r", size_bytes=64, key="/seg", offset=32)
    whole = SharedRegion(name="r", size_bytes=96, key="/seg")
    upstream = ScriptedService(lambda _: None, (whole,))
    service = forwarding(folder, inner, upstream)
    await service(SharedRegisterRequest(region=region))
    assert [SharedRegisterRequest(region=whole)] == upstream.calls
    reply = await service(CALL)
    (sent,) = inner.calls
    assert isinstance(sent, InferRequest)
    assert SharedMemoryData("r", 32, 16) == sent.inputs[0].data
    assert (RequestedOutput("y", shared=SharedMemoryData("r", 48, 32)), RequestedOutput("z")) == (
        sent.outputs
    )
    assert SharedMemoryData("r", 16, 16) == reply.outputs[0].data
    assert (region,) == await service(SharedStatusRequest())


async def test_several_processes_share_regions_without_an_offset(folder: Path) -> None:
    """A process does not know the regions that were registered with another one."""
    inner = ScriptedService(InferResponse(model=M, outputs=()))
    service = forwarding(folder, inner, is_shared=True)
    await service(CALL)
    assert [CALL] == inner.calls
    region = SharedRegion(name="r", size_bytes=64, key="/seg", offset=32)
    with pytest.raises(Unsupported, match="workers: 1"):
        await service(SharedRegisterRequest(region=region))


async def test_cuda_regions_are_passed_on(folder: Path) -> None:
    """CUDA regions have no segment to check."""
    region = SharedRegion(name="r", size_bytes=64, device=0, handle=bytes(64))
    upstream = ScriptedService(always=lambda _: None)
    await forwarding(folder, None, upstream)(SharedRegisterRequest(region=region))
    assert [SharedRegisterRequest(region=region)] == upstream.calls


CUDA = SharedRegion(name="c", size_bytes=64, device=0, handle=bytes(64))


@pytest.mark.parametrize(
    ("name", "is_cuda", "left"),
    [
        ("", True, {"r"}),
        ("", False, {"c"}),
        ("", None, set()),
        ("c", True, {"r"}),
        ("r", True, {"r", "c"}),
        ("r", None, {"c"}),
    ],
)
async def test_unregistering_one_kind_keeps_the_other(
    folder: Path, name: str, is_cuda: bool | None, left: set[str]
) -> None:
    """A client that unregisters all CUDA regions keeps those of system memory."""
    inner = ScriptedService(always=InferResponse(model=M, outputs=(Y, Z)))
    service = forwarding(folder, inner)
    await service(REGISTER)
    await service(SharedRegisterRequest(region=CUDA))
    await service(SharedUnregisterRequest(region=name, is_cuda=is_cuda))
    found = set()
    for region in ("r", "c"):
        tensor = Tensor("x", Datatype.INT32, (4,), SharedMemoryData(region, 0, 16))
        try:
            await service(InferRequest(model=M, inputs=(tensor,)))
        except RegionNotFound:
            continue
        found.add(region)
    assert left == found


@pytest.mark.parametrize(
    ("registered", "name", "kinds"),
    [
        ((REGION, CUDA), "", [None, True]),
        ((REGION, CUDA), "c", [True]),
        ((REGION, CUDA), "r", [None]),
        ((REGION,), "", [None]),
    ],
)
async def test_calls_without_a_kind_include_cuda_regions(
    folder: Path, registered: tuple[SharedRegion, ...], name: str, kinds: list[bool | None]
) -> None:
    """Triton has a request for each kind, TensorRT v1 one for both."""
    upstream = ScriptedService(always=lambda _: ())
    service = forwarding(folder, None, upstream)
    for region in registered:
        await service(SharedRegisterRequest(region=region))
    await service(SharedStatusRequest(region=name))
    await service(SharedUnregisterRequest(region=name))
    questions = [call for call in upstream.calls if isinstance(call, SharedStatusRequest)]
    sent = [call for call in upstream.calls if isinstance(call, SharedUnregisterRequest)]
    assert kinds == [call.is_cuda for call in questions][: len(kinds)]
    assert kinds == [call.is_cuda for call in sent]


OWN = SharedRegion(name="tensor-gateway-00ff", key="/tensor-gateway-00ff", size_bytes=64)


async def test_regions_of_the_gateway_are_not_reached_by_clients(folder: Path) -> None:
    """They are absent from lists; no client registers, unregisters or names one."""
    upstream = ScriptedService(
        always=lambda call: (OWN, REGION) if isinstance(call, SharedStatusRequest) else None
    )
    (folder / OWN.name).write_bytes(bytes(64))
    service = forwarding(folder, None, upstream, is_shared=True)
    assert (REGION,) == await service(SharedStatusRequest(is_cuda=False))
    assert (REGION,) == await service(SharedStatusRequest(region=OWN.name, is_cuda=False))
    with pytest.raises(Forbidden, match="name of a region of the gateway"):
        await service(SharedRegisterRequest(region=OWN))
    alias = SharedRegion(name="alias", key=OWN.key, size_bytes=64)
    with pytest.raises(InvalidRequest, match="expected the name of a segment"):
        await service(SharedRegisterRequest(region=alias))
    upstream.calls.clear()
    await service(SharedUnregisterRequest(region=OWN.name, is_cuda=False))
    assert [] == upstream.calls
    named = Tensor("x", Datatype.INT32, (4,), SharedMemoryData(OWN.name, 0, 16))
    with pytest.raises(RegionNotFound):
        await service(InferRequest(model=M, inputs=(named,)))


async def test_unregistering_all_regions_leaves_those_of_the_gateway(folder: Path) -> None:
    """It becomes one call for each region of clients while the gateway has regions, else one call."""
    listed: list[SharedRegion] = [OWN, REGION]
    upstream = ScriptedService(
        always=lambda call: tuple(listed) if isinstance(call, SharedStatusRequest) else None
    )
    service = forwarding(folder, None, upstream)
    await service(SharedUnregisterRequest(is_cuda=False))
    listed.remove(OWN)
    await service(SharedUnregisterRequest(is_cuda=False))
    sent = [call for call in upstream.calls if isinstance(call, SharedUnregisterRequest)]
    assert ["r", ""] == [call.region for call in sent]
