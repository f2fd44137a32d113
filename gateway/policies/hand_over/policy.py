"""HandOver: large tensors of one endpoint's calls, named in shared memory instead of sent.

It is on while the server is a Triton that announces the extension and accepted a region. Before
the first large tensor nothing is allocated, and no server is asked. Anything that does not go as
planned sends the call as bytes; `reason` says why it is off.
"""

import asyncio
import re
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from time import monotonic
from typing import Final, TypeVar, cast

import structlog

from gateway.accelerator import accelerated
from gateway.concurrency.background import start_background
from gateway.concurrency.offload import off_loop
from gateway.concurrency.slices import in_slices
from gateway.ir.bodies.streamed_inputs import with_buffered_body
from gateway.ir.calls import (
    MODEL_CONTROL_CALLS,
    Call,
    InferRequest,
    InferResponse,
    SharedRegisterRequest,
    SharedStatusRequest,
    SharedUnregisterRequest,
)
from gateway.ir.errors import (
    DeadlineExceeded,
    GatewayError,
    NotSent,
    RegionNotFound,
    Unavailable,
)
from gateway.ir.metadata import ServerMetadata, SharedRegion
from gateway.ir.redaction import redact
from gateway.ir.tensors.data import RawData, SharedMemoryData, StreamedData
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.tensor import RequestedOutput, Tensor
from gateway.policies.hand_over.pool import LEAST_BYTES, Piece, Region, RegionPool, has_file
from gateway.policies.hand_over.replies import FixedOutputs
from gateway.policies.shared_memory.regions import OWN_PREFIX, SEGMENT_FOLDER, is_own
from gateway.service import ReplyCoroutine, Service, bound_call

log = structlog.get_logger(__name__)

R = TypeVar("R")

EXTENSION: Final = "system_shared_memory"
_SERVER: Final = "triton"
_LEAST_VERSION: Final = (2, 51)
"""Earlier servers may unmap a region that a running inference reads."""

_RETRY_S: Final = 60.0
_UNAVAILABLE_S: Final = 0.5
_RELEASE_S: Final = 0.5
_CLOSE_S: Final = 1.0
_FORGETS: Final = 5
_LONGEST_PAUSE_S: Final = 30.0
_SLICE_BYTES: Final = 1 << 20
_ADVICE: Final = (
    " (it needs the gateway's /dev/shm, and runs as root, as the same user or in hand_over_group)"
)
_NAME: Final = re.compile(rf"/?{OWN_PREFIX}\w*")


