"""SharedMemory: handles tensors in shared memory, and calls about its regions.

The listener's configuration selects one of three modes: disabled (`SharedMemoryOff`), regions of
the upstreams (`forwarded.ForwardRegions`), or copies by the gateway (`CopyRegions`). Codecs only
decode and encode references (`SharedMemoryData`).

Source: docs/protocols/open-inference.md, "13. Shared memory"; docs/protocols/tensorrt-v1.md,
"14. Shared memory".
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar, Protocol, TypeVar, cast

from gateway.ir.bodies.streams import MappedStream, NotifyingStream
from gateway.ir.calls import (
    Call,
    InferRequest,
    InferResponse,
    ServerMetadataRequest,
    SharedRegisterRequest,
    SharedStatusRequest,
    SharedUnregisterRequest,
    StreamInferRequest,
)
from gateway.ir.errors import Overloaded, RegionNotFound, TooLarge, Unsupported
from gateway.ir.metadata import ServerMetadata
from gateway.ir.tensors.data import RawData, SharedMemoryData
from gateway.ir.tensors.tensor import RequestedOutput, Tensor, as_raw
from gateway.policies.shared_memory.regions import Regions
from gateway.service import ReplyCoroutine, Service

R = TypeVar("R")

_ABOUT_REGIONS = frozenset({SharedRegisterRequest, SharedUnregisterRequest, SharedStatusRequest})

_NOT_ENABLED = (
    "shared memory is not enabled here (--enable shared_memory=map or shared_memory=forward:KEYS, "
    "or shared_memory of the listener)"
)

Release = Callable[[], None]


class SharedMemoryMode(Protocol):
    """A mode of shared memory.

    Attributes:
        extensions: Triton's names of the supported extensions, for the server's metadata.
    """

    extensions: tuple[str, ...]

    async def control(self, call: Call[Any], /) -> Any:
        """Handle a call about regions."""
        ...

    async def load_inputs(self, call: InferRequest, /) -> tuple[InferRequest, Release]:
        """Return the call for *inner*, and a function that releases its resources."""
        ...

    async def store_outputs(self, call: InferRequest, reply: InferResponse, /) -> InferResponse:
        """Return *reply* with outputs in shared memory where *call* requests it."""
        ...


class SharedMemory:
    """Handles calls that use shared memory by *memory*; other calls pass unchanged.

    Args:
        inner: The service to call.
        memory: One of `SharedMemoryOff`, `CopyRegions` and `forwarded.ForwardRegions`.
        inference: Handles each InferRequest; None for *inner*.

    Attributes:
        is_passed_by_plain: A plain inference has nothing in shared memory; see `Entries`.
    """

    is_passed_by_plain: ClassVar[bool] = True

    def __init__(
        self, inner: Service, memory: SharedMemoryMode, *, inference: Service | None = None
    ) -> None:
        self._inner = inner
        self._inference = inner if inference is None else inference
        self._memory = memory

    def __call__(self, call: Call[R], /) -> ReplyCoroutine[R]:
        """Handle *call*.

        Raises:
            RegionNotFound: A tensor refers to an unregistered region.
            InvalidRequest: A reference exceeds its region, or a region is not usable.
            Overloaded: The memory budget has no room for the copies.
            Unsupported: Shared memory is not enabled or not supported.
        """
        # Each branch has its R; the type system cannot follow an isinstance that far.
        if type(call) is InferRequest:
            return self.handle_inference(call)  # type: ignore[return-value]  # a cast that costs nothing
        if isinstance(call, StreamInferRequest) and call.request.shares_memory:
            return cast("ReplyCoroutine[R]", self._stream(call))
        if type(call) in _ABOUT_REGIONS:
            return cast("ReplyCoroutine[R]", self._memory.control(call))
        if isinstance(call, ServerMetadataRequest):
            return cast("ReplyCoroutine[R]", self._metadata(call))
        return self._inner(call)

    def handle_inference(self, call: InferRequest, /) -> ReplyCoroutine[InferResponse]:
        """Handle an inference as `__call__` does."""
        inference = self._inference
        return self._infer(call) if call.shares_memory else inference(call)

    async def _infer(self, call: InferRequest) -> InferResponse:
        request, release = await self._memory.load_inputs(call)
        try:
            reply = await self._inference(request)
            return await self._memory.store_outputs(call, reply)
        finally:
            release()

    async def _metadata(self, call: ServerMetadataRequest) -> ServerMetadata:
        found = await self._inner(call)
        extensions = (*found.extensions, *self._memory.extensions)
        return ServerMetadata(found.name, found.version, extensions)

    async def _stream(self, call: StreamInferRequest) -> NotifyingStream:
        request, release = await self._memory.load_inputs(call.request)
        try:
            items = await self._inner(
                call if request is call.request else call.changed(request=request)
            )
        except BaseException:
            release()
            raise
        stored = MappedStream(items, partial(self._memory.store_outputs, call.request))
        return NotifyingStream(stored, lambda _error: release())


class SharedMemoryOff:
    """The mode that rejects shared memory."""

    extensions: tuple[str, ...] = ()

    async def control(self, _call: Call[Any], /) -> Any:
        """Reject *call*.

        Raises:
            Unsupported: Always.
        """
        raise Unsupported(_NOT_ENABLED)

    async def load_inputs(self, call: InferRequest, /) -> tuple[InferRequest, Release]:
        """Reject *call*, because no region can be registered.

        Raises:
            RegionNotFound: Always.
        """
        what, shared = next(iter(references(call)))
        raise RegionNotFound(
            f"{what} refers to the unregistered shared memory region {shared.region!r}: "
            f"{_NOT_ENABLED}"
        )

    async def store_outputs(self, _call: InferRequest, reply: InferResponse, /) -> InferResponse:
        """Return *reply*; never called."""
        return reply


class Room(Protocol):
    """Bytes that may be in flight."""

    def try_acquire(self, size: int, /) -> bool:
        """Hold *size* bytes, if there is room for them."""
        ...

    def release(self, size: int, /) -> None:
        """Give them back."""
        ...


class CopyRegions:
    """The mode in which the gateway copies inputs from shared memory, and outputs to it.

    Args:
        regions: The regions of the process, which all listeners share.
        room: The memory budget for copies of inputs, until the reply.
        message_bytes: Maximum size of all inputs of one request.
        keys: Patterns of the keys of segments that clients may register; none allows each.
    """

    extensions: tuple[str, ...] = ("system_shared_memory",)

    def __init__(
        self, regions: Regions, room: Room, message_bytes: int, keys: Sequence[str] = ()
    ) -> None:
        self._regions = regions
        self._room = room
        self._message_bytes = message_bytes
        self._keys = tuple(keys)

    async def control(self, call: Call[Any], /) -> Any:
        """Register, unregister or list regions.

        Raises:
            Forbidden, RegionExists, RegionUnusable, InvalidRequest, TooLarge: See
                `Regions.register`.
        """
        if isinstance(call, SharedRegisterRequest):
            self._regions.register(call.region, self._keys)
        elif isinstance(call, SharedUnregisterRequest):
            if not call.is_cuda:  # there are no CUDA regions; "all" of them excludes these regions
                self._regions.unregister(call.region)
        elif isinstance(call, SharedStatusRequest) and not call.is_cuda:
            return self._regions.list_regions()
        else:
            return ()
        return None

    async def load_inputs(self, call: InferRequest, /) -> tuple[InferRequest, Release]:
        """Return *call* with copied inputs, and with its outputs in the reply.

        Raises:
            RegionNotFound, InvalidRequest: A reference is not valid.
            TooLarge: The inputs exceed the size of a message.
            Overloaded: The memory budget has no room for the copies.
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
        if not self._room.try_acquire(size):
            raise Overloaded(
                f"no memory for a copy of the inputs, which have {size} bytes in shared memory",
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
        """Copy the outputs that *call* requests in shared memory, and return *reply* without them.

        Raises:
            RegionNotFound, RegionUnusable: The region is unregistered, or too small for an output.
        """
        shared = {one.name: one.shared for one in call.outputs if one.shared is not None}
        outputs = tuple(
            [await self._output(tensor, shared.get(tensor.name)) for tensor in reply.outputs]
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
    """Return all references of *call* to shared memory, each with its tensor for errors."""
    inputs = [
        (f"input {one.name!r}", one.data)
        for one in call.inputs
        if isinstance(one.data, SharedMemoryData)
    ]
    outputs = [
        (f"output {one.name!r}", one.shared) for one in call.outputs if one.shared is not None
    ]
    return inputs + outputs
