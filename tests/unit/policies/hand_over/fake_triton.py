"""A server that maps regions as Triton does, and accesses them when the test says so."""

from __future__ import annotations

import asyncio
import mmap
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gateway.ir.calls import (
    Call,
    InferRequest,
    InferResponse,
    ModelConfigRequest,
    SharedRegisterRequest,
    SharedStatusRequest,
    SharedUnregisterRequest,
)
from gateway.ir.context import ModelRef, Origin
from gateway.ir.errors import GatewayError, InternalError, InvalidRequest, NotFound
from gateway.ir.metadata import ModelConfiguration, ServerMetadata, SharedRegion
from gateway.ir.tensors.data import RawData, SharedMemoryData
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.tensor import RequestedOutput, Tensor, as_raw

TRITON = ServerMetadata("triton", "2.51.0", ("classification", "system_shared_memory"))


class FakeTriton:
    """A Service. An inference waits in `waiting` if `waits`, and replies with the bytes it reads.

    Attributes:
        regions: The mapped segments by name.
        handed_over: How many inferences had inputs in shared memory.
        as_bytes: How many had all of them in the message.
        reads: What each inference read, also of callers that have left.
        outputs: The outputs in the configuration of each model.
        answer: The bytes of the output for the bytes that were read.
        requested: The outputs that each inference was asked for.
        writes: How many outputs were written to a region.
    """

    def __init__(self, folder: Path, *, waits: bool = False) -> None:
        self._folder = folder
        self._waits = waits
        self._tasks: list[asyncio.Task[InferResponse]] = []
        self._uses: dict[str, int] = {}
        self.regions: dict[str, mmap.mmap] = {}
        self.waiting: list[asyncio.Future[None]] = []
        self.handed_over = self.as_bytes = 0
        self.registrations = 0
        self.refusal: GatewayError | None = None
        self.failure: GatewayError | None = None
        self.reads: list[bytes] = []
        self.outputs: list[dict[str, Any]] = []
        self.answer: Callable[[bytes], bytes] = bytes
        self.requested: list[tuple[RequestedOutput, ...]] = []
        self.writes = 0

    async def __call__(self, call: Call[Any], /) -> Any:
        if isinstance(call, SharedRegisterRequest):
            return self._register(call.region)
        if isinstance(call, SharedUnregisterRequest):
            if self._uses.get(call.region):
                raise self._error(
                    InternalError, f"Cannot unregister {call.region!r}, it is in use."
                )
            self.regions.pop(call.region, None)
            return None
        if isinstance(call, SharedStatusRequest):
            return tuple([SharedRegion(name=each, size_bytes=1) for each in self.regions])
        if isinstance(call, ModelConfigRequest):
            return ModelConfiguration({"max_batch_size": 0, "output": self.outputs})
        assert isinstance(call, InferRequest)
        self.requested.append(call.outputs)
        shared = [one.data for one in call.inputs if isinstance(one.data, SharedMemoryData)]
        written = [one.shared for one in call.outputs if one.shared is not None]
        for data in (*shared, *written):
            if data.region not in self.regions:
                raise self._error(NotFound, f"Unable to find shared memory region: '{data.region}'")
            self._uses[data.region] = self._uses.get(data.region, 0) + 1
        self.handed_over += bool(shared)
        self.as_bytes += not shared
        # A caller that leaves does not end the inference.
        task = asyncio.create_task(self._infer(call, shared, written))
        self._tasks.append(task)
        return await asyncio.shield(task)

    def restart(self) -> None:
        """Forget all regions, and let inferences fail."""
        self.regions.clear()
        self._uses.clear()

    def _register(self, region: SharedRegion) -> None:
        if self.refusal is not None:
            raise self.refusal
        if region.name in self.regions:
            text = f"shared memory region '{region.name}' already in manager"
            raise self._error(InvalidRequest, text)
        self.registrations += 1
        with (self._folder / region.key.removeprefix("/")).open("r+b") as file:
            self.regions[region.name] = mmap.mmap(file.fileno(), region.size_bytes)

    async def _infer(
        self, call: InferRequest, shared: list[SharedMemoryData], written: list[SharedMemoryData]
    ) -> InferResponse:
        mapped = {data.region: self.regions[data.region] for data in (*shared, *written)}
        if self._waits:
            future = asyncio.get_running_loop().create_future()
            self.waiting.append(future)
            await future
        found = b""
        for tensor in call.inputs:
            data = tensor.data
            if isinstance(data, SharedMemoryData):
                found += mapped[data.region][data.offset : data.offset + data.size_bytes]
            else:
                assert isinstance(data, RawData)
                found += data.view
        for data in (*shared, *written):
            self._uses[data.region] = self._uses.get(data.region, 1) - 1
        self.reads.append(found)
        if self.failure is not None:
            raise self.failure
        reply = bytes_tensor("y", self.answer(found))
        for place in written:
            if place.size_bytes < reply.nbytes:
                text = (
                    "shared memory size specified with the request for output 'y' "
                    f"({place.size_bytes} bytes) should be at least {reply.nbytes} bytes"
                )
                raise self._error(InternalError, text)
            mapped[place.region][place.offset : place.offset + reply.nbytes] = as_raw(reply)
            reply = Tensor("y", reply.datatype, reply.shape, place)
            self.writes += 1
        return InferResponse(model=call.model or ModelRef("m"), outputs=(reply,))

    @staticmethod
    def _error(kind: type[GatewayError], text: str) -> GatewayError:
        return kind(text, origin=Origin("oip.http", None))


def bytes_tensor(name: str, data: bytes | memoryview) -> Tensor:
    """Return a tensor of UINT8."""
    view = memoryview(data)
    return Tensor(name, Datatype.UINT8, (view.nbytes,), RawData(view))


def received(memory: memoryview | None, data: bytes) -> memoryview:
    """Return *data* as a message that was received into *memory*."""
    assert memory is not None
    memory[:] = data
    return memory.toreadonly()