class HandOver:
    """Names large tensors in shared memory, for a server on this machine.

    Args:
        inner: Sends calls to the server.
        questions: The same, over connections that inferences do not use.
        pool: The regions of this process.
        server: Returns what the server told of itself; None for nothing yet.
        most_bytes: Most bytes of a reply that the client of the server accepts.
        clock: Monotonic seconds.
        folder: Directory of the files.
        names: Keys of the log lines.

    Attributes:
        reason: Why tensors are sent as bytes; "" while they are handed over.
    """

    def __init__(
        self,
        inner: Service,
        questions: Service,
        pool: RegionPool,
        server: Callable[[], ServerMetadata | None],
        *,
        most_bytes: int,
        clock: Callable[[], float] = monotonic,
        folder: str = SEGMENT_FOLDER,
        **names: str,
    ) -> None:
        self._inner = bound_call(inner)
        self._questions = questions
        self._pool = pool
        self._server = server
        self._fixed_outputs = FixedOutputs(questions, most_bytes)
        self._clock = clock
        self._folder = folder
        self._names = names
        self._registered: set[Region] = set()
        self._offered: Region | None = None
        self._registering: asyncio.Task[None] | None = None
        self._releasing: asyncio.Task[None] | None = None
        self._retry_at = 0.0
        self._forgets = 0
        self._forgotten_at: deque[float] = deque(maxlen=_FORGETS + 1)
        self._may_have_regions = self._is_closed = False
        self._shortage = ""
        self.reason = "no large tensor yet"

    def __call__(self, call: Call[R], /) -> ReplyCoroutine[R]:
        """Send *call*, with its large tensors in shared memory where that is possible.

        Raises:
            GatewayError: What the server or its client raises.
            Unavailable: The model replied with more than its configuration has.
        """
        if type(call) is InferRequest:
            return self.handle_inference(call)  # type: ignore[return-value]  # R is InferResponse here
        if type(call) in MODEL_CONTROL_CALLS:
            return self._control(call)
        return self._inner(call)

    def handle_inference(self, call: InferRequest, /) -> ReplyCoroutine[InferResponse]:
        """Do the same for an inference; see `gateway.service.bound_inference`."""
        if self._may_have_regions:
            is_large = has_large_input(call)
            if (is_large or self._fixed_outputs.has_interest(call)) and _can_change(call):
                return self._infer(call, is_large=is_large)
        return self._inner(call)

    async def _control(self, call: Call[R]) -> R:
        try:
            return await self._inner(call)
        finally:
            self._fixed_outputs.forget(call.model)

    async def _infer(self, call: InferRequest, *, is_large: bool) -> InferResponse:
        sizes = self._fixed_outputs.sizes(call)
        if is_large or sizes:
            if self._pool.needs_region or not self._registered.issuperset(self._pool.regions):
                self._start_registration()
            if self._registered:
                return await self._in_shared_memory(call, sizes, is_large=is_large)
        return await self._as_bytes(call)

    async def _as_bytes(self, call: InferRequest) -> InferResponse:
        reply = await self._inner(call)
        self._fixed_outputs.learn(call, reply)
        return reply

    async def _in_shared_memory(
        self, call: InferRequest, sizes: Mapping[str, int], *, is_large: bool
    ) -> InferResponse:
        call = cast("InferRequest", await with_buffered_body(call))
        pieces: list[Piece] = []
        memories: dict[str, memoryview] = {}
        forgets, is_doubtful = self._forgets, False
        try:
            inputs = call.inputs
            if is_large:
                inputs = tuple([await self._handed_over(tensor, pieces) for tensor in inputs])
            outputs = self._requested(call, sizes, pieces, memories)
            if not pieces:
                return await self._as_bytes(call)
            # From here on the server may access the pieces, until its reply.
            is_doubtful = True
            reply = await self._inner(call.changed(inputs=inputs, outputs=outputs))
        except NotSent:
            is_doubtful = False
            raise
        except GatewayError as error:
            if memories:
                self._fixed_outputs.check_error(call, error)
            if not pieces or not _is_about_region(error):
                raise
            # The server did not find a region, so it did not execute the call.
            is_doubtful = False
        else:
            is_doubtful = False
            return self._fixed_outputs.with_data(call, reply, memories)
        finally:
            for piece in pieces:
                piece.release(is_doubtful=is_doubtful)
            if is_doubtful:
                self._pool.collect()
            self._release_retired()
        self._forget(forgets)
        return await self._as_bytes(call)

    async def _handed_over(self, tensor: Tensor, pieces: list[Piece]) -> Tensor:
        """Return *tensor* in shared memory, and add its piece; unchanged if that is not possible.

        It is copied unless the message was received into a piece.
        """
        data = tensor.data
        if not isinstance(data, RawData) or not data.view.nbytes or tensor.datatype is _BYTES:
            return tensor
        view = data.view if data.view.format == "B" else data.view.cast("B")
        found = self._pool.find(view)
        if found is not None and found[0].region in self._registered:
            piece, offset = found
            piece.acquire()
            pieces.append(piece)
        elif view.nbytes < LEAST_BYTES:
            return tensor
        else:
            allocated = self._allocated(view.nbytes, pieces)
            if allocated is None:
                return tensor
            piece, offset = allocated, allocated.start
            target = piece.region.view(piece).data
            async for at in in_slices(range(0, view.nbytes, _SLICE_BYTES)):
                target[at : at + _SLICE_BYTES] = view[at : at + _SLICE_BYTES]
        shared = SharedMemoryData(piece.region.name, offset, view.nbytes)
        return Tensor(tensor.name, tensor.datatype, tensor.shape, shared, tensor.parameters)

    def _requested(
        self,
        call: InferRequest,
        sizes: Mapping[str, int],
        pieces: list[Piece],
        memories: dict[str, memoryview],
    ) -> tuple[RequestedOutput, ...]:
        """Return the outputs to request, those in *sizes* in shared memory.

        Their pieces are added, and their memory by name.
        """
        outputs = []
        for output in call.outputs or [RequestedOutput(name) for name in sizes]:
            size = sizes.get(output.name, 0)
            piece = self._allocated(size, pieces) if size else None
            if piece is not None:
                memories[output.name] = self._pool.lend(piece).toreadonly()
                shared = SharedMemoryData(piece.region.name, piece.start, size)
                output = RequestedOutput(output.name, 0, output.parameters, shared)  # noqa: PLW2901
            outputs.append(output)
        return tuple(outputs) if memories else call.outputs

    def _allocated(self, size: int, pieces: list[Piece]) -> Piece | None:
        """Return a piece that the server may access, and add it; None for none."""
        piece = self._pool.allocate(size)
        if piece is None:
            return None
        piece.acquire()
        if piece.region not in self._registered:
            piece.release()
            return None
        pieces.append(piece)
        return piece

    # -- regions at the server

    def identify(self) -> None:
        """Note that the server has started, and what it is: it gets no region before that."""
        server = self._server()
        if server is None or self._is_closed:
            return
        obstacle = _obstacle(server)
        self._may_have_regions = not obstacle
        self._retry_at = 0.0  # what one has refused, the next may accept
        self._fixed_outputs.forget(None)  # its models may be others
        if obstacle:
            self.reason = obstacle

    def _forget(self, forgets: int) -> None:
        """Note that the server has no region of this process: it was started anew.

        Args:
            forgets: How often that was noted before the call that found it out.
        """
        if forgets != self._forgets:
            return  # another call has met the same restart
        now = self._clock()
        self._forgets += 1
        self._forgotten_at.append(now)
        for region in self._registered:
            region.servers -= 1
        self._registered.clear()
        self._fixed_outputs.forget(None)  # its models may be others
        if len(self._forgotten_at) > _FORGETS and now - self._forgotten_at[0] < _RETRY_S:
            self._off("the server forgets its regions; several servers may have its address")
        else:
            self._start_registration()

    def _start_registration(self) -> None:
        is_due = self._clock() >= self._retry_at and not self._is_closed
        if is_due and _has_ended(self._registering):
            self._registering = start_background(self._register(), "register regions")

    async def _register(self) -> None:
        """Register all regions of the pool, after another one was made if it is needed."""
        await self._enlarge_pool()
        for region in self._pool.regions:
            if region in self._registered:
                continue
            shared = SharedRegion(name=region.name, key=f"/{region.name}", size_bytes=region.size)
            self._offered = region  # until its registration is known, which a close may prevent
            try:
                await self._questions(SharedRegisterRequest(region=shared))
            except GatewayError as error:
                if isinstance(error, Unavailable | DeadlineExceeded):
                    # It refused nothing: it stops or starts.
                    self._retry_at = self._clock() + _UNAVAILABLE_S
                    return
                # Another endpoint of this process may be the same server.
                if "already in manager" not in error.message:
                    self._offered = None
                    refusal = _without_names(error.message)
                    self._off(f"the server refused a region: {refusal}{_ADVICE}")
                    if not region.servers:
                        self._pool.retire(region)
                        self._pool.collect()
                    return
            region.servers += 1
            self._registered.add(region)
            self._offered = None
        if self._registered and self.reason:
            self.reason = ""
            log.info("large tensors go in shared memory", **self._names)
            await self._remove_strangers()

    async def _enlarge_pool(self) -> None:
        pool = self._pool
        size = pool.region_bytes
        if not pool.needs_region:
            return
        try:
            pool.add(await off_loop(pool.create, size))
        except OSError as error:
            self._off(f"no shared memory of {size} bytes: {error.strerror}")

    def _off(self, reason: str) -> None:
        self._retry_at = self._clock() + _RETRY_S
        if self._registered:
            if reason != self._shortage:
                self._shortage = reason
                log.warning("shared memory stays small", reason=reason, **self._names)
        elif reason != self.reason:
            self.reason = reason
            log.info("large tensors go as bytes", reason=reason, **self._names)

    async def _remove_strangers(self) -> None:
        """Unregister regions of killed processes, whose files are gone."""
        try:
            found = await self._questions(SharedStatusRequest(region="", is_cuda=False))
        except GatewayError:  # only memory is at stake, and the next start or close tries again
            return
        for region in found:
            if is_own(region.name) and not has_file(region.name, self._folder):
                await self._unregister(region.name)

    def _release_retired(self) -> None:
        """Begin to unregister the retired regions, so that the server frees their memory."""
        if _has_ended(self._releasing) and any(region.is_retired for region in self._registered):
            self._releasing = start_background(self._unregister_retired(), "unregister regions")

    async def _unregister_retired(self) -> None:
        pause_s = _RELEASE_S
        while retired := [region for region in self._registered if region.is_retired]:
            self._pool.collect()
            for region in retired:
                # The server refuses while an inference reads it.
                if region.is_idle and await self._unregister(region.name):
                    self._registered.discard(region)
                    region.servers -= 1
            self._pool.collect()
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    async def _unregister(self, name: str) -> bool:
        try:
            await self._questions(SharedUnregisterRequest(region=name, is_cuda=False))
        except GatewayError:
            return False
        return True

    async def close(self) -> None:
        """Unregister all regions, and those of killed processes, as far as the server answers.

        A second call does nothing.
        """
        self._is_closed, self._may_have_regions = True, False
        self._fixed_outputs.close()
        for task in (self._registering, self._releasing):
            if task is not None:
                task.cancel()
        regions, self._registered = self._registered, set()
        offered = regions if self._offered is None else {*regions, self._offered}
        with suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_S):
                await asyncio.gather(*[self._unregister(region.name) for region in offered])
                if offered:
                    # The process that took the place of a killed one may not have met the server.
                    await self._remove_strangers()
        for region in regions:
            region.servers -= 1
        self._pool.collect()


