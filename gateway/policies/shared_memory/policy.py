"""SharedMemory: sees to tensors that lie in shared memory, and answers calls about its regions.

There are three ways, chosen by the listener: nothing is shared (`SharedMemoryOff`), the regions are
the upstreams' (`forwarded.ForwardRegions`), or the gateway copies (`CopyRegions`). Codecs
only read and write references (`SharedMemoryData`); what is behind these is known here alone.

Source: docs/protocols/open-inference.md, "13. Shared memory"; docs/protocols/tensorrt-v1.md,
"14. Shared memory".
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol, TypeVar, cast

from gateway.ir.calls import (
    Call,
    InferRequest,
    InferResponse,
    ServerMetadataRequest,
    SharedRegisterRequest,
    SharedStatusRequest,
    SharedUnregisterRequest,
    StreamInferRequest,
    inference_of,
)
from gateway.ir.data import RawData, SharedMemoryData
from gateway.ir.errors import Overloaded, RegionNotFound, TooLarge, Unsupported
from gateway.ir.metadata import ServerMetadata
from gateway.ir.streams import MappedStream, NotifyingStream
from gateway.ir.tensor import RequestedOutput, Tensor, as_raw
from gateway.policies.shared_memory.regions import Regions
from gateway.service import ReplyCoroutine, Service

R = TypeVar("R")

_ABOUT_REGIONS = frozenset({SharedRegisterRequest, SharedUnregisterRequest, SharedStatusRequest})

Release = Callable[[], None]


class SharedMemoryMode(Protocol):
    """One way to have shared memory.

    Attributes:
        extensions: What it is called in the server's metadata, in Triton's words.
    """

    extensions: tuple[str, ...]

    async def control(self, call: Call[Any], /) -> Any:
        """Answer a call about regions."""
        ...

    async def load_inputs(self, call: InferRequest, /) -> tuple[InferRequest, Release]:
        """Return what is sent on for *call*, and what gives back that which it holds."""
        ...

    async def store_outputs(self, call: InferRequest, reply: InferResponse, /) -> InferResponse:
        """Return the answer to *call*, outputs where it wants them."""
        ...


class SharedMemory:
    """Gives every call that concerns shared memory to *memory*; the rest goes through.

    Args:
        inner: Answers.
        memory: One of `SharedMemoryOff`, `CopyRegions` and `forwarded.ForwardRegions`.
    """

    def __init__(self, inner: Service, memory: SharedMemoryMode) -> None:
        self._inner = inner
        self._memory = memory

    def __call__(self, call: Call[R], /) -> ReplyCoroutine[R]:
        """Answer *call*.

        Raises:
            RegionNotFound: A tensor names a region that there is not.
            InvalidRequest: A place lies outside of its region, or a region cannot be used.
            Overloaded: The copies would be more than may be in flight.
            Unsupported: There is no shared memory here.
        """
        # Each branch knows its R; the type system cannot follow an isinstance that far.
        request = call if type(call) is InferRequest else inference_of(call)
        if request is not None:
            if not request.shares_memory:
                return self._inner(call)
            if isinstance(call, StreamInferRequest):
                return cast("ReplyCoroutine[R]", self._stream(call))
            return cast("ReplyCoroutine[R]", self._infer(request))
        if type(call) in _ABOUT_REGIONS:
            return cast("ReplyCoroutine[R]", self._memory.control(call))
        if isinstance(call, ServerMetadataRequest):
            return cast("ReplyCoroutine[R]", self._metadata(call))
        return self._inner(call)

    async def _infer(self, call: InferRequest) -> InferResponse:
        request, release = await self._memory.load_inputs(call)
        try:
            reply = await self._inner(request)
            return await self._memory.store_outputs(call, reply)
        finally:
            release()

    async def _metadata(self, call: ServerMetadataRequest) -> ServerMetadata:
        found = await self._inner(call)
        every = (*found.extensions, *self._memory.extensions)
        return ServerMetadata(found.name, found.version, every)

    async def _stream(self, call: StreamInferRequest) -> NotifyingStream:
        request, release = await self._memory.load_inputs(call.request)
        try:
            items = await self._inner(
                call if request is call.request else call.changed(request=request)
            )
        except BaseException:
            release()
            raise
        placed = MappedStream(items, partial(self._memory.store_outputs, call.request))
        return NotifyingStream(placed, lambda _error: release())


class SharedMemoryOff:
    """Nothing is shared."""

    extensions: tuple[str, ...] = ()

    async def control(self, _call: Call[Any], /) -> Any:
        """Refuse.

        Raises:
            Unsupported: Always.
        """
        raise Unsupported("shared memory is not enabled here (shared_memory: forward or map)")

    async def load_inputs(self, call: InferRequest, /) -> tuple[InferRequest, Release]:
        """Refuse: where nothing is registered, no region is known.

        Raises:
            RegionNotFound: Always.
        """
        what, shared = next(iter(references(call)))
        raise RegionNotFound(
            f"no region of shared memory is registered as {shared.region!r}, which {what} names: "
            "shared memory is not enabled here (shared_memory: forward or map)"
        )

    async def store_outputs(self, _call: InferRequest, reply: InferResponse, /) -> InferResponse:
        """Return *reply*; no request comes so far."""
        return reply


class Room(Protocol):
    """Bytes that may be in flight."""

    def take(self, size: int, /) -> bool:
        """Hold *size* bytes, if there is room for them."""
        ...

    def release(self, size: int, /) -> None:
        """Give them back."""
        ...


class CopyRegions:
    """The gateway itself copies inputs from shared memory, and outputs to it.

    Args:
        regions: Those of the process: every listener has the same.
        room: What is in flight; copies of inputs count from their making to the answer.
        message_bytes: Most bytes of all inputs of one request.
    """

    extensions: tuple[str, ...] = ("system_shared_memory",)

    def __init__(self, regions: Regions, room: Room, message_bytes: int) -> None:
        self._regions = regions
        self._room = room
        self._message_bytes = message_bytes

    async def control(self, call: Call[Any], /) -> Any:
        """Register, forget or list regions.

        Raises:
            RegionExists, RegionUnusable, InvalidRequest, TooLarge: See `Regions.register`.
        """
        if isinstance(call, SharedRegisterRequest):
            self._regions.register(call.region)
        elif isinstance(call, SharedUnregisterRequest):
            if not call.cuda:  # of CUDA's there are none, and "all" of them are not all of these
                self._regions.unregister(call.region)
        elif isinstance(call, SharedStatusRequest) and not call.cuda:
            return self._regions.list_regions()
        else:
            return ()
        return None

    async def load_inputs(self, call: InferRequest, /) -> tuple[InferRequest, Release]:
        """Return *call* with its inputs in it, and its outputs asked for in the answer.

        Raises:
            RegionNotFound, InvalidRequest: A place is in no region.
            TooLarge: The inputs are more than a message may have.
            Overloaded: There is no room for copies.
        """
        for what, shared in references(call):
            self._regions.check(what, shared)
        size = sum(
            one.data.size_bytes for one in call.inputs if isinstance(one.data, SharedMemoryData)
        )
        if size > self._message_bytes:
            raise TooLarge(
                f"inputs have {size} bytes in shared memory, at most {self._message_bytes} are "
                "allowed",
                model=call.model,
                limit="message_bytes",
            )
        if not self._room.take(size):
            raise Overloaded(
                f"inputs have {size} bytes in shared memory, and there is no room for a copy now",
                model=call.model,
                limit="in_flight_bytes",
            )
        release = partial(self._room.release, size)
        try:
            inputs = tuple([await self._input(tensor) for tensor in call.inputs])
        except BaseException:
            release()
            raise
        outputs = tuple(
            [RequestedOutput(one.name, one.classes, one.parameters) for one in call.outputs]
        )
        return call.changed(inputs=inputs, outputs=outputs), release

    async def _input(self, tensor: Tensor) -> Tensor:
        data = tensor.data
        if not isinstance(data, SharedMemoryData):
            return tensor
        view = await self._regions.read(f"input {tensor.name!r}", data)
        return with_data(tensor, RawData(view))

    async def store_outputs(self, call: InferRequest, reply: InferResponse, /) -> InferResponse:
        """Return *reply* with the outputs that *call* wants in shared memory put there.

        Raises:
            RegionNotFound, RegionUnusable: The region has gone, or is too small for an output.
        """
        wanted = {one.name: one.shared for one in call.outputs if one.shared is not None}
        outputs = tuple(
            [await self._output(tensor, wanted.get(tensor.name)) for tensor in reply.outputs]
        )
        return reply.changed(outputs=outputs)

    async def _output(self, tensor: Tensor, shared: SharedMemoryData | None) -> Tensor:
        if shared is None:
            return tensor
        view = as_raw(tensor)
        await self._regions.write(f"output {tensor.name!r}", shared, view)
        return with_data(tensor, SharedMemoryData(shared.region, shared.offset, view.nbytes))


def with_data(tensor: Tensor, data: RawData | SharedMemoryData) -> Tensor:
    """Return *tensor* with other data."""
    return Tensor(tensor.name, tensor.datatype, tensor.shape, data, tensor.parameters)


def references(call: InferRequest) -> list[tuple[str, SharedMemoryData]]:
    """Return every place in shared memory that *call* names, and which tensor it is of."""
    inputs = [
        (f"input {one.name!r}", one.data)
        for one in call.inputs
        if isinstance(one.data, SharedMemoryData)
    ]
    outputs = [
        (f"output {one.name!r}", one.shared) for one in call.outputs if one.shared is not None
    ]
    return inputs + outputs