_BYTES: Final = Datatype.BYTES


def _has_ended(task: asyncio.Task[None] | None) -> bool:
    return task is None or task.done()


@accelerated
def has_large_input(call: InferRequest) -> bool:
    """Return whether an input of *call* is worth shared memory."""
    for tensor in call.inputs:
        data = tensor.data
        if type(data) is RawData:
            size = data.view.nbytes
        elif type(data) is StreamedData:
            size = data.size_bytes
        else:
            continue
        if size >= LEAST_BYTES:
            return True
    return False


def _can_change(call: InferRequest) -> bool:
    """Return whether *call* may be written anew."""
    origin = call.context.origin
    return origin is None or (origin.refusal is None and not origin.unknown)


def _is_about_region(error: GatewayError) -> bool:
    return isinstance(error, RegionNotFound) or OWN_PREFIX in error.message


def _without_names(text: str) -> str:
    return _NAME.sub("...", redact(text))


def _obstacle(server: ServerMetadata) -> str:
    """Return why *server* gets no regions; "" for no reason."""
    if server.name != _SERVER:
        return f"the server is {server.name!r}, not a Triton"
    if EXTENSION not in server.extensions:
        return f"the server does not announce the extension {EXTENSION}"
    parts = server.version.split(".")[:2]
    version = tuple([int(part) if part.isdecimal() else 0 for part in parts])
    if version < _LEAST_VERSION:
        wanted = ".".join(map(str, _LEAST_VERSION))
        return f"the server is Triton {server.version}, at least {wanted} is needed"
    return ""
